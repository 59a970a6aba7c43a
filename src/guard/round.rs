//! SIGKILL for the children of the guard, and for the process groups that they are in.

use nix::unistd::{Pid, getpgid, getpgrp, getsid};

use crate::rules::signal::Signal;
use crate::signals;

/// The session and the process group in which a command starts. Not all that is there is the command's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    session: Option<Pid>,
    group: Pid,
    /// The process group that was made for the command, if any.
    own_group: Option<Pid>,
}

impl Origin {
    /// Those of this process. `own_group`: the process group that the command gets instead.
    pub(super) fn ours(own_group: Option<Pid>) -> Self {
        Self { session: getsid(None).ok(), group: getpgrp(), own_group }
    }

    /// The process group of a process that descends from the command, if all of that group is the command's. Below the guard
    /// all processes of any other session than that of the start are: a session is begun by a process and joined by none
    /// (setsid(2)).
    #[inline(always)] // Its page is then that of `Round::kill`, which is locked in memory.
    fn group_of_command(&self, pid: Pid) -> Option<Pid> {
        // In this order: what has left that session does not come back. But setsid(2) changes the session before the group.
        let is_elsewhere = self.session.is_some_and(|own| getsid(Some(pid)).is_ok_and(|session| session != own));
        let group = getpgid(Some(pid)).ok()?;
        (self.own_group == Some(group) || is_elsewhere && group != self.group).then_some(group)
    }
}

/// One round of SIGKILL for children of the guard. It allocates nothing.
#[derive(Debug)]
pub(super) struct Round {
    origin: Origin,
    /// Groups that have been killed in this round, each at the place of its last digits.
    killed: [i32; 256],
}

impl Round {
    pub(super) fn new(origin: Origin) -> Self {
        Self { origin, killed: [0; 256] }
    }

    /// Sends SIGKILL to a child that has not been reaped, and so keeps its number. If its whole group is the command's, that
    /// is killed, at one moment, so that none of them gets away by forking and exiting.
    #[inline(never)]
    pub(super) fn kill(&mut self, child: i32) {
        // First: what is dying changes its group no more, and keeps the number of that group in use until it is reaped.
        let _ = signals::send(child, Signal::KILL);
        // Not the group of a process outside of our PID namespace, nor the number that kill(2) takes for all processes.
        if let Some(group @ 2..) = self.origin.group_of_command(Pid::from_raw(child)).map(Pid::as_raw) {
            let place = &mut self.killed[group.unsigned_abs() as usize % self.killed.len()];
            if std::mem::replace(place, group) != group {
                let _ = signals::send(-group, Signal::KILL);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use nix::sys::signal::{Signal as Named, kill};

    use super::*;

    /// Whether a process is dead, or is about to be from this moment on.
    fn is_killed(pid: Pid) -> bool {
        match fs::read_to_string(format!("/proc/{pid}/status")) {
            Ok(status) => status.contains("State:\tZ") || !status.contains("ShdPnd:\t0000000000000000"),
            Err(_) => true,
        }
    }

    /// Kills the first process of a group in one round. Returns whether that kills another one of this group.
    fn kills_group(program: &str, origin: impl FnOnce(Pid) -> Origin) -> bool {
        let mut command = Command::new(program);
        // setsid(1) makes a further process only if it leads a group.
        let command = if program == "sh" { command.process_group(0) } else { command.arg("sh") };
        let mut shell = command.args(["-c", "sleep 600 & echo $!; wait"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (first, other) = (shell.id().try_into().unwrap(), Pid::from_raw(line.trim().parse().unwrap()));
        Round::new(origin(Pid::from_raw(first))).kill(first);
        // All signals of a round are sent at once.
        let killed = is_killed(other);
        shell.wait().unwrap();
        let _ = kill(other, Named::SIGKILL);
        killed
    }

    #[test]
    fn groups_of_other_sessions_are_killed_as_a_whole() {
        let ours = |_| Origin::ours(None);
        assert!(kills_group("setsid", ours));
        // What else is in the session or the group in which the command starts may not be its own.
        assert!(!kills_group("sh", ours));
        assert!(!kills_group("setsid", |group| Origin { group, ..Origin::ours(None) }));
        // That was made for it.
        assert!(kills_group("sh", |group| Origin::ours(Some(group))));
    }
}
