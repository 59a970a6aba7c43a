//! The command: find its program, become it, tell how it ended.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::unistd::{AccessFlags, faccessat};

use crate::rules::event::{CommandEnd, Unstarted};
use crate::rules::signal::Signal;

pub use start::{FailurePipe, FailureReport, RefusedCall, execute, image};

mod start;

/// The guard has gone, or could not make what it needs.
const NO_GUARD: [Errno; 8] = [
    Errno::ESRCH,
    Errno::EAGAIN,
    Errno::ENOMEM,
    Errno::ENOBUFS,
    Errno::EMFILE,
    Errno::ENFILE,
    Errno::EPIPE,
    Errno::EBADF,
];

/// What an error of [`locate`], or of an attempt to start a command, means for the command.
pub fn unstarted(error: &io::Error) -> Unstarted {
    match error.kind() {
        _ if error.raw_os_error() == Some(libc::ETIME) => Unstarted::TooLate,
        _ if error.get_ref().is_some_and(|inner| inner.is::<RefusedCall>()) => Unstarted::NoProcess,
        _ if error.raw_os_error().is_some_and(|errno| NO_GUARD.contains(&Errno::from_raw(errno))) => {
            Unstarted::NoProcess
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Unstarted::NotFound,
        _ => Unstarted::CannotExecute,
    }
}

pub fn describe(program: &OsStr, error: &io::Error) -> String {
    let name = program.display();
    if error.kind() == io::ErrorKind::NotFound && locate(program).is_ok() {
        return format!(
            "{name}: its interpreter is missing: that of its first line, which must not end in CR LF; or, if it is a binary, \
             the loader of the system that it was built for"
        );
    }
    if error.raw_os_error() == Some(libc::ESRCH) {
        return format!("{name}: not started, because a process of zklock has died");
    }
    format!("{name}: {error}")
}

/// Looks for `program` as execvp(3) will, so that a typo is reported before the wait for the lock. Fails if it
/// is not there, or cannot be executed; see [`unstarted`].
pub fn locate(program: &OsStr) -> io::Result<PathBuf> {
    if program.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    if program.as_bytes().contains(&b'/') {
        return check(PathBuf::from(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let mut verdict = Err(io::ErrorKind::NotFound.into());
    for directory in std::env::split_paths(&path) {
        // An empty entry means the working directory (execvp(3)).
        let directory = if directory.as_os_str().is_empty() { PathBuf::from(".") } else { directory };
        match check(directory.join(program)) {
            Ok(found) => return Ok(found),
            Err(error) if unstarted(&error) == Unstarted::NotFound => {}
            Err(error) => verdict = Err(error),
        }
    }
    verdict
}

fn check(path: PathBuf) -> io::Result<PathBuf> {
    if fs::metadata(&path)?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    match faccessat(nix::fcntl::AT_FDCWD, &path, AccessFlags::X_OK, AtFlags::AT_EACCESS) {
        // From a seccomp filter that does not know this call, which says nothing of the file: execve(2) will.
        Ok(()) | Err(Errno::EPERM) => Ok(path),
        Err(error) => Err(io::Error::other(error.desc())),
    }
}

/// How a process ended, by its status of waitpid(2).
pub fn end_of(status: i32) -> CommandEnd {
    match Signal::new(libc::WTERMSIG(status)) {
        Some(signal) if libc::WIFSIGNALED(status) => CommandEnd::Signaled(signal),
        // The kernel keeps the low eight bits of exit(3)'s argument.
        _ => CommandEnd::Exited(u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(u8::MAX)),
    }
}

#[cfg(test)]
mod tests;
