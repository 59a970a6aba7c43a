//! The part of a run before there is a command: connecting, in the queue, holding.

use std::time::Duration;

use super::ending::Release;
use super::running::Run;
use super::{Machine, State, Transition, cancels, give_up, regranted, suspend_self};
use crate::rules::event::{Effect, Event};
use crate::rules::instant::Instant;
use crate::rules::lease::{Lease, Terms};
use crate::rules::message::{Connectivity, Grant, Loss, Progress, QueueView, Report};
use crate::rules::notice::{Blocker, Notice};
use crate::rules::outcome::Outcome;
use crate::rules::settings::Patience;

/// A lease that is too short to start under is judged again this often.
const JUDGE_AGAIN: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// The end of `--connect-timeout`, which runs only until the first session of a run.
    connect_by: Option<Instant>,
    has_session: bool,
    /// The contenders before us; `None` while no live session says that there are any.
    view: Option<QueueView>,
    /// Why there is no connection now.
    reason: Option<String>,
    held: Option<Held>,
}

/// The command starts when the lease is long enough. As a rule it is long enough at once; if this computer has stalled, the
/// keeper beats, and the lease is judged again.
#[derive(Debug)]
struct Held {
    lease: Lease,
    grant: Box<Grant>,
    judge_at: Instant,
    /// A run above us holds the locks.
    is_lent: bool,
}

impl Waiting {
    pub(super) fn for_servers(until: Instant) -> Self {
        Self { connect_by: Some(until), ..Self::default() }
    }

    /// When to act if no event comes first, apart from the end of our patience.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.held.as_ref().map(|held| held.judge_at).or(self.connect_by)
    }

    pub(super) fn lease(&mut self) -> Option<&mut Lease> {
        self.held.as_mut().map(|held| &mut held.lease)
    }
}

impl Machine {
    pub(super) fn waiting(&mut self, now: Instant, waiting: Waiting, event: Event) -> Transition {
        match event {
            Event::Keeper(report) => self.reported(now, waiting, report),
            // Its node, if it had one, stays in the queue until the session expires.
            Event::KeeperGone => {
                (State::Finished, vec![Effect::Say(Notice::KeeperDied), Effect::Finish(Outcome::Internal)])
            }
            Event::Lent(grant) => {
                let terms = regranted(self.settings.session_timeout, self.settings.kill_after);
                // What the lender shows extends it before it is judged.
                let lease = Lease::new(terms, Instant::from_boot(Duration::ZERO));
                let held = Held { lease, grant, judge_at: now, is_lent: true };
                stay(Waiting { held: Some(held), ..waiting }, None)
            }
            Event::Signal { signal, .. } if cancels(signal) => give_up(now, Outcome::Interrupted(signal), None),
            Event::Signal { signal, .. } => {
                let mut effects = suspend_self(signal);
                if let (Waiting { view: Some(view), .. }, [_, ..]) = (&waiting, &*effects) {
                    // Ctrl-Z has removed the waiting line, and no event may redraw it for long.
                    effects.push(Effect::Say(waiting_for(view.clone())));
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
            // A new session, at the tail of the queue. `--timeout` goes on counting; `--connect-timeout` does not come back,
            // because a server had answered.
            (Report::Requeued { loss, pause }, _) => {
                stay(Waiting::default(), [Effect::Say(Notice::Requeued { loss, pause })])
            }
            (Report::Connection(connection), waiting @ Waiting { held: None, .. }) => {
                self.connection(now, waiting, connection)
            }
            (Report::Queue(progress), waiting @ Waiting { held: None, .. }) => self.progress(now, waiting, progress),
            // Nothing that the command of a run has started takes the lock for itself once that run has lost it.
            (Report::Lost(Loss::LenderGone), _) => give_up(now, Outcome::Lost, Notice::LenderGone),
            // It was reported as held, but there is no command yet.
            (Report::Lost(_), _) => stay(Waiting::default(), [Effect::QueueAgain]),
            (Report::Refused(refusal), _) => give_up(now, refusal.outcome(), Notice::Refused(refusal)),
            (Report::Revoked(by), _) => give_up(now, Outcome::Lost, Notice::Revoked { by, stops: false }),
            (Report::Connection(_) | Report::Queue(_) | Report::Remark(_) | Report::Released { .. }, waiting) => {
                stay(waiting, None)
            }
        }
    }

    fn connection(&self, now: Instant, waiting: Waiting, connection: Connectivity) -> Transition {
        match connection {
            Connectivity::Unreachable(reason) => {
                let say = Effect::Say(Notice::Connecting(reason.clone()));
                // What is known of the contenders before us may be outdated from now on.
                stay(Waiting { view: None, reason: Some(reason), ..waiting }, [say])
            }
            Connectivity::Connected(_) if waiting.has_session => {
                let back = waiting.reason.map(|_| Effect::Say(Notice::Reconnected));
                stay(Waiting { reason: None, ..waiting }, back)
            }
            Connectivity::Connected(timeout) => self.connected(now, timeout),
            // There is a connection, but the login over it may still fail.
            Connectivity::Shortened(_) => stay(waiting, None),
        }
    }

    fn connected(&self, now: Instant, timeout: Duration) -> Transition {
        let terms = match Terms::new(timeout, self.settings.kill_after) {
            Ok(terms) => terms,
            Err(no_room) => return give_up(now, Outcome::Usage, Notice::NoRoom { no_room, granted: timeout }),
        };
        let granted = (timeout != self.settings.session_timeout).then_some(Notice::Granted(timeout));
        let impatient = terms.is_impatient().then_some(Notice::Impatient(terms));
        let notices = granted.into_iter().chain(impatient).map(Effect::Say);
        stay(Waiting { has_session: true, ..Waiting::default() }, notices)
    }

    fn progress(&mut self, now: Instant, waiting: Waiting, progress: Progress) -> Transition {
        let no_wait = self.settings.patience == Patience::NoWait;
        match progress {
            Progress::Skipped(last) => give_up(now, Outcome::Exited(0), Notice::Skipped(last)),
            Progress::Waiting(view) if no_wait => {
                give_up(now, Outcome::NotFree, Notice::TimedOut(Blocker::Queue(view)))
            }
            Progress::Waiting(view) => {
                self.waited = true;
                let say = Effect::Say(waiting_for(view.clone()));
                stay(Waiting { view: Some(view), reason: None, ..waiting }, [say])
            }
            Progress::Turn => stay(Waiting { view: None, ..waiting }, None),
            // The command is not started here: signals that have come already are heard first, because a
            // shutdown may have begun.
            Progress::Held { grant, timeout, from } => {
                let lease = Lease::new(regranted(timeout, self.settings.kill_after), from);
                let held = Held { lease, grant, judge_at: now, is_lent: false };
                stay(Waiting { view: None, held: Some(held), ..waiting }, None)
            }
        }
    }

    fn time_has_come(&self, now: Instant, waiting: Waiting) -> Transition {
        let is_over = self.give_up_at.is_some_and(|at| at <= now);
        match waiting {
            Waiting { held: Some(held), .. } if now >= held.judge_at && held.lease.worth_starting(now) => {
                self.start_command(now, held)
            }
            Waiting { held: Some(Held { is_lent: true, .. }), .. }
                if is_over || self.settings.patience == Patience::NoWait =>
            {
                give_up(now, Outcome::NotFree, Notice::TimedOut(Blocker::Lender))
            }
            Waiting { held: Some(_), .. } if is_over => self.unavailable(now, Blocker::Late),
            Waiting { held: Some(held), .. } if now >= held.judge_at => {
                let held = Held { judge_at: now + JUDGE_AGAIN, ..held };
                stay(Waiting { held: Some(held), ..waiting }, None)
            }
            // Whether the session still lives is known only when the servers have confirmed the release.
            Waiting { view: Some(view), .. } if is_over => {
                (State::Releasing(Release::in_vain(now, view)), vec![Effect::Release])
            }
            Waiting { has_session: true, reason: None, .. } if is_over => self.unavailable(now, Blocker::Late),
            Waiting { reason, .. } if is_over => self.unavailable(now, Blocker::Servers(reason)),
            Waiting { connect_by: Some(until), reason, .. } if now >= until => unreachable(now, reason),
            waiting => stay(waiting, None),
        }
    }

    fn start_command(&self, now: Instant, held: Held) -> Transition {
        let (lease, grant) = (held.lease, *held.grant);
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
}

fn waiting_for(view: QueueView) -> Notice {
    if view.free_at.is_some() { Notice::Delayed(view) } else { Notice::Waiting(view) }
}

fn stay(waiting: Waiting, effects: impl IntoIterator<Item = Effect>) -> Transition {
    (State::Waiting(waiting), effects.into_iter().collect())
}

fn unreachable(now: Instant, reason: Option<String>) -> Transition {
    give_up(now, Outcome::Unavailable, Notice::Unreachable(reason.unwrap_or_else(|| "no answer".to_owned())))
}
