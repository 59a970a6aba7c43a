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

/// A call that the process of a command cannot do without before it is the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A process group of its own.
    Group,
    /// The end with the guard.
    ParentDeath,
    /// A timer, or a signal at the end of a pipe, for the guard.
    Guard,
}

const CALLS: [Call; 3] = [Call::Group, Call::ParentDeath, Call::Guard];

/// The system refuses a call. That is not the program's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedCall {
    /// Such a call fails.
    Fails(Call, Errno),
    /// A filter has killed the guard for one (seccomp(2)).
    Kills,
}

impl fmt::Display for RefusedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (call, errno) = match self {
            Self::Fails(call, errno) => (call, *errno),
            Self::Kills => {
                return f.write_str(
                    "a seccomp filter killed lock-guard (SIGSYS); it must refuse system calls by an error \
                     (SystemCallErrorNumber=EPERM of systemd)",
                );
            }
        };
        let call = match call {
            Call::Group => "setpgid",
            Call::ParentDeath => "prctl(PR_SET_PDEATHSIG)",
            Call::Guard => "what lock-guard needs (timer_create, F_SETSIG of fcntl)",
        };
        write!(f, "the system refuses {call}: {}", io::Error::from(errno))
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
        let mut message = [0; size_of::<[i32; 2]>()];
        // execve(2) closes the write end without a message. So does SIGKILL before execve(2); that counts as
        // a command that was killed.
        let length = read(&self.0, &mut message).unwrap_or(0);
        let numbers = message.split_first_chunk().filter(|_| length == message.len());
        let (errno, call) = numbers.map(|(errno, call)| (i32::from_ne_bytes(*errno), call))?;
        let refused = CALLS.into_iter().find(|known| to_number(Some(*known)).to_ne_bytes() == *call);
        Some(match refused {
            Some(call) => io::Error::other(RefusedCall::Fails(call, Errno::from_raw(errno))),
            None => io::Error::from_raw_os_error(errno),
        })
    }
}

impl FailureReport {
    pub fn exit(&self, error: &io::Error) -> ! {
        self.tell(error.raw_os_error().unwrap_or(libc::EIO), None)
    }

    pub fn refused(&self, call: Call, errno: Errno) -> ! {
        self.tell(errno as i32, Some(call))
    }

    fn tell(&self, errno: i32, call: Option<Call>) -> ! {
        // It does not matter if the reader has died.
        let _ = write(&self.0, &[errno.to_ne_bytes(), to_number(call).to_ne_bytes()].concat());
        exit_now(127)
    }
}

/// 0 stands for no call.
fn to_number(call: Option<Call>) -> i32 {
    call.map_or(0, |call| call as i32 + 1)
}
