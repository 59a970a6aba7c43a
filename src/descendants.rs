//! The processes below a process: found, signalled, counted.
//!
//! A pid that may have been recycled must never be signalled. A direct child keeps its pid until we reap
//! it; everything else is signalled through a pidfd that was checked after it was opened.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::unistd::{Pid, getpgrp, getpid};

use crate::rules::signal::Signal;
use crate::signals;

/// How many times in a row to chase a process that forks and exits faster than we can kill it.
const CHASES: u32 = 100;

/// What is below the guard of a run, or, once that guard has died, below its supervisor.
#[derive(Debug, Default)]
pub struct Descendants {
    root: Option<Pid>,
    strangers: Vec<Stranger>,
}

/// A child of ours that does not belong to the command.
#[derive(Clone, Copy, Debug)]
pub struct Stranger {
    pid: i32,
    /// `None` where /proc does not show the process (`hidepid`).
    started: Option<u64>,
}

impl Stranger {
    /// The process with this id.
    pub fn new(pid: Pid) -> Self {
        let pid = pid.as_raw();
        Self { pid, started: Process::read(pid).map(|process| process.started) }
    }

    /// Whether it has this id.
    pub fn is(&self, pid: Pid) -> bool {
        self.pid == pid.as_raw()
    }
}

impl Descendants {
    /// Those of `guard`. All that is below it belongs to the command.
    pub fn of_guard(guard: Pid) -> Self {
        Self { root: Some(guard), strangers: vec![] }
    }

    /// Those of this process, a subreaper whose guard has died, without these children of its own. Orphans of other
    /// processes that have come to us since these were found, as they come to PID 1, cannot be told from the command's.
    pub fn of_us(strangers: Vec<Stranger>) -> Self {
        Self { root: None, strangers }
    }

    fn root(&self) -> i32 {
        self.root.unwrap_or_else(getpid).as_raw()
    }

    /// Every process that is alive below the root. The search does not go below a process for which `is_open` is false.
    fn below(&self, is_open: impl Fn(&Process) -> bool) -> Vec<Process> {
        let mut found: Vec<Process> = vec![];
        // Twice: a process whose parent ends while we look becomes a child of the root.
        for _ in 0..2 {
            let mut parents = vec![self.root()];
            while let Some(parent) = parents.pop() {
                for child in children(parent).into_iter().filter_map(Process::read) {
                    if self.is_stranger(child.pid) {
                        continue;
                    }
                    if is_open(&child) {
                        parents.push(child.pid);
                    }
                    if child.alive && !found.iter().any(|known| known.is_same(&child)) {
                        found.push(child);
                    }
                }
            }
        }
        found
    }

    /// Without those below another zklock: it forwards the signals that it gets, so they would get them twice.
    fn addressees(&self) -> Vec<Process> {
        let ours = program("self");
        self.below(|process| ours.is_none() || program(&process.pid.to_string()) != ours)
    }

    /// Forwards a signal to the command `command` and what shares its process group or ours. For a command in our own
    /// process group: others share that group, and only processes below us get the signal. A command that is a shell
    /// with job control, or setsid(1), has left that group for its own.
    pub fn forward_in_group(&self, signal: Signal, command: Pid) {
        let (command, shared) = (command.as_raw(), getpgrp().as_raw());
        for process in self.addressees() {
            if process.pid == command || process.group == command || process.group == shared {
                process.signal(signal);
            }
        }
    }

    /// Forwards a signal to every one of them: the command itself has ended.
    pub fn forward(&self, signal: Signal) {
        self.addressees().iter().for_each(|process| process.signal(signal));
    }

    /// Sends `signal` to every one of them, and SIGCONT so that those that are stopped can act on it. Returns whether
    /// there was any that can be seen.
    pub fn stop(&self, signal: Signal) -> bool {
        let addressees = self.addressees();
        for process in &addressees {
            process.signal(signal);
            process.signal(Signal::CONT);
        }
        !addressees.is_empty()
    }

    /// Sends SIGKILL to every one of them that can be seen, at whatever depth.
    pub fn kill(&self) {
        self.below(|_| true).iter().for_each(|process| process.signal(Signal::KILL));
    }

    /// How many are alive.
    pub fn count(&self) -> usize {
        self.below(|_| true).len()
    }

    fn is_stranger(&self, pid: i32) -> bool {
        let started = || Process::read(pid).map(|process| process.started);
        let known = self.strangers.iter().find(|stranger| stranger.pid == pid);
        known.is_some_and(|stranger| stranger.started.is_none() || stranger.started == started())
    }

    /// Sends SIGKILL to the children of this process. Those of a child that has ended are children of ours by then.
    /// Only where the root is this process.
    pub fn kill_children(&self) {
        for _ in 0..CHASES {
            let mut newest_first = children(self.root()).into_iter().rev().filter_map(Process::read);
            let Some(child) = newest_first.find(|child| child.alive && !self.is_stranger(child.pid)) else { break };
            // Without a pidfd, which would take time: the pid belongs to our child until we reap it.
            if signals::send(child.pid, Signal::KILL).is_err() {
                break;
            }
        }
        // Those that /proc does not show as well.
        for child in children(self.root()).into_iter().filter(|child| !self.is_stranger(*child)) {
            let _ = signals::send(child, Signal::KILL);
        }
    }

    /// Whether this process has no child left but strangers. What /proc does not show is left: only a child that has
    /// been reaped has gone. Only where the root is this process.
    pub fn have_gone(&self) -> bool {
        children(self.root()).into_iter().all(|child| self.is_stranger(child))
    }
}

/// One process as /proc shows it (proc_pid_stat(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub(crate) pid: i32,
    parent: i32,
    group: i32,
    /// In clock ticks since boot; together with the pid it identifies a process for ever.
    started: u64,
    alive: bool,
    stopped: bool,
    /// Whether it has begun to exit.
    exiting: bool,
}

/// The flag of a process that exits, in the ninth field of proc_pid_stat(5) (include/linux/sched.h).
const PF_EXITING: i64 = 0x4;

impl Process {
    /// The process with this id, if it can be seen.
    pub fn read(pid: i32) -> Option<Self> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        Self::parse(pid, &stat)
    }

    fn parse(pid: i32, stat: &[u8]) -> Option<Self> {
        // The second field is the name, in parentheses, and may contain anything, even parentheses.
        let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
        let fields: Vec<&str> = str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<i64>().ok();
        let threads = number(17)?;
        Some(Self {
            pid,
            parent: i32::try_from(number(1)?).ok()?,
            group: i32::try_from(number(2)?).ok()?,
            started: u64::try_from(number(19)?).ok()?,
            // A zombie does not run, unless only its first thread has ended.
            alive: !matches!(fields.first()?, &"Z" | &"X") || threads > 1,
            stopped: fields.first()? == &"T",
            exiting: number(6)? & PF_EXITING != 0,
        })
    }

    /// Whether this is the same process, not just the same pid.
    pub fn is_same(&self, other: &Self) -> bool {
        self.pid == other.pid && self.started == other.started
    }

    fn signal(&self, signal: Signal) {
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

/// Whether a process is stopped by a signal at this moment.
pub fn is_stopped(pid: Pid) -> bool {
    Process::read(pid.as_raw()).is_some_and(|process| process.stopped)
}

/// The children of a process, in the order in which they became its children.
pub fn children(parent: i32) -> Vec<i32> {
    listed_children(parent).unwrap_or_else(|| {
        // The kernel lacks the list (CONFIG_PROC_CHILDREN).
        processes().into_iter().filter(|process| process.parent == parent).map(|process| process.pid).collect()
    })
}

fn listed_children(parent: i32) -> Option<Vec<i32>> {
    let mut children = vec![];
    let tasks = fs::read_dir(format!("/proc/{parent}/task"));
    let Ok(tasks) = tasks else { return Some(children) };
    for task in tasks.flatten() {
        match fs::read_to_string(task.path().join("children")) {
            Ok(list) => children.extend(list.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok())),
            // The thread has ended, or there is no such list.
            Err(error) if error.kind() == io::ErrorKind::NotFound && task.path().exists() => return None,
            Err(_) => {}
        }
    }
    Some(children)
}

/// Every process that can be seen.
fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()));
    // A process that cannot be read has just gone.
    pids.filter_map(Process::read).collect()
}

/// Fails where /proc is missing or shows another PID namespace: it could not be found out which processes descend from
/// which.
pub fn check_proc() -> io::Result<()> {
    if fs::read_link("/proc/self")? == Path::new(&getpid().to_string()) {
        return Ok(());
    }
    Err(io::Error::other("/proc is that of another PID namespace"))
}

/// The children that this process has now, but for those that are known.
pub fn own_children(is_known: impl Fn(Pid) -> bool) -> Vec<Stranger> {
    let children = children(getpid().as_raw()).into_iter().map(Pid::from_raw);
    children.filter(|child| !is_known(*child)).map(Stranger::new).collect()
}

/// Whether this process has this child, alive or not.
pub fn is_own_child(pid: Pid) -> bool {
    children(getpid().as_raw()).contains(&pid.as_raw())
}

/// The program that a process executes. Not what stat(2) says of it: a file server that does not answer would block us.
fn program(pid: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// When this process started, in clock ticks since boot. `None`: there is none that lives, or /proc hides it.
pub fn started(pid: u32) -> Option<u64> {
    let process = i32::try_from(pid).ok().and_then(Process::read);
    process.filter(|process| process.alive).map(|process| process.started)
}

/// Whether the process `ancestor` is above the process `pid`. If `ancestor` is a subreaper, this stays true
/// for as long as both live, even if processes in between end.
pub fn is_above(ancestor: u32, pid: u32) -> bool {
    let (Ok(ancestor), Ok(pid)) = (i32::try_from(ancestor), i32::try_from(pid)) else { return false };
    // Several times: a process can end just after it was seen to be a parent, and then its own parent is not seen.
    (0..5).any(|_| leads_up(ancestor, pid))
}

/// Whether the parents of `pid`, looked at one after the other, lead to `ancestor`.
fn leads_up(ancestor: i32, mut pid: i32) -> bool {
    while let Some(process) = Process::read(pid) {
        if process.parent == ancestor {
            return Process::read(ancestor).is_some_and(|ancestor| ancestor.alive);
        }
        pid = process.parent;
    }
    false
}

/// Whether a process group has members that may be using the terminal. Not counted are this process and, in
/// our own group, those above us, such as a script. Processes above us in another group count: they are
/// shells.
pub fn is_of_others(group: Pid) -> bool {
    let (this, own) = (getpid(), getpgrp());
    let is_script =
        |process: &Process| group == own && is_above(process.pid.cast_unsigned(), this.as_raw().cast_unsigned());
    let processes = processes();
    let mut members = processes.iter().filter(|process| process.group == group.as_raw() && process.alive);
    // If /proc cannot be read, assume that there are some.
    processes.is_empty() || members.any(|process| process.pid != this.as_raw() && !is_script(process))
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

fn pidfd_send_signal(pidfd: &OwnedFd, signal: Signal) -> io::Result<()> {
    let nothing = std::ptr::null::<libc::siginfo_t>();
    #[expect(unsafe_code, reason = "neither nix nor std has pidfd_send_signal(2)")]
    // SAFETY: the descriptor is open; with no siginfo the call reads no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal.number(), nothing, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests;
