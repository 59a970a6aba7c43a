//! `zklock hold`: there is no command. The caller is the process that the lock is held for: the one that has started us, or
//! the one that `--while` names. What stands in for a command is a process of our own ([`StandIn`]): it has passed the gate
//! as a command does, prints the variables that a command would find in its environment, and ends when the lock is to end.
//! So the lease, the guard and the kernel do for it what they do for a command; what borrows the lock hangs on it.
//!
//! Nothing makes the caller end: it is not below the guard. It gets the stop signal when the lock is lost.

mod stand_in;

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{getppid, getsid};

use crate::descendants;
use crate::lending;
use crate::plan;
use crate::rules::lender::Lender;
use crate::rules::signal::Signal;
use crate::signals;

pub use self::stand_in::{StandIn, leave_stdout};

/// What to ask poll(2) for: that the other end is closed, or that of a socket for writing.
const HANG_UP: PollFlags = PollFlags::from_bits_retain(libc::POLLRDHUP);

/// When a lock is to end that is held for another process.
#[derive(Debug)]
enum Until {
    /// The process of `--while` has ended; this descriptor becomes readable then.
    Ended(OwnedFd),
    /// Nothing is left at the other end of standard input.
    HungUp,
    /// Standard input is a terminal: at the end of what is typed there.
    Typed,
    /// Only a signal says so.
    Signal,
    /// The process of `--while` has ended before we looked.
    Now,
}

/// The process that a lock is held for.
#[derive(Debug)]
pub struct Caller {
    until: Until,
    process: Option<Lender>,
    /// Of that process, where the kernel has pidfd_open(2).
    pidfd: Option<OwnedFd>,
    /// Whether it is to be told when the lock is lost, and whether it has been.
    wants_signal: bool,
    is_told: bool,
}

impl Caller {
    /// Finds the process that a lock is to be held for. An error means that we cannot learn when it ends.
    pub fn find(hold: &plan::Hold) -> io::Result<Self> {
        let wants_signal = hold.signals_caller;
        let Some(pid) = hold.lasts_while else {
            let until = of_stdin();
            let (process, pidfd) = parent(&until).map_or((None, None), |(process, pidfd)| (Some(process), pidfd));
            return Ok(Self { until, process, pidfd, wants_signal, is_told: false });
        };
        let end = match descendants::pidfd_open(pid) {
            // The last two: it is a thread of a process.
            Err(error) if !matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EINVAL | libc::ENOENT)) => {
                return Err(error);
            }
            end => end.ok(),
        };
        // In this order: if it lives, the descriptor is its own.
        let process = identify(pid.cast_unsigned())?;
        let (Some(process), Some(end)) = (process, end) else {
            return Ok(Self { until: Until::Now, process: None, pidfd: None, wants_signal, is_told: false });
        };
        let pidfd = Some(end.try_clone()?);
        Ok(Self { until: Until::Ended(end), process: Some(process), pidfd, wants_signal, is_told: false })
    }

    /// What to wait on while the lock is waited for.
    pub fn awaited(&self) -> Option<PollFd<'_>> {
        match &self.until {
            Until::Ended(end) => Some(PollFd::new(end.as_fd(), PollFlags::POLLIN)),
            Until::HungUp | Until::Typed => Some(PollFd::new(stdin(), HANG_UP)),
            Until::Signal | Until::Now => None,
        }
    }

    /// Whether the lock is to end: its process has gone.
    pub fn has_gone(&self) -> bool {
        let is_ready =
            |mut fd: PollFd<'_>| poll(std::slice::from_mut(&mut fd), PollTimeout::ZERO).is_ok() && has_event(&fd);
        matches!(self.until, Until::Now) || self.awaited().is_some_and(is_ready)
    }

    /// The lock is lost: the process is to stop. Returns whether it was told, now or before.
    pub fn signal(&mut self, signal: Signal) -> bool {
        let Some(process) = self.process.filter(|_| self.wants_signal) else { return false };
        if !std::mem::replace(&mut self.is_told, true) {
            log::info!("sending {signal} to process {}", process.pid);
            let sent = match &self.pidfd {
                Some(pidfd) => descendants::pidfd_send_signal(pidfd, signal),
                None if lending::lives(process).unwrap_or(false) => signals::send(process.pid.cast_signed(), signal),
                None => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            };
            if let Err(error) = sent {
                log::info!("process {}: {error}", process.pid);
                self.process = None;
                return false;
            }
        }
        true
    }
}

/// The process that has started us, if the lock is held for it: if standard input ties us to it, and it is in our session.
/// So it is no service manager, no sshd(8) or cron(8), and nothing that adopts orphans. A shell that a person types at
/// sees for itself that we end.
fn parent(until: &Until) -> Option<(Lender, Option<OwnedFd>)> {
    let pid = getppid();
    let session = getsid(None).ok()?;
    let is_tied = match until {
        Until::HungUp => true,
        Until::Typed => session != pid,
        Until::Signal | Until::Ended(_) | Until::Now => false,
    };
    if !is_tied || pid.as_raw() <= 0 || getsid(Some(pid)) != Ok(session) {
        return None;
    }
    let pidfd = descendants::pidfd_open(pid.as_raw()).ok();
    let process = identify(pid.as_raw().cast_unsigned()).ok().flatten()?;
    // If it has ended meanwhile, we have got another parent.
    (getppid() == pid).then_some((process, pidfd))
}

fn identify(pid: u32) -> io::Result<Option<Lender>> {
    Ok(descendants::started(pid)?.map(|started| Lender { pid, started }))
}

/// What standard input says: /dev/null and files have no end that anything could wait for.
fn of_stdin() -> Until {
    if stdin().is_terminal() {
        return Until::Typed;
    }
    let kind = stdin().try_clone_to_owned().and_then(|stdin| File::from(stdin).metadata());
    match kind.map(|metadata| metadata.file_type()) {
        Ok(kind) if kind.is_fifo() || kind.is_socket() => Until::HungUp,
        _ => Until::Signal,
    }
}

/// Whether poll(2) has told anything of this descriptor. `None` stands for events that nix has no name for: a half-closed
/// socket.
fn has_event(fd: &PollFd<'_>) -> bool {
    fd.revents().is_none_or(|events| !events.is_empty())
}

fn stdin() -> BorrowedFd<'static> {
    #[expect(unsafe_code, reason = "standard input may be closed")]
    // SAFETY: the number is valid for fcntl(2) and poll(2) even where nothing is open, and then they fail.
    unsafe {
        BorrowedFd::borrow_raw(libc::STDIN_FILENO)
    }
}
