//! The part of a run in which there is a command: it runs, is asked to stop, is killed.

use std::time::Duration;

use super::ending::Release;
use super::{Machine, State, cancels, release, stop_self};
use crate::rules::event::{CommandEnd, CommandEvent, Effect, Event, Unstarted};
use crate::rules::instant::Instant;
use crate::rules::lease::Lease;
use crate::rules::message::{Loss, Progress, Report};
use crate::rules::notice::{LostWhy, Notice};
use crate::rules::outcome::Outcome;
use crate::rules::signal::Signal;

/// Descendants may fork while they are being killed, so SIGKILL goes out again: first after this pause, then
/// after pauses that grow up to the other one.
const KILL_AGAIN: Duration = Duration::from_millis(10);
const KILL_AGAIN_AT_MOST: Duration = Duration::from_secs(1);

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

    /// Takes the command back before it is stopped or killed, unless it has passed the gate. What waits there, or the guard,
    /// may be stopped: such a command does not begin after that.
    fn recalled_first(self, (state, mut effects): (State, Vec<Effect>)) -> (State, Vec<Effect>) {
        if self.start_by.is_some() {
            effects.insert(0, Effect::Recall);
        }
        (state, effects)
    }
}

/// The stop signal has gone out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopping {
    pub(super) lease: Lease,
    cause: Cause,
    /// When SIGKILL follows, unless the lease ends before that.
    kill_at: Instant,
}

impl Stopping {
    pub(super) fn deadline(&self) -> Instant {
        self.kill_at.min(self.lease.kill_at())
    }
}

/// SIGKILL has gone out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Killing {
    pub(super) lease: Lease,
    cause: Cause,
    /// When it goes out again.
    again_at: Instant,
    /// How long the last pause was.
    pause: Duration,
}

impl Killing {
    /// Whether the lock is lost.
    pub(super) fn is_lost(&self) -> bool {
        self.cause == Cause::Loss
    }

    pub(super) fn deadline(&self) -> Instant {
        match self.cause {
            Cause::Loss => self.again_at,
            Cause::MaxRun | Cause::Revoked | Cause::GuardGone => self.again_at.min(self.lease.kill_at()),
        }
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

impl Machine {
    pub(super) fn running(&mut self, now: Instant, run: Run, event: Event) -> (State, Vec<Effect>) {
        let same = State::Running(run);
        match event {
            Event::Extended { .. } if run.lease.silence(now) < run.lease.warn_after() => {
                let back = run.warned.then_some(Effect::Say(Notice::Back));
                (State::Running(Run { warned: false, ..run }), back.into_iter().collect())
            }
            // The next holder may run already: no time for a stop signal.
            Event::Keeper(Report::Lost(loss)) => lose(now, run, LostWhy::Told(loss)),
            Event::Keeper(Report::Refused(refusal)) => self.stop(now, run, LostWhy::Refused(refusal)),
            Event::Keeper(Report::Revoked(by)) => {
                let say = Effect::Say(Notice::Revoked { by, stops: true });
                self.stop_in_peace(now, run, Cause::Revoked, Some(say))
            }
            Event::KeeperGone => self.stop(now, run, LostWhy::KeeperGone),
            Event::LeaseOver => lose(now, run, LostWhy::Told(Loss::LeaseOver)),
            Event::GuardGone if now >= run.lease.kill_at() => {
                // The kernel has ended it with the lease.
                self.stop(now, run, LostWhy::Told(Loss::LeaseOver))
            }
            Event::GuardGone => {
                let (state, mut effects) = kill(now, run.lease, Cause::GuardGone, None);
                effects.push(Effect::Say(Notice::GuardDied { had_ended: run.ended.is_some() }));
                (state, effects)
            }
            Event::Timer if now >= run.lease.kill_at() => {
                // We were stopped. The guard has killed the command, or the kernel has, with the guard.
                self.stop(now, run, LostWhy::Told(Loss::LeaseOver))
            }
            Event::Timer if now >= run.lease.stop_at() => self.stop(now, run, silence(now, run.lease)),
            Event::Timer if run.ends_at.is_some_and(|ends_at| now >= ends_at) => self.ran_out(now, run),
            // What waits at the gate, or the guard, may be stopped. The lock is not kept for a command that cannot start
            // any more.
            Event::Timer if run.start_by.is_some_and(|start_by| now >= start_by) => {
                (State::Running(Run { start_by: None, ..run }), vec![Effect::Recall])
            }
            Event::Timer if !run.warned && now >= run.lease.warn_at() => {
                let (silence, age) = (run.lease.silence(now), run.lease.age(now));
                let left = run.lease.stop_at().saturating_since(now);
                (State::Running(Run { warned: true, ..run }), vec![Effect::Say(Notice::Silent { silence, age, left })])
            }
            Event::Signal { signal, shared } if run.start_by.is_some() && run.ended.is_none() && cancels(signal) => {
                (same, vec![Effect::Interrupt { signal, shared }])
            }
            // As a rule we learn of a Ctrl-Z because the command stops; this command has ended, so we stop
            // ourselves.
            Event::Signal { signal: Signal::TSTP, shared: true } if run.ended.is_some() => {
                (same, stop_self(Signal::TSTP))
            }
            // What has left our process group has not had it.
            Event::Signal { signal, shared: true } if run.ended.is_none() || self.settings.wait_descendants => {
                (same, vec![Effect::ForwardOutside(signal)])
            }
            Event::Signal { shared: true, .. } => (same, vec![]),
            Event::Signal { signal, .. } => (same, vec![Effect::Forward(signal)]),
            Event::Command(event) => self.command(now, run, event),
            Event::Keeper(Report::Queue(Progress::Beside(refusal))) => {
                (same, vec![Effect::Say(Notice::Beside(refusal))])
            }
            // The keeper has released the lock by itself.
            Event::Keeper(Report::Unrecorded(why)) => (same, vec![Effect::Say(Notice::Unrecorded(why))]),
            Event::CallerGone => (same, end_command()),
            Event::Timer
            | Event::Keeper(Report::Connection(_) | Report::Borrows(_) | Report::Queue(_) | Report::Released { .. })
            | Event::Extended { .. }
            | Event::Answered(_)
            | Event::OnLostEnded => (same, vec![]),
        }
    }

    /// Something happened to a command that we have no reason to stop.
    fn command(&mut self, now: Instant, run: Run, event: CommandEvent) -> (State, Vec<Effect>) {
        let timeout = Some(run.lease.terms().timeout());
        match event {
            CommandEvent::Stopped(signal) => (State::Running(run), vec![Effect::StopSelf(signal)]),
            CommandEvent::StartFailed(why) => {
                let outcome = match why {
                    Unstarted::NotFound => Outcome::NotFound,
                    Unstarted::CannotExecute => Outcome::CannotExecute,
                    Unstarted::NoProcess => Outcome::Internal,
                    Unstarted::TooLate => Outcome::Lost,
                    // As if it had come while the lock was waited for.
                    Unstarted::Interrupted(signal) => Outcome::Interrupted(signal),
                };
                never_ran(now, outcome, timeout, why)
            }
            // The zklocks that use our locks do so until they end.
            CommandEvent::EndedLending(end) => (State::Running(Run { ended: Some(end), ..run }), vec![]),
            CommandEvent::Ended(end) if self.settings.wait_descendants => {
                (State::Running(Run { ended: Some(end), ..run }), vec![])
            }
            CommandEvent::Ended(end) => release(now, outcome(end), timeout),
            CommandEvent::TreeGone => match run.ended {
                Some(end) => release(now, outcome(end), timeout),
                None => (State::Running(run), vec![]),
            },
        }
    }

    /// The lock is lost, or will be unless a beat is answered by the end of the lease.
    fn stop(&self, now: Instant, run: Run, why: LostWhy) -> (State, Vec<Effect>) {
        let lease = run.lease;
        let kill_at = lease.kill_at().min(now + lease.terms().kill_after());
        if kill_at <= now {
            return lose(now, run, why);
        }
        let effects = vec![Effect::Stop(self.settings.stop_signal), Effect::Say(Notice::Lost(why))];
        run.recalled_first((State::Stopping(Stopping { lease, cause: Cause::Loss, kill_at }), effects))
    }

    /// `--max-run` is over.
    fn ran_out(&self, now: Instant, run: Run) -> (State, Vec<Effect>) {
        let say = self.settings.max_run.map(|max_run| Effect::Say(Notice::MaxRun(max_run)));
        self.stop_in_peace(now, run, Cause::MaxRun, say)
    }

    /// Stops the command although the lock is held, and stays so.
    fn stop_in_peace(&self, now: Instant, run: Run, cause: Cause, say: Option<Effect>) -> (State, Vec<Effect>) {
        let lease = run.lease;
        let grace = lease.terms().kill_after();
        let (state, mut effects) = if grace.is_zero() {
            kill(now, lease, cause, None)
        } else {
            let stopping = Stopping { lease, cause, kill_at: now + grace };
            (State::Stopping(stopping), vec![Effect::Stop(self.settings.stop_signal)])
        };
        effects.extend(say);
        run.recalled_first((state, effects))
    }

    pub(super) fn stopping(now: Instant, stopping: Stopping, event: Event) -> (State, Vec<Effect>) {
        let (cause, why) = judge(now, stopping.lease, stopping.cause, &event);
        let kill_at = match cause {
            // If a short lease has brought SIGKILL forward, a later extension of the lease does not put it
            // off again.
            Cause::Loss => stopping.deadline(),
            Cause::MaxRun | Cause::Revoked | Cause::GuardGone => stopping.kill_at,
        };
        let stopping = Stopping { cause, kill_at, ..stopping };
        match event {
            Event::Command(CommandEvent::TreeGone) => gone(now, stopping.lease, cause),
            Event::Command(CommandEvent::StartFailed(why)) => unstarted(now, stopping.lease, cause, why),
            Event::Keeper(Report::Lost(_)) | Event::LeaseOver | Event::GuardGone => {
                kill(now, stopping.lease, cause, why)
            }
            Event::Timer if now >= stopping.deadline() => kill(now, stopping.lease, cause, why),
            Event::Signal { signal, shared } if matches!(cause, Cause::MaxRun | Cause::Revoked) => {
                let forward = if shared { Effect::ForwardOutside } else { Effect::Forward };
                (State::Stopping(stopping), vec![forward(signal)])
            }
            Event::CallerGone => (State::Stopping(stopping), end_command()),
            Event::Timer
            | Event::Signal { .. }
            | Event::Command(CommandEvent::Ended(_) | CommandEvent::EndedLending(_) | CommandEvent::Stopped(_))
            | Event::Keeper(
                Report::Connection(_)
                | Report::Borrows(_)
                | Report::Queue(_)
                | Report::Refused(_)
                | Report::Revoked(_)
                | Report::Unrecorded(_)
                | Report::Released { .. },
            )
            | Event::KeeperGone
            | Event::Extended { .. }
            | Event::Answered(_)
            | Event::OnLostEnded => (State::Stopping(stopping), said(why)),
        }
    }

    pub(super) fn killing(now: Instant, killing: Killing, event: Event) -> (State, Vec<Effect>) {
        let (cause, why) = judge(now, killing.lease, killing.cause, &event);
        let killing = Killing { cause, ..killing };
        match event {
            Event::Command(CommandEvent::TreeGone) => gone(now, killing.lease, cause),
            Event::Command(CommandEvent::StartFailed(why)) => unstarted(now, killing.lease, cause, why),
            // What was below it comes up to us, and perhaps none of that has been killed yet: the guard was stopped.
            Event::GuardGone => kill(now, killing.lease, cause, why),
            Event::Timer if now >= killing.again_at => {
                // A process that we may not kill, because it became another user's, is not tried for ever
                // at this pace.
                let pause = (killing.pause * 2).min(KILL_AGAIN_AT_MOST);
                let mut effects = vec![Effect::Kill];
                effects.extend(said(why));
                (State::Killing(Killing { again_at: now + pause, pause, ..killing }), effects)
            }
            Event::Timer
            | Event::Signal { .. }
            | Event::Command(CommandEvent::Ended(_) | CommandEvent::EndedLending(_) | CommandEvent::Stopped(_))
            | Event::Keeper(
                Report::Connection(_)
                | Report::Borrows(_)
                | Report::Queue(_)
                | Report::Lost(_)
                | Report::Refused(_)
                | Report::Revoked(_)
                | Report::Unrecorded(_)
                | Report::Released { .. },
            )
            | Event::KeeperGone
            | Event::LeaseOver
            | Event::Extended { .. }
            | Event::Answered(_)
            | Event::CallerGone
            | Event::OnLostEnded => (State::Killing(killing), said(why)),
        }
    }
}

/// The lease was not extended in time.
fn silence(now: Instant, lease: Lease) -> LostWhy {
    LostWhy::Silence { silence: lease.silence(now), age: lease.age(now) }
}

/// What an event means for the lock while the command is being stopped: it may still be held, or just have
/// been lost.
fn judge(now: Instant, lease: Lease, cause: Cause, event: &Event) -> (Cause, Option<LostWhy>) {
    if cause == Cause::Loss {
        return (cause, None);
    }
    let lost = |why| (Cause::Loss, Some(why));
    match event {
        Event::Keeper(Report::Lost(loss)) => lost(LostWhy::Told(*loss)),
        Event::Keeper(Report::Refused(refusal)) => lost(LostWhy::Refused(refusal.clone())),
        Event::KeeperGone => lost(LostWhy::KeeperGone),
        Event::LeaseOver => lost(LostWhy::Told(Loss::LeaseOver)),
        Event::Timer if now >= lease.kill_at() => lost(silence(now, lease)),
        Event::Timer
        | Event::Keeper(
            Report::Connection(_)
            | Report::Borrows(_)
            | Report::Queue(_)
            | Report::Revoked(_)
            | Report::Unrecorded(_)
            | Report::Released { .. },
        )
        | Event::Extended { .. }
        | Event::Answered(_)
        | Event::Signal { .. }
        | Event::Command(_)
        | Event::GuardGone
        | Event::CallerGone
        | Event::OnLostEnded => (cause, None),
    }
}

/// The command was to be stopped, or killed, before it had begun, and never did. That has been told.
fn unstarted(now: Instant, lease: Lease, cause: Cause, why: Unstarted) -> (State, Vec<Effect>) {
    let timeout = Some(lease.terms().timeout());
    let (state, mut effects) = match cause {
        Cause::GuardGone => return gone(now, lease, cause),
        Cause::MaxRun => release(now, Outcome::RanOut, timeout),
        // No command ran, so --on-lost has nothing to clean up.
        Cause::Loss => release(now, Outcome::Lost, None),
        Cause::Revoked => release(now, Outcome::Lost, timeout),
    };
    if why == Unstarted::TooLate {
        effects.push(Effect::Say(Notice::NotBegun));
    }
    (state, effects)
}

/// Nothing is left of a command that was stopped.
fn gone(now: Instant, lease: Lease, cause: Cause) -> (State, Vec<Effect>) {
    match cause {
        Cause::MaxRun => release(now, Outcome::RanOut, Some(lease.terms().timeout())),
        Cause::GuardGone => release(now, Outcome::Internal, Some(lease.terms().timeout())),
        Cause::Loss | Cause::Revoked => {
            let frees_within = Some(lease.terms().timeout()).filter(|_| cause == Cause::Revoked);
            let release = Release { on_lost_runs: true, ..Release::after(now, Outcome::Lost, frees_within) };
            // The release first: others wait for it.
            (State::Releasing(release), vec![Effect::Release, Effect::StartOnLost])
        }
    }
}

/// The lock is lost: there is no time for a stop signal.
fn lose(now: Instant, run: Run, why: LostWhy) -> (State, Vec<Effect>) {
    run.recalled_first(kill(now, run.lease, Cause::Loss, Some(why)))
}

fn kill(now: Instant, lease: Lease, cause: Cause, why: Option<LostWhy>) -> (State, Vec<Effect>) {
    // SIGKILL first: the message can wait, the command must not.
    let mut effects = vec![Effect::Kill];
    effects.extend(said(why));
    (State::Killing(Killing { lease, cause, again_at: now + KILL_AGAIN, pause: KILL_AGAIN }), effects)
}

fn never_ran(now: Instant, outcome: Outcome, timeout: Option<Duration>, why: Unstarted) -> (State, Vec<Effect>) {
    let (state, mut effects) = release(now, outcome, timeout);
    if why == Unstarted::TooLate {
        effects.push(Effect::Say(Notice::TooLate));
    }
    (state, effects)
}

/// The command is to end, also if it is stopped.
fn end_command() -> Vec<Effect> {
    vec![Effect::Forward(Signal::TERM), Effect::Forward(Signal::CONT)]
}

fn said(why: Option<LostWhy>) -> Vec<Effect> {
    why.map(|why| Effect::Say(Notice::Lost(why))).into_iter().collect()
}

fn outcome(end: CommandEnd) -> Outcome {
    match end {
        CommandEnd::Exited(status) => Outcome::Exited(status),
        CommandEnd::Signaled(signal) => Outcome::Signaled(signal),
    }
}
