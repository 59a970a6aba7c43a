//! A machine on which a user runs zklock: the supervisor's loop around the product's state machine, and the command's
//! processes. A turn of the loop handles events in the same order as `src/supervisor.rs`.

use zklock::rules::event::{Awaited, CommandEnd, CommandEvent, Effect, Event as Happening, Unstarted};
use zklock::rules::machine::Machine;
use zklock::rules::message::{Grant, Order};
use zklock::rules::mode::Mode;
use zklock::rules::outcome::Outcome;
use zklock::rules::queue::Dialect;
use zklock::rules::settings::Settings;
use zklock::rules::signal::Signal;

use crate::coverage::Kind;
use crate::guard::Guard;
use crate::state::{Event, KeeperState, MS, State, Time, instant, micros};

/// How long a supervisor that has finished waits for its keeper to exit.
const KEEPER_EXIT: Time = 500 * MS;

/// A guard that has not killed once when it is asked this many times is killed.
const KILLS_BY_GUARD: u32 = 6;

/// How the command behaves.
pub(crate) struct Script {
    /// Whether there is a command of `--on-lost`.
    pub(crate) on_lost: bool,
    pub(crate) length: Time,
    pub(crate) status: u8,
    /// How many processes it starts.
    pub(crate) children: usize,
    /// Whether it ignores the stop signal.
    pub(crate) stubborn: bool,
    /// How often each process forks while it is being killed.
    pub(crate) forks: u8,
    /// Whether it leaves a process behind on purpose.
    pub(crate) daemon: bool,
    /// Whether its program does not exist.
    pub(crate) missing: bool,
}

pub(crate) struct Process {
    pub(crate) alive: bool,
    stopped: bool,
    exit_at: Time,
    forks: u8,
    /// Whether it must not run without the lock.
    pub(crate) counted: bool,
    /// Whether it has stayed in the command's process group.
    pub(crate) in_group: bool,
}

pub(crate) struct Host {
    pub(crate) lock: usize,
    /// Whether it takes all locks together, this one first.
    pub(crate) takes_all: bool,
    pub(crate) mode: Mode,
    pub(crate) dialects: Vec<Dialect>,
    pub(crate) settings: Settings,
    pub(crate) script: Script,
    pub(crate) machine: Option<Machine>,
    /// Whether the supervisor's process has not ended; it may not have been started yet.
    pub(crate) alive: bool,
    pub(crate) frozen: bool,
    pub(crate) keeper: Option<usize>,
    pub(crate) guard: Guard,
    linked: bool,
    heard: Option<Time>,
    answered: Option<Time>,
    pub(crate) signals: Vec<Signal>,
    armed: Option<Time>,
    pub(crate) processes: Vec<Process>,
    /// Whether the command's own process, the first of `processes`, exists and has not been reaped.
    unreaped: bool,
    /// How it ended, until it has been reaped, and until the supervisor has been told.
    pub(crate) root_status: Option<CommandEnd>,
    pub(crate) root_end: Option<CommandEnd>,
    /// The signal that the command's own process is about to die of.
    root_dies_of: Option<Signal>,
    /// The signal that has stopped the command, until the supervisor has noticed.
    pub(crate) stopped_by: Option<Signal>,
    /// How the command ended before zklock stopped it.
    pub(crate) natural_end: Option<CommandEnd>,
    pub(crate) stopped_by_us: bool,
    /// Whether the command was stopped under a lease that had not reached its full length.
    pub(crate) stopped_early: bool,
    /// How many of its keepers were killed.
    pub(crate) keeper_kills: u32,
    pub(crate) grant: Option<Grant>,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) asleep: Option<Time>,
    pub(crate) slept: Time,
    /// How far its wall clock is fast.
    pub(crate) fast: Time,
    pub(crate) deferred: Vec<Event>,
    /// Until when the command may run without the lock because the whole machine was paused, or because an operator
    /// took the lock away.
    pub(crate) paused_until: Time,
    pub(crate) operator_until: Time,
    /// For each server, until when nothing passes from this host to it, and back.
    pub(crate) cuts: Vec<(Time, Time)>,
}

impl Host {
    pub(crate) fn new(lock: usize, mode: Mode, settings: Settings, script: Script, servers: usize) -> Self {
        Self {
            lock,
            takes_all: false,
            mode,
            dialects: vec![Dialect::Curator],
            settings,
            script,
            machine: None,
            alive: true,
            frozen: false,
            keeper: None,
            guard: Guard::default(),
            linked: false,
            heard: None,
            answered: None,
            signals: vec![],
            armed: None,
            processes: vec![],
            unreaped: false,
            root_status: None,
            root_end: None,
            root_dies_of: None,
            stopped_by: None,
            natural_end: None,
            stopped_by_us: false,
            stopped_early: false,
            keeper_kills: 0,
            grant: None,
            outcome: None,
            asleep: None,
            slept: 0,
            fast: 0,
            deferred: vec![],
            paused_until: 0,
            operator_until: 0,
            cuts: vec![(0, 0); servers],
        }
    }

    /// Whether any process is alive that must not run without the lock.
    pub(crate) fn is_running(&self) -> bool {
        self.processes.iter().any(|process| process.alive && process.counted)
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.processes.iter().any(|process| process.alive)
    }
}

impl State {
    pub(crate) fn start(&mut self, host: usize) {
        if self.hosts[host].asleep.is_some() {
            return self.hosts[host].deferred.push(Event::Start(host));
        }
        if !self.hosts[host].alive {
            return;
        }
        self.note(|| format!("host {host} starts"));
        let (machine, effects) = Machine::start(self.hosts[host].settings, instant(self.now));
        self.hosts[host].machine = Some(machine);
        self.perform(host, effects);
        self.turn(host);
    }

    /// Lets the supervisor take a turn soon, because something has arrived for it.
    pub(crate) fn wake_supervisor(&mut self, host: usize) {
        let late = self.latency();
        self.after(late, Event::Turn(host));
    }

    /// How long a process waits for the processor.
    pub(crate) fn latency(&mut self) -> Time {
        20 + if self.once_in(16) { self.up_to(5 * MS) } else { self.up_to(200) }
    }

    pub(crate) fn turn(&mut self, host: usize) {
        let state = &self.hosts[host];
        if !state.alive || state.frozen || state.asleep.is_some() || state.machine.is_none() {
            return;
        }
        self.hear_keeper(host);
        let signals = std::mem::take(&mut self.hosts[host].signals);
        let (continues, others): (Vec<_>, Vec<_>) = signals.into_iter().partition(|signal| *signal == Signal::CONT);
        for signal in others {
            self.happen(host, Happening::Signal { signal, shared: false });
        }
        if self.deadline(host).is_some_and(|deadline| deadline <= self.now) {
            self.happen(host, Happening::Timer);
        }
        for signal in continues {
            self.happen(host, Happening::Signal { signal, shared: false });
        }
        self.reap(host);
        if self.hosts[host].alive
            && let Some(deadline) = self.deadline(host)
            && self.hosts[host].armed != Some(deadline)
        {
            self.hosts[host].armed = Some(deadline);
            let late = self.latency();
            self.schedule(deadline.max(self.now) + late, Event::Turn(host));
        }
    }

    fn deadline(&self, host: usize) -> Option<Time> {
        Some(micros(self.hosts[host].machine.as_ref()?.deadline()?.since_boot()))
    }

    fn hear_keeper(&mut self, host: usize) {
        let is_over = self.hosts[host].guard.lease_over;
        while let (Some(keeper), true, true) =
            (self.hosts[host].keeper, self.hosts[host].linked, self.hosts[host].alive)
        {
            let state = &mut self.keepers[keeper];
            if !state.reports.is_empty() {
                let report = state.reports.remove(0);
                // The keeper may be waiting for room.
                self.touch_keeper(keeper);
                self.happen(host, Happening::Keeper(report));
            } else if state.alive {
                break;
            } else {
                self.hosts[host].linked = false;
                self.happen(host, Happening::KeeperGone);
            }
        }
        let Some(keeper) = self.hosts[host].keeper else { return };
        let KeeperState { lease, answered, .. } = self.keepers[keeper];
        if let Some(at) = answered.filter(|_| answered > self.hosts[host].answered) {
            self.hosts[host].answered = answered;
            self.happen(host, Happening::Answered(instant(at)));
        }
        if let Some(from) = lease.filter(|_| lease > self.hosts[host].heard) {
            self.hosts[host].heard = lease;
            self.happen(host, Happening::Extended(instant(from)));
        }
        if is_over && !std::mem::replace(&mut self.guard(host).told_over, true) {
            self.happen(host, Happening::LeaseOver);
        }
    }

    fn reap(&mut self, host: usize) {
        // What the guard has reaped is told before its death, what has come to us after it.
        let adopted = if self.hosts[host].guard.alive { None } else { self.hosts[host].root_status.take() };
        // What the guard shows is read before the keeper is heard, and told after that.
        let guard = self.hosts[host].guard;
        let gone = !guard.alive && !guard.empty && !guard.left;
        let end = self.hosts[host].root_end.take();
        let gone = gone && self.hosts[host].grant.is_some();
        if gone || end.or(adopted).is_some() {
            self.hear_keeper(host);
        }
        if let Some(signal) = self.hosts[host].stopped_by.take() {
            self.happen(host, Happening::Command(CommandEvent::Stopped(signal)));
        }
        if let Some(end) = end {
            self.command_ended(host, end);
        }
        if gone && !std::mem::replace(&mut self.guard(host).told_gone, true) {
            self.happen(host, Happening::GuardGone);
        }
        if let Some(end) = adopted {
            self.command_ended(host, end);
        }
        let state = &self.hosts[host];
        let gone = match state.machine.as_ref().and_then(Machine::awaits) {
            None => false,
            Some(Awaited::Everyone) => state.guard.empty || (!state.guard.alive && state.is_empty()),
            Some(Awaited::Borrowers) => true,
        };
        if gone && !state.unreaped {
            self.hear_keeper(host);
            self.happen(host, Happening::Command(CommandEvent::TreeGone));
        }
    }

    fn command_ended(&mut self, host: usize, end: CommandEnd) {
        self.hosts[host].unreaped = false;
        if !self.awaits_everyone(host) {
            // The processes that it has left behind are meant to stay.
            let waits = self.hosts[host].settings.wait_descendants;
            for process in &mut self.hosts[host].processes {
                process.counted &= waits;
            }
            self.hosts[host].natural_end = Some(end);
        }
        self.happen(host, Happening::Command(CommandEvent::Ended(end)));
    }

    fn awaits_everyone(&self, host: usize) -> bool {
        self.hosts[host].machine.as_ref().is_some_and(|machine| machine.awaits() == Some(Awaited::Everyone))
    }

    pub(crate) fn happen(&mut self, host: usize, event: Happening) {
        if !self.hosts[host].alive {
            return;
        }
        let now = instant(self.now);
        let Some(machine) = &mut self.hosts[host].machine else { return };
        let effects = machine.step(now, event);
        self.perform(host, effects);
    }

    fn perform(&mut self, host: usize, effects: Vec<Effect>) {
        for effect in effects {
            if !matches!(effect, Effect::Say(_)) {
                self.note(|| format!("host {host}: {effect:?}"));
            }
            match effect {
                Effect::StartKeeper => self.start_keeper(host),
                Effect::MakeGuard | Effect::DismissGuard => {}
                Effect::Spawn { grant, until } => self.spawn(host, grant, micros(until.since_boot())),
                Effect::Forward(signal) => self.forward_signal(host, signal),
                Effect::Stop(signal) => {
                    let keeper = self.hosts[host].keeper.map(|keeper| &self.keepers[keeper]);
                    self.hosts[host].stopped_early = keeper.is_some_and(|keeper| keeper.lease < keeper.last_beat);
                    self.hosts[host].stopped_by_us = true;
                    self.forward_signal(host, signal);
                    self.continue_processes(host);
                }
                Effect::Kill => {
                    self.hosts[host].stopped_by_us = true;
                    self.hosts[host].guard.kills += 1;
                    let guard = self.hosts[host].guard;
                    if guard.alive && (guard.kills < KILLS_BY_GUARD || guard.has_killed) {
                        self.guard(host).is_to_kill = true;
                        self.wake_guard(host);
                    } else if self.hosts[host].guard.alive {
                        self.guard_dies(host);
                    } else {
                        self.kill_processes(host);
                        // It checks by itself whether any process is left.
                        self.wake_supervisor(host);
                    }
                }
                Effect::Release => {
                    self.guard(host).is_to_leave = true;
                    self.wake_guard(host);
                    if let Some(keeper) = self.hosts[host].keeper {
                        self.keepers[keeper].orders.push(Order::Release);
                        self.touch_keeper(keeper);
                    }
                }
                Effect::StartOnLost if !self.hosts[host].script.on_lost => self.happen(host, Happening::OnLostEnded),
                Effect::StartOnLost => {
                    self.coverage.count(Kind::OnLost);
                    self.check_on_lost(host);
                    let time = self.up_to(300 * MS);
                    self.after(time, Event::OnLostEnds(host));
                }
                Effect::ForwardToOnLost(_) => {}
                Effect::StopSelf(_) => self.hosts[host].frozen = true,
                Effect::EndKeeper => self.end_keeper(host),
                Effect::Say(_) => {}
                Effect::Finish(outcome) => self.finish(host, outcome),
            }
        }
    }

    fn start_keeper(&mut self, host: usize) {
        self.end_keeper(host);
        self.keepers.push(KeeperState {
            host,
            alive: true,
            frozen: false,
            reports: vec![],
            orders: vec![],
            lease: None,
            limits: None,
            revoked: false,
            last_beat: None,
            answered: None,
            conns: vec![],
            distrusted: None,
        });
        let keeper = self.keepers.len() - 1;
        let state = &mut self.hosts[host];
        (state.keeper, state.linked, state.heard, state.answered) = (Some(keeper), true, None, None);
        self.born.push(keeper);
        self.touch_keeper(keeper);
    }

    pub(crate) fn end_keeper(&mut self, host: usize) {
        if let Some(keeper) = self.hosts[host].keeper {
            self.keeper_ends(keeper);
        }
    }

    fn finish(&mut self, host: usize, outcome: Outcome) {
        self.hosts[host].outcome = Some(outcome);
        self.hosts[host].alive = false;
        if let Some(keeper) = self.hosts[host].keeper {
            self.touch_keeper(keeper);
        }
        self.after(KEEPER_EXIT, Event::EndKeeper(host));
        self.check_outcome(host, outcome);
    }

    /// SIGKILL to the supervisor. The kernel then kills the command's process group, and the guard all of it.
    pub(crate) fn kill_supervisor(&mut self, host: usize) {
        self.hosts[host].alive = false;
        if let Some(keeper) = self.hosts[host].keeper {
            self.touch_keeper(keeper);
        }
        self.blow_fuse(host);
        self.excuse_stragglers(host);
        self.wake_guard(host);
    }

    fn spawn(&mut self, host: usize, grant: Grant, until: Time) {
        if self.hosts[host].script.missing {
            return self.happen(host, Happening::Command(CommandEvent::StartFailed(Unstarted::NotFound)));
        }
        self.check_spawn(host, &grant, until);
        let script = &self.hosts[host].script;
        let (length, children, forks, daemon) = (script.length, script.children, script.forks, script.daemon);
        for number in 0..=children {
            let stays = if daemon && number == children { 1000 * MS } else { 0 };
            let exit_at = self.now + length + stays;
            let in_group = !daemon || number < children;
            let process = Process { alive: true, stopped: false, exit_at, forks, counted: true, in_group };
            self.hosts[host].processes.push(process);
            self.schedule(exit_at, Event::Exit { host, process: number, killed: false });
        }
        self.hosts[host].unreaped = true;
        self.hosts[host].grant = Some(grant);
        self.open_gate(host);
        self.spring(Kind::AtSpawn, host);
    }

    /// A process ends, if it is due or killed. A stopped process ends only if it is killed.
    pub(crate) fn exit(&mut self, host: usize, process: usize, killed: bool) {
        if self.hosts[host].asleep.is_some() {
            return self.hosts[host].deferred.push(Event::Exit { host, process, killed });
        }
        let state = &mut self.hosts[host];
        let ends = &mut state.processes[process];
        if !ends.alive || (!killed && (ends.stopped || ends.exit_at > self.now)) {
            return;
        }
        ends.alive = false;
        if process == 0 {
            let signal = if killed { Some(Signal::KILL) } else { state.root_dies_of };
            state.root_status = Some(signal.map_or(CommandEnd::Exited(state.script.status), CommandEnd::Signaled));
            if !killed && !state.script.daemon {
                for process in &mut state.processes {
                    process.alive = false;
                }
            }
        }
        if self.hosts[host].is_empty() {
            self.note(|| format!("host {host}: nothing is left of the command"));
        }
        self.wake_guard(host);
        self.wake_supervisor(host);
    }

    /// Sends SIGKILL to all processes of the command.
    pub(crate) fn kill_processes(&mut self, host: usize) {
        for number in 0..self.hosts[host].processes.len() {
            let process = &mut self.hosts[host].processes[number];
            if !process.alive {
                continue;
            }
            if process.forks > 0 {
                // It forked while the killer was looking for processes.
                process.forks -= 1;
                let (forks, exit_at) = (process.forks, process.exit_at);
                let (counted, in_group) = (process.counted, process.in_group);
                let child = Process { alive: true, stopped: false, exit_at, forks, counted, in_group };
                self.hosts[host].processes.push(child);
                let process = self.hosts[host].processes.len() - 1;
                self.schedule(exit_at, Event::Exit { host, process, killed: false });
            }
            let late = self.latency();
            self.after(late, Event::Exit { host, process: number, killed: true });
        }
    }

    pub(crate) fn stop_processes(&mut self, host: usize) {
        for process in &mut self.hosts[host].processes {
            process.stopped = true;
        }
    }

    pub(crate) fn continue_processes(&mut self, host: usize) {
        // waitpid(2) does not report a stop that is over.
        self.hosts[host].stopped_by = None;
        for number in 0..self.hosts[host].processes.len() {
            let process = &mut self.hosts[host].processes[number];
            if std::mem::replace(&mut process.stopped, false) {
                let exit_at = process.exit_at;
                self.schedule(exit_at, Event::Exit { host, process: number, killed: false });
            }
        }
    }

    /// Ctrl-Z stops the command, and the supervisor is woken to notice it.
    pub(crate) fn stop_job(&mut self, host: usize) {
        self.stop_processes(host);
        self.hosts[host].stopped_by = Some(Signal::TSTP);
        self.wake_supervisor(host);
    }

    fn forward_signal(&mut self, host: usize, signal: Signal) {
        if signal == Signal::CONT {
            return self.continue_processes(host);
        }
        if self.hosts[host].script.stubborn {
            return;
        }
        self.hosts[host].root_dies_of = Some(signal);
        // The command takes a while to clean up.
        let tidy = self.up_to(300 * MS);
        for number in 0..self.hosts[host].processes.len() {
            let process = &mut self.hosts[host].processes[number];
            process.exit_at = process.exit_at.min(self.now + tidy);
            let exit_at = process.exit_at;
            self.schedule(exit_at, Event::Exit { host, process: number, killed: false });
        }
    }

    /// The machine wakes up.
    pub(crate) fn awake(&mut self, host: usize) {
        let Some(since) = self.hosts[host].asleep.take() else { return };
        self.hosts[host].slept += self.now - since;
        for event in std::mem::take(&mut self.hosts[host].deferred) {
            let late = self.latency();
            self.after(late, event);
        }
        for keeper in 0..self.keepers.len() {
            if self.keepers[keeper].host == host {
                self.revive_keeper(keeper);
            }
        }
        self.wake_supervisor(host);
    }
}
