//! The part of a run in which there is a command: it runs, is asked to stop, is killed.

use std::time::Duration;

use super::ending::{OnLost, Release};
use super::{CommandEnd, Effect, Event, Instant, LostWhy, Machine, Notice, Outcome, Report, State, Terms, Unstarted};
use super::{release, stop_self};

/// Descendants that fork while they are being killed are looked for again this often.
const KILL_AGAIN: Duration = Duration::from_millis(10);
const KILL_AGAIN_AT_MOST: Duration = Duration::from_secs(1);

/// A command that runs, or, once it has ended, its descendants that are waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) terms: Terms,
    /// The lease counts from here.
    pub(super) sent: Instant,
    /// When the servers last answered, as far as we know.
    pub(super) answered: Instant,
    /// The end of `--max-run`.
    pub(super) ends_at: Option<Instant>,
    /// How the command itself ended, if it has.
    pub(super) ended: Option<CommandEnd>,
    /// The user has been told of a silence that is not over yet.
    pub(super) warned: bool,
}

impl Run {
    /// When there is something to do unless something happens: to warn of a silence, or to stop the command.
    pub(super) fn deadline(&self) -> Instant {
        let (warn_at, stop_at) = (self.terms.warn_at(self.sent), self.terms.stop_at(self.sent));
        let next = if self.warned { stop_at } else { warn_at };
        self.ends_at.map_or(next, |ends_at| ends_at.min(next))
    }

    /// A beat was answered that lets the lease count from `sent`.
    fn extended(self, sent: Instant) -> (Self, Vec<Effect>) {
        let back = self.warned.then_some(Effect::Say(Notice::Back));
        let answered = self.answered.max(sent);
        (Self { sent: self.sent.max(sent), answered, warned: false, ..self }, back.into_iter().collect())
    }
}

/// Why a command is being stopped.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cause {
    /// The lock is lost, or about to be.
    Loss,
    /// `--max-run` is over. The lock is still held, by the lease that counts from `sent`.
    MaxRun { sent: Instant },
}

impl Cause {
    /// The next time to act: `own`, or earlier when the lease ends before that.
    pub(super) fn deadline(self, terms: Terms, own: Instant) -> Instant {
        match self {
            Self::Loss => own,
            Self::MaxRun { sent } => own.min(terms.kill_at(sent)),
        }
    }
}

impl Machine {
    pub(super) fn running(&mut self, now: Instant, run: Run, event: Event) -> (State, Vec<Effect>) {
        let Run { terms, sent, answered, ends_at, ended, warned } = run;
        let same = State::Running(run);
        match event {
            Event::Keeper(Report::Extended(later)) => {
                let (run, effects) = run.extended(later);
                (State::Running(run), effects)
            }
            Event::Answered(at) => (State::Running(Run { answered: answered.max(at), ..run }), vec![]),
            // From now on the servers count with this.
            Event::Keeper(Report::Connected { timeout }) => {
                (State::Running(Run { terms: self.regranted(timeout), ..run }), vec![])
            }
            Event::Keeper(Report::Shortened { timeout, from }) => {
                let sent = from.map_or(sent, |from| from.max(sent));
                (State::Running(Run { terms: self.regranted(timeout), sent, ..run }), vec![])
            }
            // The next holder may run already: no time for a stop signal.
            Event::Keeper(Report::Lost(loss)) => kill(now, terms, Cause::Loss, Some(LostWhy::Told(loss))),
            Event::Keeper(Report::Refused(_)) => self.stop(now, terms, sent, LostWhy::Refused),
            Event::KeeperGone => self.stop(now, terms, sent, LostWhy::KeeperGone),
            Event::Timer if now >= terms.stop_at(sent) => {
                self.stop(now, terms, sent, LostWhy::Silence(now.saturating_since(answered)))
            }
            Event::Timer if ends_at.is_some_and(|ends_at| now >= ends_at) => self.ran_out(now, terms, sent),
            Event::Timer if !warned && now >= terms.warn_at(sent) => {
                let silence = now.saturating_since(answered);
                let left = terms.stop_at(sent).saturating_since(now);
                (State::Running(Run { warned: true, ..run }), vec![Effect::Say(Notice::Silent { silence, left })])
            }
            // No command is left to stop, by which we would learn of a Ctrl-Z.
            Event::Signal { signal, shared: true } if ended.is_some() => (same, stop_self(signal)),
            Event::Signal { shared: true, .. } => (same, vec![]),
            Event::Signal { signal, .. } => (same, vec![Effect::Forward(signal)]),
            Event::Stopped(signal) => (same, vec![Effect::StopSelf(signal)]),
            Event::StartFailed(why) => {
                let outcome = match why {
                    Unstarted::NotFound => Outcome::NotFound,
                    Unstarted::CannotExecute => Outcome::CannotExecute,
                    Unstarted::TooLate => Outcome::Lost,
                };
                never_ran(now, outcome, Some(terms.timeout()), why)
            }
            // Whoever uses our locks does so until it ends.
            Event::EndedLending(end) => (State::Running(Run { ended: Some(end), ..run }), vec![]),
            Event::Ended(end) if self.settings.wait_descendants => {
                (State::Running(Run { ended: Some(end), ..run }), vec![])
            }
            Event::TreeGone => match ended {
                Some(end) => release(now, outcome(end), Some(terms.timeout())),
                None => (same, vec![]),
            },
            Event::Ended(end) => release(now, outcome(end), Some(terms.timeout())),
            _ => (same, vec![]),
        }
    }

    /// The lock is lost, or will be unless a beat is answered by the end of the lease.
    fn stop(&self, now: Instant, terms: Terms, sent: Instant, why: LostWhy) -> (State, Vec<Effect>) {
        let kill_at = terms.kill_at(sent).min(now + terms.kill_after());
        if kill_at <= now {
            return kill(now, terms, Cause::Loss, Some(why));
        }
        let effects = vec![Effect::Stop(self.settings.stop_signal), Effect::Say(Notice::Lost(why))];
        (State::Stopping { terms, cause: Cause::Loss, kill_at }, effects)
    }

    /// `--max-run` is over.
    fn ran_out(&self, now: Instant, terms: Terms, sent: Instant) -> (State, Vec<Effect>) {
        let cause = Cause::MaxRun { sent };
        let say = self.settings.max_run.map(|max_run| Effect::Say(Notice::MaxRun(max_run)));
        let grace = terms.kill_after();
        let (state, mut effects) = if grace.is_zero() {
            kill(now, terms, cause, None)
        } else {
            (State::Stopping { terms, cause, kill_at: now + grace }, vec![Effect::Stop(self.settings.stop_signal)])
        };
        effects.extend(say);
        (state, effects)
    }

    pub(super) fn stopping(
        &mut self,
        now: Instant,
        terms: Terms,
        cause: Cause,
        kill_at: Instant,
        event: Event,
    ) -> (State, Vec<Effect>) {
        let (terms, after, why) = self.judge(now, terms, cause, &event);
        // The stop signal has gone out already: the lease may leave less time than before, never more.
        let kill_at = match (cause, after, &event) {
            (Cause::MaxRun { sent }, Cause::Loss, _) => kill_at.min(terms.kill_at(sent)),
            (Cause::Loss, _, Event::Keeper(Report::Shortened { timeout, from: Some(from) })) => {
                kill_at.min(self.regranted(*timeout).kill_at(*from))
            }
            _ => kill_at,
        };
        match event {
            Event::TreeGone => self.gone(now, terms, after),
            Event::StartFailed(unstarted) => self.unstarted(now, terms, after, unstarted),
            Event::Keeper(Report::Lost(_)) => kill(now, terms, after, why),
            Event::Timer if now >= kill_at => kill(now, terms, after, why),
            Event::Signal { signal, shared: false } if matches!(after, Cause::MaxRun { .. }) => {
                (State::Stopping { terms, cause: after, kill_at }, vec![Effect::Forward(signal)])
            }
            _ => (State::Stopping { terms, cause: after, kill_at }, said(why)),
        }
    }

    pub(super) fn killing(
        &mut self,
        now: Instant,
        terms: Terms,
        cause: Cause,
        again_at: Instant,
        pause: Duration,
        event: Event,
    ) -> (State, Vec<Effect>) {
        let (terms, cause, why) = self.judge(now, terms, cause, &event);
        match event {
            Event::TreeGone => self.gone(now, terms, cause),
            Event::StartFailed(unstarted) => self.unstarted(now, terms, cause, unstarted),
            Event::Timer if now >= again_at => {
                // What we may not kill (a command that became another user) is not asked for ever
                // at this pace.
                let pause = (pause * 2).min(KILL_AGAIN_AT_MOST);
                let mut effects = vec![Effect::Kill];
                effects.extend(said(why));
                (State::Killing { terms, cause, again_at: now + pause, pause }, effects)
            }
            _ => (State::Killing { terms, cause, again_at, pause }, said(why)),
        }
    }

    /// What an event means for the lock while the command is being stopped: it may be held on, under
    /// these terms, or just have been lost.
    fn judge(&self, now: Instant, terms: Terms, cause: Cause, event: &Event) -> (Terms, Cause, Option<LostWhy>) {
        let Cause::MaxRun { sent } = cause else { return (terms, cause, None) };
        let lost = |why| (terms, Cause::Loss, Some(why));
        match event {
            Event::Keeper(Report::Extended(later)) => (terms, Cause::MaxRun { sent: sent.max(*later) }, None),
            Event::Keeper(Report::Connected { timeout }) => (self.regranted(*timeout), cause, None),
            Event::Keeper(Report::Shortened { timeout, from }) => {
                let sent = from.map_or(sent, |from| from.max(sent));
                (self.regranted(*timeout), Cause::MaxRun { sent }, None)
            }
            Event::Keeper(Report::Lost(loss)) => lost(LostWhy::Told(*loss)),
            Event::Keeper(Report::Refused(_)) => lost(LostWhy::Refused),
            Event::KeeperGone => lost(LostWhy::KeeperGone),
            Event::Timer if now >= terms.kill_at(sent) => lost(LostWhy::Silence(now.saturating_since(sent))),
            _ => (terms, cause, None),
        }
    }

    /// What was stopped was no command yet, and has not become one.
    fn unstarted(&self, now: Instant, terms: Terms, cause: Cause, why: Unstarted) -> (State, Vec<Effect>) {
        match cause {
            Cause::MaxRun { .. } => self.gone(now, terms, cause),
            // There is nothing to clean up after for --on-lost.
            Cause::Loss => never_ran(now, Outcome::Lost, None, why),
        }
    }

    /// Nothing is left of a command that was stopped.
    fn gone(&self, now: Instant, terms: Terms, cause: Cause) -> (State, Vec<Effect>) {
        match cause {
            Cause::MaxRun { .. } => release(now, Outcome::RanOut, Some(terms.timeout())),
            Cause::Loss => match release(now, Outcome::Lost, None) {
                // After the release has been asked for: others wait for that.
                (State::Releasing(release), mut effects) if self.settings.on_lost => {
                    effects.push(Effect::StartOnLost);
                    (State::Releasing(Release { on_lost: OnLost::Running, ..release }), effects)
                }
                lost => lost,
            },
        }
    }
}

fn kill(now: Instant, terms: Terms, cause: Cause, why: Option<LostWhy>) -> (State, Vec<Effect>) {
    // SIGKILL first: the message can wait, the command must not.
    let mut effects = vec![Effect::Kill];
    effects.extend(said(why));
    (State::Killing { terms, cause, again_at: now + KILL_AGAIN, pause: KILL_AGAIN }, effects)
}

fn never_ran(now: Instant, outcome: Outcome, timeout: Option<Duration>, why: Unstarted) -> (State, Vec<Effect>) {
    let (state, mut effects) = release(now, outcome, timeout);
    if why == Unstarted::TooLate {
        effects.push(Effect::Say(Notice::TooLate));
    }
    (state, effects)
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
