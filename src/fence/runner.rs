//! The fence whose turn it is, found by what FILE.lock says of it.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use super::{Fence, TURN};
use crate::descendants;
use crate::rules::fence::Holder;
use crate::rules::signal::Signal;

/// A process that runs a command inside a fence. It is held by a descriptor, so no recycled pid is ever signalled.
#[derive(Debug)]
pub struct Runner(OwnedFd);

/// What has become of a holder.
#[derive(Debug)]
pub enum Found {
    /// It runs.
    Runner(Runner),
    /// It may run, but is not for us to signal: it is another user's, or the system does not let us find out.
    OutOfReach,
    /// It has gone, or is in another PID namespace.
    Gone,
}

impl Fence {
    /// Looks for the process that FILE.lock names.
    pub fn find(&self, holder: &Holder) -> Found {
        match find(holder, &self.lock) {
            Ok(Some(runner)) => Found::Runner(runner),
            Ok(None) => Found::Gone,
            Err(error) => {
                log::info!("cannot look at process {}: {error}", holder.pid);
                Found::OutOfReach
            }
        }
    }
}

/// The process with this id, if it is the one that wrote the line: after its descriptor was opened, it must have started at
/// that time, have FILE.lock open, and have the turn. An error: it may be.
fn find(holder: &Holder, lock: &File) -> io::Result<Option<Runner>> {
    let absent = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT | libc::EINVAL));
    let pidfd = match descendants::pidfd_open(holder.pid) {
        Err(error) if absent(&error) => return Ok(None),
        pidfd => pidfd?,
    };
    if descendants::started(holder.pid.cast_unsigned())? != Some(holder.started) {
        return Ok(None);
    }
    let there = match fs::metadata(format!("/proc/{}/fd/{}", holder.pid, holder.descriptor)) {
        Err(error) if absent(&error) => return Ok(None),
        there => there?,
    };
    let ours = lock.metadata()?;
    if (there.dev(), there.ino()) != (ours.dev(), ours.ino()) {
        return Ok(None);
    }
    let locks = match fs::read_to_string(format!("/proc/{}/fdinfo/{}", holder.pid, holder.descriptor)) {
        Err(error) if absent(&error) => return Ok(None),
        locks => locks?,
    };
    Ok(has_turn(&locks).then_some(Runner(pidfd)))
}

/// Whether a descriptor of FILE.lock of which /proc shows this has the lock of the turn (proc_pid_fdinfo(5)). Where two
/// containers start at once, each may have a process with the same number, start and descriptor. It may even be this one.
fn has_turn(fdinfo: &str) -> bool {
    // At the end of such a line stand the first and the last byte. The two that we lock are shown together.
    let first = |line: &str| line.split_whitespace().nth_back(1).and_then(|byte| byte.parse().ok());
    fdinfo.lines().filter(|line| line.starts_with("lock:")).any(|line| first(line) == Some(TURN))
}

impl Runner {
    /// Asks it to look at FILE, and so to make way. Fails if that is not for us to do.
    pub fn ask(&self) -> io::Result<()> {
        self.send(Signal::TERM)?;
        // It may be stopped.
        self.send(Signal::CONT)
    }

    /// Kills it. Its guard then kills the command.
    pub fn kill(&self) -> io::Result<()> {
        self.send(Signal::KILL)
    }

    fn send(&self, signal: Signal) -> io::Result<()> {
        match descendants::pidfd_send_signal(&self.0, signal) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            sent => sent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_turn_is_the_first_byte() {
        let lock = |range: &str| format!("pos:\t0\nlock:\t1: OFDLCK ADVISORY  WRITE -1 fe:00:42 {range}\n");
        for (range, has) in [("0 0", true), ("0 1", true), ("1 1", false)] {
            assert_eq!(has_turn(&lock(range)), has, "{range}");
        }
        assert!(!has_turn("pos:\t0\nflags:\t0\n"));
    }
}
