//! `zklock hold`: the process that stands in for a command, and the caller that the lock is held for. The caller starts
//! nested runs that borrow the lock, and that are not below the guard.

use zklock::rules::signal::Signal;

use crate::coverage::Kind;
use crate::host::{Host, Process};
use crate::state::{Event, MS, State, Time};

/// How much longer a caller goes on at a time if its end would make a run wait for ever.
const PATIENCE: Time = 50 * MS;

/// What a run of `zklock hold` has in place of a command.
#[derive(Default)]
pub(crate) struct Hold {
    /// How long the caller goes on once the lock is held.
    work: Time,
    /// Whether the caller is told that the lock is lost, and whether it heeds that.
    wants_signal: bool,
    heeds_signal: bool,
    is_signaled: bool,
    has_caller: bool,
    /// The supervisor has been told that the caller has gone.
    is_told: bool,
    /// What stands in for the command lives.
    pub(crate) stands: bool,
    /// It was told to end.
    is_ending: bool,
}

impl Hold {
    pub(crate) fn new(work: Time, wants_signal: bool, heeds_signal: bool) -> Self {
        Self { work, wants_signal, heeds_signal, has_caller: true, ..Self::default() }
    }

    pub(crate) fn has_caller(&self) -> bool {
        self.has_caller
    }

    /// Tells the supervisor once that the caller has gone.
    pub(crate) fn has_caller_gone(&mut self) -> bool {
        !self.has_caller && !std::mem::replace(&mut self.is_told, true)
    }
}

impl Host {
    /// Makes this run a `zklock hold`. It knows fewer options.
    pub(crate) fn holds(&mut self, hold: Hold) {
        let script = &mut self.script;
        (script.daemon, script.missing, script.status) = (false, false, 0);
        (self.once_per, self.settings.max_run, self.settings.wait_descendants) = (None, None, false);
        self.hold = Some(hold);
    }
}

impl State {
    /// Whether a run may use a lock that this one holds for its caller.
    pub(crate) fn lends_by_hold(&self, host: usize) -> bool {
        self.hosts[host].hold.is_some() && !self.hosts[host].lending.is_over()
    }

    /// What has waited at the gate stands in for a command from now on. The caller begins its work.
    pub(crate) fn begin_to_stand(&mut self, host: usize) {
        let Host { hold: Some(hold), .. } = &mut self.hosts[host] else { return };
        hold.stands = true;
        let work = hold.work;
        self.hosts[host].processes.push(Process::new(Time::MAX));
        self.after(work, Event::CallerEnds(host));
        self.wake_stand_in(host);
    }

    pub(crate) fn wake_stand_in(&mut self, host: usize) {
        if self.hosts[host].hold.is_some() {
            let late = self.latency();
            self.after(late, Event::StandIn(host));
        }
    }

    /// What stands in for a command ends once it was told to.
    pub(crate) fn stand(&mut self, host: usize) {
        if self.hosts[host].asleep.is_some() {
            return self.hosts[host].deferred.push(Event::StandIn(host));
        }
        let now = self.now;
        let Host { hold: Some(hold), processes, .. } = &mut self.hosts[host] else { return };
        let Some(process) = processes.first_mut().filter(|process| process.alive && !process.suspended) else { return };
        if !hold.is_ending {
            return;
        }
        process.exit_at = now;
        self.exit(host, 0, false);
    }

    /// It has got a signal that ends it.
    pub(crate) fn end_stand_in(&mut self, host: usize) {
        if let Some(hold) = &mut self.hosts[host].hold {
            hold.is_ending = true;
        }
        self.wake_stand_in(host);
    }

    pub(crate) fn caller_ends(&mut self, host: usize) {
        if self.hosts[host].asleep.is_some() {
            return self.hosts[host].deferred.push(Event::CallerEnds(host));
        }
        if self.below(host).iter().any(|below| self.would_wait_for(*below, host)) {
            return self.after(PATIENCE, Event::CallerEnds(host));
        }
        let Some(hold) = &mut self.hosts[host].hold else { return };
        if std::mem::replace(&mut hold.has_caller, false) {
            self.coverage.count(Kind::CallerEnded);
            self.note(|| format!("host {host}: the caller has ended"));
            self.wake_supervisor(host);
        }
    }

    /// Whether a run is nested in one that the caller has started, and has still to find out what is lent to it. Without the
    /// caller, it would queue behind this run, which waits for the run between.
    fn would_wait_for(&self, below: usize, host: usize) -> bool {
        let state = &self.hosts[below];
        let mut between = self.above(below).take_while(|run| *run != host).peekable();
        let is_direct = between.peek().is_none();
        !is_direct && between.all(|run| self.hosts[run].alive) && state.alive && state.started && state.grant.is_none()
    }

    /// Tells the caller that the lock is lost. Returns whether it was told, now or before.
    pub(crate) fn signal_caller(&mut self, host: usize, signal: Signal) -> bool {
        let Some(hold) = self.hosts[host].hold.as_mut().filter(|hold| hold.wants_signal) else { return false };
        if hold.is_signaled {
            return true;
        }
        if !hold.has_caller {
            return false;
        }
        hold.is_signaled = true;
        if hold.heeds_signal {
            let tidy = self.chance.up_to(300 * MS);
            self.after(tidy, Event::CallerEnds(host));
        }
        self.note(|| format!("host {host}: the caller gets {signal}"));
        true
    }

    /// What stands in for a command, or waits at the gate for that, has ended.
    pub(crate) fn stand_in_has_gone(&mut self, host: usize) {
        if let Some(hold) = &mut self.hosts[host].hold {
            hold.stands = false;
        }
    }
}
