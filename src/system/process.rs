//! One process, as /proc shows it (proc_pid_stat(5)).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::{Pid, getpgrp, getpid};

use super::proc;
use crate::rules::signal::Signal;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    pub group: i32,
    /// In clock ticks since boot; together with the pid it identifies a process for ever.
    pub started: u64,
    pub alive: bool,
    /// Whether it may be suspended: by a signal, or by a debugger that has it.
    pub suspended: bool,
    pub exiting: bool,
}

/// More than what is read of proc_pid_stat(5).
const STAT: usize = 512;

/// The flag of a process that exits, in the ninth field of proc_pid_stat(5) (include/linux/sched.h).
const PF_EXITING: i64 = 0x4;

impl Process {
    pub fn read(pid: i32) -> Option<Self> {
        Self::look(pid).ok().flatten()
    }

    /// The process with this id. `None`: there is none. An error: there may be one.
    pub fn look(pid: i32) -> io::Result<Option<Self>> {
        // The parent of PID 1. To kill(2) this would be a group.
        if pid <= 0 {
            return Ok(None);
        }
        let read = || match proc::read(&format!("{pid}/stat"), &mut [0; STAT]) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
            stat => stat.map(|stat| Some(Self::parse(pid, stat))),
        };
        match read()? {
            // The number has just been given out; or /proc hides the process (`hidepid`).
            None if kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH) => Ok(read()?.ok_or(Errno::EPERM)?),
            process => Ok(process.flatten()),
        }
    }

    /// The process with this id, of which `stat` is the file or its beginning. Allocates nothing.
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
            suspended: matches!(state, "T" | "t"),
            exiting: flags & PF_EXITING != 0,
        })
    }
}

/// Whether a thread of this process is suspended.
pub fn is_suspended(pid: Pid) -> bool {
    let is_suspended = |thread: &str| {
        let mut room = [0; STAT];
        let stat = proc::read(&format!("{pid}/task/{thread}/stat"), &mut room).ok();
        stat.and_then(|stat| Process::parse(pid.as_raw(), stat)).is_some_and(|thread| thread.suspended)
    };
    // The first thread may have ended, while others go on.
    let threads = proc::numbers(&format!("{pid}/task")).unwrap_or_default();
    threads.iter().any(|thread| is_suspended(&thread.to_string()))
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
        let fd = Errno::result(libc::syscall(libc::SYS_pidfd_open, pid, 0))?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// Sends a signal to the process of a descriptor (pidfd_send_signal(2)).
pub fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: Signal) -> nix::Result<()> {
    let nothing = std::ptr::null::<libc::siginfo_t>();
    #[expect(unsafe_code, reason = "neither nix nor std has pidfd_send_signal(2)")]
    // SAFETY: the descriptor is open; with no siginfo the call reads no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal.number(), nothing, 0) };
    Errno::result(result).map(drop)
}

/// The next child that has ended, or, if `flags` say so, was suspended, with its status of waitpid(2). `None`: none
/// has. ECHILD: there are no children.
pub fn reap(flags: i32) -> nix::Result<Option<(Pid, i32)>> {
    loop {
        let mut status = 0;
        #[expect(unsafe_code, reason = "nix's waitpid loses a child that a real-time signal killed")]
        // SAFETY: waitpid(2) writes to `status` and nothing else.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | flags) };
        match Errno::result(pid) {
            Err(Errno::EINTR) => {}
            reaped => return reaped.map(|pid| (pid > 0).then(|| (Pid::from_raw(pid), status))),
        }
    }
}

/// Whether the process `ancestor` is above the process `pid`. If `ancestor` is a subreaper, this stays true
/// for as long as both live, even if processes in between end. An error: it may be.
pub fn is_above(ancestor: u32, pid: u32) -> io::Result<bool> {
    let (Ok(ancestor), Ok(pid)) = (i32::try_from(ancestor), i32::try_from(pid)) else { return Ok(false) };
    let mut result = Ok(false);
    // Several times: a process can end just after it was seen to be a parent, and then its own parent is not seen.
    for _ in 0..5 {
        match leads_up(ancestor, pid) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            error => result = error,
        }
    }
    result
}

fn leads_up(ancestor: i32, mut pid: i32) -> io::Result<bool> {
    while let Some(process) = Process::look(pid)? {
        if process.parent == ancestor {
            return Ok(Process::look(ancestor)?.is_some_and(|ancestor| ancestor.alive));
        }
        pid = process.parent;
    }
    Ok(false)
}

/// Whether a process group has other members than this process that may be using the terminal. In our own group, the
/// processes above us do not count: they are scripts. In another group they count: they are shells.
pub fn is_of_others(group: Pid) -> bool {
    let (this, own) = (getpid(), getpgrp());
    let is_above_us = |pid: i32| is_above(pid.cast_unsigned(), this.as_raw().cast_unsigned()).unwrap_or(false);
    let is_script = |process: &Process| group == own && is_above_us(process.pid);
    // If /proc cannot be read, assume that there are some.
    let Some(pids) = proc::numbers(".").ok().filter(|pids| !pids.is_empty()) else { return true };
    let processes = pids.into_iter().filter_map(Process::read);
    let mut members = processes.filter(|process| process.group == group.as_raw() && process.alive);
    members.any(|process| process.pid != this.as_raw() && !is_script(&process))
}
