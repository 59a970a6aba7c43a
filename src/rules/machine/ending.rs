//! The part of a run in which there is no command any more: the node is to go.

use std::time::Duration;

use super::{Machine, State, Transition, cancels, suspend_self};
use crate::rules::event::{Effect, Event};
use crate::rules::instant::Instant;
use crate::rules::lease::Span;
use crate::rules::message::{Loss, QueueView, Report};
use crate::rules::notice::{Blocker, Notice};
use crate::rules::outcome::Outcome;

/// How long a release after a finished command waits for a server, unless the session ends sooner.
pub(super) const RELEASE_PATIENCE: Duration = Duration::from_secs(10);
/// How long giving up waits for the deletion of the contender node.
pub(super) const GIVE_UP_PATIENCE: Duration = Duration::from_secs(1);
/// How long giving up at the end of `--timeout` waits for the servers to answer: time for two round trips.
pub(super) const VERDICT_PATIENCE: Duration = Duration::from_secs(2);
/// How much longer each waits at most, once the user shows impatience.
pub(super) const HURRIED_PATIENCE: Duration = Duration::from_millis(300);

#[derive(Clone, Debug)]
pub(super) struct Release {
    outcome: Outcome,
    /// These were before us when `--timeout` ended: the lock is not free if the servers confirm that there still is one.
    blocked_by: Option<QueueView>,
    /// Within what time the lock frees itself; told when the release is not confirmed.
    frees_within: Option<Duration>,
    /// When we stop waiting for a confirmation.
    pub(super) until: Instant,
}

impl Release {
    /// A release at the end of a run. `frees_within`: within what time the lock frees itself, told when the
    /// release is not confirmed; it also limits how long we wait.
    pub(super) fn after(now: Instant, outcome: Outcome, frees_within: Option<Duration>) -> Self {
        let frees_within = frees_within.filter(|timeout| *timeout < Span::WITHOUT_END);
        let patience = frees_within.map_or(GIVE_UP_PATIENCE, |timeout| timeout.min(RELEASE_PATIENCE));
        Self { outcome, blocked_by: None, frees_within, until: now + patience }
    }

    /// A release at the end of `--timeout`, with these before us.
    pub(super) fn in_vain(now: Instant, view: QueueView) -> Self {
        let release = Self::after(now, Outcome::Unavailable, None);
        Self { blocked_by: Some(view), until: now + VERDICT_PATIENCE, ..release }
    }
}

impl Machine {
    pub(super) fn releasing(now: Instant, release: Release, event: Event) -> Transition {
        match event {
            Event::Keeper(Report::Released { was_busy }) => finish(release, Some(was_busy), vec![]),
            // The end of a session takes the node with it, but says nothing about other contenders.
            Event::Keeper(Report::Lost(Loss::SessionOver) | Report::Requeued { .. }) => finish(release, None, vec![]),
            Event::KeeperGone => unconfirmed(release),
            Event::Timer if now >= release.until => unconfirmed(release),
            Event::Signal { signal, .. } => {
                let effects = suspend_self(signal);
                if !cancels(signal) {
                    return (State::Releasing(release), effects);
                }
                // The user is impatient. The servers still get a moment, because two signals that come at
                // once are not a sign of impatience.
                let until = release.until.min(now + HURRIED_PATIENCE);
                // The user has not been told a verdict yet: to them we are still waiting, and this signal
                // ends the wait.
                let outcome = release.blocked_by.map_or(release.outcome, |_| Outcome::Interrupted(signal));
                (State::Releasing(Release { outcome, blocked_by: None, until, ..release }), effects)
            }
            Event::Keeper(_) | Event::Lent(_) | Event::Timer | Event::CallerGone | Event::Command(_) => {
                (State::Releasing(release), vec![])
            }
        }
    }
}

/// Nothing more is to be done about the node. `was_busy`: whether a contender was before us up to the end, if that is known.
fn finish(release: Release, was_busy: Option<bool>, mut effects: Vec<Effect>) -> Transition {
    let outcome = match was_busy {
        Some(true) if release.blocked_by.is_some() => Outcome::NotFree,
        Some(_) | None => release.outcome,
    };
    effects.extend(release.blocked_by.map(|view| {
        Effect::Say(Notice::TimedOut(match was_busy {
            Some(true) => Blocker::Queue(view),
            Some(false) => Blocker::Freed,
            None => Blocker::Late,
        }))
    }));
    effects.push(Effect::Finish(outcome));
    (State::Finished, effects)
}

fn unconfirmed(release: Release) -> Transition {
    let after_success = release.outcome == Outcome::Exited(0);
    let told = release.frees_within.map(|within| Effect::Say(Notice::NotReleased { within, after_success }));
    finish(release, None, [Effect::EndKeeper].into_iter().chain(told).collect())
}
