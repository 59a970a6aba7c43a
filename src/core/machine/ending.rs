//! The part of a run in which there is no command any more: the node is to go, and the command of
//! `--on-lost` may run.

use std::time::Duration;

use super::{
    Effect, Event, HURRIED_PATIENCE, Instant, Loss, Machine, Notice, Outcome, Report, Signal, State, cancels, stop_self,
};

/// A release that has been asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Release {
    pub(super) outcome: Outcome,
    /// What to tell the user when nobody confirms.
    pub(super) frees_within: Option<Duration>,
    /// When we go without a confirmation.
    pub(super) until: Instant,
    pub(super) on_lost: OnLost,
}

/// The command of `--on-lost`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnLost {
    /// There is none, or it has ended.
    Idle,
    /// It runs.
    Running,
}

impl Machine {
    pub(super) fn releasing(now: Instant, release: Release, event: Event) -> (State, Vec<Effect>) {
        let unconfirmed = || {
            let mut effects = vec![Effect::EndKeeper];
            effects.extend(release.frees_within.map(|timeout| Effect::Say(Notice::NotReleased(timeout))));
            effects
        };
        let same = State::Releasing(release);
        match event {
            // An expired session has taken the node with it.
            Event::Keeper(Report::Released | Report::Lost(Loss::SessionExpired | Loss::SessionEnded)) => {
                finish(release, vec![])
            }
            Event::KeeperGone => finish(release, unconfirmed()),
            Event::Timer if now >= release.until => finish(release, unconfirmed()),
            Event::OnLostEnded => (State::Releasing(Release { on_lost: OnLost::Idle, ..release }), vec![]),
            Event::Stopped(signal) => (same, vec![Effect::StopSelf(signal)]),
            Event::Signal { signal, shared } => {
                let effects = match release.on_lost {
                    OnLost::Idle => stop_self(signal),
                    OnLost::Running => pass_on(signal, shared),
                };
                // Two signals may come at once, which is no impatience yet.
                let until = if cancels(signal) { release.until.min(now + HURRIED_PATIENCE) } else { release.until };
                (State::Releasing(Release { until, ..release }), effects)
            }
            _ => (same, vec![]),
        }
    }

    pub(super) fn outlasted(outcome: Outcome, event: Event) -> (State, Vec<Effect>) {
        let effects = match event {
            Event::OnLostEnded => return (State::Finished, vec![Effect::Finish(outcome)]),
            Event::Stopped(signal) => vec![Effect::StopSelf(signal)],
            Event::Signal { signal, shared } => pass_on(signal, shared),
            _ => vec![],
        };
        (State::Outlasted(outcome), effects)
    }
}

/// No more is to be done about the node.
fn finish(release: Release, mut effects: Vec<Effect>) -> (State, Vec<Effect>) {
    match release.on_lost {
        OnLost::Running => (State::Outlasted(release.outcome), effects),
        OnLost::Idle => {
            effects.push(Effect::Finish(release.outcome));
            (State::Finished, effects)
        }
    }
}

/// What the terminal has sent to the process group has reached the command of `--on-lost`, too.
fn pass_on(signal: Signal, shared: bool) -> Vec<Effect> {
    if shared { vec![] } else { vec![Effect::ForwardToOnLost(signal)] }
}
