//! The life of one run, as a function from events to effects.
//!
//! The supervisor turns everything that happens into an [`Event`], calls [`Machine::step`], and
//! performs the [`Effect`]s in order. To learn what happens when X comes in state Y, find the
//! match arm: `waiting`, `running` and `ending` are a run in the order of its life. Failures are
//! events, not errors.
//!
//! What always holds, and what the property tests check:
//! - [`Effect::Spawn`] only under a lease that is long enough, and once;
//! - [`Effect::Release`] only when no command runs, and nothing is left that was to be killed or waited
//!   for;
//! - no signal when nothing is left of the command;
//! - [`Effect::Kill`] goes out no later than the lease allows;
//! - no command goes on undisturbed after `--max-run`;
//! - [`Effect::Finish`] once, and last.

mod ending;
mod running;
mod waiting;

use std::time::Duration;

use self::ending::Release;
use self::running::{Run, Stopping};
use self::waiting::Waiting;
use super::event::{Awaited, Effect, Event};
use super::instant::Instant;
use super::lease::{Lease, Span, Terms};
use super::message::Report;
use super::notice::Notice;
use super::outcome::Outcome;
use super::settings::{Patience, Settings};
use super::signal::Signal;

#[derive(Debug)]
enum State {
    /// The command has not been started yet.
    Waiting(Waiting),
    /// The command runs, or it has left processes behind that are waited for.
    Running(Run),
    /// The command is being stopped, or killed, until nothing is left of it.
    Stopping(Stopping),
    /// No command: the node is to go.
    Releasing(Release),
    /// [`Effect::Finish`] has been said.
    Finished,
}

/// What comes next, and what is to be done on the way.
type Transition = (State, Vec<Effect>);

/// The life of one run.
#[derive(Debug)]
pub struct Machine {
    settings: Settings,
    state: State,
    started_at: Instant,
    /// There were others before us.
    waited: bool,
    /// The end of `--timeout`; with `--nonblock`, that of `--connect-timeout`. It is set once, and a lost
    /// session does not move it.
    give_up_at: Option<Instant>,
}

impl Machine {
    /// A run that begins now. The keeper has been started.
    pub fn start(settings: Settings, now: Instant) -> Self {
        let connect_by = now + settings.connect_timeout;
        let give_up_at = match settings.patience {
            Patience::Forever => None,
            // The lock is free or not, but the servers may take this long to say so.
            Patience::NoWait => Some(connect_by),
            Patience::AtMost(timeout) => Some(now + timeout),
        };
        let state = State::Waiting(Waiting::for_servers(connect_by));
        Self { settings, state, started_at: now, waited: false, give_up_at }
    }

    /// When [`Event::Timer`] is due, if ever.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Waiting(waiting) => self.give_up_at.into_iter().chain(waiting.deadline()).min(),
            State::Running(run) => Some(run.deadline()),
            State::Stopping(stopping) => Some(stopping.deadline()),
            State::Releasing(release) => Some(release.until),
            State::Finished => None,
        }
    }

    /// Whether a loss of the lock makes a difference: not once the command is being killed, or has gone.
    pub fn may_lose(&self) -> bool {
        match &self.state {
            State::Waiting(_) | State::Running(_) => true,
            State::Stopping(stopping) => !stopping.is_killed_for_loss(),
            State::Releasing(_) | State::Finished => false,
        }
    }

    /// Which processes must be gone before [`super::event::CommandEvent::TreeGone`] is told, once the command
    /// itself has ended.
    pub fn awaits(&self) -> Option<Awaited> {
        match &self.state {
            State::Running(run) if run.ended.is_none() => None,
            State::Running(_) if !self.settings.wait_descendants => Some(Awaited::Borrowers),
            State::Running(_) | State::Stopping(_) => Some(Awaited::Everyone),
            State::Waiting(_) | State::Releasing(_) | State::Finished => None,
        }
    }

    pub fn step(&mut self, now: Instant, event: Event) -> Vec<Effect> {
        let state = std::mem::replace(&mut self.state, State::Finished);
        let (state, effects) = match (state, event) {
            (State::Finished, _) => return vec![],
            (state, Event::Keeper(Report::Remark(remark))) => (state, vec![Effect::Say(Notice::Remark(remark))]),
            (State::Waiting(waiting), event) => self.waiting(now, waiting, event),
            (State::Running(run), event) => self.running(now, run, event),
            (State::Stopping(stopping), event) => Self::stopping(now, stopping, event),
            (State::Releasing(release), event) => Self::releasing(now, release, event),
        };
        self.state = state;
        let ends = matches!(effects.last(), Some(Effect::Finish(_)));
        debug_assert_eq!(matches!(self.state, State::Finished), ends, "{effects:?}");
        let releases = effects.contains(&Effect::Release);
        assert!(!releases || matches!(self.state, State::Releasing(_)), "nothing of the command is left at a release");
        let queues_again = effects.contains(&Effect::QueueAgain);
        assert!(!queues_again || matches!(self.state, State::Waiting(_)), "a run that queues again has opened no gate");
        effects
    }

    /// The keeper shows a new lease: a beat was answered, or a server has granted less. `None`: there is no lease to extend.
    pub fn extend(&mut self, now: Instant, Span { from, timeout, .. }: Span) -> Option<Vec<Effect>> {
        let terms = regranted(timeout, self.settings.kill_after);
        let lease = self.state.lease()?;
        lease.renew(terms, from);
        let (silence, warn_after) = (lease.silence(now), lease.warn_after());
        match &mut self.state {
            State::Running(run) if run.warned && silence < warn_after => {
                run.warned = false;
                return Some(vec![Effect::Say(Notice::Back)]);
            }
            State::Stopping(stopping) => stopping.hurry(),
            State::Running(_) | State::Waiting(_) | State::Releasing(_) | State::Finished => {}
        }
        Some(vec![])
    }

    /// The servers answered something at `at`, a beat or not.
    pub fn answer(&mut self, at: Instant) {
        if let Some(lease) = self.state.lease() {
            lease.answer(at);
        }
    }
}

impl State {
    fn lease(&mut self) -> Option<&mut Lease> {
        match self {
            Self::Waiting(waiting) => waiting.lease(),
            Self::Running(run) => Some(&mut run.lease),
            Self::Stopping(stopping) => Some(&mut stopping.lease),
            Self::Releasing(_) | Self::Finished => None,
        }
    }
}

/// The terms for a session timeout that may differ from the one before. If `--kill-after` does not fit it, it
/// is too late to refuse that, and the default grace takes its place.
fn regranted(timeout: Duration, kill_after: Option<Duration>) -> Terms {
    Terms::new(timeout, kill_after).unwrap_or_else(|_| Terms::with_default_grace(timeout))
}

/// Leaves without having run a command.
fn give_up(now: Instant, outcome: Outcome, why: impl Into<Option<Notice>>) -> Transition {
    let effects = why.into().map(Effect::Say).into_iter().chain([Effect::Release]).collect();
    (State::Releasing(Release::after(now, outcome, None)), effects)
}

/// Leaves after a command. `frees_within`: within what time the lock frees itself, told when the release is
/// not confirmed.
fn release(now: Instant, outcome: Outcome, frees_within: Option<Duration>) -> Transition {
    (State::Releasing(Release::after(now, outcome, frees_within)), vec![Effect::Release])
}

/// Whether a signal ends the wait for a lock: those that are sent to end a program do. Others that end a program which does
/// not handle them, such as SIGUSR1, are for the command.
pub fn cancels(signal: Signal) -> bool {
    Signal::ENDING.contains(&signal)
}

/// What follows from a Ctrl-Z when there is no command that it suspends: zklock suspends itself.
fn suspend_self(signal: Signal) -> Vec<Effect> {
    if signal == Signal::TSTP { vec![Effect::SuspendSelf(signal)] } else { vec![] }
}

#[cfg(test)]
mod tests;
