//! The supervisor: the process that the user started. It starts the command, forwards signals, watches
//! terminal and clock, and reaps. It speaks no ZooKeeper.
//!
//! It stays single-threaded, so that it may fork at any time.
//!
//! It has one loop. What comes first in it, and what follows from what, is in [`turn`].

mod fence;
mod job;
mod keeper;
mod teller;
pub mod turn;

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Context as _;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;

use self::job::Job;
use self::keeper::Keeper;
use self::teller::Teller;
use self::turn::{Change, Outside, REAPS, Turns};
use crate::clock::{self, Alarm};
use crate::command::{self, Reaped};
use crate::environment;
use crate::lending::{Borrowing, Lending};
use crate::plan::Plan;
use crate::rules::event::{Awaited, CommandEnd, CommandEvent, Effect, Event, Unstarted};
use crate::rules::guarded::{End, News};
use crate::rules::instant::Instant;
use crate::rules::message::{Grant, Order, Report};
use crate::rules::notice::Notice;
use crate::rules::outcome::Outcome;
use crate::rules::signal::Signal;
use crate::signals::{self, Signals};
use crate::writer::Writer;

pub use self::fence::run as run_fence;

/// How long a keeper that has nothing left to do may take to exit.
const KEEPER_EXIT: Duration = Duration::from_millis(500);

/// How often to look whether a process that is to go has gone.
const CLEAN_UP_PAUSE: Duration = Duration::from_millis(10);

/// Runs the plan to its end. An error means that the operating system refused something that a run
/// cannot do without; everything that had been started has been ended by then.
pub fn run<'p>(plan: &'p Plan, writer: &'p mut Writer) -> anyhow::Result<Outcome> {
    let signals = Signals::open().context("cannot read signals")?;
    let alarm = Alarm::new().context("cannot create a timer")?;
    let job = Job::new(signals.inherited())?;
    let borrowing = Borrowing::new(&plan.request.offers);
    let teller = Teller::new(plan);
    let mut supervisor =
        Supervisor { plan, signals, alarm, keeper: None, job, lending: None, borrowing, teller, writer };
    let outcome = supervisor.work();
    supervisor.clean_up(outcome.is_err());
    outcome
}

struct Supervisor<'p> {
    plan: &'p Plan,
    signals: Signals,
    alarm: Alarm,
    keeper: Option<Keeper>,
    job: Job,
    /// Our part as a lender, from the start of the command on.
    lending: Option<Lending>,
    borrowing: Borrowing,
    teller: Teller<'p>,
    writer: &'p mut Writer,
}

impl Supervisor<'_> {
    fn work(&mut self) -> anyhow::Result<Outcome> {
        let mut turns = Turns::begin(self.plan.settings, self)?;
        loop {
            if let Some(outcome) = turns.outcome() {
                return Ok(outcome);
            }
            self.start_writer();
            self.wait(&turns)?;
            turns.turn(self)?;
        }
    }

    /// Sleeps until a signal, a report, the deadline or a text that has no writer comes.
    fn wait(&mut self, turns: &Turns) -> anyhow::Result<()> {
        if self.keeper.as_ref().is_some_and(Keeper::has_news) {
            return Ok(());
        }
        self.alarm.set(turns.deadline()).context("cannot set the timer")?;
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.alarm.as_fd(), PollFlags::POLLIN),
        ];
        let link = self.keeper.as_ref().and_then(|keeper| keeper.link.as_ref());
        let links = link.map(AsFd::as_fd).into_iter().chain(self.job.link());
        fds.extend(links.map(|link| PollFd::new(link, PollFlags::POLLIN)));
        fds.extend(self.writer.awaited().map(|texts| PollFd::new(texts, PollFlags::POLLIN)));
        if turns.awaits() == Some(Awaited::Borrowers) {
            fds.extend(self.lending.as_ref().map(|lending| PollFd::new(lending.as_fd(), PollFlags::empty())));
        }
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error).context("cannot wait for events"),
        }
    }

    fn is_on_lost(&self, pid: Pid) -> bool {
        self.job.on_lost.as_ref().is_some_and(|on_lost| on_lost.pid == pid)
    }

    fn start_writer(&mut self) {
        if let Some(writer) = self.writer.start_if_due() {
            self.job.disown(writer);
        }
    }

    /// Removes the status line before others write to the terminal.
    fn clear_screen(&mut self) {
        if self.teller.screen.clear() {
            self.start_writer();
            self.writer.flush();
        }
    }

    fn start_keeper(&mut self) -> anyhow::Result<()> {
        self.kill_keeper();
        // Its guard belongs to it.
        self.job.dismiss_guard();
        // It is to have no copy of our end.
        self.lending = None;
        if !self.plan.request.held.is_empty() {
            self.borrowing.borrow();
        }
        self.keeper = Some(Keeper::start(self.plan, self.teller.refresh(), &mut self.borrowing)?);
        Ok(())
    }

    fn make_guard(&mut self) {
        let Some(keeper) = &self.keeper else { return };
        // If there are too many processes now, there may be fewer at our turn.
        // For as long as something of the command is left, the locks are in use.
        let keep: Vec<_> = self.borrowing.descriptors().collect();
        if let Err(error) = self.job.make_guard(&self.plan.command, &keeper.ties, &keep) {
            log::info!("cannot make a guard yet: {error}");
        }
        // Now rather than at the hand-over.
        if self.lending.is_none() {
            self.lending = Lending::begin().ok();
        }
    }

    fn kill_keeper(&self) {
        if let Some(keeper) = &self.keeper {
            keeper.kill();
        }
    }

    /// Starts the command. Returns why it could not be started.
    fn spawn(&mut self, grant: &Grant, until: Instant) -> anyhow::Result<Option<Unstarted>> {
        self.clear_screen();
        self.job.prepare();
        self.job.grant = Some(grant.clone());
        // Without a keeper there is no lock.
        let Some(keeper) = &mut self.keeper else { return Ok(Some(Unstarted::TooLate)) };
        let lending = match self.lending.take().map_or_else(Lending::begin, Ok) {
            Ok(lending) => lending,
            Err(error) => return Ok(Some(self.not_started(&error))),
        };
        let lending = self.lending.insert(lending);
        let mut variables = environment::describe(grant, self.plan.request.mode);
        variables.push(environment::held(grant, &self.plan.request.held));
        let variables = |guard| [&variables[..], &[environment::lender(&lending.offer(guard))]].concat();
        let keep: Vec<_> = self.borrowing.descriptors().collect();
        match self.job.start(&self.plan.command, &mut keeper.ties, &keep, &variables, until) {
            Ok(()) => {
                self.teller.screen.share();
                Ok(None)
            }
            Err(error) => Ok(Some(self.not_started(&error))),
        }
    }

    /// Takes the command back, unless it has passed the gate.
    fn recall(&mut self, why: Unstarted) -> Option<Event> {
        self.job.recall().then_some(Event::Command(CommandEvent::StartFailed(why)))
    }

    fn not_started(&mut self, error: &io::Error) -> Unstarted {
        self.teller.screen.keep();
        let why = command::unstarted(error);
        if why != Unstarted::TooLate {
            self.teller.screen.line(&format!("{}: {error}", self.plan.command.program.display()));
        }
        why
    }

    /// Starts the command of `--on-lost`. Returns its end if there is no such command, or it could not be started.
    fn start_on_lost(&mut self) -> Option<Event> {
        let (Some(line), Some(grant)) = (&self.plan.on_lost, self.job.grant.clone()) else {
            return Some(Event::OnLostEnded);
        };
        // It does not hold the lock, so it is not told of held locks.
        let variables = environment::describe(&grant, self.plan.request.mode);
        match self.job.start_on_lost(line, &variables) {
            Ok(()) => None,
            Err(error) => Some(self.on_lost_ended(Some(&error))),
        }
    }

    fn on_lost_ended(&mut self, failure: Option<&io::Error>) -> Event {
        if let (Some(error), Some(line)) = (failure, &self.plan.on_lost) {
            self.teller.screen.line(&format!("--on-lost: {}: {error}", line.program.display()));
        }
        Event::OnLostEnded
    }

    /// Leaves neither the command nor a keeper running. After a run that ended as it should, only a keeper and a guard
    /// that are about to exit are left.
    fn clean_up(&mut self, has_failed: bool) {
        self.teller.screen.clear();
        self.start_writer();
        while self.job.is_left() {
            self.pause(CLEAN_UP_PAUSE);
        }
        match self.job.left_behind() {
            0 => {}
            number => self.teller.say(&Notice::LeftBehind(number)),
        }
        let until = clock::now() + KEEPER_EXIT;
        // It exits when its socket is closed. After a run that has failed, it does not know that nothing is left.
        if let Some(keeper) = &mut self.keeper {
            if has_failed {
                keeper.order(Order::Release);
            }
            keeper.link = None;
            keeper.ties.end();
        }
        while self.keeper.as_ref().is_some_and(|keeper| !keeper.reaped) {
            let left = until.saturating_since(clock::now());
            if left.is_zero() {
                self.kill_keeper();
            }
            self.pause(left.max(CLEAN_UP_PAUSE));
        }
    }

    /// Waits for a child to end, but no longer than `time`, and reaps.
    fn pause(&mut self, time: Duration) {
        self.signals.pause(time);
        // What is left after that is reaped after the next pause.
        for reaped in std::iter::from_fn(command::reap).take(REAPS) {
            if let Reaped::Ended(pid, end) = reaped {
                self.has_ended(pid, end);
            }
        }
    }

    /// Takes note of a child that has been reaped, unless it is the command of `--on-lost`.
    fn has_ended(&mut self, pid: Pid, end: CommandEnd) {
        self.writer.ended(pid);
        self.job.reaped(pid, end);
        if let Some(keeper) = self.keeper.as_mut().filter(|keeper| keeper.pid == pid) {
            keeper.ended(end);
        }
    }
}

impl Outside for Supervisor<'_> {
    type Error = anyhow::Error;

    fn now(&self) -> Instant {
        clock::now()
    }

    fn hear_keeper(&mut self) -> Option<Event> {
        let event = self.keeper.as_mut()?.hear()?;
        if event == Event::Keeper(Report::Independent) {
            self.borrowing.give_back();
            // It has copies.
            self.job.dismiss_guard();
        }
        Some(event)
    }

    fn answered(&self) -> Option<Instant> {
        self.keeper.as_ref()?.ties.shared.answered()
    }

    fn lease_from(&self) -> Option<Instant> {
        self.keeper.as_ref()?.ties.shared.from()
    }

    fn is_lease_over(&self) -> bool {
        self.job.is_lease_over()
    }

    fn signals(&mut self) -> anyhow::Result<Vec<(Signal, bool)>> {
        let arrivals = self.signals.drain().context("cannot read signals")?;
        let shares = self.job.shares_group;
        Ok(arrivals.into_iter().map(|arrival| (arrival.signal, shares && arrival.went_to_foreground())).collect())
    }

    fn reap(&mut self) -> Change {
        match command::reap() {
            Some(Reaped::Ended(pid, end)) if self.is_on_lost(pid) => {
                log::info!("--on-lost: {end:?}");
                let failure = self.job.on_lost.take().and_then(|on_lost| on_lost.failure());
                Change::Event(self.on_lost_ended(failure.as_ref()))
            }
            Some(Reaped::Stopped(pid, signal)) if self.job.shares_group && self.is_on_lost(pid) => {
                Change::Event(Event::Command(CommandEvent::Stopped(signal)))
            }
            Some(Reaped::Ended(pid, end)) => {
                self.has_ended(pid, end);
                Change::Other
            }
            Some(Reaped::Stopped(..)) => Change::Other,
            None => Change::NoMore,
        }
    }

    fn has_ended(&self) -> bool {
        self.job.has_ended()
    }

    fn is_emptied(&self) -> bool {
        self.job.is_emptied()
    }

    fn hear_guard(&mut self) -> News {
        self.job.news()
    }

    fn failure(&mut self, end: End) -> Option<Unstarted> {
        let error = self.job.failure(end)?;
        Some(self.not_started(&error))
    }

    fn end_lending(&mut self) -> bool {
        self.lending.as_mut().is_none_or(Lending::end)
    }

    fn has_command(&self) -> bool {
        self.job.has_command()
    }

    fn have_gone(&self, awaited: Awaited) -> bool {
        match awaited {
            Awaited::Everyone => self.job.has_gone(),
            Awaited::Borrowers => self.lending.as_ref().is_none_or(Lending::is_over),
        }
    }

    fn perform(&mut self, effect: Effect) -> anyhow::Result<Option<Event>> {
        match effect {
            Effect::StartKeeper => self.start_keeper()?,
            Effect::MakeGuard => self.make_guard(),
            Effect::DismissGuard => self.job.dismiss_guard(),
            Effect::Spawn { grant, until } => {
                let failed = |why| Event::Command(CommandEvent::StartFailed(why));
                return Ok(self.spawn(&grant, until)?.map(failed));
            }
            Effect::Recall => return Ok(self.recall(Unstarted::TooLate)),
            Effect::Interrupt { signal, shared } => {
                let recalled = self.recall(Unstarted::Interrupted(signal));
                if recalled.is_none() && !shared {
                    self.job.forward(signal);
                }
                return Ok(recalled);
            }
            Effect::Forward(signal) => self.job.forward(signal),
            Effect::Stop(signal) => self.job.stop(signal),
            Effect::Kill => self.job.kill(),
            Effect::Release => {
                self.job.leave();
                // No process uses a lock any more.
                self.borrowing.give_back();
                if let Some(keeper) = &self.keeper {
                    keeper.order(Order::Release);
                }
                self.teller.screen.keep();
                self.job.restore_terminal();
            }
            Effect::StartOnLost => return Ok(self.start_on_lost()),
            Effect::ForwardToOnLost(signal) => self.job.forward_to_on_lost(signal),
            Effect::StopSelf(signal) => {
                self.clear_screen();
                signals::stop_by(signal).context("cannot stop")?;
            }
            Effect::EndKeeper => self.kill_keeper(),
            Effect::Say(notice) => self.teller.say(&notice),
            Effect::Finish(_) => {}
        }
        Ok(None)
    }
}
