//! The processes below this one: signalled, killed, counted.
//!
//! The guard has a [`Tree`], and so has the supervisor, for the processes that come to it when its guard dies.
//!
//! Nothing here allocates, and no file that is read makes the kernel wait for the process that it describes: neither
//! `children` nor `stat` takes the lock of that process's memory map. A child keeps its number until it is reaped. Any other
//! process is signalled by its directory in /proc, which stands for that process for ever.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use nix::sys::statfs::{PROC_SUPER_MAGIC, statfs};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpgid, getpgrp, getpid, getsid};

use self::directory::{Directory, Numbers, PATH, Visit};
use crate::rules::guard::{Children, Targets};
use crate::rules::signal::Signal;
use crate::system::{namespaces, proc, signals};

mod directory;

/// How deep to look below a process: each level needs room on the stack, and three descriptors. What is deeper comes up when
/// those above it have died.
const DEPTH: u32 = 32;

/// How many processes to look at in one walk.
const MOST: u32 = 10_000;

/// How many walks in a row to make as long as children come up.
const WALKS: u32 = 3;

/// The list of children is read in this many pieces at most, each of some 600 processes. It may grow while it is read.
const PIECES: u32 = 256;

/// The session and the process group in which a command starts. Not all that is there is the command's.
#[derive(Clone, Copy, Debug)]
pub struct StartGroup {
    session: Option<Pid>,
    group: Pid,
    /// The process group that was made for the command, if any.
    own_group: Option<Pid>,
}

impl StartGroup {
    /// Those of this process. `own_group`: the process group that the command gets instead.
    pub fn ours(own_group: Option<Pid>) -> Self {
        Self { session: getsid(None).ok(), group: getpgrp(), own_group }
    }

    /// The process group of a process that descends from the command, if all of that group is the command's. All processes
    /// of any other session than that of the start are: a session is begun by a process and joined by none (setsid(2)).
    fn group_of_command(&self, pid: Pid) -> Option<Pid> {
        // In this order: setsid(2) changes the session before the group, and what has left a session does not come back.
        let is_elsewhere = self.session.is_some_and(|own| getsid(Some(pid)).is_ok_and(|session| session != own));
        let group = getpgid(Some(pid)).ok()?;
        (self.own_group == Some(group) || is_elsewhere && group != self.group).then_some(group)
    }
}

/// What is below this process.
#[derive(Debug)]
pub struct Tree {
    /// The list of our children. It is opened once, so that it can be read when no descriptor is left, and whatever a command
    /// mounts on /proc.
    children: File,
    proc: BorrowedFd<'static>,
    /// A process that may not be killed, because it is another user's.
    denied: Cell<Option<i32>>,
}

impl Tree {
    /// The tree of this process, which must have one thread. An error of the kind `Other` says what this system has not got.
    pub fn open() -> io::Result<Self> {
        let children = proc::open(&format!("self/task/{}/children", getpid())).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                io::Error::other("this kernel has no lists of children in /proc (CONFIG_PROC_CHILDREN)")
            }
            _ => error,
        })?;
        Ok(Self { children, proc: proc::directory()?, denied: Cell::new(None) })
    }

    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.children.as_fd(), self.proc]
    }

    /// Calls `act` with each of our children, alive or not. Fails if their list cannot be read.
    pub fn each_child(&self, mut act: impl FnMut(i32)) -> io::Result<()> {
        let (mut list, mut numbers, mut offset) = ([0; 4096], Numbers::default(), 0);
        for _ in 0..PIECES {
            let length = self.children.read_at(&mut list, offset)?;
            if length == 0 {
                break;
            }
            numbers.each(&list[..length], &mut act);
            offset += length as u64;
        }
        Ok(())
    }

    /// A process that may not be killed, since this was last asked.
    pub fn take_denied(&self) -> Option<i32> {
        self.denied.take()
    }

    /// Sends SIGKILL to our children but those that are `spared`, and to those of their process groups that are the
    /// command's as a whole, at one moment, so that none of them gets away by forking and exiting.
    pub fn kill_children(&self, origin: StartGroup, spared: impl Fn(i32) -> bool) -> Children {
        // Groups that have been killed, each at the place of its last digits.
        let mut killed = [0; 256];
        let mut found = Children { number: 0, have_ended: true };
        let _ = self.each_child(|child| {
            if spared(child) {
                return;
            }
            found.number += 1;
            let has_ended = has_ended(child);
            found.have_ended &= has_ended;
            // The child before its group: a dying child changes its group no more, and keeps the group's number in use.
            if !send(child, Signal::KILL) && !has_ended {
                self.denied.set(Some(child));
            }
            // Not the group of a process outside of our PID namespace, nor the number that kill(2) takes for all processes.
            if let Some(group @ 2..) = origin.group_of_command(Pid::from_raw(child)).map(Pid::as_raw) {
                let place = &mut killed[group.unsigned_abs() as usize % killed.len()];
                if std::mem::replace(place, group) != group {
                    send(-group, Signal::KILL);
                }
            }
        });
        found
    }

    /// Sends SIGKILL to all processes below our children, but not below those that are `spared`, from the leaves upwards. Not
    /// all of these processes become our children in time. A child that cannot die, because a file system does not answer or
    /// because it has become another user, keeps them from it; so does a child in another PID namespace.
    pub fn kill_below(&self, spared: impl Fn(i32) -> bool) {
        for _ in 0..WALKS {
            let before = self.number();
            self.walk(&spared, &mut |process, directory, is_done| {
                if is_done && !directory.send(process.pid, Signal::KILL) {
                    self.denied.set(Some(process.pid));
                }
                true
            });
            // A process that becomes our child during a walk is perhaps seen in neither place.
            if self.number() == before {
                return;
            }
        }
    }

    fn number(&self) -> usize {
        let mut number = 0;
        let _ = self.each_child(|_| number += 1);
        number
    }

    /// Sends a signal to these processes. `command`: the process of the command, if it has not been reaped. What is below
    /// another zklock is left out: that zklock passes on what it gets.
    pub fn signal(&self, signal: Signal, whom: Targets, command: Option<Pid>, origin: StartGroup) {
        let command = command.map_or(0, Pid::as_raw);
        // A process group of its own gets a signal at one moment, and whatever /proc shows.
        let own_group = origin.own_group.map(Pid::as_raw).filter(|group| *group == command);
        match (whom, own_group) {
            (Targets::Group | Targets::All, Some(group)) => send(-group, signal),
            (Targets::Group | Targets::All, None) if command != 0 => send(command, signal),
            _ => true,
        };
        if whom == Targets::Group && own_group.is_some() {
            return;
        }
        let shared = origin.group.as_raw();
        // A zklock has a program of the same name, wherever it is installed.
        let mut room = [0; PATH];
        let ours = directory::program(self.proc, c"self/exe", &mut room);
        let is_run = |directory: &Directory| {
            ours.is_some() && directory::program(directory.as_fd(), c"exe", &mut [0; PATH]) == ours
        };
        self.walk(|_| false, &mut |process, directory, is_done| {
            if is_done {
                return true;
            }
            let is_run = is_run(directory);
            let in_command = process.pid == command || process.group == command;
            let is_meant = match whom {
                Targets::Group => process.pid != command && (in_command || process.group == shared),
                Targets::Strayed => process.group != shared && (command == 0 || in_command),
                Targets::All => process.pid != command && own_group != Some(process.group),
            };
            // A zklock cannot pass STOP on, so STOP goes to the processes below it. It does not go to the zklock: nobody would
            // continue a process that waits at a gate.
            let is_stop = signal == Signal::STOP;
            if is_meant && !(is_stop && is_run) {
                directory.send(process.pid, signal);
            }
            is_stop || !is_run
        });
    }

    /// How many processes below us are alive, and not about to have gone, as far as can be seen, without those that are
    /// `spared` and what is below these.
    pub fn count(&self, spared: impl Fn(i32) -> bool) -> usize {
        let mut found = 0;
        self.walk(spared, &mut |process, _, is_done| {
            found += usize::from(!is_done && !process.exiting);
            true
        });
        found
    }

    /// Walks once without a signal, so that all that a walk uses is in memory.
    pub fn touch_memory(&self) {
        self.walk(|_| false, &mut |_, _, _| true);
    }

    /// Walks through the processes below us, as far as they can be found, but not through children that are `spared`.
    fn walk(&self, spared: impl Fn(i32) -> bool, visit: Visit<'_>) {
        let mut budget = MOST;
        let _ = self.each_child(|child| {
            if !spared(child)
                && let Some(directory) = Directory::open(self.proc, child)
                && let Some(process) = directory.look(child)
                && process.alive
            {
                directory::walk(self.proc, &process, &directory, DEPTH, &mut budget, visit);
            }
        });
    }
}

/// Whether this child can be reaped, all its threads included.
fn has_ended(child: i32) -> bool {
    let ended =
        waitid(Id::Pid(Pid::from_raw(child)), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT);
    !matches!(ended, Ok(WaitStatus::StillAlive))
}

/// Sends a signal to a process, or to a group if the number is negative. Returns whether that is allowed.
fn send(target: i32, signal: Signal) -> bool {
    signals::send(target, signal).map_or_else(|error| error.kind() != io::ErrorKind::PermissionDenied, |()| true)
}

/// Fails where what is started could not be looked after: where /proc is missing, or shows another PID namespace, so that
/// its numbers mean other processes; and where our children would be in another PID namespace than we are. The
/// error says what to do, and is of the kind `Other`.
pub fn check_proc() -> io::Result<()> {
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
    if namespaces::is_of_children_alone() {
        return Err(io::Error::other("its processes would be in a PID namespace of their own; give --fork to unshare"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
