//! A run lends its locks to the runs below its command. If such a nested run waited for them instead, it would
//! wait for itself.
//!
//! The lender has a pipe, and tells its command where the write end is ([`Offer`]). A borrower opens that end
//! once more, through /proc, and keeps it open for as long as it may use the locks. When the command has ended,
//! the lender closes its own write end. From then on nothing more can be borrowed, and the pipe hangs up as soon
//! as the last borrower has closed it or has died.
//!
//! Between the moment at which a borrower opens the pipe and the close there is no order. So the borrower looks
//! once more whether the lender still has the write end. If it does, it is going to close it later than the
//! borrower opened it, and the pipe does not hang up. If it does not, the lender may have seen the hang-up
//! already: nothing is borrowed.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Pid, pipe2};

use crate::descendants;
use crate::rules::card::Card;
use crate::rules::lender::{Barrier, Lender, Loan, Offer};

/// The lender's side.
#[derive(Debug)]
pub struct Lending {
    reads: OwnedFd,
    /// `None` once nothing more is lent.
    writes: Option<OwnedFd>,
    lender: Lender,
    descriptor: u32,
    inode: u64,
}

impl Lending {
    /// Lends from now on. No process but this one may keep a copy of the write end: a fork that does not
    /// execute a program has to close it.
    pub fn begin() -> io::Result<Self> {
        let (reads, writes) = pipe2(OFlag::O_CLOEXEC)?;
        let pid = std::process::id();
        let started = descendants::started(pid)?.ok_or(io::ErrorKind::NotFound)?;
        let writes = File::from(writes);
        let inode = writes.metadata()?.ino();
        let descriptor = writes.as_raw_fd().cast_unsigned();
        Ok(Self { reads, writes: Some(writes.into()), lender: Lender { pid, started }, descriptor, inode })
    }

    /// What the command below this guard is to be told.
    pub fn offer(&self, guard: Pid) -> Offer {
        let Self { lender, descriptor, inode, .. } = *self;
        Offer { lender, guard: guard.as_raw().cast_unsigned(), descriptor, inode }
    }

    /// From now on nothing more is lent. Returns whether all is over: no run below may use our locks.
    pub fn end(&mut self) -> bool {
        self.writes = None;
        self.is_over()
    }

    /// Whether nothing more is lent, and no run below may use our locks any more.
    pub fn is_over(&self) -> bool {
        let mut fds = [PollFd::new(self.reads.as_fd(), PollFlags::empty())];
        let polled = poll(&mut fds, PollTimeout::ZERO);
        polled.is_ok() && fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
    }
}

/// What hangs up when [`Lending::is_over`]. No event has to be asked for: poll(2) always reports POLLHUP.
impl AsFd for Lending {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reads.as_fd()
    }
}

/// The borrower's side: what the runs above offer us.
#[derive(Debug)]
pub struct Borrowing {
    offers: Vec<(Offer, Result<OwnedFd, Unlent>)>,
}

/// Why nothing is borrowed from a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlent {
    /// It has ended, or lends nothing any more, or we want nothing of it.
    Over,
    /// We may not look into its process.
    Denied,
}

impl Borrowing {
    /// Nothing is borrowed yet.
    pub fn new(offers: &[Offer]) -> Self {
        Self { offers: offers.iter().map(|offer| (*offer, Err(Unlent::Over))).collect() }
    }

    /// Borrows from each run that still lends, and keeps what is borrowed already.
    pub fn borrow(&mut self) {
        for (offer, pipe) in &mut self.offers {
            if pipe.is_err() {
                *pipe = borrow(offer);
                log::debug!("lender {}: {pipe:?}", offer.lender.pid);
            }
        }
    }

    /// Gives everything back. In a fork, this closes the copies of the fork.
    pub fn give_back(&mut self) {
        for (_, pipe) in &mut self.offers {
            *pipe = Err(Unlent::Over);
        }
    }

    /// The descriptors that a process must keep open for as long as the locks may be used.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.offers.iter().filter_map(|(_, pipe)| pipe.as_ref().ok()).map(AsRawFd::as_raw_fd)
    }

    /// What is borrowed now, for a process that does not keep it open itself.
    pub fn loans(&self) -> Loans {
        let loan = |(offer, pipe): &(Offer, Result<OwnedFd, Unlent>)| {
            (offer.lender, offer.guard, pipe.as_ref().map(|_| ()).map_err(|unlent| *unlent))
        };
        Loans { lenders: self.offers.iter().map(loan).collect() }
    }
}

fn borrow(offer: &Offer) -> Result<OwnedFd, Unlent> {
    let path = format!("/proc/{}/fd/{}", offer.lender.pid, offer.descriptor);
    // The first look keeps us from opening what belongs to another process by now.
    look(&path, offer)?;
    let opened = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&path);
    let pipe = opened.map_err(|error| unlent(&error))?;
    let opened = pipe.metadata().map_err(|error| unlent(&error))?;
    let there = look(&path, offer)?;
    let is_same = (opened.dev(), opened.ino()) == (there.dev(), there.ino());
    if is_same { Ok(pipe.into()) } else { Err(Unlent::Over) }
}

/// Looks whether the lender has the write end of its pipe there.
fn look(path: &str, offer: &Offer) -> Result<Metadata, Unlent> {
    let there = fs::metadata(path).map_err(|error| unlent(&error))?;
    let started = descendants::started(offer.lender.pid).map_err(|error| unlent(&error))?;
    let stands = there.file_type().is_fifo() && there.ino() == offer.inode && started == Some(offer.lender.started);
    if stands { Ok(there) } else { Err(Unlent::Over) }
}

fn unlent(error: &io::Error) -> Unlent {
    match error.raw_os_error() {
        // The process has gone, or that number is free there; or the process is just ending, and has closed the
        // read end.
        Some(libc::ENOENT | libc::ESRCH | libc::ENXIO) => Unlent::Over,
        _ => {
            log::info!("cannot borrow: {error}");
            Unlent::Denied
        }
    }
}

/// What a supervisor has borrowed, as its keeper knows it.
#[derive(Clone, Debug)]
pub struct Loans {
    /// Each with its guard.
    lenders: Vec<(Lender, u32, Result<(), Unlent>)>,
}

impl Loans {
    /// Whether a holder lends its lock to the run of this supervisor. `holder` is its card, `own` that of the
    /// run. Host names say nothing: containers have copies of them, or all have different ones.
    pub fn judge(&self, holder: &Card, own: &Card, supervisor: u32) -> Loan {
        let (Some(pid), Some(started)) = (holder.pid, holder.started) else { return Loan::Stranger };
        if holder.boot_id != own.boot_id {
            return Loan::Stranger;
        }
        if holder.pid_ns != own.pid_ns {
            return Loan::OutOfReach(Barrier::Foreign);
        }
        let lender = Lender { pid, started };
        // What cannot be found out may be so: to wait for a run above us would be to wait for ever.
        match is_above(lender, supervisor) {
            Ok(true) => {}
            Ok(false) => return Loan::Stranger,
            Err(_) => return Loan::OutOfReach(Barrier::Foreign),
        }
        match self.lenders.iter().find(|(known, ..)| *known == lender) {
            Some((_, guard, Ok(()))) => match descendants::is_above(*guard, supervisor) {
                Ok(true) => Loan::Lent(lender),
                // The command does not wait for us.
                Ok(false) => Loan::Stranger,
                Err(_) => Loan::OutOfReach(Barrier::Foreign),
            },
            Some((_, _, Err(Unlent::Over))) => Loan::Over,
            Some((_, _, Err(Unlent::Denied))) => Loan::OutOfReach(Barrier::Foreign),
            None => Loan::OutOfReach(Barrier::NoOffer),
        }
    }
}

/// Whether this run is above the process `pid`, and lives. An error: it may be so.
pub fn is_above(lender: Lender, pid: u32) -> io::Result<bool> {
    // Before the search, because a process that /proc hides is found by its number alone.
    if descendants::started(lender.pid)? != Some(lender.started) || !descendants::is_above(lender.pid, pid)? {
        return Ok(false);
    }
    // If the process still is that run, it was so during the search.
    Ok(descendants::started(lender.pid)? == Some(lender.started))
}

/// A descriptor that becomes readable when this run ends (pidfd_open(2)). An error of ESRCH means that it has ended; any
/// other, that this cannot be found out in this way.
pub fn watch(lender: Lender) -> io::Result<OwnedFd> {
    let pid = i32::try_from(lender.pid).map_err(|_| Errno::ESRCH)?;
    let pidfd = descendants::pidfd_open(pid)?;
    // If it is that run after the descriptor was opened, the descriptor is its own.
    if descendants::started(lender.pid)? == Some(lender.started) { Ok(pidfd) } else { Err(Errno::ESRCH.into()) }
}

/// The text that tells one boot of a machine from all others.
pub fn boot_id() -> Option<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned())
}

/// The number of our PID namespace.
pub fn pid_namespace() -> Option<u64> {
    Some(fs::metadata("/proc/self/ns/pid").ok()?.ino())
}

#[cfg(test)]
mod tests;
