//! What a nested run borrows from the runs above it, and which of them lends it a lock.

use super::card::Card;
use super::lender::{Barrier, Lender, Lifeline, Loan, Offer};

/// Why nothing is borrowed from a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlent {
    /// It has ended, or lends nothing any more, or we want nothing of it.
    Over,
    /// We may not look into its process.
    Denied,
}

/// An end of a pipe that another process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The process.
    pub process: Lender,
    /// Its number there.
    pub descriptor: u32,
    /// The inode of the pipe.
    pub inode: u64,
}

/// Pipes of other processes. [`crate::lending`] has the real ones, and the simulator of the tests others.
pub trait Pipes {
    /// An end that we have opened. It is closed when it is dropped.
    type Pipe;

    /// Opens the write end once more. The process that has it closes it later than this, if at all.
    fn open_to_write(&self, end: End) -> Result<Self::Pipe, Unlent>;

    /// Opens a read end of this pipe.
    fn open_to_read(&self, end: End) -> Result<Self::Pipe, Unlent>;

    /// Whether no process has the write end of this pipe.
    fn hangs_up(&self, pipe: &Self::Pipe) -> bool;

    /// Puts a pledge into a pipe whose write end we have. Returns false if there is no room.
    fn pledge(&self, pipe: &Self::Pipe) -> bool;

    /// Takes a pledge out again.
    fn redeem(&self, pipe: &Self::Pipe);
}

/// Something about other processes cannot be found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown;

/// Other processes. [`crate::lending`] has the real ones, and the simulator of the tests others.
pub trait Processes {
    /// Whether this process lives.
    fn lives(&self, process: Lender) -> Result<bool, Unknown>;

    /// Whether the process `ancestor` is above the process `pid`.
    fn is_above(&self, ancestor: u32, pid: u32) -> Result<bool, Unknown>;
}

/// The borrower's side: what other runs offer us.
#[derive(Debug)]
pub struct Borrowing<P> {
    offers: Vec<(Offer, Result<Borrowed<P>, Unlent>)>,
}

/// What is open for as long as we use the locks of another run.
#[derive(Debug)]
struct Borrowed<P> {
    pipe: P,
    /// Hangs up when the lock may be lost.
    lifeline: Option<P>,
}

impl<P> Borrowed<P> {
    fn is_lost(&self, pipes: &impl Pipes<Pipe = P>) -> bool {
        self.lifeline.as_ref().is_some_and(|lifeline| pipes.hangs_up(lifeline))
    }
}

impl<P> Borrowing<P> {
    /// Nothing is borrowed yet.
    pub fn new(offers: &[Offer]) -> Self {
        Self { offers: offers.iter().map(|offer| (*offer, Err(Unlent::Over))).collect() }
    }

    /// Borrows from each run that still lends, keeps what is borrowed already, and gives back what is lost.
    pub fn borrow(&mut self, pipes: &impl Pipes<Pipe = P>) {
        for (offer, borrowed) in &mut self.offers {
            if borrowed.as_ref().is_ok_and(|borrowed| borrowed.is_lost(pipes)) {
                // Its keeper waits until we have closed the pipe.
                *borrowed = Err(Unlent::Over);
            } else if borrowed.is_err() {
                *borrowed = borrow(offer, pipes);
            }
        }
    }

    /// Gives everything back. In a fork, this closes the copies of the fork.
    pub fn give_back(&mut self) {
        for (_, borrowed) in &mut self.offers {
            *borrowed = Err(Unlent::Over);
        }
    }

    /// Gives back what is not borrowed from these. Returns whether that was anything.
    pub fn keep(&mut self, lenders: &[Lender]) -> bool {
        let mut gives_back = false;
        for (_, borrowed) in self.offers.iter_mut().filter(|(offer, _)| !lenders.contains(&offer.source())) {
            gives_back |= borrowed.is_ok();
            *borrowed = Err(Unlent::Over);
        }
        gives_back
    }

    /// The pipes that hang up when a lock that we use may be lost.
    pub fn lifelines(&self) -> impl Iterator<Item = &P> {
        self.borrowed().filter_map(|borrowed| borrowed.lifeline.as_ref())
    }

    /// The pipes that must be open for as long as the locks may be used.
    pub fn pipes(&self) -> impl Iterator<Item = &P> {
        self.borrowed().map(|borrowed| &borrowed.pipe)
    }

    /// The pipes for pledges. What borrows from `zklock hold` is not below its guard, so a pledge would tell it nothing
    /// that it could act upon.
    pub fn pledges(&self) -> impl Iterator<Item = &P> {
        let below = self.offers.iter().filter(|(offer, _)| offer.stand_in().is_none());
        below.filter_map(|(_, borrowed)| borrowed.as_ref().ok()).map(|borrowed| &borrowed.pipe)
    }

    /// A command is about to run under what is borrowed: each lender is to know if we die without having seen the end
    /// of it. Returns false, with nothing pledged, if there is no room.
    pub fn pledge(&self, pipes: &impl Pipes<Pipe = P>) -> bool {
        let pledged = self.pledges().take_while(|pipe| pipes.pledge(pipe)).count();
        if pledged == self.pledges().count() {
            return true;
        }
        self.pledges().take(pledged).for_each(|pipe| pipes.redeem(pipe));
        false
    }

    /// Nothing is left of that command that needs the locks.
    pub fn redeem(&self, pipes: &impl Pipes<Pipe = P>) {
        self.pledges().for_each(|pipe| pipes.redeem(pipe));
    }

    /// Whether a lock that we use may be lost, because the process that it hangs on has died.
    pub fn is_lost(&self, pipes: &impl Pipes<Pipe = P>) -> bool {
        self.borrowed().any(|borrowed| borrowed.is_lost(pipes))
    }

    fn borrowed(&self) -> impl Iterator<Item = &Borrowed<P>> {
        self.offers.iter().filter_map(|(_, borrowed)| borrowed.as_ref().ok())
    }

    /// What is borrowed now, for a process that does not keep it open itself.
    pub fn loans(&self) -> Loans {
        let loan = |(offer, borrowed): &(Offer, Result<Borrowed<P>, Unlent>)| {
            (*offer, borrowed.as_ref().map(|_| ()).map_err(|unlent| *unlent))
        };
        Loans { offers: self.offers.iter().map(loan).collect() }
    }
}

fn borrow<T: Pipes>(offer: &Offer, pipes: &T) -> Result<Borrowed<T::Pipe>, Unlent> {
    let Offer { descriptor, inode, .. } = *offer;
    let pipe = pipes.open_to_write(End { process: offer.source(), descriptor, inode })?;
    let lifeline = match offer.lifeline {
        None => None,
        Some(Lifeline { process, descriptor, inode }) => {
            let lifeline = pipes.open_to_read(End { process, descriptor, inode })?;
            if pipes.hangs_up(&lifeline) {
                return Err(Unlent::Over);
            }
            Some(lifeline)
        }
    };
    Ok(Borrowed { pipe, lifeline })
}

/// What a supervisor has borrowed, as its keeper knows it.
#[derive(Clone, Debug)]
pub struct Loans {
    offers: Vec<(Offer, Result<(), Unlent>)>,
}

impl Loans {
    /// Nothing is lent any more but by these.
    pub fn keep(&mut self, lenders: &[Lender]) {
        for (_, loan) in self.offers.iter_mut().filter(|(offer, _)| !lenders.contains(&offer.source())) {
            *loan = Err(Unlent::Over);
        }
    }

    /// Whether a holder lends its lock to the run of this supervisor. `holder` is its card, `own` that of the
    /// run. Host names say nothing: containers have copies of them, or all have different ones.
    pub fn judge(&self, holder: &Card, own: &Card, supervisor: u32, processes: &impl Processes) -> Loan {
        let Some(pid) = holder.pid else { return Loan::Stranger };
        // One of us has no /proc, so it may be above us.
        if own.pid_ns.is_none() || holder.pid_ns.is_none() {
            return Loan::OutOfReach(Barrier::NoProc);
        }
        let Some(started) = holder.started else { return Loan::Stranger };
        if holder.boot_id != own.boot_id {
            // What /proc does not show us may be the same.
            return if own.boot_id.is_some() { Loan::Stranger } else { Loan::OutOfReach(Barrier::NoProc) };
        }
        // Where the time of the start cannot be compared, a run above us would pass for a stranger.
        let counts_otherwise = holder.time_ns.zip(own.time_ns).is_some_and(|(theirs, ours)| theirs != ours);
        if holder.pid_ns != own.pid_ns || counts_otherwise {
            return Loan::OutOfReach(Barrier::Foreign);
        }
        let lender = Lender { pid, started };
        let offer = self.offers.iter().find(|(offer, _)| offer.lender == lender);
        let root = match offer {
            // It holds the lock for this process, and is not above us itself.
            Some((offer, _)) if offer.stand_in().is_some() => offer.root,
            Some(_) | None => lender,
        };
        // The caller of `zklock hold` may have become us (execve(2)).
        let is_caller = root != lender && root.pid == supervisor;
        // What cannot be found out may be so: to wait for a run above us would be to wait for ever.
        match if is_caller { processes.lives(root) } else { is_above(root, supervisor, processes) } {
            Ok(true) => {}
            Ok(false) => return Loan::Stranger,
            Err(Unknown) => return Loan::OutOfReach(Barrier::Foreign),
        }
        match offer {
            Some((offer, Ok(()))) => match offer.stand_in() {
                Some(stand_in) => match processes.lives(stand_in) {
                    Ok(true) => Loan::Lent(stand_in),
                    Ok(false) => Loan::Over,
                    Err(Unknown) => Loan::OutOfReach(Barrier::Foreign),
                },
                None => match processes.is_above(offer.root.pid, supervisor) {
                    Ok(true) => Loan::Lent(lender),
                    // The command does not wait for us.
                    Ok(false) => Loan::Stranger,
                    Err(Unknown) => Loan::OutOfReach(Barrier::Foreign),
                },
            },
            Some((_, Err(Unlent::Over))) => Loan::Over,
            Some((_, Err(Unlent::Denied))) => Loan::OutOfReach(Barrier::Foreign),
            None => Loan::OutOfReach(Barrier::NoOffer),
        }
    }
}

/// Whether this run is above the process `pid`, and lives. An error: it may be so.
fn is_above(lender: Lender, pid: u32, processes: &impl Processes) -> Result<bool, Unknown> {
    // Before the search, because a process that /proc hides is found by its number alone.
    if !processes.lives(lender)? || !processes.is_above(lender.pid, pid)? {
        return Ok(false);
    }
    // If the process still is that run, it was so during the search.
    processes.lives(lender)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pipes that may not be opened, and processes of which only some can be seen.
    struct Hidden {
        can_be_seen: bool,
    }

    impl Pipes for Hidden {
        type Pipe = ();

        fn open_to_write(&self, _: End) -> Result<(), Unlent> {
            Err(Unlent::Denied)
        }

        fn open_to_read(&self, _: End) -> Result<(), Unlent> {
            Err(Unlent::Denied)
        }

        fn hangs_up(&self, _: &()) -> bool {
            false
        }

        fn pledge(&self, _: &()) -> bool {
            false
        }

        fn redeem(&self, _: &()) {}
    }

    impl Processes for Hidden {
        fn lives(&self, _: Lender) -> Result<bool, Unknown> {
            if self.can_be_seen { Ok(true) } else { Err(Unknown) }
        }

        fn is_above(&self, _: u32, _: u32) -> Result<bool, Unknown> {
            self.lives(Lender { pid: 1, started: 1 })
        }
    }

    #[test]
    fn what_cannot_be_found_out_may_be_above_us() {
        let [lender, root] = [7, 8].map(|pid| Lender { pid, started: 1 });
        let offer = Offer { lender, root, descriptor: 5, inode: 6, lifeline: None };
        let own = Card { pid_ns: Some(4), ..Card::default() };
        let holder = Card { pid: Some(7), started: Some(1), ..own.clone() };
        for can_be_seen in [true, false] {
            let hidden = Hidden { can_be_seen };
            let mut borrowing = Borrowing::new(&[offer]);
            borrowing.borrow(&hidden);
            let loan = borrowing.loans().judge(&holder, &own, 9, &hidden);
            assert_eq!(loan, Loan::OutOfReach(Barrier::Foreign));
        }
    }
}
