//! The part of a run in which there is a command: it runs, is asked to stop, is killed.

use std::time::Duration;

use super::{Machine, State, Transition, cancels, release, suspend_self};
use crate::rules::event::{CommandEnd, CommandEvent, Effect, Event, Unstarted};
use crate::rules::guard::{KILL_AGAIN, KILL_AGAIN_AT_MOST, Targets};
use crate::rules::instant::Instant;
use crate::rules::lease::Lease;
use crate::rules::message::{Loss, Report};
use crate::rules::notice::{LostWhy, Notice};
use crate::rules::outcome::Outcome;
use crate::rules::signal::Signal;

/// A command that runs, or, once it has ended, its descendants that are waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) lease: Lease,
    /// Until when the command may pass the gate; `None` once that has passed.
    pub(super) start_by: Option<Instant>,
    /// The end of `--max-run`.
    pub(super) ends_at: Option<Instant>,
    /// How the command itself ended, if it has.
    pub(super) ended: Option<CommandEnd>,
    /// The user has been told of a silence that is not over yet.
    pub(super) warned: bool,
}

impl Run {
    /// When to act if no event comes first: to warn of a silence, or to stop the command, or to take it back.
    pub(super) fn deadline(&self) -> Instant {
        let next = if self.warned { self.lease.stop_at() } else { self.lease.warn_at() };
        self.ends_at.into_iter().chain(self.start_by).fold(next, Instant::min)
    }

    /// Takes the command back before it is stopped or killed, unless it has passed the gate. The process at the gate, or the
    /// guard, may be suspended: when it goes on, the command must not begin.
    fn recalled_first(self, (state, mut effects): Transition) -> Transition {
        if self.start_by.is_some() {
            effects.insert(0, Effect::Recall(Unstarted::TooLate));
        }
        (state, effects)
    }
}

/// A command that was told to end, and what is left of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopping {
    pub(super) lease: Lease,
    cause: Cause,
    /// When SIGKILL goes out, or goes out again, unless the lease ends before that.
    kill_at: Instant,
    /// How long the pause after the last SIGKILL is; `None` before the first.
    pause: Option<Duration>,
}

impl Stopping {
    /// Whether the lock is lost, and SIGKILL has gone out.
    pub(super) fn is_killed_for_loss(&self) -> bool {
        self.cause == Cause::Loss && self.pause.is_some()
    }

    pub(super) fn deadline(&self) -> Instant {
        if self.is_killed_for_loss() { self.kill_at } else { self.kill_at.min(self.lease.kill_at()) }
    }

    /// If a short lease has brought SIGKILL forward after a loss, a later extension of the lease does not put it off again.
    pub(super) fn hurry(&mut self) {
        if self.cause == Cause::Loss {
            self.kill_at = self.deadline();
        }
    }

    /// Sends SIGKILL, first or again.
    fn kill(mut self, now: Instant, say: Option<Effect>) -> Transition {
        // A process that we may not kill, because it became another user's, is not tried for ever at the same pace.
        let pause = self.pause.map_or(KILL_AGAIN, |pause| (pause * 2).min(KILL_AGAIN_AT_MOST));
        (self.pause, self.kill_at) = (Some(pause), now + pause);
        // SIGKILL first: the message can wait, the command must not.
        (State::Stopping(self), [Effect::Kill].into_iter().chain(say).collect())
    }

    /// Within what time the lock frees itself, if it is held.
    fn frees_within(&self) -> Option<Duration> {
        (self.cause != Cause::Loss).then_some(self.lease.terms.timeout)
    }

    /// The lock is lost, which is told once.
    fn lose(&mut self, why: LostWhy) -> Option<Effect> {
        let say = (self.cause != Cause::Loss).then_some(Effect::Say(Notice::Lost(why)));
        self.cause = Cause::Loss;
        self.hurry();
        say
    }

    /// The next holder may run already.
    fn lose_at_once(mut self, now: Instant, loss: Loss) -> Transition {
        let say = self.lose(LostWhy::Told(loss));
        if self.pause.is_none() {
            return self.kill(now, say);
        }
        (State::Stopping(self), say.into_iter().collect())
    }
}

/// Why a command is being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The lock is lost, or about to be.
    Loss,
    /// `--max-run` is over. The lock is still held.
    MaxRun,
    /// Someone has asked us to give up the lock. It is still held.
    Revoked,
    /// The guard has died. The lock is still held.
    GuardGone,
}

impl Cause {
    fn outcome(self) -> Outcome {
        match self {
            Self::Loss | Self::Revoked => Outcome::Lost,
            Self::MaxRun => Outcome::RanOut,
            Self::GuardGone => Outcome::Internal,
        }
    }
}

impl Machine {
    pub(super) fn running(&self, now: Instant, run: Run, event: Event) -> Transition {
        let effects = match event {
            // The next holder may run already: no time for a stop signal.
            Event::Keeper(Report::Lost(loss)) => return lose(now, run, LostWhy::Told(loss)),
            Event::Keeper(Report::Refused(refusal)) => return self.stop_for_loss(now, run, LostWhy::Refused(refusal)),
            Event::Keeper(Report::Revoked(by)) => {
                return self.stop(now, run, Cause::Revoked, Notice::Revoked { by, stops: true });
            }
            Event::KeeperGone => return self.stop_for_loss(now, run, LostWhy::KeeperGone),
            Event::Command(event) => return self.command(now, run, event),
            Event::Timer => return self.time_is_over(now, run),
            Event::Signal { signal, shared } => self.pass_on(run, signal, shared),
            Event::CallerGone => end_command(),
            Event::Keeper(_) | Event::Lent(_) => vec![],
        };
        (State::Running(run), effects)
    }

    fn time_is_over(&self, now: Instant, run: Run) -> Transition {
        let lease = run.lease;
        if now >= lease.kill_at() {
            // We were suspended. The guard has killed the command, or the kernel has, with the guard.
            return self.stop_for_loss(now, run, LostWhy::Told(Loss::LeaseOver));
        }
        if now >= lease.stop_at() {
            return self.stop_for_loss(now, run, silence(now, lease));
        }
        if let Some(max_run) = self.settings.max_run.filter(|_| run.ends_at.is_some_and(|ends_at| now >= ends_at)) {
            return self.stop(now, run, Cause::MaxRun, Notice::MaxRun(max_run));
        }
        if run.start_by.is_some_and(|start_by| now >= start_by) {
            // The process at the gate, or the guard, may be suspended. The lock is not kept for a command that cannot
            // start.
            return (State::Running(Run { start_by: None, ..run }), vec![Effect::Recall(Unstarted::TooLate)]);
        }
        if !run.warned && now >= lease.warn_at() {
            let (silence, age) = (lease.silence(now), lease.age(now));
            let say = Effect::Say(Notice::Silent { silence, age, remaining: lease.stop_at().saturating_since(now) });
            return (State::Running(Run { warned: true, ..run }), vec![say]);
        }
        (State::Running(run), vec![])
    }

    fn pass_on(&self, run: Run, signal: Signal, shared: bool) -> Vec<Effect> {
        match run.ended {
            // As a rule we learn of a Ctrl-Z from the command, which it suspends. This one has ended.
            Some(_) if shared && signal == Signal::TSTP => suspend_self(signal),
            Some(_) if shared && !self.settings.wait_descendants => vec![],
            // At the gate it ends the run, as if it had come while the lock was waited for.
            None if run.start_by.is_some() && cancels(signal) => {
                vec![Effect::Recall(Unstarted::Interrupted(signal)), forward(signal, shared)]
            }
            Some(_) | None => vec![forward(signal, shared)],
        }
    }

    /// Something happened to a command that we have no reason to stop.
    fn command(&self, now: Instant, run: Run, event: CommandEvent) -> Transition {
        let timeout = Some(run.lease.terms.timeout);
        match event {
            CommandEvent::Suspended(signal) => (State::Running(run), vec![Effect::SuspendSelf(signal)]),
            CommandEvent::StartFailed(why) => {
                let outcome = match why {
                    Unstarted::NotFound => Outcome::NotFound,
                    Unstarted::CannotExecute => Outcome::CannotExecute,
                    Unstarted::NoProcess => Outcome::Internal,
                    Unstarted::TooLate => Outcome::Lost,
                    // As if it had come while the lock was waited for.
                    Unstarted::Interrupted(signal) => Outcome::Interrupted(signal),
                };
                never_ran(now, outcome, timeout, why, Notice::TooLate)
            }
            // The zklocks that use our locks do so until they end.
            CommandEvent::EndedLending(end) => (State::Running(Run { ended: Some(end), ..run }), vec![]),
            CommandEvent::Ended(end) if self.settings.wait_descendants => {
                (State::Running(Run { ended: Some(end), ..run }), vec![])
            }
            CommandEvent::Ended(end) => release(now, end.outcome(), timeout),
            CommandEvent::TreeGone => match run.ended {
                Some(end) => release(now, end.outcome(), timeout),
                None => (State::Running(run), vec![]),
            },
            CommandEvent::LeaseOver => lose(now, run, LostWhy::Told(Loss::LeaseOver)),
            // The guard's own timer has killed the guard at the end of the lease.
            CommandEvent::GuardGone if now >= run.lease.kill_at() => {
                self.stop_for_loss(now, run, LostWhy::Told(Loss::LeaseOver))
            }
            CommandEvent::GuardGone => {
                let why = Notice::GuardDied { had_ended: run.ended.is_some() };
                kill(now, run.lease, Cause::GuardGone, Some(Effect::Say(why)))
            }
        }
    }

    /// Asks the command to stop. If there is no time for that, kills it.
    fn stop(&self, now: Instant, run: Run, cause: Cause, why: Notice) -> Transition {
        let (lease, say) = (run.lease, Effect::Say(why));
        let mut stopping = Stopping { lease, cause, kill_at: now + lease.terms.kill_after(), pause: None };
        stopping.hurry();
        if stopping.kill_at <= now {
            return run.recalled_first(stopping.kill(now, Some(say)));
        }
        run.recalled_first((State::Stopping(stopping), vec![Effect::Stop(self.settings.stop_signal), say]))
    }

    /// The lock is lost, or will be unless a beat is answered by the end of the lease.
    fn stop_for_loss(&self, now: Instant, run: Run, why: LostWhy) -> Transition {
        self.stop(now, run, Cause::Loss, Notice::Lost(why))
    }

    pub(super) fn stopping(now: Instant, mut stopping: Stopping, event: Event) -> Transition {
        let Stopping { lease, cause, pause, .. } = stopping;
        let effects: Vec<_> = match event {
            Event::Command(CommandEvent::TreeGone) => {
                return release(now, cause.outcome(), stopping.frees_within());
            }
            Event::Command(CommandEvent::StartFailed(why)) => {
                return never_ran(now, cause.outcome(), stopping.frees_within(), why, Notice::NotBegun);
            }
            // The processes below the guard come to the supervisor. Perhaps none has been killed yet: the guard was
            // suspended.
            Event::Command(CommandEvent::GuardGone) => return kill(now, lease, cause, None),
            Event::Command(CommandEvent::LeaseOver) => return stopping.lose_at_once(now, Loss::LeaseOver),
            Event::Keeper(Report::Lost(loss)) => return stopping.lose_at_once(now, loss),
            Event::Keeper(Report::Refused(refusal)) => stopping.lose(LostWhy::Refused(refusal)).into_iter().collect(),
            Event::KeeperGone => stopping.lose(LostWhy::KeeperGone).into_iter().collect(),
            Event::Timer if now >= stopping.deadline() => {
                let say = if now >= lease.kill_at() { stopping.lose(silence(now, lease)) } else { None };
                return stopping.kill(now, say);
            }
            Event::Signal { signal, shared } if pause.is_none() && matches!(cause, Cause::MaxRun | Cause::Revoked) => {
                vec![forward(signal, shared)]
            }
            Event::CallerGone if pause.is_none() => end_command(),
            Event::Keeper(_)
            | Event::Lent(_)
            | Event::Command(CommandEvent::Ended(_) | CommandEvent::EndedLending(_) | CommandEvent::Suspended(_))
            | Event::Timer
            | Event::Signal { .. }
            | Event::CallerGone => vec![],
        };
        (State::Stopping(stopping), effects)
    }
}

fn silence(now: Instant, lease: Lease) -> LostWhy {
    LostWhy::Silence { silence: lease.silence(now), age: lease.age(now) }
}

/// The lock is lost: there is no time for a stop signal.
fn lose(now: Instant, run: Run, why: LostWhy) -> Transition {
    run.recalled_first(kill(now, run.lease, Cause::Loss, Some(Effect::Say(Notice::Lost(why)))))
}

fn kill(now: Instant, lease: Lease, cause: Cause, say: Option<Effect>) -> Transition {
    Stopping { lease, cause, kill_at: now, pause: None }.kill(now, say)
}

/// The command has never begun. `too_late`: what is told if it is for that.
fn never_ran(
    now: Instant,
    outcome: Outcome,
    frees_within: Option<Duration>,
    why: Unstarted,
    too_late: Notice,
) -> Transition {
    let (state, mut effects) = release(now, outcome, frees_within);
    effects.extend((why == Unstarted::TooLate).then_some(Effect::Say(too_late)));
    (state, effects)
}

/// A signal of the terminal has reached our process group.
fn forward(signal: Signal, shared: bool) -> Effect {
    Effect::Signal { signal, whom: if shared { Targets::Strayed } else { Targets::Group } }
}

/// The command is to end, also if it is suspended.
fn end_command() -> Vec<Effect> {
    [Signal::TERM, Signal::CONT].map(|signal| forward(signal, false)).into()
}
