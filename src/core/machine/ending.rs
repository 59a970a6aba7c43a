//! The part of a run in which there is no command any more: the node is to go, and the command of
//! `--on-lost` may run.

use std::time::Duration;

use super::{
    Blocker, Effect, Event, HURRIED_PATIENCE, Instant, Loss, Machine, Notice, Outcome, Report, Signal, State, View,
    cancels, stop_self,
};

/// A release that has been asked for.
#[derive(Clone, Debug)]
pub(super) struct Release {
    pub(super) verdict: Verdict,
    /// What to tell the user when nobody confirms.
    pub(super) frees_within: Option<Duration>,
    /// When we go without a confirmation.
    pub(super) until: Instant,
    pub(super) on_lost: OnLost,
}

impl Release {
    /// One that nothing more depends on.
    pub(super) fn of(verdict: Verdict, until: Instant) -> Self {
        Self { verdict, frees_within: None, until, on_lost: OnLost::Idle }
    }
}

/// What a release comes to.
#[derive(Clone, Debug)]
pub(super) enum Verdict {
    /// This, whether or not it is confirmed.
    Known(Outcome),
    /// These were before us when `--timeout` ended, if the servers that say so still answer.
    NotFreeIfConfirmed { view: View, conflict_exit_code: u8 },
}

impl Verdict {
    /// The outcome, and what is still to be said about it.
    fn end(self, confirmed: bool) -> (Outcome, Option<Notice>) {
        match self {
            Self::Known(outcome) => (outcome, None),
            Self::NotFreeIfConfirmed { view, conflict_exit_code } if confirmed => {
                (Outcome::NotFree(conflict_exit_code), Some(Notice::TimedOut(Blocker::Queue(view))))
            }
            Self::NotFreeIfConfirmed { .. } => (Outcome::Unavailable, Some(Notice::TimedOut(Blocker::Late))),
        }
    }
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
        match event {
            Event::Keeper(Report::Released) => finish(release, Confirmation::Confirmed),
            // An expired session has taken the node with it, and says nothing of the others.
            Event::Keeper(Report::Lost(Loss::SessionExpired | Loss::SessionEnded)) => {
                finish(release, Confirmation::SessionOver)
            }
            Event::KeeperGone => finish(release, Confirmation::None),
            Event::Timer if now >= release.until => finish(release, Confirmation::None),
            Event::OnLostEnded => (State::Releasing(Release { on_lost: OnLost::Idle, ..release }), vec![]),
            Event::Stopped(signal) => (State::Releasing(release), vec![Effect::StopSelf(signal)]),
            Event::Signal { signal, shared } => {
                let effects = match release.on_lost {
                    OnLost::Idle => stop_self(signal),
                    OnLost::Running => pass_on(signal, shared),
                };
                // Two signals may come at once, which is no impatience yet.
                if !cancels(signal) {
                    return (State::Releasing(release), effects);
                }
                let until = release.until.min(now + HURRIED_PATIENCE);
                // Nothing has been said yet: the wait is still on, and ends by this.
                let verdict = match release.verdict {
                    Verdict::NotFreeIfConfirmed { .. } => Verdict::Known(Outcome::Interrupted(signal)),
                    known => known,
                };
                (State::Releasing(Release { verdict, until, ..release }), effects)
            }
            _ => (State::Releasing(release), vec![]),
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

/// What is known at the end of a release.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Confirmation {
    /// The node is gone, and the session closed.
    Confirmed,
    /// The session was over.
    SessionOver,
    /// Nobody has answered.
    None,
}

/// No more is to be done about the node.
fn finish(release: Release, confirmation: Confirmation) -> (State, Vec<Effect>) {
    let mut effects = vec![];
    if confirmation == Confirmation::None {
        effects.push(Effect::EndKeeper);
        effects.extend(release.frees_within.map(|timeout| Effect::Say(Notice::NotReleased(timeout))));
    }
    let (outcome, notice) = release.verdict.end(confirmation == Confirmation::Confirmed);
    effects.extend(notice.map(Effect::Say));
    match release.on_lost {
        OnLost::Running => (State::Outlasted(outcome), effects),
        OnLost::Idle => {
            effects.push(Effect::Finish(outcome));
            (State::Finished, effects)
        }
    }
}

/// What the terminal has sent to the process group has reached the command of `--on-lost`, too.
fn pass_on(signal: Signal, shared: bool) -> Vec<Effect> {
    if shared { vec![] } else { vec![Effect::ForwardToOnLost(signal)] }
}
