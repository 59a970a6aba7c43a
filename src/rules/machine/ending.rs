//! The part of a run in which there is no command any more: the node is to go, and the command of
//! `--on-lost` may run.

use std::time::Duration;

use super::{Machine, Next, State, cancels, stop_self};
use crate::rules::event::{Effect, Event, OnLostEvent, Whom};
use crate::rules::instant::Instant;
use crate::rules::message::{Loss, Report, View};
use crate::rules::notice::{Blocker, Notice};
use crate::rules::outcome::Outcome;
use crate::rules::signal::Signal;

/// How long a release after a finished command waits for a server, unless the session ends sooner.
pub(super) const RELEASE_PATIENCE: Duration = Duration::from_secs(10);
/// How long giving up waits for the deletion of the contender node.
pub(super) const GIVE_UP_PATIENCE: Duration = Duration::from_secs(1);
/// How much longer either waits at most, once the user shows impatience.
pub(super) const HURRIED_PATIENCE: Duration = Duration::from_millis(300);

/// A release that has been asked for.
#[derive(Clone, Debug)]
pub(super) struct Release {
    pub(super) verdict: Verdict,
    /// Within what time the lock frees itself; told when the release is not confirmed.
    pub(super) frees_within: Option<Duration>,
    /// When we stop waiting for a confirmation.
    pub(super) until: Instant,
    /// The command of `--on-lost` runs.
    pub(super) on_lost_runs: bool,
}

impl Release {
    /// A release that waits for a confirmation until `until`.
    pub(super) fn new(verdict: Verdict, until: Instant) -> Self {
        Self { verdict, frees_within: None, until, on_lost_runs: false }
    }

    /// A release at the end of a run. `frees_within`: within what time the lock frees itself, told when the
    /// release is not confirmed; it also limits how long we wait.
    pub(super) fn after(now: Instant, outcome: Outcome, frees_within: Option<Duration>) -> Self {
        let patience = frees_within.map_or(GIVE_UP_PATIENCE, |timeout| timeout.min(RELEASE_PATIENCE));
        Self { frees_within, ..Self::new(Verdict::Known(outcome), now + patience) }
    }
}

/// What a release comes to.
#[derive(Clone, Debug)]
pub(super) enum Verdict {
    /// This, whether or not it is confirmed.
    Known(Outcome),
    /// These were before us when `--timeout` ended, if the servers confirm that there still is one.
    NotFreeIfConfirmed(View),
}

impl Verdict {
    /// The outcome, and what is still to be said about it.
    fn end(self, confirmation: Confirmation) -> (Outcome, Option<Notice>) {
        let (outcome, blocker) = match (self, confirmation) {
            (Self::Known(outcome), _) => return (outcome, None),
            (Self::NotFreeIfConfirmed(view), Confirmation::Confirmed { was_busy: true }) => {
                (Outcome::NotFree, Blocker::Queue(view))
            }
            (Self::NotFreeIfConfirmed(_), Confirmation::Confirmed { was_busy: false }) => {
                (Outcome::Unavailable, Blocker::Freed)
            }
            (Self::NotFreeIfConfirmed(_), Confirmation::SessionOver | Confirmation::Unconfirmed) => {
                (Outcome::Unavailable, Blocker::Late)
            }
        };
        (outcome, Some(Notice::TimedOut(blocker)))
    }
}

impl Machine {
    pub(super) fn releasing(now: Instant, release: Release, event: Event) -> Next {
        match event {
            Event::Keeper(Report::Released { was_busy }) => finish(release, Confirmation::Confirmed { was_busy }),
            // An expired session has taken the node with it, but says nothing about other contenders.
            Event::Keeper(Report::Lost(Loss::SessionExpired | Loss::SessionEnded)) => {
                finish(release, Confirmation::SessionOver)
            }
            Event::KeeperGone => finish(release, Confirmation::Unconfirmed),
            Event::Timer if now >= release.until => finish(release, Confirmation::Unconfirmed),
            Event::OnLost(OnLostEvent::Ended) => (State::Releasing(Release { on_lost_runs: false, ..release }), vec![]),
            Event::OnLost(OnLostEvent::Stopped(signal)) => (State::Releasing(release), vec![Effect::StopSelf(signal)]),
            Event::Signal { signal, shared } => {
                let effects = if release.on_lost_runs { forward_to_on_lost(signal, shared) } else { stop_self(signal) };
                if !cancels(signal) {
                    return (State::Releasing(release), effects);
                }
                // The user is impatient. The servers still get a moment, because two signals that come at
                // once are not a sign of impatience.
                let until = release.until.min(now + HURRIED_PATIENCE);
                // The user has not been told a verdict yet: to them we are still waiting, and this signal
                // ends the wait.
                let verdict = match release.verdict {
                    Verdict::NotFreeIfConfirmed(_) => Verdict::Known(Outcome::Interrupted(signal)),
                    known => known,
                };
                (State::Releasing(Release { verdict, until, ..release }), effects)
            }
            Event::Timer
            | Event::Keeper(
                Report::Connection(_)
                | Report::Borrows(_)
                | Report::Queue(_)
                | Report::Remark(_)
                | Report::Lost(Loss::NodeDeleted | Loss::LeaseOver | Loss::LenderGone)
                | Report::Refused(_)
                | Report::Revoked(_),
            )
            | Event::CallerGone
            | Event::Command(_) => (State::Releasing(release), vec![]),
        }
    }

    pub(super) fn outlasted(outcome: Outcome, event: Event) -> Next {
        let effects = match event {
            Event::OnLost(OnLostEvent::Ended) => return (State::Finished, vec![Effect::Finish(outcome)]),
            Event::OnLost(OnLostEvent::Stopped(signal)) => vec![Effect::StopSelf(signal)],
            Event::Signal { signal, shared } => forward_to_on_lost(signal, shared),
            Event::Keeper(_) | Event::KeeperGone | Event::Command(_) | Event::CallerGone | Event::Timer => vec![],
        };
        (State::Outlasted(outcome), effects)
    }
}

/// What is known at the end of a release.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Confirmation {
    /// The node is gone, and the session closed.
    Confirmed {
        /// Whether a contender was before us up to the end.
        was_busy: bool,
    },
    /// The session was over.
    SessionOver,
    /// No server has answered.
    Unconfirmed,
}

/// Nothing more is to be done about the node.
fn finish(release: Release, confirmation: Confirmation) -> Next {
    let mut effects = vec![];
    if confirmation == Confirmation::Unconfirmed {
        effects.push(Effect::EndKeeper);
        effects.extend(release.frees_within.map(|timeout| Effect::Say(Notice::NotReleased(timeout))));
    }
    let (outcome, notice) = release.verdict.end(confirmation);
    effects.extend(notice.map(Effect::Say));
    if release.on_lost_runs {
        return (State::Outlasted(outcome), effects);
    }
    effects.push(Effect::Finish(outcome));
    (State::Finished, effects)
}

/// A signal that the terminal sent to the process group has reached the command of `--on-lost` already.
fn forward_to_on_lost(signal: Signal, shared: bool) -> Vec<Effect> {
    if shared { vec![] } else { vec![Effect::Signal { signal, whom: Whom::OnLost }] }
}
