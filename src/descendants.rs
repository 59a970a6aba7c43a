//! The processes below a process: found, signalled, counted.
//!
//! A pid that may have been recycled must never be signalled. A direct child keeps its pid until we reap
//! it; everything else is signalled through a pidfd that was checked after it was opened.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::sys::statfs::{PROC_SUPER_MAGIC, statfs};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, getpgrp, getpid};

use crate::rules::signal::Signal;
use crate::signals;

pub use self::namespaces::{pid_namespace, time_namespace};
pub use self::proc::directory as proc;
pub use self::process::{
    Process, is_exiting, is_hidden, is_seen_to_exit, is_stopped, parent, pidfd_open, pidfd_send_signal, started,
};

mod namespaces;
mod proc;
mod process;

/// How many times in a row to chase a process that forks and exits faster than we can kill it.
const CHASES: u32 = 100;

/// What is below the guard of a run, or, once that guard has died, below its supervisor.
#[derive(Debug)]
pub struct Descendants<'a> {
    root: Root<'a>,
    strangers: Vec<Stranger>,
}

#[derive(Debug)]
enum Root<'a> {
    Guard(Pid),
    Us(&'a OwnChildren),
}

/// The children of this process, in their list. It is opened once, so that it can be read when no descriptor is left, and
/// whatever is mounted on /proc.
#[derive(Debug)]
pub struct OwnChildren(File);

impl OwnChildren {
    /// Fails where /proc is missing, or shows another PID namespace: its numbers mean other processes here. Fails also where
    /// /proc shows that our children would be in another one than we are, or in another time namespace. To be called by a
    /// process with one thread.
    pub fn open() -> io::Result<Self> {
        let link = proc::read_link("self");
        // A /proc of a namespace that we are not in has no such link.
        if link.is_err() && !statfs("/proc").is_ok_and(|there| there.filesystem_type() == PROC_SUPER_MAGIC) {
            return Err(io::Error::other("/proc is missing: mount it (mount -t proc proc /proc)"));
        }
        let is_foreign = match link {
            Ok(link) => link != *getpid().to_string(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(error) => return Err(error),
        };
        if is_foreign {
            let why = "/proc is that of another PID namespace; mount its own there, as unshare --mount-proc does";
            return Err(io::Error::other(why));
        }
        if let Some(kind) = namespaces::of_children_alone() {
            let why = format!("its processes would be in a {kind} namespace of their own; give --fork to unshare");
            return Err(io::Error::other(why));
        }
        own_list().map(Self).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                io::Error::other("this kernel has no lists of children in /proc (CONFIG_PROC_CHILDREN)")
            }
            _ => error,
        })
    }

    /// All of them, alive or not, in the order in which they became our children. If they cannot be found out, there may
    /// be any.
    fn list(&self) -> io::Result<Vec<i32>> {
        let (mut text, mut piece) = (vec![], [0; 4096]);
        loop {
            match self.0.read_at(&mut piece, text.len() as u64) {
                Ok(0) => break,
                Ok(length) => text.extend_from_slice(&piece[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(numbers(&text))
    }

    /// Those that are not known.
    pub fn others(&self, is_known: impl Fn(Pid) -> bool) -> io::Result<Vec<Stranger>> {
        let children = self.list()?.into_iter().map(Pid::from_raw);
        Ok(children.filter(|child| !is_known(*child)).map(Stranger::new).collect())
    }

    /// Whether this process is known to be a child of ours that has not been reaped.
    pub fn has(&self, pid: Pid) -> bool {
        self.list().is_ok_and(|children| children.contains(&pid.as_raw()))
    }

    /// Whether this process is known not to be a child of ours, alive or not.
    pub fn lack(&self, pid: Pid) -> bool {
        self.list().is_ok_and(|children| !children.contains(&pid.as_raw()))
    }
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

impl<'a> Descendants<'a> {
    /// Those of `guard`. All that is below it belongs to the command.
    pub fn of_guard(guard: Pid) -> Self {
        Self { root: Root::Guard(guard), strangers: vec![] }
    }

    /// Those of this process, a subreaper whose guard has died, without these children of its own. Orphans of other
    /// processes that have come to us since these were found, as they come to PID 1, cannot be told from the command's.
    pub fn of_us(children: &'a OwnChildren, strangers: Vec<Stranger>) -> Self {
        Self { root: Root::Us(children), strangers }
    }

    /// The children of a process below the root, or of the root itself, as far as they can be found out. A number may have
    /// been recycled since it was listed: so each must have this parent, and the parent must still be the same.
    fn children_of(&self, parent: Option<&Process>) -> Vec<Process> {
        let (listed, parent_pid) = match (parent, &self.root) {
            (Some(parent), _) => (children(parent.pid), parent.pid),
            // These two have not been reaped.
            (None, Root::Guard(guard)) => (self.top(), guard.as_raw()),
            (None, Root::Us(_)) => (self.top(), getpid().as_raw()),
        };
        let mut found: Vec<_> = listed.into_iter().filter_map(Process::read).collect();
        found.retain(|child| child.parent == parent_pid);
        let is_known = |parent: &Process| Process::read(parent.pid).is_some_and(|now| now.is_same(parent));
        if parent.is_none_or(is_known) { found } else { vec![] }
    }

    /// The children of the root, as far as they can be found out.
    fn top(&self) -> Vec<i32> {
        match self.root {
            Root::Guard(guard) => children(guard.as_raw()),
            Root::Us(children) => children.list().unwrap_or_default(),
        }
    }

    /// Every process that is alive below the root. The search does not go below a process for which `is_open` is false.
    fn below(&self, is_open: impl Fn(&Process) -> bool) -> Vec<Process> {
        let mut found: Vec<Process> = vec![];
        // Twice: a process whose parent ends while we look becomes a child of the root.
        for _ in 0..2 {
            let mut parents = vec![None];
            while let Some(parent) = parents.pop() {
                for child in self.children_of(parent.as_ref()) {
                    if self.is_stranger(child.pid) {
                        continue;
                    }
                    if is_open(&child) {
                        parents.push(Some(child.clone()));
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
        let is_run = process::is_run();
        self.below(|process| !is_run(process))
    }

    /// Forwards a signal to the command `command` and what shares its process group or ours. For a command in our own
    /// process group: others share that group, and only processes below us get the signal. A command that is a shell
    /// with job control, or setsid(1), has left that group for its own. Returns whether any process can be seen.
    pub fn forward_in_group(&self, signal: Signal, command: Pid) -> bool {
        let (command, shared) = (command.as_raw(), getpgrp().as_raw());
        let addressees = self.addressees();
        for process in &addressees {
            if process.pid == command || process.group == command || process.group == shared {
                process.signal(signal);
            }
        }
        !addressees.is_empty()
    }

    /// Forwards a signal to every one of them: the command itself has ended. Returns whether any can be seen.
    pub fn forward(&self, signal: Signal) -> bool {
        let addressees = self.addressees();
        addressees.iter().for_each(|process| process.signal(signal));
        !addressees.is_empty()
    }

    /// Forwards a signal to those that do not share our process group, which has had it; if a command is given, only to that
    /// and what shares its own process group.
    pub fn forward_outside(&self, signal: Signal, command: Option<Pid>) {
        let shared = getpgrp().as_raw();
        // STOP goes below a zklock, which cannot forward it, and not to that: nobody would continue what waits at its gate.
        let (is_stop, is_run) = (signal == Signal::STOP, process::is_run());
        let found = self.below(|process| is_stop || !is_run(process));
        for process in found.iter().filter(|process| process.group != shared && !(is_stop && is_run(process))) {
            if command.map(Pid::as_raw).is_none_or(|command| process.pid == command || process.group == command) {
                process.signal(signal);
            }
        }
    }

    /// Sends `signal` to every one of them but those in the process group `told`, and SIGCONT so that those that are stopped
    /// can act on it. Returns whether there was any that can be seen.
    pub fn stop(&self, signal: Signal, told: Option<Pid>) -> bool {
        let addressees = self.addressees();
        for process in addressees.iter().filter(|process| told.map(Pid::as_raw) != Some(process.group)) {
            process.signal(signal);
            process.signal(Signal::CONT);
        }
        !addressees.is_empty()
    }

    /// Sends SIGKILL to every one of them that can be seen, at whatever depth.
    pub fn kill(&self) {
        self.below(|_| true).iter().for_each(|process| process.signal(Signal::KILL));
    }

    /// How many are alive, and not about to have gone.
    pub fn count(&self) -> usize {
        self.below(|_| true).iter().filter(|process| !process.exiting).count()
    }

    /// Whether one of them is a zklock, or is about to have gone.
    pub fn have_runs(&self) -> bool {
        let is_run = process::is_run();
        self.below(|_| true).iter().any(|process| process.exiting || is_run(process))
    }

    fn is_stranger(&self, pid: i32) -> bool {
        let known = self.strangers.iter().find(|stranger| stranger.pid == pid);
        // If one of the two is unknown, it is spared: a child of ours keeps its pid until we reap it.
        let is_another = |started| Process::read(pid).is_some_and(|process| process.started != started);
        known.is_some_and(|stranger| !stranger.started.is_some_and(is_another))
    }

    /// Sends SIGKILL to the children of this process. Those of a child that has ended are children of ours by then.
    /// Only where the root is this process.
    pub fn kill_children(&self) {
        let kill = |child: i32| signals::send(child, Signal::KILL);
        for _ in 0..CHASES {
            let mut newest_first = self.top().into_iter().rev().filter_map(Process::read);
            let Some(child) = newest_first.find(|child| child.alive && !self.is_stranger(child.pid)) else { break };
            // Without a pidfd, which would take time: the pid belongs to our child until we reap it.
            if kill(child.pid).is_err() {
                break;
            }
        }
        // Those that /proc does not show as well.
        for child in self.top().into_iter().filter(|child| !self.is_stranger(*child)) {
            let _ = kill(child);
        }
    }

    /// Whether the root is this process, and has no child left but strangers. What /proc does not show is left: only a
    /// child that has been reaped has gone.
    pub fn have_gone(&self) -> bool {
        let Root::Us(children) = self.root else { return false };
        children.list().is_ok_and(|children| children.into_iter().all(|child| self.is_stranger(child)))
    }
}

/// What is asked of waitid(2) to learn of a child and to leave it as it is.
pub const LOOK: WaitPidFlag = WaitPidFlag::WEXITED.union(WaitPidFlag::WNOHANG).union(WaitPidFlag::WNOWAIT);

/// Whether wait(2) knows this child.
pub fn is_child_of_ours(pid: i32) -> bool {
    waitid(Id::Pid(Pid::from_raw(pid)), LOOK) != Err(Errno::ECHILD)
}

/// Whether any child of this process has not ended. Where all have, and none is asked for its end, waitid(2) fails as if there
/// were none (wait_consider_task in the kernel's source).
pub fn has_living_child() -> bool {
    let look = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::All, look) != Err(Errno::ECHILD)
}

/// The list of the children of this process, which must have one thread.
pub fn own_list() -> io::Result<File> {
    proc::open(&format!("self/task/{}/children", getpid()))
}

fn numbers(list: &[u8]) -> Vec<i32> {
    String::from_utf8_lossy(list).split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// The children of a process, in the order in which they became its children, as far as they can be found out.
pub fn children(parent: i32) -> Vec<i32> {
    let threads = proc::numbers(&format!("{parent}/task")).unwrap_or_default();
    // A thread may have ended.
    let lists = threads.into_iter().filter_map(|thread| proc::read(&format!("{parent}/task/{thread}/children")).ok());
    lists.flat_map(|list| numbers(&list)).collect()
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

/// Whether the parents of `pid`, looked at one after the other, lead to `ancestor`.
fn leads_up(ancestor: i32, mut pid: i32) -> io::Result<bool> {
    while let Some(process) = Process::look(pid)? {
        if process.parent == ancestor {
            return Ok(Process::look(ancestor)?.is_some_and(|ancestor| ancestor.alive));
        }
        pid = process.parent;
    }
    Ok(false)
}

/// Whether a process group has members that may be using the terminal. Not counted are this process and, in
/// our own group, those above us, such as a script. Processes above us in another group count: they are
/// shells.
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

#[cfg(test)]
mod tests;
