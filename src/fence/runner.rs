//! The fence whose turn it is, found by what FILE.lock says of it.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use super::Fence;
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
    /// It may run in another PID namespace.
    Elsewhere,
    /// It has gone.
    Gone,
}

impl Fence {
    /// Looks for the process that FILE.lock names.
    pub fn find(&self, holder: &Holder) -> Found {
        // Of two containers that start at once, each may have a process with these numbers. Ours may even be this one.
        if holder.pid_namespace.is_some_and(|number| descendants::pid_namespace() != Some(number)) {
            return Found::Elsewhere;
        }
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
/// that time, and have FILE.lock open. An error: it may be.
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
    Ok(((there.dev(), there.ino()) == (ours.dev(), ours.ino())).then_some(Runner(pidfd)))
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
