//! A machine on which a user runs zklock: what the product's supervisor finds outside itself, and the command's
//! processes.

use std::convert::Infallible;
use std::time::Duration;

use zklock::guard::program;
use zklock::rules::event::{CommandEnd, CommandEvent, Effect, Event as Happening, Unstarted};
use zklock::rules::guard::{GuardRequest, Stage, Targets};
use zklock::rules::guard_view::{CommandFate, GuardView, Kill};
use zklock::rules::instant::Instant;
use zklock::rules::last_run::Asked;
use zklock::rules::lease::Span;
use zklock::rules::loans::{Loans, Seen};
use zklock::rules::message::{Grant, Loss, Order, Progress, QueueView, Refusal, Report};
use zklock::rules::mode::Mode;
use zklock::rules::notice::Notice;
use zklock::rules::offer::Offer;
use zklock::rules::outcome::Outcome;
use zklock::rules::queue::Dialect;
use zklock::rules::settings::Settings;
use zklock::rules::signal::Signal;
use zklock::supervisor::turn::{Snapshot, SupervisorIo, Turns};

use crate::coverage::Kind;
use crate::guard::Guard;
use crate::hold::Hold;
use crate::nested::{Lender, Lending, Nesting, end_of};
use crate::state::{Event, KeeperState, MS, State, Time, TurnRate, instant, micros};

/// How long a supervisor that has finished waits for its keeper to exit.
const KEEPER_EXIT: Time = 500 * MS;

/// How long a turn of a supervisor may take.
const LATE: Time = 5 * MS;

/// How the command behaves.
#[derive(Default)]
pub(crate) struct Script {
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
    /// Whether its last process has left its process group.
    pub(crate) leaves_group: bool,
    /// Whether its program does not exist.
    pub(crate) missing: bool,
}

pub(crate) struct Process {
    pub(crate) alive: bool,
    pub(crate) suspended: bool,
    /// Whether it will die of a SIGKILL that the kernel has sent. It starts nothing any more: fork(2) fails while a signal
    /// is pending (copy_process in the kernel's source).
    pub(crate) killed: bool,
    pub(crate) exit_at: Time,
    pub(crate) forks: u8,
    /// Whether it must not run without the lock.
    pub(crate) counted: bool,
    /// Whether it has stayed in the command's process group.
    pub(crate) in_group: bool,
    /// The run whose supervisor it is.
    pub(crate) nested: Option<usize>,
}

impl Process {
    /// One of the command's own process group that ends by itself then.
    pub(crate) fn new(exit_at: Time) -> Self {
        Self {
            alive: true,
            suspended: false,
            killed: false,
            exit_at,
            forks: 0,
            counted: true,
            in_group: true,
            nested: None,
        }
    }
}

pub(crate) struct Host {
    pub(crate) lock: usize,
    /// Whether it takes all locks together, this one first.
    pub(crate) takes_all: bool,
    pub(crate) mode: Mode,
    pub(crate) dialects: Vec<Dialect>,
    pub(crate) once_per: Option<Duration>,
    pub(crate) lock_delay: Duration,
    pub(crate) settings: Settings,
    pub(crate) script: Script,
    /// How it is nested in another run, if it is.
    pub(crate) nesting: Option<Nesting>,
    /// Its part as a lender, and as a borrower.
    pub(crate) lending: Lending,
    pub(crate) lender: Option<Lender>,
    /// What is lent to it, until its supervisor has read that.
    grant_on_loan: Option<Grant>,
    /// What it has in place of a command, if it is a `zklock hold`.
    pub(crate) hold: Option<Hold>,
    /// What its environment says of the runs above.
    pub(crate) held: Vec<String>,
    pub(crate) offers: Vec<Offer>,
    /// What is left of its command is meant to live on.
    pub(crate) leaves: bool,
    /// When what stands in for a command above has gone.
    pub(crate) lender_lost_at: Time,
    /// Whether it has got a signal from the command that it is part of.
    pub(crate) is_passed_on: bool,
    /// Whether the user has started zklock.
    pub(crate) started: bool,
    /// When that was.
    pub(crate) started_at: Time,
    /// `None` until then, and during a turn.
    turns: Option<Turns>,
    /// Whether the supervisor's process has not ended; it may not have been started yet.
    pub(crate) alive: bool,
    pub(crate) frozen: bool,
    pub(crate) keeper: Option<usize>,
    pub(crate) guard: Guard,
    view: Option<GuardView>,
    /// Whether a guard was killed.
    pub(crate) guard_died: bool,
    linked: bool,
    /// Each with whether the terminal has sent it to the command as well.
    pub(crate) signals: Vec<(Signal, bool)>,
    /// Signals that come in the middle of a turn, after the supervisor has first looked for something.
    pub(crate) late_signals: Vec<(Signal, bool)>,
    /// A signal that ends the wait had come when the supervisor read that the lock is held.
    is_cancelled: bool,
    /// The supervisor has read that the lock is lost, or that the keeper has gone.
    pub(crate) told_loss: bool,
    /// The supervisor has seen that a run whose locks it has borrowed is gone, or has lost them.
    pub(crate) told_lender_gone: bool,
    /// Its contender was asked to give up, and its supervisor has read that it was.
    pub(crate) revoked: bool,
    pub(crate) told_revoked: bool,
    armed: Option<Time>,
    turn_rate: TurnRate,
    pub(crate) processes: Vec<Process>,
    /// What waits at the gate, or has passed it, starts the command under this grant, if that is before this instant.
    opening: Option<(Grant, Time)>,
    /// It may not pass any more.
    is_recalled: bool,
    /// Something has passed the gate, if only to find that its program does not exist; and when.
    pub(crate) has_passed: bool,
    pub(crate) passed_at: Time,
    /// What was about to pass the gate was killed. Nobody can tell whether the command had begun.
    pub(crate) died_behind_gate: bool,
    /// The status of the command's own process, the first of `processes`, from its end until it has been reaped.
    pub(crate) root_status: Option<i32>,
    /// The signal that the command's own process is about to die of.
    pub(crate) root_dies_of: Option<Signal>,
    /// When the command passed the gate, and whether it has been stopped, or was about to be, since then.
    pub(crate) began: Option<Time>,
    pub(crate) is_spoiled: bool,
    /// It had been, when it ended.
    pub(crate) ended_spoiled: bool,
    /// A holder that had vanished has delayed it.
    pub(crate) was_delayed: bool,
    /// When the run asked for its first lock, and whether its command was skipped.
    pub(crate) asked: Option<Asked>,
    /// Its keeper has reported a place in a queue.
    pub(crate) has_place: bool,
    /// Its session ended before that, so it may not know of the contender with which it asked.
    pub(crate) is_asked_unsure: bool,
    pub(crate) is_skipped: bool,
    /// The signal that has suspended the command, until the guard has noticed.
    pub(crate) suspended_by: Option<Signal>,
    /// Why the command was not executed, and whether the supervisor knows.
    failure: Option<Unstarted>,
    pub(crate) never_ran: bool,
    /// How the command ended, as the supervisor was told, and how it ended before the supervisor stopped it.
    pub(crate) natural_end: Option<CommandEnd>,
    /// Whether the supervisor has stopped or killed the command, and whether anyone of zklock has.
    pub(crate) stopped_by_supervisor: bool,
    pub(crate) stopped_by_us: bool,
    /// Whether the supervisor has released the lock.
    pub(crate) released: bool,
    /// Whether the keeper has released the lock of a command that ended before anyone stopped it.
    pub(crate) is_kept_to_the_end: bool,
    /// Whether a server that lacks its node has made the keeper believe that the node was deleted.
    pub(crate) is_misled: bool,
    /// Whether the command was stopped under a lease that had not reached its full length.
    pub(crate) stopped_early: bool,
    /// Its connection was given up, for messages that were late by chance.
    pub(crate) was_silent: bool,
    /// How many of its keepers were killed.
    pub(crate) keeper_kills: u32,
    pub(crate) grant: Option<Grant>,
    pub(crate) asleep: Option<Time>,
    pub(crate) deferred: Vec<Event>,
    /// Until when the command may run without the lock because the whole machine was paused, or because an operator
    /// took the lock away.
    pub(crate) paused_until: Time,
    pub(crate) operator_until: Time,
    /// Supervisor and guard had died when something was left of the command.
    pub(crate) abandoned: bool,
    /// The end of a lease that was made shorter, until the supervisor or the guard has looked at it.
    pub(crate) shortened_from: Time,
    /// The same, until the guard has looked at it: the kernel goes by that.
    pub(crate) longest_lease: Time,
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
            once_per: None,
            lock_delay: Duration::ZERO,
            settings,
            script,
            nesting: None,
            lending: Lending::default(),
            lender: None,
            grant_on_loan: None,
            hold: None,
            held: vec![],
            offers: vec![],
            leaves: false,
            lender_lost_at: 0,
            is_passed_on: false,
            started: false,
            started_at: 0,
            turns: None,
            alive: true,
            frozen: false,
            keeper: None,
            guard: Guard::new(false),
            view: None,
            guard_died: false,
            linked: false,
            signals: vec![],
            late_signals: vec![],
            is_cancelled: false,
            told_loss: false,
            told_lender_gone: false,
            revoked: false,
            told_revoked: false,
            armed: None,
            turn_rate: TurnRate::default(),
            processes: vec![],
            opening: None,
            is_recalled: false,
            has_passed: false,
            passed_at: 0,
            died_behind_gate: false,
            root_status: None,
            root_dies_of: None,
            began: None,
            is_spoiled: false,
            ended_spoiled: false,
            was_delayed: false,
            asked: None,
            has_place: false,
            is_asked_unsure: false,
            is_skipped: false,
            suspended_by: None,
            failure: None,
            never_ran: false,
            natural_end: None,
            stopped_by_supervisor: false,
            stopped_by_us: false,
            released: false,
            is_kept_to_the_end: false,
            is_misled: false,
            stopped_early: false,
            was_silent: false,
            keeper_kills: 0,
            grant: None,
            asleep: None,
            deferred: vec![],
            paused_until: 0,
            operator_until: 0,
            abandoned: false,
            shortened_from: 0,
            longest_lease: 0,
            cuts: vec![(0, 0); servers],
        }
    }

    /// Whether one of them waits for the other, if neither is nested.
    pub(crate) fn excludes(&self, other: &Self) -> bool {
        (self.takes_all || other.takes_all || self.lock == other.lock)
            && (self.mode == Mode::Exclusive || other.mode == Mode::Exclusive)
    }

    /// Whether any process is alive that must not run without the lock.
    pub(crate) fn is_running(&self) -> bool {
        self.processes.iter().any(|process| process.alive && process.counted)
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.processes.iter().any(|process| process.alive)
    }

    /// Whether its command has been started, and its end has not been told.
    pub(crate) fn has_command(&self) -> bool {
        self.view.as_ref().is_some_and(GuardView::has_command)
    }

    /// Whether its command has been started, and has not passed the gate.
    pub(crate) fn waits_at_gate(&self) -> bool {
        !self.has_passed && self.has_command()
    }

    /// Whether the gate was asked to open, and has not opened.
    pub(crate) fn has_opening(&self) -> bool {
        self.opening.is_some()
    }

    fn signals_come(&mut self) {
        self.signals.append(&mut self.late_signals);
    }
}

/// What the supervisor of one host finds outside itself.
struct SimIo<'s> {
    state: &'s mut State,
    host: usize,
    /// What has just happened to children comes after the look at them, but may come before the keeper is heard.
    looks_early: bool,
    /// What the keeper has just reported comes after that it was heard.
    hears_early: bool,
    /// The same for the death of a lender.
    sees_late: bool,
}

impl SimIo<'_> {
    fn this(&mut self) -> &mut Host {
        &mut self.state.hosts[self.host]
    }

    /// Whether a lock that is borrowed is lost.
    fn has_lost_lender(&self) -> bool {
        !self.sees_late && self.state.hosts[self.host].lender.as_ref().is_some_and(Lender::is_lost)
    }

    /// The keeper of the lease that we rely on.
    fn keeper(&self) -> Option<&KeeperState> {
        self.state.keeper_of(self.host, self.state.hosts[self.host].lender.as_ref())
    }

    fn look_at_children(&mut self, seen: &mut Snapshot) {
        let Host { guard, view: Some(view), processes, root_status, .. } = self.this() else {
            seen.loss = self.has_lost_lender().then_some(Loss::LenderGone);
            return;
        };
        if std::mem::take(&mut guard.is_zombie) {
            view.guard_reaped();
        }
        // What the guard has reaped is not ours, and what has come to us after its death is.
        if let Some(status) = root_status.take_if(|_| !guard.alive) {
            view.command_reaped(program::end_of(status));
        }
        let root = processes.first();
        let suspended = guard.suspended.take().filter(|_| root.is_some_and(|root| root.alive && root.suspended));
        let ended = guard.ended.map(program::end_of);
        let is_our_child = || !guard.alive && (root_status.is_some() || root.is_some_and(|root| root.alive));
        let news = view.news(guard.stage, ended, suspended, is_our_child);
        (seen.has_ended, seen.is_emptied) = (news.ended.is_some(), guard.stage == Stage::Empty);
        let (is_over, is_gated) = (guard.lease_over, view.is_gated());
        if (is_over || is_gated) && self.has_lost_lender() {
            seen.loss = Some(Loss::LenderGone);
        } else if is_over {
            seen.loss = Some(Loss::LeaseOver);
        }
        seen.events = news.events(|end| self.end(end));
    }

    fn look_who_has_gone(&self, seen: &mut Snapshot) {
        let host = &self.state.hosts[self.host];
        let is_empty = || self.state.is_empty(self.host) && host.root_status.is_none();
        let have_gone = host.view.as_ref().is_none_or(|view| view.has_gone(host.guard.stage, is_empty));
        seen.borrowers_have_gone = host.lending.is_over() || host.hold.is_none() && have_gone;
        seen.everyone_has_gone = have_gone && seen.borrowers_have_gone;
    }

    /// What the end of the command means.
    fn end(&mut self, end: CommandFate) -> CommandEvent {
        let this = self.this();
        if this.failure.is_none()
            && matches!(end, CommandFate::Reaped(CommandEnd::Signaled(_)))
            && !this.stopped_by_supervisor
        {
            self.state.signal_caller(self.host, Signal::TERM);
            if self.this().hold.is_some() {
                self.state.call_in(self.host);
            }
        }
        let this = self.this();
        this.never_ran = end == CommandFate::Stillborn || this.failure.is_some();
        let end = match (this.failure.take(), end) {
            (Some(why), _) => return CommandEvent::StartFailed(why),
            (None, CommandFate::Stillborn) => return CommandEvent::StartFailed(Unstarted::NoProcess),
            (None, CommandFate::Reaped(end)) => end,
        };
        let waits = this.settings.wait_descendants;
        if !this.stopped_by_supervisor {
            // The processes that it has left behind are meant to stay.
            for process in &mut this.processes {
                process.counted &= waits;
            }
            this.leaves = !waits;
            this.natural_end = Some(end);
        }
        if !waits {
            this.lending.end();
        }
        if this.lending.is_over() {
            return CommandEvent::Ended(end);
        }
        self.state.coverage.count(Kind::LentOn);
        CommandEvent::EndedLending(end)
    }
}

impl SupervisorIo for SimIo<'_> {
    type Error = Infallible;

    fn now(&self) -> Instant {
        instant(self.state.now)
    }

    fn look(&mut self, _: bool) -> Snapshot {
        let mut seen = Snapshot::default();
        if !std::mem::take(&mut self.looks_early) {
            self.look_at_children(&mut seen);
            self.look_who_has_gone(&mut seen);
        }
        let this = self.this();
        seen.has_command = this.view.as_ref().is_some_and(GuardView::has_command);
        seen.caller_has_gone = this.hold.as_mut().is_some_and(Hold::has_caller_gone);
        seen.has_keeper_died = this.keeper_kills > 0;
        this.told_lender_gone |= seen.loss == Some(Loss::LenderGone);
        seen
    }

    fn hear_keeper(&mut self) -> Option<Happening> {
        if let Some(grant) = self.this().grant_on_loan.take() {
            return Some(Happening::Lent(Box::new(grant)));
        }
        let keeper = self.this().keeper.filter(|_| self.state.hosts[self.host].linked)?;
        let state = &mut self.state.keepers[keeper];
        if self.hears_early {
            return None;
        }
        if !state.reports.is_empty() {
            let report = state.reports.remove(0);
            // The keeper may be waiting for room.
            self.state.touch_keeper(keeper);
            match report {
                Report::Queue(Progress::Held { .. }) => {
                    self.this().told_loss = false;
                    self.this().is_cancelled = self.this().signals.contains(&(Signal::TERM, false));
                }
                Report::Queue(Progress::Waiting(QueueView { free_at: Some(_), .. })) => {
                    self.this().was_delayed = true;
                    self.state.coverage.count(Kind::Delayed);
                }
                Report::Lost(_) | Report::Refused(_) => self.this().told_loss = true,
                Report::Revoked(_) => self.this().told_revoked = true,
                _ => {}
            }
            return Some(Happening::Keeper(report));
        }
        if state.alive {
            self.this().signals_come();
            return None;
        }
        self.this().linked = false;
        self.this().told_loss = true;
        Some(Happening::KeeperGone)
    }

    fn lease(&self) -> (Option<Span>, Option<Instant>) {
        let keeper = self.keeper();
        let span = keeper.and_then(|keeper| keeper.span.filter(|_| !keeper.revoked));
        (span, keeper.and_then(|keeper| keeper.answered.map(instant)))
    }

    fn signals(&mut self) -> Result<Vec<(Signal, bool)>, Infallible> {
        (self.hears_early, self.sees_late) = (false, false);
        let signals = std::mem::take(&mut self.this().signals);
        self.this().signals_come();
        Ok(signals)
    }

    fn spoil(&mut self) {
        self.this().is_spoiled = true;
    }

    fn perform(&mut self, effect: Effect) -> Result<Option<Happening>, Infallible> {
        if !matches!(effect, Effect::Say(_)) {
            self.state.note(|| format!("host {}: {effect:?}", self.host));
        }
        Ok(self.state.perform(self.host, effect))
    }
}

impl State {
    pub(crate) fn start(&mut self, host: usize) {
        if self.hosts[host].asleep.is_some() {
            return self.hosts[host].deferred.push(Event::Start(host));
        }
        if !self.is_nested_now(host) || !self.hosts[host].alive {
            return;
        }
        self.note(|| format!("host {host} starts"));
        self.hosts[host].started = true;
        self.hosts[host].started_at = self.now;
        let settings = self.hosts[host].settings;
        match self.borrow(host) {
            Loans::Nothing(seen) => self.start_keeper(host, seen),
            Loans::All { grant, lender } => {
                self.hosts[host].lender = Some(lender);
                self.check_loans(host, &grant);
                self.hosts[host].grant_on_loan = Some(grant);
            }
            Loans::Unfit { lock, why } => return self.finish(host, Refusal::Unfit { lock, why }.outcome()),
        }
        self.make_guard(host);
        self.hosts[host].turns = Some(Turns::new(settings, instant(self.now)));
        self.turn(host);
    }

    /// Lets the supervisor take a turn soon, because something has arrived for it.
    pub(crate) fn wake_supervisor(&mut self, host: usize) {
        let late = self.latency();
        self.after(late, Event::Turn(host));
    }

    /// How long a process waits for the processor.
    pub(crate) fn latency(&mut self) -> Time {
        20 + if self.chance.once_in(16) { self.chance.up_to(5 * MS) } else { self.chance.up_to(200) }
    }

    pub(crate) fn turn(&mut self, host: usize) {
        let state = &mut self.hosts[host];
        if !state.alive || state.frozen || state.asleep.is_some() {
            return;
        }
        let Some(mut turns) = state.turns.take() else { return };
        if state.turn_rate.is_exceeded(self.now) {
            self.fail(format!("the supervisor of host {host} does not sleep between its turns"));
        }
        // A supervisor that is suspended again before it has to act does not help.
        let limits = self.keeper_of(host, self.hosts[host].lender.as_ref()).and_then(|keeper| keeper.limits);
        if limits.is_none_or(|(kill_at, _)| kill_at <= self.now) {
            self.look_at_lease(host);
        }
        let reported_at = self.hosts[host].keeper.map_or(0, |keeper| self.keepers[keeper].reported_at);
        let looks_early = self.now < reported_at + LATE && self.chance.once_in(4);
        let hears_early = looks_early && self.chance.once_in(2);
        let lost_at = self.hosts[host].lender_lost_at;
        let sees_late = lost_at > 0 && self.now < lost_at + LATE && self.chance.once_in(2);
        let Ok(()) = turns.turn(&mut SimIo { state: self, host, looks_early, hears_early, sees_late });
        if looks_early || sees_late {
            self.wake_supervisor(host);
        }
        let (outcome, deadline) = (turns.outcome(), turns.deadline());
        self.hosts[host].turns = Some(turns);
        if let Some(outcome) = outcome {
            self.finish(host, outcome);
        } else if let Some(deadline) = deadline.map(|deadline| micros(deadline.since_boot()))
            && (deadline <= self.now || self.hosts[host].armed != Some(deadline))
        {
            self.hosts[host].armed = Some(deadline);
            let late = self.latency();
            self.schedule(deadline.max(self.now) + late, Event::Turn(host));
        }
    }

    fn perform(&mut self, host: usize, effect: Effect) -> Option<Happening> {
        match effect {
            Effect::Spawn { grant, until } => return self.spawn(host, grant, micros(until.since_boot())),
            Effect::Recall(why) => return self.recall(host, why),
            Effect::Signal { signal, whom: Targets::Group | Targets::All } => {
                // A process of our own needs no lease to go on.
                if signal == Signal::CONT && self.hosts[host].hold.is_none() {
                    self.check_continue(host);
                }
                self.ask_guard(host, GuardRequest::Signal(signal, Targets::Group));
            }
            Effect::Stop(signal) => {
                let keeper = self.keeper_of(host, self.hosts[host].lender.as_ref());
                self.hosts[host].stopped_early = keeper.is_some_and(|keeper| keeper.lease < keeper.last_beat);
                self.is_stopped_by_supervisor(host);
                if !self.signal_caller(host, signal) {
                    self.ask_guard(host, GuardRequest::Stop(signal));
                }
            }
            Effect::Kill => {
                self.is_stopped_by_supervisor(host);
                self.call_in(host);
                self.signal_caller(host, Signal::TERM);
                let Host { guard, view, .. } = &mut self.hosts[host];
                match view.as_mut()?.kill(guard.stage) {
                    Kill::AskGuard => self.ask_guard(host, GuardRequest::Kill),
                    Kill::KillGuard => self.guard_dies(host),
                    Kill::KillChildren => {
                        self.kill_processes(host);
                        // It checks by itself whether any process is left.
                        self.wake_supervisor(host);
                    }
                }
            }
            Effect::QueueAgain => {
                if self.hosts[host].has_opening() {
                    self.fail(format!("host {host} queues anew, and its command may still pass the gate"));
                }
                self.coverage.count(Kind::QueuedAgain);
                if let Some(keeper) = self.hosts[host].keeper {
                    self.keepers[keeper].orders.push(Order::QueueAgain);
                    self.touch_keeper(keeper);
                }
            }
            Effect::Release => {
                self.dismiss_guard(host);
                self.wake_above(host);
                self.hosts[host].released = true;
                self.ask_guard(host, GuardRequest::Leave);
                if let Some(keeper) = self.hosts[host].keeper {
                    self.keepers[keeper].orders.push(Order::Release);
                    self.touch_keeper(keeper);
                }
                if self.hosts[host].lender.is_some() {
                    return Some(Happening::Keeper(Report::Released { was_busy: false }));
                }
                if !self.hosts[host].linked {
                    return Some(Happening::KeeperGone);
                }
            }
            Effect::Say(Notice::Starting { .. })
                if !self.hosts[host].view.as_ref().is_some_and(GuardView::has_command) =>
            {
                self.fail(format!("host {host} says that it starts its command, and does not"));
            }
            Effect::Signal { whom: Targets::Strayed, .. } | Effect::Say(_) | Effect::Finish(_) => {}
            Effect::SuspendSelf(_) => self.hosts[host].frozen = true,
            Effect::EndKeeper => self.end_keeper(host),
        }
        None
    }

    /// Takes the command back, unless it has passed the gate.
    fn recall(&mut self, host: usize, why: Unstarted) -> Option<Happening> {
        if !self.hosts[host].waits_at_gate() {
            return None;
        }
        self.coverage.count(Kind::Recalled);
        self.leave_gate(host);
        Some(Happening::Command(CommandEvent::StartFailed(why)))
    }

    /// What waits at the gate, or has died there, is not to pass any more.
    pub(crate) fn leave_gate(&mut self, host: usize) {
        self.stand_in_has_gone(host);
        let state = &mut self.hosts[host];
        (state.opening, state.failure) = (None, None);
        // A guard that has killed what had not begun has stopped nothing.
        state.stopped_by_us = state.stopped_by_supervisor;
        state.died_behind_gate = false;
        state.view.iter_mut().for_each(GuardView::recall);
        state.never_ran = true;
        self.dismiss_guard(host);
    }

    /// The keeper of a supervisor that has died takes the command back, unless it has passed the gate.
    pub(crate) fn recall_by_keeper(&mut self, host: usize) -> bool {
        let state = &mut self.hosts[host];
        state.is_recalled |= !state.has_passed;
        !state.has_passed
    }

    fn is_stopped_by_supervisor(&mut self, host: usize) {
        self.check_stop(host);
        self.hosts[host].stopped_by_supervisor = true;
        self.hosts[host].stopped_by_us = true;
    }

    /// The supervisor asks something of its guard, if it lives.
    fn ask_guard(&mut self, host: usize, request: GuardRequest) {
        if self.hosts[host].guard.alive {
            self.continue_guard(host);
            self.hosts[host].guard.requests.push(request);
            self.wake_guard(host);
        }
    }

    fn make_guard(&mut self, host: usize) {
        let state = &self.hosts[host];
        if state.keeper.is_none() && state.lender.is_none() {
            return;
        }
        if state.guard.alive && state.view.as_ref().is_some_and(|view| !view.is_reaped()) {
            return;
        }
        self.dismiss_guard(host);
        (self.hosts[host].guard, self.hosts[host].view) = (Guard::new(true), Some(GuardView::default()));
        let state = &mut self.hosts[host];
        state.guard.lender.clone_from(&state.lender);
        self.wake_guard(host);
    }

    pub(crate) fn dismiss_guard(&mut self, host: usize) {
        if self.hosts[host].view.take_if(|view| view.is_gated()).is_some() {
            self.hosts[host].guard = Guard::new(false);
            self.hosts[host].root_status = None;
        }
    }

    fn start_keeper(&mut self, host: usize, seen: Vec<Seen>) {
        self.hosts[host].lending.begin();
        self.keepers.push(KeeperState::new(host, seen));
        let keeper = self.keepers.len() - 1;
        (self.hosts[host].keeper, self.hosts[host].linked) = (Some(keeper), true);
        self.born.push(keeper);
        self.touch_keeper(keeper);
    }

    pub(crate) fn end_keeper(&mut self, host: usize) {
        if let Some(keeper) = self.hosts[host].keeper {
            self.keeper_ends(keeper);
        }
    }

    fn finish(&mut self, host: usize, outcome: Outcome) {
        self.hosts[host].alive = false;
        if let Some(keeper) = self.hosts[host].keeper {
            self.touch_keeper(keeper);
        }
        self.wake_guard(host);
        self.after(KEEPER_EXIT, Event::EndKeeper(host));
        self.check_outcome(host, outcome);
        self.supervisor_has_gone(host, end_of(outcome));
    }

    /// SIGKILL to the supervisor. The kernel then kills the command's process group, and the guard all of it.
    pub(crate) fn kill_supervisor(&mut self, host: usize) {
        self.hosts[host].alive = false;
        if let Some(keeper) = self.hosts[host].keeper {
            self.touch_keeper(keeper);
        }
        self.blow_fuse(host);
        self.continue_guard(host);
        self.excuse_stragglers(host);
        self.wake_guard(host);
        self.supervisor_has_gone(host, CommandEnd::Signaled(Signal::KILL));
    }

    fn spawn(&mut self, host: usize, grant: Grant, until: Time) -> Option<Happening> {
        if until <= self.now {
            self.fail(format!("host {host} starts its command, but would have to stop it already"));
        }
        if self.hosts[host].is_cancelled {
            self.fail(format!("host {host} starts its command although a signal had come before"));
        }
        self.make_guard(host);
        let keeper = self.keeper_of(host, self.hosts[host].lender.as_ref());
        let is_lost = |report: &Report| matches!(report, Report::Lost(_) | Report::Requeued { .. });
        if keeper.is_none_or(|keeper| keeper.limits.is_none() || keeper.revoked && !keeper.reports.iter().any(is_lost))
        {
            self.fail(format!("host {host} starts its command, and there is no lease"));
        }
        if self.hosts[host].keeper.is_some() {
            self.hosts[host].lending.lent = Some(self.wanting(host, |demand| demand.lent(&grant)));
        }
        self.hosts[host].never_ran = false;
        self.hosts[host].opening = Some((grant, until));
        self.ask_guard(host, GuardRequest::Open);
        self.hosts[host].view.iter_mut().for_each(GuardView::start);
        self.spring(Kind::AtSpawn, host);
        if self.hosts[host].nesting.is_some() {
            self.spring(Kind::AtNestedSpawn, host);
        }
        None
    }

    /// What has waited at the gate becomes the command.
    pub(crate) fn pass_gate(&mut self, host: usize) {
        let Some((grant, until)) = self.hosts[host].opening.take() else {
            return self.fail(format!("the gate of host {host} opens before its turn"));
        };
        let is_revoked = self.keeper_of(host, self.hosts[host].lender.as_ref()).is_some_and(|keeper| keeper.revoked);
        let failure = match () {
            () if self.hosts[host].is_recalled || is_revoked || self.now >= until => Some(Unstarted::TooLate),
            () if self.hosts[host].script.missing => Some(Unstarted::NotFound),
            () => None,
        };
        self.hosts[host].has_passed = failure != Some(Unstarted::TooLate);
        self.hosts[host].passed_at = self.now;
        if failure.is_some() {
            self.stand_in_has_gone(host);
            self.hosts[host].failure = failure;
            self.hosts[host].root_status = Some(status_of(CommandEnd::Exited(1)));
            return self.wake_guard(host);
        }
        self.check_spawn(host, &grant);
        self.begin_to_stand(host);
        let Script { length, children, forks, daemon, leaves_group, .. } = self.hosts[host].script;
        // A signal that came before has waited at the gate.
        let length = if self.hosts[host].root_dies_of.is_some() { 0 } else { length };
        let count = if self.hosts[host].hold.is_some() { 0 } else { children + 1 };
        for number in 0..count {
            let stays = if daemon && number == children { 1000 * MS } else { 0 };
            let exit_at = self.now + length + stays;
            let in_group = !leaves_group || number < children;
            self.hosts[host].processes.push(Process { forks, in_group, ..Process::new(exit_at) });
            self.schedule(exit_at, Event::Exit { host, process: number, killed: false });
        }
        self.hosts[host].grant = Some(grant);
        self.hosts[host].began = Some(self.now);
        self.plan_nested(host);
    }

    /// A process ends, if it is due or killed. A suspended process ends only if it is killed.
    pub(crate) fn exit(&mut self, host: usize, process: usize, killed: bool) {
        if self.hosts[host].asleep.is_some() {
            return self.hosts[host].deferred.push(Event::Exit { host, process, killed });
        }
        let waits = process == 0 && self.awaits_nested(host);
        let state = &mut self.hosts[host];
        let ends = &mut state.processes[process];
        if !ends.alive || (!killed && (ends.suspended || ends.exit_at > self.now)) {
            return;
        }
        if let Some(nested) = ends.nested {
            // It ends by itself when its run is over.
            if killed {
                self.kill_supervisor(nested);
            }
            return;
        }
        if !killed && waits && state.root_dies_of.is_none() {
            return;
        }
        ends.alive = false;
        if process == 0 {
            self.stand_in_has_gone(host);
            let state = &mut self.hosts[host];
            // From when SIGKILL is sent, that is its status (complete_signal in the kernel's source).
            let is_killed = killed || state.processes[0].killed;
            let signal = if is_killed { Some(Signal::KILL) } else { state.root_dies_of };
            let end = signal.map_or(CommandEnd::Exited(state.script.status), CommandEnd::Signaled);
            self.root_ends(host, end);
        }
        if self.is_empty(host) {
            self.note(|| format!("host {host}: nothing is left of the command"));
        }
        self.wake_guard(host);
        self.wake_supervisor(host);
        self.wake_above(host);
    }

    /// The command's own process has ended.
    pub(crate) fn root_ends(&mut self, host: usize, end: CommandEnd) {
        let state = &mut self.hosts[host];
        state.root_status = Some(status_of(end));
        state.ended_spoiled = state.is_spoiled;
        if end != CommandEnd::Signaled(Signal::KILL) && !state.script.daemon {
            // The runs that it has started go on in the background.
            for process in state.processes.iter_mut().filter(|process| process.nested.is_none()) {
                process.alive = false;
            }
        }
    }

    /// Sends SIGKILL to all processes of the command.
    pub(crate) fn kill_processes(&mut self, host: usize) {
        for number in 0..self.hosts[host].processes.len() {
            let process = &mut self.hosts[host].processes[number];
            if !process.alive {
                continue;
            }
            if process.forks > 0 && !process.killed {
                // It forked while the killer was looking for processes.
                process.forks -= 1;
                let (forks, exit_at) = (process.forks, process.exit_at);
                let (counted, in_group) = (process.counted, process.in_group);
                self.hosts[host].processes.push(Process { forks, counted, in_group, ..Process::new(exit_at) });
                let process = self.hosts[host].processes.len() - 1;
                self.schedule(exit_at, Event::Exit { host, process, killed: false });
            }
            let late = self.latency();
            self.after(late, Event::Exit { host, process: number, killed: true });
        }
        self.kill_orphans(host);
    }

    pub(crate) fn suspend_processes(&mut self, host: usize) {
        self.hosts[host].processes.iter_mut().for_each(|process| process.suspended = true);
    }

    pub(crate) fn continue_processes(&mut self, host: usize) {
        // waitpid(2) does not report one that has been continued since.
        self.hosts[host].suspended_by = None;
        for number in 0..self.hosts[host].processes.len() {
            let process = &mut self.hosts[host].processes[number];
            if std::mem::replace(&mut process.suspended, false) {
                let exit_at = process.exit_at;
                self.schedule(exit_at, Event::Exit { host, process: number, killed: false });
            }
        }
        self.wake_stand_in(host);
        for nested in self.started_by(host) {
            self.thaw_supervisor(nested);
        }
    }

    /// Ctrl-Z suspends the command. The guard is woken to notice it, and the supervisor gets the signal as well.
    pub(crate) fn suspend_job(&mut self, host: usize) {
        if self.hosts[host].processes.first().is_some_and(|root| root.alive) {
            self.suspend_processes(host);
            self.hosts[host].suspended_by = Some(Signal::TSTP);
            self.wake_guard(host);
        }
        self.hosts[host].signals.push((Signal::TSTP, true));
        self.wake_supervisor(host);
    }

    /// Whether the supervisor has still to hear of a Ctrl-Z.
    pub(crate) fn is_being_suspended(&self, host: usize) -> bool {
        let state = &self.hosts[host];
        let unseen = state.guard.alive && state.suspended_by.is_some();
        unseen || state.guard.suspended.is_some() || state.signals.contains(&(Signal::TSTP, true))
    }

    pub(crate) fn signal_command(&mut self, host: usize, signal: Signal) {
        self.signal_nested(host, signal);
        if self.hosts[host].hold.is_some() {
            return self.end_stand_in(host);
        }
        if self.hosts[host].script.stubborn {
            return;
        }
        self.hosts[host].root_dies_of = Some(signal);
        // The command takes a while to clean up.
        let tidy = self.chance.up_to(300 * MS);
        for number in 0..self.hosts[host].processes.len() {
            let process = &mut self.hosts[host].processes[number];
            process.exit_at = process.exit_at.min(self.now + tidy);
            let exit_at = process.exit_at;
            self.schedule(exit_at, Event::Exit { host, process: number, killed: false });
        }
    }

    /// The machine wakes up.
    pub(crate) fn awake(&mut self, host: usize) {
        if self.hosts[host].asleep.take().is_none() {
            return;
        }
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

/// The status of waitpid(2) for this end.
pub(crate) fn status_of(end: CommandEnd) -> i32 {
    match end {
        CommandEnd::Exited(status) => i32::from(status) << 8,
        CommandEnd::Signaled(signal) => signal.number(),
    }
}
