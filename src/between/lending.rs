//! A run lends its locks to the runs below its command. If such a nested run waited for them instead, it would
//! wait for itself.
//!
//! The lender has a page that shows its lease and what it lends ([`super::page`]), and the write end of a pipe. It tells its
//! command where both are ([`Offer`]). A borrower opens the page and a read end of the pipe through /proc, and keeps the read
//! end open for as long as it may use the locks.
//!
//! - The lender sees an error at its end (POLLERR) as long as nobody has a read end: nobody borrows.
//! - The borrower sees the pipe hang up when the lender has died, in whatever way. A lender that loses the lock while it
//!   lives puts a byte into the pipe, which nobody reads. In both cases, and at the end of the lease, the borrower's guard
//!   kills.
//!
//! When its command has ended, a lender lends nothing more. A borrower may be opening the pipe at that moment. So the lender
//! has its write end twice. It closes the copy that borrowers find, the door, and then looks whether anybody borrows. The
//! borrower opens the pipe, and then looks whether the door is still there. One of the two sees the other.
//!
//! The supervisor is the lender. The borrowers of a `zklock hold` are not below its guard. So its keeper has a copy of the
//! write end: when the supervisor has died, the keeper tells the borrowers, and waits for them.

use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::iter;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::fstat;
use nix::unistd::{geteuid, pipe2, write};

use super::page::{LeaseView, Page};
use crate::rules::loans::{Lent, Processes, Unlent};
use crate::rules::offer::{Barrier, Descriptor, Offer};
use crate::rules::process_identity::ProcessIdentity;
use crate::system::{namespaces, process};

/// What the lender keeps: its end of the pipe, and the file of its page.
#[derive(Debug)]
pub struct Lending {
    writes: OwnedFd,
    /// A copy of `writes` that borrowers find; `None` once nothing more is lent.
    door: RefCell<Option<OwnedFd>>,
    page: File,
    /// Where borrowers find the door and the page.
    places: [Descriptor; 2],
    lender: ProcessIdentity,
}

impl Lending {
    /// This run lends from now on. A fork of it has to close its copies of the pipe, or to execute a program: such a copy
    /// would hide the lender's death from the borrowers.
    pub fn new(page: File) -> io::Result<Self> {
        let (_, writes) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        let door = writes.try_clone()?;
        let descriptor = |fd: BorrowedFd<'_>| {
            Ok::<_, io::Error>(Descriptor { number: fd.as_raw_fd().cast_unsigned(), inode: fstat(fd)?.st_ino })
        };
        let places = [descriptor(door.as_fd())?, descriptor(page.as_fd())?];
        Ok(Self { writes, door: RefCell::new(Some(door)), page, places, lender: process(std::process::id())? })
    }

    /// This run, as its supervisor.
    pub fn lender(&self) -> ProcessIdentity {
        self.lender
    }

    /// Lends `lent` to the process `root` and those below it. Returns what zklock tells them in a variable.
    pub fn offer(&self, root: ProcessIdentity, lent: &Lent) -> io::Result<Offer> {
        Page::publish(&self.page, lent)?;
        let [pipe, page] = self.places;
        Ok(Offer { lender: self.lender, root, pipe, page })
    }

    /// From now on nothing more is lent.
    pub fn close_door(&self) {
        self.door.take();
    }

    /// The locks are lost: the guards of the borrowers have to kill.
    pub fn call_in(&self) {
        // The door first: no byte goes into a pipe that nobody reads, so a borrower that opens the pipe after this attempt
        // must find the door closed.
        self.close_door();
        let _ = write(&self.writes, &[0]);
    }

    /// Whether nothing more is lent, and no run may use our locks any more.
    pub fn is_over(&self) -> bool {
        self.awaited().is_some_and(|writes| has(writes, PollFlags::empty()))
    }

    /// Once nothing more is lent: the descriptor at which poll(2) reports an error, without being asked for an event, when
    /// no run may use our locks any more.
    pub fn awaited(&self) -> Option<BorrowedFd<'_>> {
        self.door.borrow().is_none().then(|| self.writes.as_fd())
    }

    /// The descriptors of both copies.
    pub fn descriptors(&self) -> Vec<RawFd> {
        iter::once(&self.writes).chain(&*self.door.borrow()).map(AsRawFd::as_raw_fd).collect()
    }
}

/// A run above us that lends us its locks.
#[derive(Debug)]
pub struct Lender {
    pub lease: LeaseView,
    /// A read end of its pipe.
    pub pipe: OwnedFd,
}

impl Lender {
    /// Whether it has died, or has lost its locks.
    pub fn is_lost(&self) -> bool {
        has(self.pipe.as_fd(), PollFlags::POLLIN)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Proc;

impl Processes for Proc {
    type Lender = Lender;

    fn open(&self, offer: Offer) -> Result<(Lent, Lender), Unlent> {
        let opened = open(offer);
        log::debug!("lender {}: {opened:?}", offer.lender.pid);
        let (lease, pipe) = opened.map_err(|error| match error.raw_os_error() {
            // The lender has gone, or has closed the descriptor, or has another file under its number.
            None | Some(libc::ENOENT | libc::ESRCH) => Unlent::Over,
            Some(_) => {
                log::info!("cannot borrow: {error}");
                Unlent::Barred(Barrier::Foreign)
            }
        })?;
        let (lease, lent) = lease.ok_or(Unlent::Barred(Barrier::Version))?;
        let lender = Lender { lease, pipe };
        if lender.is_lost() { Err(Unlent::Barred(Barrier::CalledIn)) } else { Ok((lent, lender)) }
    }

    fn is_above(&self, root: ProcessIdentity, pid: u32) -> Option<bool> {
        // If `root` is the same process before and after the walk, it was so during the walk. It is looked at before as well,
        // because the walk finds a process that /proc hides by its number alone.
        let is_above = || {
            let is_there = lives(root)? && (root.pid == pid || process::is_above(root.pid, pid)?);
            Ok::<_, io::Error>(is_there && lives(root)?)
        };
        is_above().ok()
    }
}

/// Whether poll(2) tells this event of a pipe, or an error or a hang-up.
fn has(pipe: BorrowedFd<'_>, event: PollFlags) -> bool {
    poll(&mut [PollFd::new(pipe, event)], PollTimeout::ZERO).is_ok_and(|count| count > 0)
}

/// Opens a lender's page and a read end of its pipe. An error without a number: the lender has closed its door.
fn open(offer: Offer) -> io::Result<(Option<(LeaseView, Lent)>, OwnedFd)> {
    let pid = offer.lender.pid;
    let path = |descriptor: Descriptor| format!("/proc/{pid}/fd/{}", descriptor.number);
    let stands = || -> io::Result<()> {
        let there = fs::metadata(path(offer.pipe))?;
        let stands = there.file_type().is_fifo() && there.ino() == offer.pipe.inode && lives(offer.lender)?;
        if stands { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    };
    // The first look keeps us from opening what belongs to another process by now.
    stands()?;
    // In another network the names of the servers may stand for other servers.
    let is_foreign = fs::metadata(format!("/proc/{pid}"))?.uid() != geteuid().as_raw()
        || namespaces::network(pid) != namespaces::network(std::process::id());
    if is_foreign {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    let open = |descriptor: Descriptor| -> io::Result<File> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path(descriptor))?;
        if file.metadata()?.ino() == descriptor.inode { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
    };
    let (pipe, page) = (open(offer.pipe)?, open(offer.page)?);
    stands()?;
    Ok((Page::open(&page)?, pipe.into()))
}

pub fn process(pid: u32) -> io::Result<ProcessIdentity> {
    let started = process::started(pid)?.ok_or(io::ErrorKind::NotFound)?;
    Ok(ProcessIdentity { pid, started })
}

/// Whether this process lives. On an error it may live.
pub fn lives(process: ProcessIdentity) -> io::Result<bool> {
    Ok(process::started(process.pid)? == Some(process.started))
}

/// A text that is different at each boot of each machine.
pub fn boot_id() -> Option<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests;
