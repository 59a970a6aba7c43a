//! Becoming a program, without a parent that waits until the child has executed it.
//!
//! execve(2) blocks for as long as a file server does not answer. Meanwhile the lock can be lost and signals
//! can come. So nobody waits for it, and whether there was a command is found out when the child is reaped.

use std::convert::Infallible;
use std::ffi::CString;
use std::fmt;
use std::io;
use std::iter;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd::{execve, execvpe, pipe2, read, write};

use crate::cli::CommandLine;
use crate::cli::environment::{self, Variable};
use crate::system::fork::exit_now;
use crate::system::signals;

/// Becomes the program, with `variables` set in the environment, unless `check` fails at the last moment before
/// execve(2). Returns only with an error. To be called in a fork of a process with one thread.
pub fn execute(
    line: &CommandLine,
    variables: &[Variable],
    check: impl Fn() -> io::Result<()>,
) -> io::Result<Infallible> {
    let (words, environment) = image(line, variables)?;
    let found = line.found.as_ref().and_then(|found| CString::new(found.as_os_str().as_bytes()).ok());
    check()?;
    signals::restore();
    if let Some(found) = &found {
        // Only a failure returns. Then execvpe(3) searches anew, and its error says why.
        let _ = execve(found, &words, &environment);
    }
    Ok(execvpe(&words[0], &words, &environment)?)
}

/// The words and the environment of a program.
pub fn image(line: &CommandLine, variables: &[Variable]) -> io::Result<(Vec<CString>, Vec<CString>)> {
    let words = iter::once(&line.program).chain(&line.args).map(|word| CString::new(word.as_bytes()));
    Ok((words.collect::<Result<_, _>>()?, environment::inherited_with(variables)))
}

/// The system refuses a call that the guard, or the command's process before it is the command, cannot do without. That is not
/// the program's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedCall {
    /// Such a call fails.
    Fails(Errno),
    /// A filter has killed the guard for one (seccomp(2)).
    Kills,
}

impl fmt::Display for RefusedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fails(errno) => write!(
                f,
                "the system refuses what lock-guard needs (setpgid, PR_SET_PDEATHSIG, timer_create, F_SETSIG of fcntl): {}",
                io::Error::from(*errno)
            ),
            Self::Kills => f.write_str(
                "a seccomp filter killed lock-guard (SIGSYS); it must refuse system calls by an error \
                 (SystemCallErrorNumber=EPERM of systemd)",
            ),
        }
    }
}

impl std::error::Error for RefusedCall {}

/// Where the supervisor reads why a program was not executed.
#[derive(Debug)]
pub struct FailurePipe(OwnedFd);

/// The end of a [`FailurePipe`] for the process that is to execute the program.
#[derive(Debug)]
pub struct FailureReport(OwnedFd);

impl FailurePipe {
    /// Both ends of a pipe. Fails if there are no descriptors left.
    pub fn pipe() -> nix::Result<(Self, FailureReport)> {
        let (reads, writes) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        Ok((Self(reads), FailureReport(writes)))
    }

    /// Why there was no program, once the child has ended. See [`unstarted`](super::unstarted).
    pub fn read(&self) -> Option<io::Error> {
        let mut message = [0; size_of::<i32>()];
        // execve(2) closes the write end without a message. So does SIGKILL before execve(2); that counts as
        // a command that was killed.
        let is_whole = read(&self.0, &mut message) == Ok(message.len());
        is_whole.then(|| match i32::from_ne_bytes(message) {
            refused @ ..0 => io::Error::other(RefusedCall::Fails(Errno::from_raw(-refused))),
            errno => io::Error::from_raw_os_error(errno),
        })
    }
}

impl FailureReport {
    pub fn exit(&self, error: &io::Error) -> ! {
        self.send(error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// The system refuses a call; see [`RefusedCall`].
    pub fn refused(&self, errno: Errno) -> ! {
        self.send(-(errno as i32))
    }

    fn send(&self, number: i32) -> ! {
        // It does not matter if the reader has died.
        let _ = write(&self.0, &number.to_ne_bytes());
        exit_now(127)
    }
}
