//! The caller of `zklock hold`: the process that has started us, or the one that `--while` names. The lock is held for it.
//!
//! Nothing makes the caller end: it is not below the guard. It gets the stop signal when the lock is lost. What the guard
//! runs is [`stand_in`].

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use nix::unistd::{dup2_stdout, getpgrp, getppid, getsid, read, tcgetpgrp};

use crate::between::{lending, stand_in};
use crate::cli::{self, CommandLine};
use crate::rules::process_identity::ProcessIdentity;
use crate::rules::signal::Signal;
use crate::system::standard::{null, standard};
use crate::system::{process, signals};

/// How often to look whether we have come to the foreground of a terminal, because no signal tells; and whether a process still
/// lives, where the kernel has no pidfd_open(2) (before Linux 5.3).
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// When a lock is to end that is held for another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    Ended,
    /// Nothing is left at the other end of standard input.
    HungUp,
    /// Standard input is a terminal: at the end of what is typed there.
    Typed,
    /// Only a signal says so.
    Signal,
}

/// The process that a lock is held for.
#[derive(Debug)]
pub(super) struct Caller {
    until: Until,
    /// If it is known. The runs below it may borrow the lock.
    pub(super) process: Option<ProcessIdentity>,
    /// Of `process`, where the kernel has pidfd_open(2).
    pidfd: Option<OwnedFd>,
    /// The terminal, opened anew with `O_NONBLOCK`: Ctrl-C throws away input that poll(2) has just shown. Other processes share
    /// the open file of standard input, which must go on to block.
    typed: Option<OwnedFd>,
    /// Whether it is to be told when the lock is lost, and whether it has been.
    wants_signal: bool,
    is_told: bool,
}

impl Caller {
    /// Finds the process that a lock is to be held for. An error means that we cannot learn when it ends.
    pub(super) fn find(hold: &cli::Hold) -> io::Result<Self> {
        let until = if hold.lasts_while.is_some() { Until::Ended } else { of_stdin() };
        let mut caller =
            Self { until, process: None, pidfd: None, typed: None, wants_signal: hold.signals_caller, is_told: false };
        if until == Until::Typed {
            let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
            caller.typed = nix::fcntl::open("/dev/tty", flags, Mode::empty()).ok();
        }
        if let Some(pid) = hold.lasts_while.or_else(|| parent(until)) {
            let opened = process::pidfd_open(pid).map_err(|error| error.raw_os_error());
            // EINVAL and ENOENT mean that the number is that of a thread, not of a process. Any other error means that the kernel
            // has no such descriptors, or that a filter refuses them.
            let is_process = !matches!(opened, Err(Some(libc::ESRCH | libc::EINVAL | libc::ENOENT)));
            caller.pidfd = opened.ok();
            // In this order: if it lives, the descriptor is its own, and a parent is still ours.
            let started = process::started(pid.cast_unsigned())?;
            let is_it = until == Until::Ended && is_process || getppid().as_raw() == pid;
            caller.process =
                started.filter(|_| is_it).map(|started| ProcessIdentity { pid: pid.cast_unsigned(), started });
        }
        Ok(caller)
    }

    /// What stands in for a command. `stop_signal`: the signal that the supervisor stops a command by.
    pub(super) fn command(&self, stop_signal: Signal) -> CommandLine {
        let mut ending = vec![Signal::HUP];
        if self.until == Until::Typed {
            // Unless a person types at standard input, a script may need the lock to clean up after Ctrl-C.
            ending.extend([Signal::INT, Signal::QUIT]);
        }
        ending.retain(|signal| !signals::is_ignored(signal));
        ending.extend([Signal::TERM, stop_signal]);
        let args =
            std::iter::once(stand_in::NAME.to_owned()).chain(ending.iter().map(|signal| signal.number().to_string()));
        CommandLine {
            program: "zklock".into(),
            args: args.map(Into::into).collect(),
            found: Some("/proc/self/exe".into()),
        }
    }

    /// What poll(2) is to watch for the end of the lock.
    pub(super) fn awaited(&self) -> Option<PollFd<'_>> {
        match self.until {
            Until::Ended => self.pidfd.as_ref().map(|pidfd| PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)),
            // The other end of a socket may be closed for writing alone.
            Until::HungUp => Some(PollFd::new(stdin(), PollFlags::from_bits_retain(libc::POLLRDHUP))),
            Until::Typed if is_in_foreground() => Some(PollFd::new(stdin(), PollFlags::POLLIN)),
            // What is typed is for another. That the terminal has gone is told all the same.
            Until::Typed => Some(PollFd::new(stdin(), PollFlags::empty())),
            Until::Signal => None,
        }
    }

    /// After which time to look again, because nothing tells.
    pub(super) fn look_again(&self) -> Option<Duration> {
        let is_blind = match self.until {
            Until::Ended => self.pidfd.is_none(),
            Until::Typed => !is_in_foreground(),
            Until::HungUp | Until::Signal => false,
        };
        is_blind.then_some(LOOK_AGAIN)
    }

    /// Whether the lock is to end. Reads what was typed.
    pub(super) fn has_gone(&self) -> bool {
        let lives = |process: ProcessIdentity| lending::lives(process).unwrap_or(true);
        let Some(mut fd) = self.awaited() else {
            return self.until == Until::Ended && !self.process.is_some_and(lives);
        };
        let reads = self.until == Until::Typed && fd.events() == PollFlags::POLLIN;
        if !poll(std::slice::from_mut(&mut fd), PollTimeout::ZERO).is_ok_and(|count| count > 0) {
            return false;
        }
        if !reads {
            return true;
        }
        match read(self.typed.as_ref().map_or(stdin(), AsFd::as_fd), &mut [0; 1024]) {
            Ok(count) => count == 0,
            Err(Errno::EINTR | Errno::EAGAIN) => false,
            // Perhaps somebody else has come to the foreground.
            Err(Errno::EIO) => is_in_foreground(),
            Err(_) => true,
        }
    }

    /// The lock is lost: the process is to stop. Returns whether it was told, now or before.
    pub(super) fn signal(&mut self, signal: Signal) -> bool {
        let Some(process) = self.process.filter(|_| self.wants_signal) else { return false };
        if !std::mem::replace(&mut self.is_told, true) {
            log::info!("sending {signal} to process {}", process.pid);
            let sent = match &self.pidfd {
                Some(pidfd) => process::pidfd_send_signal(pidfd.as_fd(), signal).map_err(Into::into),
                None if lending::lives(process).unwrap_or(false) => signals::send(process.pid.cast_signed(), signal),
                None => Err(Errno::ESRCH.into()),
            };
            if let Err(error) = sent {
                log::info!("process {}: {error}", process.pid);
                self.process = None;
            }
        }
        self.process.is_some()
    }
}

/// The process that has started us, if the lock is held for it: if standard input ties us to it, and it is in our session.
/// So it is no service manager, no sshd(8) or cron(8), and nothing that adopts orphans. A shell that a person types at
/// sees for itself that we end.
fn parent(until: Until) -> Option<i32> {
    let (pid, session) = (getppid(), getsid(None).ok()?);
    let is_tied = until == Until::HungUp || until == Until::Typed && session != pid;
    let is_near = pid.as_raw() > 0 && getsid(Some(pid)) == Ok(session);
    (is_tied && is_near).then_some(pid.as_raw())
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

fn is_in_foreground() -> bool {
    tcgetpgrp(stdin()) == Ok(getpgrp())
}

fn stdin() -> BorrowedFd<'static> {
    standard(libc::STDIN_FILENO)
}

/// From now on only the stand-in has standard output. So a reader of it sees the end when the stand-in closes it.
pub(super) fn leave_stdout() -> nix::Result<()> {
    dup2_stdout(null()?)
}
