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
//!
//! A borrower whose zklock and guard are killed closes the pipe as well, and what has left the group of its command goes
//! on. So it leaves a pledge in the pipe, one byte, before its command can start, and takes it out when nothing of that
//! is left that needs the locks. If the pipe hangs up with a pledge in it, the lender leaves nothing behind.
//!
//! When the lease is over, the lender's guard is dead. If it had no time to kill what is below it, the kernel has killed the
//! command's process group, and a borrower may not be in that. So the guard has a second pipe that tells of its death: the
//! lifeline. The kernel kills what the borrower runs when the lifeline hangs up.
//!
//! What borrows from `zklock hold` is not below the guard, but below the process that the lock is held for. So there both
//! pipes belong to the process that stands in for the command ([`crate::hold`]), which dies with the lease as well.

use std::cell::RefCell;
use std::fs::{self, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::fstat;
use nix::unistd::{pipe2, read, write};

use crate::descendants;
use crate::rules::lender::{self, Lender, Offer};
use crate::rules::loans::{self, End, Loans, Pipes, Processes, Unknown, Unlent};

/// The lender's side.
#[derive(Debug)]
pub struct Lending {
    reads: OwnedFd,
    /// `None` once nothing more is lent.
    writes: RefCell<Option<OwnedFd>>,
    lender: Lender,
    descriptor: u32,
    inode: u64,
}

impl Lending {
    /// This run lends from now on. No process but this one, or one that stands in for a command, may keep a copy of the
    /// write end: a fork that does not execute a program has to close it.
    pub fn begin() -> io::Result<Self> {
        let (reads, writes) = pipe2(OFlag::O_CLOEXEC)?;
        let (descriptor, inode) = numbers(&writes)?;
        Ok(Self { reads, writes: RefCell::new(Some(writes)), lender: own()?, descriptor, inode })
    }

    /// The descriptor by which a program that this process executes goes on lending in its place.
    pub fn pass_on(&self) -> io::Result<RawFd> {
        let writes = self.writes.borrow();
        let writes = writes.as_ref().ok_or(Errno::EBADF)?;
        fcntl(writes, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok(writes.as_raw_fd())
    }

    /// The same for that program.
    pub fn passed_on(descriptor: RawFd) -> io::Result<Self> {
        let reads = OpenOptions::new().read(true).open(format!("/proc/self/fd/{descriptor}"))?.into();
        #[expect(unsafe_code, reason = "the descriptor was inherited")]
        // SAFETY: it was opened for us, and nothing else in this process uses it.
        let writes = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let (descriptor, inode) = numbers(&writes)?;
        Ok(Self { reads, writes: RefCell::new(Some(writes)), lender: own()?, descriptor, inode })
    }

    /// What the processes below `root` are to be told, which may borrow the locks of this run.
    pub fn offer(&self, root: Lender, lifeline: Option<lender::Lifeline>) -> Offer {
        let Self { lender, descriptor, inode, .. } = *self;
        Offer { lender, root, descriptor, inode, lifeline }
    }

    /// From now on nothing more is lent. Returns whether all is over: no run below may use our locks.
    pub fn end(&self) -> bool {
        self.writes.take();
        self.is_over()
    }

    /// Whether nothing more is lent, and no run below may use our locks any more.
    pub fn is_over(&self) -> bool {
        hangs_up(self.reads.as_fd())
    }

    /// Whether a run below has died that used our locks, and has not seen the end of its command. Once all is over.
    pub fn has_pledge(&self) -> bool {
        has(self.reads.as_fd(), PollFlags::POLLIN)
    }
}

/// Whether a pipe hangs up: no process has its write end.
pub fn hangs_up(reads: BorrowedFd<'_>) -> bool {
    has(reads, PollFlags::POLLHUP)
}

fn has(reads: BorrowedFd<'_>, event: PollFlags) -> bool {
    let mut fds = [PollFd::new(reads, event)];
    let polled = poll(&mut fds, PollTimeout::ZERO);
    polled.is_ok() && fds[0].revents().is_some_and(|events| events.contains(event))
}

/// The pipe of a process that does not outlive the lease. It hangs up when that process ends.
#[derive(Debug)]
pub struct Lifeline {
    writes: OwnedFd,
    inode: u64,
}

impl Lifeline {
    /// No process but this one may keep a copy of it.
    pub fn new() -> io::Result<Self> {
        // Each borrower opens a read end of its own.
        let (_, writes) = pipe2(OFlag::O_CLOEXEC)?;
        let (_, inode) = numbers(&writes)?;
        Ok(Self { writes, inode })
    }

    /// What a borrower finds it by, if it is this process that has it.
    pub fn of(&self, process: Lender) -> lender::Lifeline {
        lender::Lifeline { process, descriptor: self.writes.as_raw_fd().cast_unsigned(), inode: self.inode }
    }
}

impl AsRawFd for Lifeline {
    fn as_raw_fd(&self) -> RawFd {
        self.writes.as_raw_fd()
    }
}

/// What another process finds a pipe of ours by.
fn numbers(pipe: &OwnedFd) -> io::Result<(u32, u64)> {
    let inode = fstat(pipe)?.st_ino;
    Ok((pipe.as_raw_fd().cast_unsigned(), inode))
}

/// This process.
pub fn own() -> io::Result<Lender> {
    process(std::process::id())
}

/// The process with this number.
pub fn process(pid: u32) -> io::Result<Lender> {
    let started = descendants::started(pid)?.ok_or(io::ErrorKind::NotFound)?;
    Ok(Lender { pid, started })
}

/// What hangs up when [`Lending::is_over`]. No event has to be asked for: poll(2) always reports POLLHUP.
impl AsFd for Lending {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reads.as_fd()
    }
}

/// The borrower's side: what other runs offer us.
#[derive(Debug)]
pub struct Borrowing(loans::Borrowing<OwnedFd>);

impl Borrowing {
    /// Nothing is borrowed yet.
    pub fn new(offers: &[Offer]) -> Self {
        Self(loans::Borrowing::new(offers))
    }

    /// Borrows from each run that still lends, keeps what is borrowed already, and gives back what is lost.
    pub fn borrow(&mut self) {
        self.0.borrow(&Proc);
    }

    /// Gives everything back. In a fork, this closes the copies of the fork.
    pub fn give_back(&mut self) {
        self.0.give_back();
    }

    /// Gives back what is not borrowed from these. Returns whether that was anything.
    pub fn keep(&mut self, lenders: &[Lender]) -> bool {
        self.0.keep(lenders)
    }

    /// A command is about to run under what is borrowed. An error: there is no room for a pledge.
    pub fn pledge(&self) -> io::Result<()> {
        if self.0.pledge(&Proc) { Ok(()) } else { Err(Errno::ENOBUFS.into()) }
    }

    /// Nothing is left of that command that needs the locks.
    pub fn redeem(&self) {
        self.0.redeem(&Proc);
    }

    /// The pipes that hang up when a lock that we use may be lost.
    pub fn lifelines(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.lifelines().map(AsFd::as_fd)
    }

    /// Whether a lock that we use may be lost, because the process that it hangs on has died.
    pub fn is_lost(&self) -> bool {
        self.0.is_lost(&Proc)
    }

    /// The descriptors that a process must keep open for as long as the locks may be used.
    pub fn descriptors(&self) -> Vec<RawFd> {
        self.0.pipes().map(AsRawFd::as_raw_fd).collect()
    }

    /// Those of them that have a pledge while a command runs.
    pub fn pledges(&self) -> Vec<RawFd> {
        self.0.pledges().map(AsRawFd::as_raw_fd).collect()
    }

    /// What is borrowed now, for a process that does not keep it open itself.
    pub fn loans(&self) -> Loans {
        self.0.loans()
    }
}

/// Pipes and processes as /proc shows them.
#[derive(Clone, Copy, Debug)]
pub struct Proc;

impl Pipes for Proc {
    type Pipe = OwnedFd;

    fn open_to_write(&self, end: End) -> Result<OwnedFd, Unlent> {
        // To read as well: that takes the pledge out again.
        let opened = open(end, libc::O_RDWR);
        log::debug!("lender {}: {opened:?}", end.process.pid);
        opened
    }

    fn open_to_read(&self, end: End) -> Result<OwnedFd, Unlent> {
        open(end, libc::O_RDONLY)
    }

    fn hangs_up(&self, pipe: &OwnedFd) -> bool {
        hangs_up(pipe.as_fd())
    }

    fn pledge(&self, pipe: &OwnedFd) -> bool {
        write(pipe, &[0]).is_ok()
    }

    fn redeem(&self, pipe: &OwnedFd) {
        redeem(pipe.as_fd());
    }
}

/// Takes a pledge out of a pipe. There is one, so this does not wait.
pub fn redeem(pipe: BorrowedFd<'_>) {
    let _ = read(pipe, &mut [0]);
}

impl Processes for Proc {
    fn lives(&self, process: Lender) -> Result<bool, Unknown> {
        lives(process).map_err(|_| Unknown)
    }

    fn is_above(&self, ancestor: u32, pid: u32) -> Result<bool, Unknown> {
        descendants::is_above(ancestor, pid).map_err(|_| Unknown)
    }
}

/// Opens the pipe of another process once more, unless that process has closed it meanwhile.
fn open(end: End, access: i32) -> Result<OwnedFd, Unlent> {
    let End { process, descriptor, inode } = end;
    let path = format!("/proc/{}/fd/{descriptor}", process.pid);
    // The first look keeps us from opening what belongs to another process by now.
    look(&path, process, inode)?;
    let opened = OpenOptions::new().read(true).write(access == libc::O_RDWR).custom_flags(libc::O_NONBLOCK).open(&path);
    let pipe = opened.map_err(|error| unlent(&error))?;
    let opened = pipe.metadata().map_err(|error| unlent(&error))?;
    let there = look(&path, process, inode)?;
    let is_same = (opened.dev(), opened.ino()) == (there.dev(), there.ino());
    if is_same { Ok(pipe.into()) } else { Err(Unlent::Over) }
}

/// Looks whether a process has its pipe there.
fn look(path: &str, process: Lender, inode: u64) -> Result<Metadata, Unlent> {
    let there = fs::metadata(path).map_err(|error| unlent(&error))?;
    let started = descendants::started(process.pid).map_err(|error| unlent(&error))?;
    let stands = there.file_type().is_fifo() && there.ino() == inode && started == Some(process.started);
    if stands { Ok(there) } else { Err(Unlent::Over) }
}

fn unlent(error: &io::Error) -> Unlent {
    match error.raw_os_error() {
        // The process has gone, or that number is free there.
        Some(libc::ENOENT | libc::ESRCH) => Unlent::Over,
        _ => {
            log::info!("cannot borrow: {error}");
            Unlent::Denied
        }
    }
}

/// Whether this process lives. An error: it may.
pub fn lives(process: Lender) -> io::Result<bool> {
    Ok(descendants::started(process.pid)? == Some(process.started))
}

/// A descriptor that becomes readable when this process ends (pidfd_open(2)). An error of ESRCH means that it has ended; any
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

#[cfg(test)]
mod tests;
