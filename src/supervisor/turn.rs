//! The turns of the supervisor's loop: what is heard in which order, and what follows.
//!
//! Each turn takes what has come in this order:
//! 1. the keeper's reports, the last answered beat, and whether the guard has found the lease to be over: the lease
//!    is judged by the newest news;
//! 2. signals except SIGCONT. The report that the lock is ours comes before them, so a signal that arrived
//!    before that report was read still keeps the command from being started. If Ctrl-Z has stopped us, the turn
//!    begins anew;
//! 3. the end of the command. If nothing is left of it, the keeper releases the lock by itself, and the lease is extended
//!    no more;
//! 4. the deadline, which also starts the command;
//! 5. SIGCONT, the only signal that lets a command go on: by now the command may have been killed;
//! 6. the end of children, and what else the guard tells of the command.

use crate::rules::event::{Awaited, CommandEvent, Effect, Event, Unstarted};
use crate::rules::guarded::{End, News};
use crate::rules::instant::Instant;
use crate::rules::lease::Span;
use crate::rules::machine::{Machine, cancels};
use crate::rules::message::{Loss, Report};
use crate::rules::outcome::Outcome;
use crate::rules::settings::Settings;
use crate::rules::signal::Signal;

/// How many children to reap in one turn: processes that fork all the time must not keep the loop from all else.
pub(super) const REAPS: usize = 1000;

/// What has become of a child of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its change is an event of its own.
    Event(Event),
    /// Its change is noted.
    Other,
    /// No further child has changed.
    NoMore,
}

/// What the loop needs from outside: [`super::run`] has the real thing, and the simulator of the tests another.
pub trait Outside {
    /// The operating system refuses something that a run cannot do without.
    type Error;

    /// Now, on the clock that counts sleep.
    fn now(&self) -> Instant;

    /// The keeper's next report, or that it has gone.
    fn hear_keeper(&mut self) -> Option<Event>;

    /// Whether the keeper has gone, and did not exit by itself.
    fn has_keeper_died(&self) -> bool;

    /// When the servers last answered the keeper anything, as it shows.
    fn answered(&self) -> Option<Instant>;

    /// The lease, as the keeper shows it.
    fn lease(&self) -> Option<Span>;

    /// Whether the process that `zklock hold` holds for has gone; told once.
    fn has_caller_gone(&mut self) -> bool;

    /// Why the lock is lost, if it is not the keeper that says so: the guard has killed the command because the lease
    /// was over, or a process has died that lends us a lock. `waits`: whether any processes are waited for.
    fn loss(&self, waits: bool) -> Option<Loss>;

    /// The signals that have come. With each: whether the terminal has sent it to the command as well.
    fn signals(&mut self) -> Result<Vec<(Signal, bool)>, Self::Error>;

    /// Reaps one of our children, or notes that it was stopped.
    fn reap(&mut self) -> Change;

    /// Whether the guard has reaped the command, and that has not been told.
    fn has_ended(&self) -> bool;

    /// Whether the guard has reaped the command and all that was below it.
    fn is_emptied(&self) -> bool;

    /// What has become of the command.
    fn hear_guard(&mut self) -> News;

    /// Why the program was not executed, if it was not; the user is told.
    fn failure(&mut self, end: End) -> Option<Unstarted>;

    /// The command has ended: from now on nothing more is lent, unless `lends_on`. Returns whether no run below uses
    /// our locks.
    fn end_lending(&mut self, lends_on: bool) -> bool;

    /// Whether the command has been started, and its end has not been told.
    fn has_command(&self) -> bool;

    /// The command is about to be stopped, or to get a signal that ends most programs: it is not successful, however it
    /// ends. The keeper is to know that before the command does.
    fn spoil(&mut self);

    /// Whether these processes have gone, apart from the command itself.
    fn have_gone(&self, awaited: Awaited) -> bool;

    /// Does what the machine wants. Returns what follows from it at once.
    fn perform(&mut self, effect: Effect) -> Result<Option<Event>, Self::Error>;
}

/// The turns of one run.
#[derive(Debug)]
pub struct Turns {
    machine: Machine,
    /// What the machine was last told of what this keeper shows.
    answered: Option<Instant>,
    lease: Option<Span>,
    /// The machine has been told of a loss that the keeper has not told.
    told_over: bool,
    /// We have stopped ourselves, and gone on, since the keeper and the signals were heard.
    has_stopped: bool,
    /// There may be more children to reap, since this turn.
    behind_since: Option<Instant>,
    outcome: Option<Outcome>,
}

impl Turns {
    /// A run that begins now. An error is one of [`Outside::perform`].
    pub fn begin<O: Outside>(settings: Settings, outside: &mut O) -> Result<Self, O::Error> {
        let (machine, effects) = Machine::start(settings, outside.now());
        let mut turns = Self {
            machine,
            answered: None,
            lease: None,
            told_over: false,
            has_stopped: false,
            behind_since: None,
            outcome: None,
        };
        turns.perform(outside, effects)?;
        Ok(turns)
    }

    /// When a turn is due although nothing has come.
    pub fn deadline(&self) -> Option<Instant> {
        self.behind_since.or_else(|| self.machine.deadline())
    }

    /// Which processes are waited for.
    pub fn awaits(&self) -> Option<Awaited> {
        self.machine.awaits()
    }

    /// Whether the machine knows of a loss that the keeper has not told.
    pub fn is_told_over(&self) -> bool {
        self.told_over
    }

    /// How the run has ended, once it has.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// One turn. An error is one of `outside`.
    pub fn turn<O: Outside>(&mut self, outside: &mut O) -> Result<(), O::Error> {
        self.hear_keeper(outside)?;
        let signals = outside.signals()?.into_iter().filter(|(signal, _)| *signal != Signal::CHLD);
        let (continues, others) = signals.partition(|(signal, _)| *signal == Signal::CONT);
        self.take_signals(outside, others)?;
        if std::mem::take(&mut self.has_stopped) {
            // Perhaps for long: what was heard before that is old.
            self.turn(outside)?;
            return self.take_signals(outside, continues);
        }
        if outside.has_caller_gone() {
            self.happen(outside, Event::CallerGone)?;
        }
        if outside.has_ended() || outside.is_emptied() {
            self.hear_guard(outside)?;
            self.look_what_is_left(outside)?;
        }
        // If we have stopped just now, it is judged in the next turn.
        if !self.has_stopped && self.machine.deadline().is_some_and(|deadline| deadline <= outside.now()) {
            self.happen(outside, Event::Timer)?;
        }
        self.take_signals(outside, continues)?;
        self.reap(outside)?;
        self.hear_guard(outside)?;
        self.look_what_is_left(outside)
    }

    /// Tells when the processes that are waited for have gone.
    fn look_what_is_left<O: Outside>(&mut self, outside: &mut O) -> Result<(), O::Error> {
        // The command first: it is gone only when its end has been told.
        let awaited = self.awaits().filter(|_| !outside.has_command());
        if awaited.is_some_and(|awaited| outside.have_gone(awaited)) {
            self.hear_keeper(outside)?;
            // After a loss everyone has to go, where borrowers alone were waited for.
            if self.awaits() == awaited {
                self.happen(outside, Event::Command(CommandEvent::TreeGone))?;
            }
        }
        Ok(())
    }

    /// What the keeper tells, and whether the lock is lost without its word. The latter is read first and told last:
    /// the keeper reports a loss before it has the command killed.
    fn hear_keeper<O: Outside>(&mut self, outside: &mut O) -> Result<(), O::Error> {
        self.take_reports(outside, false).map(drop)
    }

    /// The same. `is_telling`: the end of the command is about to be told; what is not to come before that is returned.
    fn take_reports<O: Outside>(&mut self, outside: &mut O, is_telling: bool) -> Result<Vec<Event>, O::Error> {
        let is_lost = outside.loss(self.awaits().is_some()).is_some();
        let postponed = self.take_events(outside, is_telling)?;
        let lease = outside.lease().filter(|lease| self.machine.has_lease() && self.lease != Some(*lease));
        if let Some(Span { from, timeout, .. }) = lease {
            self.lease = lease;
            self.happen(outside, Event::Extended { from, timeout })?;
        }
        if let Some(at) = newer(outside.answered(), &mut self.answered) {
            self.happen(outside, Event::Answered(at))?;
        }
        // What the keeper has told may have been the end of that command.
        if let Some(loss) = outside.loss(self.awaits().is_some()).filter(|_| is_lost)
            && !std::mem::replace(&mut self.told_over, true)
        {
            let event = match loss {
                Loss::LeaseOver => Event::LeaseOver,
                loss => Event::Keeper(Report::Lost(loss)),
            };
            self.happen(outside, event)?;
        }
        Ok(postponed)
    }

    /// The keeper's reports that have come.
    fn take_events<O: Outside>(&mut self, outside: &mut O, is_telling: bool) -> Result<Vec<Event>, O::Error> {
        let mut postponed = vec![];
        while let Some(event) = outside.hear_keeper() {
            let is_too_late = match event {
                // What others ask of a command that has ended.
                Event::Keeper(Report::Revoked(_)) => is_telling || outside.has_ended(),
                // When nothing is left of the command, the keeper releases the lock by itself. What happens to it after
                // that is no loss. But if the guard had to end the command, and the keeper did not exit by itself, that is
                // why the lease was over.
                Event::KeeperGone => {
                    let is_cause = outside.loss(false) == Some(Loss::LeaseOver) && outside.has_keeper_died();
                    outside.is_emptied() && !is_cause
                }
                _ => false,
            };
            if is_too_late && is_telling {
                postponed.push(event);
                continue;
            }
            if is_too_late {
                self.hear_guard(outside)?;
                self.look_what_is_left(outside)?;
            }
            self.happen(outside, event)?;
        }
        Ok(postponed)
    }

    fn reap<O: Outside>(&mut self, outside: &mut O) -> Result<(), O::Error> {
        for _ in 0..REAPS {
            match outside.reap() {
                Change::Event(event) => self.happen(outside, event)?,
                Change::Other => {}
                Change::NoMore => {
                    self.behind_since = None;
                    return Ok(());
                }
            }
        }
        // No signal tells again of children that have ended before.
        self.behind_since = Some(outside.now());
        Ok(())
    }

    fn take_signals<O: Outside>(&mut self, outside: &mut O, signals: Vec<(Signal, bool)>) -> Result<(), O::Error> {
        for (signal, shared) in signals {
            if cancels(signal) {
                outside.spoil();
            }
            // A command that has ended is not stopped by Ctrl-Z; what is typed is for those that it has left.
            if (shared || signal == Signal::TSTP) && outside.has_ended() {
                self.hear_guard(outside)?;
            }
            self.happen(outside, Event::Signal { signal, shared })?;
        }
        Ok(())
    }

    /// What the guard tells of the command. The keeper is heard in between: when the lock is lost, it reports that
    /// before it has the command killed, and a command that was killed must not pass for one that ended by itself.
    fn hear_guard<O: Outside>(&mut self, outside: &mut O) -> Result<(), O::Error> {
        let News { stopped, guard_gone, ended } = outside.hear_guard();
        let mut postponed = vec![];
        if ended.is_some() || guard_gone {
            postponed = self.take_reports(outside, ended.is_some())?;
        }
        if let Some(signal) = stopped {
            self.happen(outside, Event::Command(CommandEvent::Stopped(signal)))?;
        }
        if guard_gone {
            self.happen(outside, Event::GuardGone)?;
        }
        let Some(ended) = ended else { return Ok(()) };
        // Descendants that are waited for would wait for themselves in the queue.
        let lends_on = self.machine.waits_for_descendants();
        let event = match (outside.failure(ended), ended) {
            (Some(why), _) => CommandEvent::StartFailed(why),
            (None, End::Stillborn) => CommandEvent::StartFailed(Unstarted::NoProcess),
            (None, End::Reaped(end)) if outside.end_lending(lends_on) => CommandEvent::Ended(end),
            (None, End::Reaped(end)) => CommandEvent::EndedLending(end),
        };
        self.happen(outside, Event::Command(event))?;
        if !postponed.is_empty() {
            self.look_what_is_left(outside)?;
        }
        postponed.into_iter().try_for_each(|event| self.happen(outside, event))
    }

    fn happen<O: Outside>(&mut self, outside: &mut O, event: Event) -> Result<(), O::Error> {
        log::debug!("event {event:?}");
        let effects = self.machine.step(outside.now(), event);
        self.perform(outside, effects)
    }

    fn perform<O: Outside>(&mut self, outside: &mut O, effects: Vec<Effect>) -> Result<(), O::Error> {
        let mut taken_back = None;
        for effect in effects {
            log::debug!("effect {effect:?}");
            match effect {
                Effect::Stop(_) | Effect::Kill if taken_back.is_some() => continue,
                Effect::StartKeeper(_) => (self.answered, self.lease, self.told_over) = (None, None, false),
                Effect::Finish(outcome) => self.outcome = Some(outcome),
                Effect::Stop(_) | Effect::Kill => outside.spoil(),
                Effect::StopSelf(_) => self.has_stopped = true,
                _ => {}
            }
            let takes_back = effect == Effect::Recall;
            let Some(event) = outside.perform(effect)? else { continue };
            if takes_back {
                taken_back = Some(event);
                continue;
            }
            let has_failed = matches!(event, Event::Command(CommandEvent::StartFailed(_)));
            self.happen(outside, event)?;
            if has_failed {
                // That the lock is held is not to be said after that.
                return Ok(());
            }
        }
        taken_back.map_or(Ok(()), |event| self.happen(outside, event))
    }
}

/// An instant that is later than the one that was told before.
fn newer(shown: Option<Instant>, told: &mut Option<Instant>) -> Option<Instant> {
    let newer = shown.filter(|_| shown > *told)?;
    *told = Some(newer);
    Some(newer)
}
