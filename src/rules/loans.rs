//! What a nested run borrows from the runs above it, and which of them lends it a lock.

use super::card::Card;
use super::offer::{Barrier, Loan, Offer};
use super::process_identity::ProcessIdentity;

/// Why nothing is borrowed from a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlent {
    /// It has ended, or lends nothing any more, or we want nothing of it.
    Over,
    /// We may not look into its process.
    Denied,
}

/// Other processes and their pipes. [`crate::between::lending`] has the real ones, and the simulator of the tests others.
pub trait Processes {
    /// A pipe that we have opened. It is closed when it is dropped.
    type Pipe;

    /// Opens the pipe of a run that lends. If it ends its lending later than this, it knows of us.
    fn open(&self, offer: Offer) -> Result<Self::Pipe, Unlent>;

    /// Whether what we have borrowed by this pipe is lost.
    fn is_lost(&self, pipe: &Self::Pipe) -> bool;

    /// Whether this process lives, and is the process `pid` or above it; `None` if that cannot be found out.
    fn is_above(&self, root: ProcessIdentity, pid: u32) -> Option<bool>;
}

/// The borrower's side: what other runs offer us, and the pipes by which we borrow.
#[derive(Clone, Debug)]
pub struct Borrowing<P> {
    offers: Vec<(Offer, Result<P, Unlent>)>,
}

impl<P> Borrowing<P> {
    pub fn new(offers: &[Offer]) -> Self {
        Self { offers: offers.iter().map(|offer| (*offer, Err(Unlent::Over))).collect() }
    }

    /// Borrows from each run that still lends, keeps what is borrowed already, and gives back what is lost.
    pub fn borrow(&mut self, processes: &impl Processes<Pipe = P>) {
        for (offer, borrowed) in &mut self.offers {
            if !borrowed.as_ref().is_ok_and(|pipe| !processes.is_lost(pipe)) {
                *borrowed = processes.open(*offer);
            }
        }
    }

    /// Gives back what is not borrowed from these. Returns whether that was anything.
    pub fn keep(&mut self, lenders: &[ProcessIdentity]) -> bool {
        let mut gives_back = false;
        for (_, borrowed) in self.offers.iter_mut().filter(|(offer, _)| !lenders.contains(&offer.lender)) {
            gives_back |= borrowed.is_ok();
            *borrowed = Err(Unlent::Over);
        }
        gives_back
    }

    /// What must be open for as long as the locks may be used.
    pub fn pipes(&self) -> impl Iterator<Item = &P> {
        self.offers.iter().filter_map(|(_, borrowed)| borrowed.as_ref().ok())
    }

    /// Whether a lock that we use is lost, or the process that lends it has died.
    pub fn is_lost(&self, processes: &impl Processes<Pipe = P>) -> bool {
        self.pipes().any(|pipe| processes.is_lost(pipe))
    }

    /// What is borrowed now, for a process that has none of the pipes.
    pub fn without_pipes(&self) -> Borrowing<()> {
        let loan = |(offer, borrowed): &(Offer, Result<P, Unlent>)| {
            (*offer, borrowed.as_ref().map(drop).map_err(|unlent| *unlent))
        };
        Borrowing { offers: self.offers.iter().map(loan).collect() }
    }

    /// Whether a holder lends its lock to the run of this supervisor. `holder` is the card in its node, `owner` the session to
    /// which the node belongs, `own` the card of the run. Host names say nothing: containers have copies of them, or all have
    /// different ones. Anybody can copy a card into a node, but not into a node of the lender's session.
    pub fn judge(&self, holder: &Card, owner: i64, own: &Card, supervisor: u32, processes: &impl Processes) -> Loan {
        let Some((pid, started)) = holder.pid.zip(holder.started) else { return Loan::Stranger };
        if own.boot_id.is_some() && holder.boot_id != own.boot_id {
            return Loan::Stranger;
        }
        // Where the time of the start cannot be compared, a run above us would pass for a stranger.
        let counts_otherwise = holder.time_ns.zip(own.time_ns).is_some_and(|(theirs, ours)| theirs != ours);
        if own.boot_id.is_none() || holder.pid_ns != own.pid_ns || counts_otherwise {
            return Loan::OutOfReach(Barrier::Foreign);
        }
        let lender = ProcessIdentity { pid, started };
        let offer = self.offers.iter().find(|(offer, _)| offer.lender == lender);
        if offer.is_some_and(|(offer, _)| offer.session != owner) {
            return Loan::Stranger;
        }
        let root = offer.map_or(lender, |(offer, _)| offer.root);
        // What cannot be found out may be so: to wait for a run above us would be to wait for ever.
        match (processes.is_above(root, supervisor), offer) {
            (Some(false), _) => Loan::Stranger,
            (None, _) | (_, Some((_, Err(Unlent::Denied)))) => Loan::OutOfReach(Barrier::Foreign),
            (_, Some((_, Err(Unlent::Over)))) => Loan::Over,
            (_, Some((_, Ok(_)))) => Loan::Lent(lender),
            (_, None) => Loan::OutOfReach(Barrier::NoOffer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pipes that may not be opened, and processes of which only some can be seen.
    struct Hidden {
        can_be_seen: bool,
    }

    impl Processes for Hidden {
        type Pipe = ();

        fn open(&self, _: Offer) -> Result<(), Unlent> {
            Err(Unlent::Denied)
        }

        fn is_lost(&self, (): &()) -> bool {
            false
        }

        fn is_above(&self, _: ProcessIdentity, _: u32) -> Option<bool> {
            self.can_be_seen.then_some(true)
        }
    }

    #[test]
    fn what_cannot_be_found_out_may_be_above_us() {
        let lender = ProcessIdentity { pid: 7, started: 1 };
        let offer = Offer { lender, root: lender, descriptor: 5, inode: 6, session: 8 };
        let own = Card { pid_ns: Some(4), boot_id: Some("this one".to_owned()), ..Card::default() };
        let holder = Card { pid: Some(7), started: Some(1), ..own.clone() };
        for can_be_seen in [true, false] {
            let hidden = Hidden { can_be_seen };
            let mut borrowing = Borrowing::new(&[offer]);
            borrowing.borrow(&hidden);
            assert_eq!(borrowing.judge(&holder, 8, &own, 9, &hidden), Loan::OutOfReach(Barrier::Foreign));
        }
    }
}
