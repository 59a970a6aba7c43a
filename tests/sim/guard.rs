//! A guard, in the order of `src/guard/process.rs`, and what the kernel does when it or its supervisor dies.

use zklock::rules::guard::{Verdict, Watch};

use crate::coverage::Kind;
use crate::state::{Event, State, Time, instant, micros};

/// How long the kernel takes to deliver a signal.
const DELIVERY: Time = 50;

/// A guard whose gate was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Guard {
    pub(crate) alive: bool,
    pub(crate) frozen: bool,
    /// What the supervisor has asked for.
    pub(crate) is_to_kill: bool,
    pub(crate) is_to_leave: bool,
    pub(crate) kills: u32,
    pub(crate) has_killed: bool,
    watch: Watch,
    /// When the kernel kills it, unless the timer is moved.
    timer: Time,
    /// What it shows to the others.
    pub(crate) lease_over: bool,
    pub(crate) empty: bool,
    pub(crate) left: bool,
    /// What the supervisor has been told.
    pub(crate) told_over: bool,
    pub(crate) told_gone: bool,
    armed: Option<Time>,
}

impl State {
    pub(crate) fn guard(&mut self, host: usize) -> &mut Guard {
        &mut self.hosts[host].guard
    }

    /// When the lease demands SIGKILL, and when it ends, as the shared memory says.
    fn limits(&self, host: usize) -> (Time, Time) {
        let keeper = self.hosts[host].keeper.map(|keeper| &self.keepers[keeper]);
        keeper.and_then(|keeper| keeper.limits.filter(|_| !keeper.revoked)).unwrap_or((0, 0))
    }

    /// The gate of a new guard is opened.
    pub(crate) fn open_gate(&mut self, host: usize) {
        *self.guard(host) = Guard { alive: true, ..Guard::default() };
        self.guard(host).watch.open();
        let (_, ends_at) = self.limits(host);
        self.set_timer(host, ends_at);
        self.wake_guard(host);
    }

    fn set_timer(&mut self, host: usize, ends_at: Time) {
        self.guard(host).timer = ends_at;
        self.schedule(ends_at, Event::Deadline(host));
    }

    /// Lets the guard take a turn soon, because something has happened that concerns it.
    pub(crate) fn wake_guard(&mut self, host: usize) {
        let late = self.latency();
        self.after(late, Event::Guard(host));
    }

    pub(crate) fn guard_turn(&mut self, host: usize) {
        let state = &self.hosts[host];
        if !state.guard.alive || state.guard.frozen {
            return;
        }
        if state.asleep.is_some() {
            return self.hosts[host].deferred.push(Event::Guard(host));
        }
        if let Some(end) = self.hosts[host].root_status.take() {
            self.hosts[host].root_end = Some(end);
            self.wake_supervisor(host);
        }
        if self.hosts[host].is_empty() {
            self.guard(host).empty = true;
            return self.guard_ends(host);
        }
        if self.guard(host).is_to_leave {
            self.guard(host).left = true;
            return self.guard_ends(host);
        }
        let orphan = !self.hosts[host].alive;
        if orphan || self.guard(host).is_to_kill {
            self.guard(host).watch.kill();
        }
        let (kill_at, ends_at) = self.limits(host);
        let now = instant(self.now);
        match self.guard(host).watch.judge(now, instant(kill_at), instant(ends_at)) {
            Verdict::Idle => {}
            Verdict::Watch { look_at, deadline } => {
                self.set_timer(host, micros(deadline.since_boot()));
                self.arm_guard(host, micros(look_at.since_boot()));
            }
            Verdict::Kill { lease_over, again_at, deadline } => {
                if let Some(deadline) = deadline {
                    self.set_timer(host, micros(deadline.since_boot()));
                }
                self.guard(host).has_killed = true;
                if lease_over {
                    self.note(|| format!("host {host}: the guard kills the command"));
                    self.coverage.count(Kind::KilledByGuard);
                    self.guard(host).lease_over = true;
                    self.wake_supervisor(host);
                }
                self.hosts[host].stopped_by_us = true;
                self.kill_processes(host);
                self.arm_guard(host, micros(again_at.since_boot()));
            }
        }
    }

    fn arm_guard(&mut self, host: usize, at: Time) {
        if self.guard(host).armed != Some(at) {
            self.guard(host).armed = Some(at);
            let late = self.latency();
            self.schedule(at + late, Event::Guard(host));
        }
    }

    /// The kernel's timer: it kills a guard that was late to move it, stopped or not.
    pub(crate) fn deadline_passes(&mut self, host: usize) {
        if self.hosts[host].asleep.is_some() {
            return self.hosts[host].deferred.push(Event::Deadline(host));
        }
        if self.guard(host).alive && self.guard(host).timer <= self.now {
            self.note(|| format!("host {host}: the kernel kills the guard at the end of the lease"));
            self.coverage.count(Kind::KilledByTimer);
            self.guard_dies(host);
        }
    }

    /// SIGKILL to the guard. The kernel then kills the command's process group.
    pub(crate) fn guard_dies(&mut self, host: usize) {
        if self.guard(host).alive {
            // A command that has ended by itself has done so, whatever becomes of what it has left behind.
            if self.hosts[host].processes.first().is_some_and(|root| root.alive) {
                self.hosts[host].stopped_by_us = true;
            }
            self.blow_fuse(host);
            self.guard_ends(host);
        }
    }

    /// The guard's process ends.
    fn guard_ends(&mut self, host: usize) {
        self.guard(host).alive = false;
        if let Some(keeper) = self.hosts[host].keeper {
            self.touch_keeper(keeper);
        }
        self.excuse_stragglers(host);
        self.wake_supervisor(host);
    }

    /// The kernel sends SIGKILL to the command's process group.
    pub(crate) fn blow_fuse(&mut self, host: usize) {
        for number in 0..self.hosts[host].processes.len() {
            let process = &self.hosts[host].processes[number];
            if process.alive && process.in_group {
                let late = self.up_to(DELIVERY);
                self.after(late, Event::Exit { host, process: number, killed: true });
            }
        }
    }

    /// With the guard dead and the supervisor dead or stopped, what has left the group is beyond reach. That stays.
    pub(crate) fn excuse_stragglers(&mut self, host: usize) {
        let state = &mut self.hosts[host];
        if !state.guard.alive && (!state.alive || state.frozen) {
            for process in state.processes.iter_mut().filter(|process| !process.in_group) {
                process.counted = false;
            }
        }
    }
}
