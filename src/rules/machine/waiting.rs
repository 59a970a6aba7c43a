//! The part of a run before there is a command: connecting, in the queue, holding.

use std::time::Duration;

use super::ending::Release;
use super::running::Run;
use super::{Machine, State, Transition, cancels, give_up, regranted, stop_self};
use crate::rules::event::{Effect, Event};
use crate::rules::instant::Instant;
use crate::rules::lease::{Lease, Terms};
use crate::rules::message::{Connectivity, Grant, Loss, Progress, QueueView, Report};
use crate::rules::notice::{Blocker, Notice};
use crate::rules::outcome::Outcome;
use crate::rules::settings::Patience;

/// A lease that is too short to start under is judged again this often.
const JUDGE_AGAIN: Duration = Duration::from_millis(20);
/// The longest pause before another session, unless the session timeout is longer.
pub(super) const LONGEST_KEEPER_PAUSE: Duration = Duration::from_secs(5 * 60);
/// When this many keepers have died, that counts as an error of our own.
pub(super) const KEEPER_CRASHES: u32 = 3;

#[derive(Debug)]
pub(super) enum Waiting {
    /// No keeper before this instant.
    Pausing(Instant),
    Connecting(Connecting),
    /// In the queue, or about to be.
    Queued(Queued),
    Held(Held),
}

#[derive(Debug)]
pub(super) struct Connecting {
    /// The end of `--connect-timeout`, which runs only until the first session of a run.
    pub(super) until: Option<Instant>,
    /// Why no server has answered yet.
    pub(super) reason: Option<String>,
}

#[derive(Debug)]
pub(super) struct Queued {
    terms: Terms,
    /// The contenders before us; `None` while no live session says that there are any.
    view: Option<QueueView>,
    /// Why there is no connection now.
    reason: Option<String>,
}

/// The command starts when the lease is long enough, and no sooner than the pause of [`Notice::Pausing`] is over. As a rule
/// there is no pause and the lease is long enough at once; if this computer has stalled, the keeper beats, and the lease is
/// judged again.
#[derive(Debug)]
pub(super) struct Held {
    lease: Lease,
    grant: Grant,
    judge_at: Instant,
}

impl Waiting {
    /// When to act if no event comes first, apart from the end of our patience.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Pausing(until) => Some(*until),
            Self::Connecting(connecting) => connecting.until,
            Self::Queued(_) => None,
            Self::Held(held) => Some(held.judge_at),
        }
    }

    pub(super) fn lease(&mut self) -> Option<&mut Lease> {
        match self {
            Self::Held(held) => Some(&mut held.lease),
            Self::Pausing(_) | Self::Connecting(_) | Self::Queued(_) => None,
        }
    }
}

impl Machine {
    pub(super) fn waiting(&mut self, now: Instant, waiting: Waiting, event: Event) -> Transition {
        match event {
            // A pause begins when a keeper is of no more use: what it still says does not count.
            Event::Keeper(_) | Event::KeeperGone if matches!(waiting, Waiting::Pausing(_)) => stay(waiting, None),
            Event::Keeper(report) => self.reported(now, waiting, report),
            Event::KeeperGone => self.keeper_crashed(waiting),
            Event::Signal { signal, .. } if cancels(signal) => give_up(now, Outcome::Interrupted(signal), None),
            Event::Signal { signal, .. } => {
                let mut effects = stop_self(signal);
                if let (Waiting::Queued(Queued { view: Some(view), .. }), [_, ..]) = (&waiting, &*effects) {
                    // The stop has removed the waiting line, and no event may redraw it for long.
                    effects.push(Effect::Say(Notice::Waiting(view.clone())));
                }
                stay(waiting, effects)
            }
            Event::CallerGone => give_up(now, Outcome::NotFree, Notice::CallerGone),
            Event::Timer => self.time_has_come(now, waiting),
            Event::Command(_) => stay(waiting, None),
        }
    }

    fn reported(&mut self, now: Instant, waiting: Waiting, report: Report) -> Transition {
        match (report, waiting) {
            (Report::Connection(connection), waiting) => self.connection(now, waiting, connection),
            (Report::Queue(progress), Waiting::Queued(queued)) => self.progress(now, queued, progress),
            (Report::Lost(loss), waiting) => self.lost_place(now, &waiting, loss),
            (Report::Refused(refusal), _) => give_up(now, refusal.outcome(), Notice::Refused(refusal)),
            (Report::Revoked(by), _) => give_up(now, Outcome::Lost, Notice::Revoked { by, stops: false }),
            (Report::Queue(_) | Report::Borrows(_) | Report::Remark(_) | Report::Released { .. }, waiting) => {
                stay(waiting, None)
            }
        }
    }

    fn connection(&self, now: Instant, waiting: Waiting, connection: Connectivity) -> Transition {
        match (waiting, connection) {
            (Waiting::Connecting(connecting), Connectivity::Unreachable(reason)) => {
                let say = Effect::Say(Notice::Connecting(reason.clone()));
                let connecting = Connecting { reason: Some(reason), ..connecting };
                // No guard is needed while no server answers. The first connection makes another.
                stay(Waiting::Connecting(connecting), [say, Effect::DismissGuard])
            }
            (Waiting::Connecting(_), Connectivity::Connected(timeout)) => self.connected(now, timeout),
            (Waiting::Queued(queued), Connectivity::Unreachable(reason)) => {
                let say = Effect::Say(Notice::Connecting(reason.clone()));
                // What is known of the contenders before us may be outdated from now on.
                stay(Waiting::Queued(Queued { view: None, reason: Some(reason), ..queued }), [say])
            }
            // There is a connection, but the login over it may still fail.
            (Waiting::Queued(queued), Connectivity::Shortened(timeout)) => {
                stay(Waiting::Queued(Queued { terms: regranted(timeout, self.settings.kill_after), ..queued }), None)
            }
            (Waiting::Queued(queued), Connectivity::Connected(timeout)) => {
                let terms = regranted(timeout, self.settings.kill_after);
                let back = queued.reason.map(|_| Effect::Say(Notice::Reconnected));
                stay(Waiting::Queued(Queued { terms, reason: None, ..queued }), back)
            }
            (waiting @ Waiting::Connecting(_), Connectivity::Shortened(_))
            | (waiting @ (Waiting::Pausing(_) | Waiting::Held(_)), _) => stay(waiting, None),
        }
    }

    fn connected(&self, now: Instant, timeout: Duration) -> Transition {
        match Terms::new(timeout, self.settings.kill_after) {
            Ok(terms) => {
                // This makes another guard if the first has died or could not be made.
                let mut effects = vec![Effect::MakeGuard];
                if timeout != self.settings.session_timeout {
                    effects.push(Effect::Say(Notice::Granted(timeout)));
                }
                if terms.is_impatient() {
                    effects.push(Effect::Say(Notice::Impatient(terms)));
                }
                stay(Waiting::Queued(Queued { terms, view: None, reason: None }), effects)
            }
            Err(no_room) => give_up(now, Outcome::Usage, Notice::NoRoom { no_room, granted: timeout }),
        }
    }

    fn progress(&mut self, now: Instant, queued: Queued, progress: Progress) -> Transition {
        let no_wait = self.settings.patience == Patience::NoWait;
        let (queued, effects) = match progress {
            // It is the supervisor that remembers it.
            Progress::Asked(_) => (queued, vec![]),
            Progress::Skipped(last) => {
                return give_up(now, Outcome::Exited(0), Notice::Skipped(last));
            }
            Progress::Waiting(view) if no_wait => {
                return give_up(now, Outcome::NotFree, Notice::TimedOut(Blocker::Queue(view)));
            }
            Progress::Waiting(view) => {
                self.waited = true;
                self.pause = Duration::ZERO;
                let guard = if view.next_in_line { Effect::MakeGuard } else { Effect::DismissGuard };
                let effects = vec![guard, Effect::Say(Notice::Waiting(view.clone()))];
                (Queued { view: Some(view), reason: None, ..queued }, effects)
            }
            Progress::Requeued(loss) => {
                let say = Effect::Say(Notice::Requeued { loss: Some(loss), pause: Duration::ZERO });
                (Queued { view: None, ..queued }, vec![say])
            }
            Progress::Turn => (Queued { view: None, ..queued }, vec![Effect::MakeGuard]),
            Progress::Held { .. } if no_wait && now < self.start_at => {
                return self.unavailable(now, Blocker::OldLease);
            }
            // The command is not started here: signals that have come already are heard first, because a
            // shutdown may have begun.
            Progress::Held { grant, from } => {
                self.pause = Duration::ZERO;
                let pause = self.start_at.saturating_since(now);
                let say = (!pause.is_zero()).then_some(Effect::Say(Notice::Pausing(pause)));
                let held = Held { lease: Lease::new(queued.terms, from), grant, judge_at: now.max(self.start_at) };
                return stay(Waiting::Held(held), say);
            }
        };
        stay(Waiting::Queued(queued), effects)
    }

    fn time_has_come(&self, now: Instant, waiting: Waiting) -> Transition {
        let is_over = self.give_up_at.is_some_and(|at| at <= now);
        match waiting {
            Waiting::Held(held) if now >= held.judge_at && held.lease.worth_starting(now) => {
                self.start_command(now, held)
            }
            Waiting::Held(_) if is_over && now < self.start_at => self.unavailable(now, Blocker::OldLease),
            Waiting::Held(_) | Waiting::Pausing(_) if is_over => self.unavailable(now, Blocker::Late),
            Waiting::Held(held) if now >= held.judge_at => {
                stay(Waiting::Held(Held { judge_at: now + JUDGE_AGAIN, ..held }), None)
            }
            Waiting::Pausing(until) if now >= until => start_keeper(None),
            // Whether the session still lives is known only when the servers have confirmed the release.
            Waiting::Queued(Queued { view: Some(view), .. }) if is_over => {
                (State::Releasing(Release::in_vain(now, view)), vec![Effect::Release])
            }
            Waiting::Queued(Queued { reason: None, .. }) if is_over => self.unavailable(now, Blocker::Late),
            Waiting::Queued(Queued { reason, .. }) | Waiting::Connecting(Connecting { reason, .. }) if is_over => {
                self.unavailable(now, Blocker::Servers(reason))
            }
            Waiting::Connecting(Connecting { until: Some(until), reason }) if now >= until => unreachable(now, reason),
            waiting @ (Waiting::Pausing(_) | Waiting::Connecting(_) | Waiting::Queued(_) | Waiting::Held(_)) => {
                stay(waiting, None)
            }
        }
    }

    fn start_command(&self, now: Instant, held: Held) -> Transition {
        let Held { lease, grant, .. } = held;
        assert!(lease.worth_starting(now), "a command starts under a lease that is long enough");
        let waited = self.waited.then(|| now.saturating_since(self.started_at));
        let say = Effect::Say(Notice::Starting { grant: grant.clone(), waited });
        let ends_at = self.settings.max_run.map(|max_run| now + max_run);
        // A command that started any later would have to be stopped at once.
        let until = lease.stop_at();
        let run = Run { lease, start_by: Some(until), ends_at, ended: None, warned: false };
        (State::Running(run), vec![Effect::Spawn { grant, until }, say])
    }

    /// The time to wait is over, and no live session says that a contender is before us.
    fn unavailable(&self, now: Instant, blocker: Blocker) -> Transition {
        let no_wait = self.settings.patience == Patience::NoWait;
        match blocker {
            // With --nonblock, the time that ran out is the one for the servers to answer: --connect-timeout.
            Blocker::Servers(reason) if no_wait => unreachable(now, reason),
            Blocker::Late if no_wait => unreachable(now, None),
            blocker => give_up(now, Outcome::Unavailable, Notice::TimedOut(blocker)),
        }
    }

    /// The place in the queue is lost, and a new one is taken.
    fn lost_place(&mut self, now: Instant, waiting: &Waiting, loss: Loss) -> Transition {
        let mut pause = Duration::ZERO;
        if loss == Loss::SessionEnded {
            let timeout = match waiting {
                Waiting::Pausing(_) | Waiting::Connecting(_) => self.settings.session_timeout,
                Waiting::Queued(queued) => queued.terms.timeout,
                Waiting::Held(held) => held.lease.terms.timeout,
            };
            // The servers may have forgotten a holder that has not learnt of it yet. That holder still relies on its lease,
            // which is shorter than this timeout. In the queue we keep those who come later from starting before.
            self.start_at = self.start_at.max(now + timeout);
            // Where each session ends before it has a place, they are not to be opened a hundred times a second.
            pause = self.pause;
            self.pause = (pause * 2).clamp(timeout, timeout.max(LONGEST_KEEPER_PAUSE));
        }
        let say = Effect::Say(Notice::Requeued { loss: Some(loss), pause });
        if pause.is_zero() {
            return start_keeper(Some(say));
        }
        // Not all clients whose sessions have ended at the same moment: each hears of it in another microsecond.
        let jitter = pause.mul_f64(f64::from(now.since_boot().subsec_micros() % 1000) / 2000.0);
        stay(Waiting::Pausing(now + pause + jitter), [say, Effect::EndKeeper, Effect::DismissGuard])
    }

    /// The keeper died without a word before the command was started. If it had a place in the queue, we have lost that
    /// place, and its node stays until the session expires. Another follows, unless keepers have died too often.
    fn keeper_crashed(&mut self, waiting: Waiting) -> Transition {
        self.crashes += 1;
        if self.crashes >= KEEPER_CRASHES {
            return (State::Finished, vec![Effect::Say(Notice::KeeperDied), Effect::Finish(Outcome::Internal)]);
        }
        match waiting {
            Waiting::Pausing(_) | Waiting::Connecting(_) => stay(waiting, [Effect::StartKeeper]),
            Waiting::Queued(_) | Waiting::Held(_) => {
                start_keeper(Some(Effect::Say(Notice::Requeued { loss: None, pause: Duration::ZERO })))
            }
        }
    }
}

fn stay(waiting: Waiting, effects: impl IntoIterator<Item = Effect>) -> Transition {
    (State::Waiting(waiting), effects.into_iter().collect())
}

/// Begins again with a new session, at the tail of the queue. `--timeout` goes on counting; `--connect-timeout` does not come
/// back, because a server had answered.
fn start_keeper(say: Option<Effect>) -> Transition {
    let connecting = Connecting { until: None, reason: None };
    stay(Waiting::Connecting(connecting), say.into_iter().chain([Effect::StartKeeper]))
}

/// No server has answered in time.
fn unreachable(now: Instant, reason: Option<String>) -> Transition {
    give_up(now, Outcome::Unavailable, Notice::Unreachable(reason.unwrap_or_else(|| "no answer".to_owned())))
}
