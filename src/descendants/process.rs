//! One process, as /proc shows it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::proc;
use crate::rules::signal::Signal;
use crate::signals;

/// One process as /proc shows it (proc_pid_stat(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// That of its parent.
    pub parent: i32,
    pub(super) group: i32,
    /// In clock ticks since boot; together with the pid it identifies a process for ever.
    pub(super) started: u64,
    pub(super) alive: bool,
    /// Whether it may be stopped: by a signal, or by a debugger that has it.
    pub(super) stopped: bool,
    /// Whether it has begun to exit.
    pub(super) exiting: bool,
}

/// Whether a process is a zklock: it executes the program of this one, or what an upgrade has put in its place. Not what
/// stat(2) says of that: a file server that does not answer would block us.
pub(super) fn is_run() -> impl Fn(&Process) -> bool {
    let ours = program("self");
    move |process| ours.is_some() && program(&process.pid.to_string()) == ours
}

/// The path of the program that a process executes, without the kernel's mark that the file was deleted or replaced
/// (proc_pid_exe(5)).
fn program(pid: &str) -> Option<Vec<u8>> {
    let path = proc::read_link(&format!("{pid}/exe")).ok()?.into_vec();
    Some(path.strip_suffix(b" (deleted)").map(<[u8]>::to_vec).unwrap_or(path))
}

/// The flag of a process that exits, in the ninth field of proc_pid_stat(5) (include/linux/sched.h).
const PF_EXITING: i64 = 0x4;

impl Process {
    /// The process with this id, if it can be seen.
    pub fn read(pid: i32) -> Option<Self> {
        Self::look(pid).ok().flatten()
    }

    /// The process with this id. `None`: there is none. An error: there may be one.
    pub fn look(pid: i32) -> io::Result<Option<Self>> {
        // The parent of PID 1. To kill(2) this would be a group.
        if pid <= 0 {
            return Ok(None);
        }
        let read = || match proc::read(&format!("{pid}/stat")) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
            stat => stat.map(Some),
        };
        let mut stat = read()?;
        if stat.is_none() && kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH) {
            // The number has just been given out; or /proc hides the process (`hidepid`).
            stat = Some(read()?.ok_or(Errno::EPERM)?);
        }
        Ok(stat.and_then(|stat| Self::parse(pid, &stat)))
    }

    /// The process with this id, of which `stat` is the file or its beginning. Allocates nothing, and its page can be locked
    /// in memory.
    #[inline(never)]
    pub fn parse(pid: i32, stat: &[u8]) -> Option<Self> {
        // The second field is the name, in parentheses, and may contain anything, even parentheses.
        let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
        let mut fields = str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace();
        let state = fields.next()?;
        let mut number = |skipped: usize| fields.nth(skipped)?.parse::<i64>().ok();
        let (parent, group) = (number(0)?, number(0)?);
        let (flags, threads, started) = (number(3)?, number(10)?, number(1)?);
        Some(Self {
            pid,
            parent: i32::try_from(parent).ok()?,
            group: i32::try_from(group).ok()?,
            started: u64::try_from(started).ok()?,
            // A zombie does not run, unless only its first thread has ended.
            alive: !matches!(state, "Z" | "X") || threads > 1,
            stopped: matches!(state, "T" | "t"),
            exiting: flags & PF_EXITING != 0,
        })
    }

    /// Whether this is the same process, not just the same pid.
    pub fn is_same(&self, other: &Self) -> bool {
        self.pid == other.pid && self.started == other.started
    }

    pub(super) fn signal(&self, signal: Signal) {
        match self.try_signal(signal) {
            // It is no failure if the process has just gone.
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                log::info!("cannot send {signal} to {}: {error}", self.pid);
            }
            _ => {}
        }
    }

    fn try_signal(&self, signal: Signal) -> io::Result<()> {
        let pidfd = match pidfd_open(self.pid) {
            Ok(pidfd) => Some(pidfd),
            // A sandbox that does not know the call: only the check below is left.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => None,
            Err(error) => return Err(error),
        };
        // If it is alive with the same start after the descriptor was opened, the descriptor is its own.
        if !Self::read(self.pid).is_some_and(|now| now.is_same(self)) {
            return Ok(());
        }
        match pidfd {
            Some(pidfd) => pidfd_send_signal(&pidfd, signal),
            None => signals::send(self.pid, signal),
        }
    }
}

/// The parent of a process, reaped or not; `None` if there is no such process.
pub fn parent(pid: Pid) -> Option<Pid> {
    Process::read(pid.as_raw()).map(|process| Pid::from_raw(process.parent))
}

/// Whether a process has begun to exit, or has gone. From then on it adopts no more orphans, even while its descriptors
/// are open and its own children have not been given away (exit_notify in the kernel's source).
pub fn is_exiting(pid: Pid) -> bool {
    Process::read(pid.as_raw()).is_none_or(|process| process.exiting)
}

/// Whether a process that has not been reaped can be seen to exit, or to have exited.
pub fn is_seen_to_exit(pid: Pid) -> bool {
    matches!(Process::look(pid.as_raw()), Ok(Some(process)) if process.exiting)
}

/// Whether there is a process that /proc does not show (`hidepid`).
pub fn is_hidden(pid: Pid) -> bool {
    Process::read(pid.as_raw()).is_none() && kill(pid, None) != Err(Errno::ESRCH)
}

/// Whether a process that was stopped by a signal may be so still.
pub fn is_stopped(pid: Pid) -> bool {
    let is_stopped = |thread: &str| {
        let stat = proc::read(&format!("{pid}/task/{thread}/stat")).ok();
        stat.and_then(|stat| Process::parse(pid.as_raw(), &stat)).is_some_and(|thread| thread.stopped)
    };
    // The first thread may have ended, while others go on.
    let threads = proc::numbers(&format!("{pid}/task")).unwrap_or_default();
    threads.iter().any(|thread| is_stopped(&thread.to_string()))
}

/// When this process started, in clock ticks since boot. `None`: there is none that lives. An error: there may be one.
pub fn started(pid: u32) -> io::Result<Option<u64>> {
    let Ok(pid) = i32::try_from(pid) else { return Ok(None) };
    let process = Process::look(pid)?.filter(|process| process.alive);
    Ok(process.map(|process| process.started))
}

/// A descriptor of the process with this id (pidfd_open(2)).
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    #[expect(unsafe_code, reason = "neither nix nor std has pidfd_open(2)")]
    // SAFETY: the call touches no memory; a result that is not negative is a new descriptor
    // that is owned here alone, closed on exec.
    unsafe {
        let result = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        match i32::try_from(result) {
            Ok(fd) if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Sends a signal to the process of a descriptor (pidfd_send_signal(2)).
pub fn pidfd_send_signal(pidfd: &OwnedFd, signal: Signal) -> io::Result<()> {
    let nothing = std::ptr::null::<libc::siginfo_t>();
    #[expect(unsafe_code, reason = "neither nix nor std has pidfd_send_signal(2)")]
    // SAFETY: the descriptor is open; with no siginfo the call reads no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal.number(), nothing, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
