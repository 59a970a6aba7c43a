//! The turns of the supervisor's loop: what is heard in which order, and what follows.
//!
//! Each turn reads in this order, from effects to their causes: a cause that is read later has come about by then.
//! 1. what has become of our children, as the guard shows it ([`SupervisorIo::look`]);
//! 2. what the keeper reports: when the lock is lost, it does so before it has the command killed, and a command that was
//!    killed must not pass for one that ended by itself;
//! 3. signals: one that came before the report that the lock is ours was read keeps the command from being started.
//!
//! Then the machine is told, in this order:
//! 1. the reports, the last answered beat, and a loss that others have found: the lease is judged by the newest news;
//! 2. signals except SIGCONT, and that a caller has gone;
//! 3. the end of the command. If nothing is left of it, the keeper releases the lock by itself, and the lease is extended no
//!    more. What others ask of a command that has ended, and what is typed, comes after that;
//! 4. the deadline, which also starts the command. If Ctrl-Z has suspended us, perhaps for long, it is judged in a turn
//!    of its own;
//! 5. SIGCONT, the only signal that lets a command go on: by now the command may have been killed.

use crate::rules::event::{Awaited, CommandEvent, Effect, Event};
use crate::rules::instant::Instant;
use crate::rules::lease::Span;
use crate::rules::machine::{Machine, cancels};
use crate::rules::message::{Loss, Report};
use crate::rules::outcome::Outcome;
use crate::rules::settings::Settings;
use crate::rules::signal::Signal;

/// What one look at our children has found, and at what they show.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Of the guard and the command, in this order.
    pub events: Vec<Event>,
    /// The end of the command is among the events.
    pub has_ended: bool,
    /// The command has been started, and its end is neither told nor among the events.
    pub has_command: bool,
    /// The guard has reaped the command and all that was below it.
    pub is_emptied: bool,
    /// All descendants of the command have gone; the command itself may still be there.
    pub everyone_has_gone: bool,
    pub borrowers_have_gone: bool,
    /// Why the lock is lost, if it is not the keeper that says so: the guard has killed the command because the lease was
    /// over, or the run that lends to us has died or lost its locks.
    pub loss: Option<Loss>,
    /// The keeper has gone, and did not exit by itself.
    pub has_keeper_died: bool,
    /// The process that `zklock hold` holds for has gone; told once.
    pub caller_has_gone: bool,
    /// There may be more children to reap.
    pub is_behind: bool,
}

/// What the loop needs from outside: `effects.rs` has the real thing, and the simulator of the tests another.
pub trait SupervisorIo {
    /// The operating system refuses something that a run cannot do without.
    type Error;

    /// Now, on the clock that counts sleep.
    fn now(&self) -> Instant;

    /// Looks at our children and at what they show. `waits`: whether any processes are waited for.
    fn look(&mut self, waits: bool) -> Snapshot;

    /// The keeper's next report, or that it has gone.
    fn hear_keeper(&mut self) -> Option<Event>;

    /// The lease that the keeper shows, and when the servers last answered it anything. Asked for after the reports: one that
    /// the lock is held is about the session of this lease.
    fn lease(&self) -> (Option<Span>, Option<Instant>);

    /// The signals that have come. With each: whether the terminal has sent it to the command as well.
    fn signals(&mut self) -> Result<Vec<(Signal, bool)>, Self::Error>;

    /// The command is about to be stopped, or to get a signal that ends most programs: it is not successful, however it
    /// ends. The page says so before the command gets the signal, because the keeper may record a success by itself.
    fn spoil(&mut self);

    /// Does what the machine wants. Returns what follows from it at once.
    fn perform(&mut self, effect: Effect) -> Result<Option<Event>, Self::Error>;
}

#[derive(Debug)]
pub struct Turns {
    machine: Machine,
    /// The lease that the machine was last told.
    lease: Option<Span>,
    /// Ctrl-Z has suspended the supervisor in this turn, and it was continued.
    was_suspended: bool,
    /// There may be more children to reap, since this turn.
    behind_since: Option<Instant>,
    outcome: Option<Outcome>,
}

impl Turns {
    /// A run that begins now. The keeper has been started.
    pub fn new(settings: Settings, now: Instant) -> Self {
        let machine = Machine::start(settings, now);
        Self { machine, lease: None, was_suspended: false, behind_since: None, outcome: None }
    }

    /// When a turn is due although nothing has come.
    pub fn deadline(&self) -> Option<Instant> {
        self.behind_since.or_else(|| self.machine.deadline())
    }

    pub fn awaits(&self) -> Option<Awaited> {
        self.machine.awaits()
    }

    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// One turn, or several if Ctrl-Z has suspended us meanwhile. An error is one of `outside`.
    pub fn turn<O: SupervisorIo>(&mut self, outside: &mut O) -> Result<(), O::Error> {
        let mut continues = vec![];
        loop {
            let snapshot = self.hear(outside, &mut continues)?;
            if std::mem::take(&mut self.was_suspended) {
                continue;
            }
            if self.machine.deadline().is_some_and(|deadline| deadline <= outside.now()) {
                self.happen(outside, Event::Timer)?;
            }
            self.tell(outside, continues.into_iter().map(signaled))?;
            return self.tell_who_has_gone(outside, &snapshot);
        }
    }

    /// Tells the machine all that has happened but the deadline, and the signals that are added to `continues`.
    fn hear<O: SupervisorIo>(
        &mut self,
        outside: &mut O,
        continues: &mut Vec<(Signal, bool)>,
    ) -> Result<Snapshot, O::Error> {
        let snapshot = outside.look(self.awaits().is_some());
        self.behind_since = snapshot.is_behind.then(|| outside.now());
        let postponed = self.hear_keeper(outside, &snapshot)?;
        let (continuing, signals): (Vec<_>, Vec<_>) =
            outside.signals()?.into_iter().partition(|(signal, _)| *signal == Signal::CONT);
        continues.extend(continuing);
        if signals.iter().any(|(signal, _)| cancels(*signal)) {
            outside.spoil();
        }
        // A command that has ended is not suspended by Ctrl-Z; what is typed is for those that it has left.
        let is_for_others =
            |(signal, shared): &(Signal, bool)| snapshot.has_ended && (*shared || *signal == Signal::TSTP);
        let (later, signals): (Vec<_>, Vec<_>) = signals.into_iter().partition(is_for_others);
        self.tell(outside, signals.into_iter().map(signaled))?;
        self.tell(outside, snapshot.caller_has_gone.then_some(Event::CallerGone))?;
        self.tell(outside, snapshot.events.clone())?;
        self.tell_who_has_gone(outside, &snapshot)?;
        self.tell(outside, postponed)?;
        self.tell(outside, later.into_iter().map(signaled))?;
        Ok(snapshot)
    }

    /// Tells what the keeper reports, the lease, and a loss that others have found. Returns what is not to be told before the
    /// end of the command.
    fn hear_keeper<O: SupervisorIo>(&mut self, outside: &mut O, snapshot: &Snapshot) -> Result<Vec<Event>, O::Error> {
        let mut postponed = vec![];
        while let Some(event) = outside.hear_keeper() {
            let is_too_late = match event {
                // A request to give up the lock makes no difference to a command that has ended.
                Event::Keeper(Report::Revoked(_)) => snapshot.has_ended,
                // When nothing is left of the command, the keeper releases the lock by itself. What happens to it after
                // that is no loss. But if the guard had to end the command, and the keeper did not exit by itself, that is
                // why the lease was over.
                Event::KeeperGone => {
                    snapshot.is_emptied && !(snapshot.loss == Some(Loss::LeaseOver) && snapshot.has_keeper_died)
                }
                _ => false,
            };
            if is_too_late {
                postponed.push(event);
            } else {
                self.happen(outside, event)?;
            }
        }
        let (lease, answered) = outside.lease();
        if let Some(span) = lease.filter(|_| self.lease != lease)
            && let Some(effects) = self.machine.extend(outside.now(), span)
        {
            self.lease = lease;
            self.perform(outside, effects)?;
        }
        if let Some(at) = answered {
            self.machine.answer(at);
        }
        match snapshot.loss.filter(|_| self.machine.may_lose()) {
            Some(Loss::LeaseOver) => self.happen(outside, Event::Command(CommandEvent::LeaseOver))?,
            Some(loss) => self.happen(outside, Event::Keeper(Report::Lost(loss)))?,
            None => {}
        }
        Ok(postponed)
    }

    /// Tells when the processes that are waited for have gone, but not before the end of the command has been told.
    fn tell_who_has_gone<O: SupervisorIo>(&mut self, outside: &mut O, snapshot: &Snapshot) -> Result<(), O::Error> {
        let have_gone = match self.awaits() {
            Some(Awaited::Everyone) => snapshot.everyone_has_gone,
            Some(Awaited::Borrowers) => snapshot.borrowers_have_gone,
            None => false,
        };
        let gone = (have_gone && !snapshot.has_command).then_some(Event::Command(CommandEvent::TreeGone));
        self.tell(outside, gone)
    }

    fn tell<O: SupervisorIo>(
        &mut self,
        outside: &mut O,
        events: impl IntoIterator<Item = Event>,
    ) -> Result<(), O::Error> {
        events.into_iter().try_for_each(|event| self.happen(outside, event))
    }

    fn happen<O: SupervisorIo>(&mut self, outside: &mut O, event: Event) -> Result<(), O::Error> {
        log::debug!("event {event:?}");
        let effects = self.machine.step(outside.now(), event);
        self.perform(outside, effects)
    }

    fn perform<O: SupervisorIo>(&mut self, outside: &mut O, effects: Vec<Effect>) -> Result<(), O::Error> {
        let mut taken_back = None;
        for effect in effects {
            log::debug!("effect {effect:?}");
            match effect {
                Effect::Signal { .. } | Effect::Stop(_) | Effect::Kill if taken_back.is_some() => continue,
                Effect::Stop(_) | Effect::Kill => outside.spoil(),
                Effect::SuspendSelf(_) => self.was_suspended = true,
                Effect::Finish(outcome) => self.outcome = Some(outcome),
                _ => {}
            }
            let takes_back = matches!(effect, Effect::Recall(_));
            let Some(event) = outside.perform(effect)? else { continue };
            if takes_back {
                taken_back = Some(event);
                continue;
            }
            let has_failed = matches!(event, Event::Command(CommandEvent::StartFailed(_)));
            self.happen(outside, event)?;
            if has_failed {
                // The other effects are dropped: the user is not told any more that the lock is held.
                return Ok(());
            }
        }
        taken_back.map_or(Ok(()), |event| self.happen(outside, event))
    }
}

fn signaled((signal, shared): (Signal, bool)) -> Event {
    Event::Signal { signal, shared }
}
