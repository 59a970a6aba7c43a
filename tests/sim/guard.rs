//! The process of a guard: what it finds outside itself, and what the kernel does when it or its supervisor dies. The
//! guard in it is the product's.

use zklock::rules::event::CommandEnd;
use zklock::rules::guard::{
    self as rules, Children, GuardIo, GuardReaped, GuardRequest, Heard, NextTurn, Sign, Stage, Targets,
};
use zklock::rules::instant::Instant;
use zklock::rules::lease::Limits;
use zklock::rules::signal::Signal;

use crate::coverage::Kind;
use crate::host::status_of;
use crate::nested::Lender;
use crate::state::{Event, State, Time, TurnRate, instant, micros};

/// How long the kernel takes to deliver a signal.
const DELIVERY: Time = 50;

/// A guard, and the process that waits at its gate.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) alive: bool,
    pub(crate) frozen: bool,
    /// It has shown that it answers for nothing any more, so its keeper waits for it no longer. It is about to exit.
    pub(crate) is_done: bool,
    /// It has ended, and the supervisor has not reaped it.
    pub(crate) is_zombie: bool,
    /// `None` until it has taken its first turn, and during a turn.
    rules: Option<rules::GuardRules>,
    pub(crate) requests: Vec<GuardRequest>,
    /// Whether a process waits at the gate.
    pub(crate) is_gated: bool,
    /// The gate is open, and the process is about to pass it.
    is_opened: bool,
    /// When the kernel continues it, and when it kills it, unless the timers are moved.
    timers: Option<(Time, Time)>,
    /// Whether the kernel kills the command's process group when the guard or the supervisor ends.
    has_fuses: bool,
    armed: Option<Time>,
    turn_rate: TurnRate,
    /// The run above that lends to ours. Its pipe is open for as long as the guard lives.
    pub(crate) lender: Option<Lender>,
    /// What it shows to the others.
    pub(crate) stage: Stage,
    pub(crate) ended: Option<i32>,
    pub(crate) suspended: Option<Signal>,
    pub(crate) lease_over: bool,
}

impl Guard {
    /// A guard that has just been forked, or, if it is not alive, none.
    pub(crate) fn new(alive: bool) -> Self {
        Self {
            alive,
            frozen: false,
            is_done: false,
            is_zombie: false,
            rules: None,
            requests: vec![],
            is_gated: alive,
            is_opened: false,
            timers: None,
            has_fuses: false,
            armed: None,
            turn_rate: TurnRate::default(),
            lender: None,
            stage: Stage::Gated,
            ended: None,
            suspended: None,
            lease_over: false,
        }
    }
}

/// What the guard of one host finds outside itself.
struct SimIo<'s> {
    state: &'s mut State,
    host: usize,
}

impl SimIo<'_> {
    fn guard(&mut self) -> &mut Guard {
        self.state.guard(self.host)
    }
}

impl GuardIo for SimIo<'_> {
    fn now(&self) -> Instant {
        instant(self.state.now)
    }

    fn limits(&self) -> Limits {
        let keeper = self.state.keeper_of(self.host, self.state.hosts[self.host].guard.lender.as_ref());
        let (kill_at, ends_at) = keeper.and_then(|keeper| keeper.limits.filter(|_| !keeper.revoked)).unwrap_or((0, 0));
        Limits { kill_at: instant(kill_at), ends_at: instant(ends_at) }
    }

    fn has_lost_lender(&self) -> bool {
        self.state.hosts[self.host].guard.lender.as_ref().is_some_and(Lender::is_lost)
    }

    fn disarm(&mut self) {
        self.guard().has_fuses = false;
    }

    fn ended_by_itself(&self) -> bool {
        !self.state.hosts[self.host].is_spoiled
    }

    fn set_timers(&mut self, continue_at: Instant, kill_at: Instant) {
        let timers = (micros(continue_at.since_boot()), micros(kill_at.since_boot()));
        if self.guard().timers.replace(timers) != Some(timers) {
            self.state.schedule(timers.0, Event::Deadline(self.host));
            self.state.schedule(timers.1, Event::Deadline(self.host));
        }
    }

    fn share_processor(&mut self, _: bool) {}

    fn reap(&mut self) -> GuardReaped {
        let host = &mut self.state.hosts[self.host];
        match (host.root_status.take(), host.suspended_by.take()) {
            (Some(status), _) => GuardReaped::Ended(status),
            (None, Some(signal)) => GuardReaped::Suspended(signal.number()),
            (None, None) if !host.guard.is_gated && self.state.is_empty(self.host) => GuardReaped::NoneLeft,
            (None, None) => GuardReaped::NoMore,
        }
    }

    fn hear(&mut self) -> Heard {
        let host = &mut self.state.hosts[self.host];
        if !host.guard.requests.is_empty() {
            return Heard::Request(host.guard.requests.remove(0));
        }
        if host.alive { Heard::Nothing } else { Heard::Gone }
    }

    fn show(&mut self, sign: Sign) {
        let guard = self.guard();
        match sign {
            Sign::Stage(stage) => {
                guard.stage = stage;
                guard.is_done = matches!(stage, Stage::Empty | Stage::Left);
                if let Some(keeper) = self.state.hosts[self.host].keeper {
                    self.state.touch_keeper(keeper);
                }
            }
            Sign::Ended(status) => guard.ended = Some(status),
            Sign::Suspended(signal) => guard.suspended = Signal::new(signal),
            Sign::LeaseOver => {
                guard.lease_over = true;
                self.state.note(|| format!("host {}: the guard kills the command", self.host));
                self.state.coverage.count(Kind::KilledByGuard);
            }
        }
    }

    fn wake_supervisor(&mut self) {
        self.state.wake_supervisor(self.host);
    }

    fn open_gate(&mut self) {
        let guard = self.guard();
        guard.is_opened = guard.is_gated;
        if self.state.chance.once_in(4) {
            let late = self.state.latency();
            self.state.after(late, Event::Pass(self.host));
        } else {
            self.state.pass(self.host);
        }
    }

    fn close_gate(&mut self) {
        let guard = self.guard();
        guard.is_gated &= guard.is_opened;
    }

    fn signal(&mut self, signal: Signal, _: Targets) {
        if signal == Signal::CONT {
            self.state.continue_processes(self.host);
        } else {
            self.state.signal_command(self.host, signal);
        }
    }

    fn kill_children(&mut self) -> Children {
        let is_empty = self.state.is_empty(self.host);
        let host = &mut self.state.hosts[self.host];
        host.stopped_by_us = true;
        if host.released && !is_empty {
            self.state.fail(format!("the guard of host {} kills what it is to leave", self.host));
        }
        self.state.die_behind_gate(self.host);
        self.state.kill_processes(self.host);
        Children { number: 0, have_ended: is_empty && !self.guard().is_gated }
    }

    /// No process of the simulator is out of reach of [`Self::kill_children`].
    fn kill_below(&mut self) {}
}

impl State {
    pub(crate) fn guard(&mut self, host: usize) -> &mut Guard {
        &mut self.hosts[host].guard
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
        if state.guard.is_done {
            return self.guard_ends(host);
        }
        if self.hosts[host].guard.turn_rate.is_exceeded(self.now) {
            self.fail(format!("the guard of host {host} does not sleep between its turns"));
        }
        self.look_at_lease(host);
        self.hosts[host].longest_lease = 0;
        let rules = self.guard(host).rules.take();
        let mut outside = SimIo { state: self, host };
        let mut rules = rules.unwrap_or_else(|| {
            outside.guard().has_fuses = true;
            rules::GuardRules::default()
        });
        let next = rules.turn(&mut outside);
        let Limits { kill_at, ends_at } = outside.limits();
        let is_set = outside.guard().timers.is_some_and(|(_, kill_at)| instant(kill_at) == ends_at);
        if outside.guard().stage.is_open() && outside.now() < kill_at && !is_set {
            self.fail(format!("the kernel would not kill the guard of host {host} at the end of the lease"));
        }
        self.guard(host).rules = Some(rules);
        if let NextTurn::Wait(_) = next {
            self.check_lender(host);
        }
        match next {
            // It may be suspended before it exits.
            NextTurn::Exit if self.chance.once_in(4) => self.wake_guard(host),
            NextTurn::Exit => self.guard_ends(host),
            NextTurn::Wait(None) => {}
            NextTurn::Wait(Some(at)) => {
                let at = micros(at.since_boot());
                if at <= self.now || self.guard(host).armed != Some(at) {
                    self.guard(host).armed = Some(at);
                    let late = self.latency();
                    self.schedule(at.max(self.now) + late, Event::Guard(host));
                }
            }
        }
    }

    /// The kernel's timers: they continue a guard that is suspended, and kill one that was late to move them.
    pub(crate) fn deadline_passes(&mut self, host: usize) {
        if self.hosts[host].asleep.is_some() {
            return self.hosts[host].deferred.push(Event::Deadline(host));
        }
        let now = self.now;
        let guard = self.guard(host);
        let Some((continue_at, kill_at)) = guard.timers.filter(|_| guard.alive) else { return };
        if continue_at <= now {
            self.continue_guard(host);
        }
        if kill_at <= now {
            self.note(|| format!("host {host}: the kernel kills the guard at the end of the lease"));
            self.coverage.count(Kind::KilledByTimer);
            self.guard_dies(host);
        }
    }

    /// SIGKILL to the guard. The kernel then kills the command, and its process group.
    pub(crate) fn guard_dies(&mut self, host: usize) {
        if !self.guard(host).alive {
            return;
        }
        self.hosts[host].guard_died = true;
        // A command that has ended by itself has done so, whatever becomes of what it has left behind.
        if self.hosts[host].processes.first().is_some_and(|root| root.alive) {
            self.hosts[host].stopped_by_us = true;
            self.kernel_kills(host, 0);
        }
        // It may have reaped the command, and not have shown that yet.
        if self.chance.once_in(2) {
            self.hosts[host].root_status = None;
        }
        self.guard_ends(host);
    }

    /// The guard's process ends.
    fn guard_ends(&mut self, host: usize) {
        self.die_behind_gate(host);
        let guard = self.guard(host);
        (guard.alive, guard.is_zombie, guard.is_gated) = (false, true, false);
        guard.lender = None;
        if self.hosts[host].has_opening() {
            self.stand_in_has_gone(host);
        }
        self.blow_fuse(host);
        // Its socket hangs up (F_SETSIG).
        self.hosts[host].frozen = false;
        if let Some(keeper) = self.hosts[host].keeper {
            self.touch_keeper(keeper);
        }
        self.excuse_stragglers(host);
        self.wake_supervisor(host);
        self.wake_above(host);
    }

    /// The guard or the supervisor has ended: the kernel sends SIGKILL to the command's process group, if it was told
    /// to.
    pub(crate) fn blow_fuse(&mut self, host: usize) {
        if !self.guard(host).has_fuses {
            return;
        }
        self.die_behind_gate(host);
        for number in 0..self.hosts[host].processes.len() {
            let state = &self.hosts[host];
            if state.processes[number].alive && state.processes[number].in_group {
                if state.guard.stage == Stage::Left {
                    return self.fail(format!("the kernel kills what the guard of host {host} has left"));
                }
                self.kernel_kills(host, number);
            }
        }
    }

    /// What has waited at the gate passes it now.
    pub(crate) fn pass(&mut self, host: usize) {
        if self.hosts[host].asleep.is_some() {
            return self.hosts[host].deferred.push(Event::Pass(host));
        }
        let guard = self.guard(host);
        if guard.is_opened && std::mem::take(&mut guard.is_gated) {
            self.pass_gate(host);
        }
    }

    /// SIGKILL to what has not passed the gate yet although that is open.
    fn die_behind_gate(&mut self, host: usize) {
        let guard = self.guard(host);
        if guard.is_opened && std::mem::take(&mut guard.is_gated) {
            self.hosts[host].died_behind_gate = true;
            self.hosts[host].root_status = Some(status_of(CommandEnd::Signaled(Signal::KILL)));
        }
    }

    fn kernel_kills(&mut self, host: usize, process: usize) {
        self.hosts[host].processes[process].killed = true;
        let late = self.chance.up_to(DELIVERY);
        self.after(late, Event::Exit { host, process, killed: true });
    }

    /// With the guard dead and the supervisor dead or suspended, what has left the group is beyond reach. That stays.
    pub(crate) fn excuse_stragglers(&mut self, host: usize) {
        for host in self.below(host).into_iter().chain([host]) {
            self.excuse_stragglers_of(host);
        }
    }

    fn excuse_stragglers_of(&mut self, host: usize) {
        // The lease that is over may be that of a run above. A guard that is suspended is then not killed in time.
        let is_beyond_all = self.above(host).any(|outer| self.is_helpless(outer));
        let is_running = self.is_running(host);
        let (now, state) = (self.now, &mut self.hosts[host]);
        // The supervisor has seen that the lease was made shorter, and was suspended before it could do without the
        // guard.
        if state.frozen && state.guard.frozen && now <= state.shortened_from {
            state.shortened_from = state.shortened_from.max(state.longest_lease);
        }
        let is_unguarded = !state.guard.alive && (!state.alive || state.frozen);
        let is_suspended = state.guard.frozen && (!state.alive || state.frozen);
        if is_unguarded || is_suspended && is_beyond_all {
            for process in state.processes.iter_mut().filter(|process| !process.in_group) {
                process.counted = false;
            }
        }
        if is_unguarded {
            let is_over = matches!(state.guard.stage, Stage::Gated | Stage::Empty | Stage::Left);
            let is_running = is_running || state.processes.iter().any(|process| process.alive);
            state.abandoned |= !state.alive && !state.released && !is_over && is_running;
        }
    }
}
