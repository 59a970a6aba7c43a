//! The part of a run before there is a command: connecting, in the queue, holding.

use std::time::Duration;

use super::ending::{Release, Verdict};
use super::running::Run;
use super::{Machine, State, cancels, give_up, regranted, stop_self};
use crate::rules::event::{Effect, Event};
use crate::rules::instant::Instant;
use crate::rules::lease::{Lease, Terms};
use crate::rules::message::{Connection, Grant, Loss, Progress, Refusal, Report, View};
use crate::rules::notice::{Blocker, Notice};
use crate::rules::outcome::Outcome;
use crate::rules::settings::Patience;

/// How long giving up at the end of `--timeout` waits for the servers to answer: time for two round trips.
pub(super) const VERDICT_PATIENCE: Duration = Duration::from_secs(2);
/// A lease that is too short to start under is judged again this often.
const JUDGE_AGAIN: Duration = Duration::from_millis(20);
/// The longest pause before another session, unless the session timeout is longer.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);
/// When this many keepers have died, that counts as an error of our own.
pub(super) const KEEPER_CRASHES: u32 = 3;

/// No session yet.
#[derive(Debug)]
pub(super) struct Connecting {
    /// The end of `--connect-timeout`, which runs only until the first session of a run.
    pub(super) until: Option<Instant>,
    /// Why no server has answered yet.
    pub(super) reason: Option<String>,
}

/// In the queue, or about to be.
#[derive(Debug)]
pub(super) struct Queued {
    terms: Terms,
    /// The contenders before us; `None` while no live session says that there are any.
    view: Option<View>,
    /// Why there is no connection now.
    reason: Option<String>,
}

/// The lock is ours. The command starts when the lease is long enough, and no sooner than the pause of
/// [`Notice::Pausing`] is over. As a rule there is no pause and the lease is long enough at once; if this
/// computer has stalled, the keeper beats, and the lease is judged again.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) lease: Lease,
    grant: Grant,
    pub(super) judge_at: Instant,
}

impl Machine {
    pub(super) fn connecting(&mut self, now: Instant, connecting: Connecting, event: Event) -> (State, Vec<Effect>) {
        match event {
            Event::Keeper(Report::Connection(Connection::Unreachable(reason))) => {
                let say = Effect::Say(Notice::Connecting(reason.clone()));
                // It may take long now. Another is made over the first connection.
                (State::Connecting(Connecting { reason: Some(reason), ..connecting }), vec![say, Effect::DismissGuard])
            }
            Event::Keeper(Report::Connection(Connection::Connected { timeout })) => self.connected(now, timeout),
            Event::Keeper(Report::Refused(refusal)) => refused(now, refusal),
            Event::Keeper(Report::Lost(loss)) => self.lost_place(now, self.settings.session_timeout, loss),
            Event::KeeperGone => {
                let again = vec![Effect::StartKeeper(self.queue_at)];
                self.keeper_crashed((State::Connecting(connecting), again))
            }
            Event::Signal { signal, .. } if cancels(signal) => give_up(now, Outcome::Interrupted(signal), vec![]),
            Event::CallerGone => give_up(now, Outcome::NotFree, vec![Effect::Say(Notice::CallerGone)]),
            Event::Signal { signal, .. } => (State::Connecting(connecting), stop_self(signal)),
            Event::Timer if self.is_over(now) && now < self.queue_at => self.unavailable(now, Blocker::Late),
            Event::Timer if self.is_over(now) => self.unavailable(now, Blocker::Servers(connecting.reason)),
            Event::Timer if connecting.until.is_some_and(|at| at <= now) => unreachable(now, connecting.reason),
            Event::Timer
            | Event::Keeper(
                Report::Connection(Connection::Shortened { .. })
                | Report::Borrows(_)
                | Report::Queue(_)
                | Report::Revoked(_)
                | Report::Unrecorded(_)
                | Report::Released { .. },
            )
            | Event::Extended { .. }
            | Event::Answered(_)
            | Event::Command(_)
            | Event::LeaseOver
            | Event::GuardGone
            | Event::OnLostEnded => (State::Connecting(connecting), vec![]),
        }
    }

    fn connected(&self, now: Instant, timeout: Duration) -> (State, Vec<Effect>) {
        match Terms::new(timeout, self.settings.kill_after) {
            Ok(terms) => {
                // The first may have died, or the system was short of something.
                let mut effects = vec![Effect::MakeGuard];
                if timeout != self.settings.session_timeout {
                    effects.push(Effect::Say(Notice::Granted(timeout)));
                }
                if terms.is_impatient() {
                    effects.push(Effect::Say(Notice::Impatient(terms)));
                }
                (State::Queued(Queued { terms, view: None, reason: None }), effects)
            }
            Err(no_room) => {
                give_up(now, Outcome::Usage, vec![Effect::Say(Notice::NoRoom { no_room, granted: timeout })])
            }
        }
    }

    pub(super) fn queued(&mut self, now: Instant, queued: Queued, event: Event) -> (State, Vec<Effect>) {
        match event {
            Event::Keeper(Report::Connection(Connection::Unreachable(reason))) => {
                let say = Effect::Say(Notice::Connecting(reason.clone()));
                // What is known of the contenders before us may be outdated from now on.
                (State::Queued(Queued { view: None, reason: Some(reason), ..queued }), vec![say])
            }
            // There is a connection, but the login over it may still fail.
            Event::Keeper(Report::Connection(Connection::Shortened { timeout })) => {
                (State::Queued(Queued { terms: regranted(timeout, self.settings.kill_after), ..queued }), vec![])
            }
            Event::Keeper(Report::Connection(Connection::Connected { timeout })) => {
                let terms = regranted(timeout, self.settings.kill_after);
                let back = queued.reason.map(|_| Effect::Say(Notice::Reconnected));
                (State::Queued(Queued { terms, reason: None, ..queued }), back.into_iter().collect())
            }
            Event::Keeper(Report::Queue(progress)) => self.progress(now, queued, progress),
            Event::Keeper(Report::Refused(refusal)) => refused(now, refusal),
            Event::Keeper(Report::Lost(loss)) => self.lost_place(now, queued.terms.timeout(), loss),
            Event::Keeper(Report::Revoked(by)) => revoked(now, by),
            Event::KeeperGone => self.keeper_crashed(requeue(None, Duration::ZERO, now)),
            Event::Signal { signal, .. } if cancels(signal) => give_up(now, Outcome::Interrupted(signal), vec![]),
            Event::CallerGone => give_up(now, Outcome::NotFree, vec![Effect::Say(Notice::CallerGone)]),
            Event::Signal { signal, .. } => {
                let mut effects = stop_self(signal);
                // The line is gone, and nothing else may happen for long.
                let again = queued.view.clone().filter(|_| !effects.is_empty());
                effects.extend(again.map(|view| Effect::Say(Notice::Waiting(view))));
                (State::Queued(queued), effects)
            }
            Event::Timer if self.is_over(now) => match (queued.view, queued.reason) {
                (Some(view), _) => give_up_for(now, view),
                (None, Some(reason)) => self.unavailable(now, Blocker::Servers(Some(reason))),
                (None, None) => self.unavailable(now, Blocker::Late),
            },
            Event::Timer
            | Event::Keeper(Report::Borrows(_) | Report::Unrecorded(_) | Report::Released { .. })
            | Event::Extended { .. }
            | Event::Answered(_)
            | Event::Command(_)
            | Event::LeaseOver
            | Event::GuardGone
            | Event::OnLostEnded => (State::Queued(queued), vec![]),
        }
    }

    fn progress(&mut self, now: Instant, queued: Queued, progress: Progress) -> (State, Vec<Effect>) {
        let no_wait = self.settings.patience == Patience::NoWait;
        match progress {
            Progress::Foreign { lock, child } => {
                (State::Queued(queued), vec![Effect::Say(Notice::Foreign { lock, child })])
            }
            // It is the supervisor that remembers it.
            Progress::Asked(_) => (State::Queued(queued), vec![]),
            Progress::Misrecorded(record) => (State::Queued(queued), vec![Effect::Say(Notice::Misrecorded(record))]),
            Progress::Skipped(last) => give_up(now, Outcome::Exited(0), vec![Effect::Say(Notice::Skipped(last))]),
            // The queue is judged when the command runs; until then it is left where it does not fit.
            Progress::Beside(_) => (State::Queued(queued), vec![]),
            Progress::Waiting(view) if no_wait => {
                give_up(now, Outcome::NotFree, vec![Effect::Say(Notice::NotFree(view))])
            }
            Progress::Waiting(view) => {
                self.waited = true;
                self.pause = Duration::ZERO;
                let guard = if view.next_in_line { Effect::MakeGuard } else { Effect::DismissGuard };
                let effects = vec![guard, Effect::Say(Notice::Waiting(view.clone()))];
                (State::Queued(Queued { view: Some(view), reason: None, ..queued }), effects)
            }
            Progress::Requeued(loss) => {
                let say = Effect::Say(Notice::Requeued { loss: Some(loss), pause: Duration::ZERO });
                (State::Queued(Queued { view: None, ..queued }), vec![say])
            }
            Progress::TooSlow(vain) => (State::Queued(queued), vec![Effect::Say(Notice::TooSlow(vain))]),
            Progress::Turn => (State::Queued(Queued { view: None, ..queued }), vec![Effect::MakeGuard]),
            Progress::Held { .. } if no_wait && now < self.start_at => self.unavailable(now, Blocker::OldLease),
            // The command is not started here: signals that have come already are heard first, because a
            // shutdown may have begun.
            Progress::Held { grant, from } => {
                self.pause = Duration::ZERO;
                let pause = Some(self.start_at.saturating_since(now)).filter(|pause| !pause.is_zero());
                let say = pause.map(|pause| Effect::Say(Notice::Pausing(pause)));
                let held = Held { lease: Lease::new(queued.terms, from), grant, judge_at: now.max(self.start_at) };
                (State::Held(held), say.into_iter().collect())
            }
        }
    }

    pub(super) fn held(&mut self, now: Instant, held: Held, event: Event) -> (State, Vec<Effect>) {
        match event {
            Event::Timer if now >= held.judge_at && held.lease.worth_starting(now) => self.start_command(now, held),
            Event::Timer if self.is_over(now) => {
                let blocker = if now < self.start_at { Blocker::OldLease } else { Blocker::Late };
                self.unavailable(now, blocker)
            }
            Event::Timer if now >= held.judge_at => (State::Held(Held { judge_at: now + JUDGE_AGAIN, ..held }), vec![]),
            Event::Keeper(Report::Refused(refusal)) => refused(now, refusal),
            Event::Keeper(Report::Lost(loss)) => self.lost_place(now, held.lease.terms().timeout(), loss),
            Event::Keeper(Report::Revoked(by)) => revoked(now, by),
            Event::KeeperGone => self.keeper_crashed(requeue(None, Duration::ZERO, now)),
            Event::Signal { signal, .. } if cancels(signal) => give_up(now, Outcome::Interrupted(signal), vec![]),
            Event::CallerGone => give_up(now, Outcome::NotFree, vec![Effect::Say(Notice::CallerGone)]),
            Event::Signal { signal, .. } => (State::Held(held), stop_self(signal)),
            Event::Timer
            | Event::Keeper(
                Report::Connection(_)
                | Report::Borrows(_)
                | Report::Queue(_)
                | Report::Unrecorded(_)
                | Report::Released { .. },
            )
            | Event::Extended { .. }
            | Event::Answered(_)
            | Event::Command(_)
            | Event::LeaseOver
            | Event::GuardGone
            | Event::OnLostEnded => (State::Held(held), vec![]),
        }
    }

    fn start_command(&self, now: Instant, held: Held) -> (State, Vec<Effect>) {
        let Held { lease, grant, .. } = held;
        let waited = self.waited.then(|| now.saturating_since(self.started_at));
        let say = Effect::Say(Notice::Starting { grant: grant.clone(), waited });
        let ends_at = self.settings.max_run.map(|max_run| now + max_run);
        // A command that started any later would have to be stopped at once.
        let until = lease.stop_at();
        let run = Run { lease, start_by: Some(until), ends_at, ended: None, warned: false };
        (State::Running(run), vec![Effect::Spawn { grant, until }, say])
    }

    /// Whether the time to wait is over.
    fn is_over(&self, now: Instant) -> bool {
        self.give_up_at.is_some_and(|at| at <= now)
    }

    /// The time to wait is over, and no live session says that a contender is before us.
    fn unavailable(&self, now: Instant, blocker: Blocker) -> (State, Vec<Effect>) {
        let no_wait = self.settings.patience == Patience::NoWait;
        match blocker {
            // With --nonblock, the time that ran out is the one for the servers to answer: --connect-timeout.
            Blocker::Servers(reason) if no_wait => unreachable(now, reason),
            Blocker::Late if no_wait => unreachable(now, None),
            blocker => give_up(now, Outcome::Unavailable, vec![Effect::Say(Notice::TimedOut(blocker))]),
        }
    }

    /// The place in the queue is lost, and a new one is taken. `timeout`: that of the session.
    pub(super) fn lost_place(&mut self, now: Instant, timeout: Duration, loss: Loss) -> (State, Vec<Effect>) {
        let mut pause = Duration::ZERO;
        if loss == Loss::SessionEnded {
            // The servers may have forgotten a holder that has not learnt of it yet. That holder still relies on its lease,
            // which is shorter than this timeout. In the queue we keep those who come later from starting before.
            self.start_at = self.start_at.max(now + timeout);
            // Where each session ends before it has a place, they are not to be opened a hundred times a second.
            pause = self.pause;
            self.pause = (pause * 2).clamp(timeout, timeout.max(LONGEST_PAUSE));
        }
        self.queue_at = now + pause;
        requeue(Some(loss), pause, self.queue_at)
    }

    /// The keeper died without a word before the command was started. If it had a place in the queue, we have
    /// lost that place, and its node stays until the session expires. `again` follows, unless keepers have
    /// died too often.
    fn keeper_crashed(&mut self, again: (State, Vec<Effect>)) -> (State, Vec<Effect>) {
        self.crashes += 1;
        if self.crashes < KEEPER_CRASHES {
            return again;
        }
        (State::Finished, vec![Effect::Say(Notice::KeeperDied), Effect::Finish(Outcome::Internal)])
    }
}

/// Begins again with a new session, at the tail of the queue. `--timeout` goes on counting;
/// `--connect-timeout` does not come back, because a server had answered. `loss`, `pause`: as in [`Notice::Requeued`].
fn requeue(loss: Option<Loss>, pause: Duration, queue_at: Instant) -> (State, Vec<Effect>) {
    let effects = vec![Effect::Say(Notice::Requeued { loss, pause }), Effect::StartKeeper(queue_at)];
    (State::Connecting(Connecting { until: None, reason: None }), effects)
}

/// No server has answered in time.
fn unreachable(now: Instant, reason: Option<String>) -> (State, Vec<Effect>) {
    let notice = Notice::Unreachable(reason.unwrap_or_else(|| "no answer".to_owned()));
    give_up(now, Outcome::Unavailable, vec![Effect::Say(notice)])
}

/// Someone has asked us to give up our place, or the lock before the command was started.
fn revoked(now: Instant, by: Option<String>) -> (State, Vec<Effect>) {
    give_up(now, Outcome::Lost, vec![Effect::Say(Notice::Revoked { by, stops: false })])
}

fn refused(now: Instant, refusal: Refusal) -> (State, Vec<Effect>) {
    give_up(now, refusal.outcome(), vec![Effect::Say(Notice::Refused(refusal))])
}

/// Leaves at the end of `--timeout` because of those before us. Whether the session still lives is known
/// only when the servers have confirmed the release.
fn give_up_for(now: Instant, view: View) -> (State, Vec<Effect>) {
    (State::Releasing(Release::new(Verdict::NotFreeIfConfirmed(view), now + VERDICT_PATIENCE)), vec![Effect::Release])
}
