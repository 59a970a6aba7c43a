//! The supervisor: the process that the user started. It starts the command, forwards signals, watches
//! terminal and clock, and reaps. It speaks no ZooKeeper.
//!
//! It stays single-threaded, so that it may fork at any time.
//!
//! It has one loop, [`Supervisor::work`]. Each turn takes what has come in this order:
//! 1. the keeper's reports, the last answered beat, and whether the guard has found the lease to be over: the lease
//!    is judged by the newest news;
//! 2. signals except SIGCONT. The report that the lock is ours comes before them, so a signal that arrived
//!    before that report was read still keeps the command from being started;
//! 3. the deadline, which also starts the command;
//! 4. SIGCONT, the only signal that lets a command go on: by now the command may have been killed;
//! 5. the end of children, and what the guard tells of the command.

mod job;
mod keeper;
mod teller;

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Context as _;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;

use self::job::{Job, News};
use self::keeper::Keeper;
use self::teller::Teller;
use crate::clock::{self, Alarm};
use crate::command::{self, Reaped};
use crate::environment;
use crate::lending::{Borrowing, Lending};
use crate::plan::Plan;
use crate::rules::event::{Awaited, CommandEnd, CommandEvent, Effect, Event, Unstarted};
use crate::rules::instant::Instant;
use crate::rules::machine::Machine;
use crate::rules::message::{Grant, Order, Report};
use crate::rules::notice::Notice;
use crate::rules::outcome::Outcome;
use crate::rules::signal::Signal;
use crate::signals::{self, Arrival, Signals};
use crate::writer::Writer;

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
    let (machine, effects) = Machine::start(plan.settings, clock::now());
    let teller = Teller::new(plan);
    let mut supervisor = Supervisor {
        plan,
        signals,
        alarm,
        machine,
        keeper: None,
        job,
        told_over: false,
        lending: None,
        borrowing,
        teller,
        writer,
        outcome: None,
    };
    let outcome = supervisor.work(effects);
    supervisor.clean_up();
    outcome
}

struct Supervisor<'p> {
    plan: &'p Plan,
    signals: Signals,
    alarm: Alarm,
    machine: Machine,
    keeper: Option<Keeper>,
    job: Job,
    /// The machine has been told that the guard has found the lease to be over.
    told_over: bool,
    /// Our part as a lender, from the start of the command on.
    lending: Option<Lending>,
    borrowing: Borrowing,
    teller: Teller<'p>,
    writer: &'p mut Writer,
    outcome: Option<Outcome>,
}

impl Supervisor<'_> {
    fn work(&mut self, effects: Vec<Effect>) -> anyhow::Result<Outcome> {
        self.perform(effects)?;
        loop {
            if let Some(outcome) = self.outcome {
                return Ok(outcome);
            }
            self.start_writer();
            self.wait()?;
            self.hear_keeper()?;
            let arrivals = self.signals.drain().context("cannot read signals")?;
            let (continues, others): (Vec<_>, Vec<_>) =
                arrivals.into_iter().partition(|arrival| arrival.signal == Signal::CONT);
            self.take_signals(others)?;
            if self.machine.deadline().is_some_and(|deadline| deadline <= clock::now()) {
                self.happen(Event::Timer)?;
            }
            self.take_signals(continues)?;
            self.reap()?;
        }
    }

    /// Sleeps until a signal, a report, the deadline or a text that has no writer comes.
    fn wait(&mut self) -> anyhow::Result<()> {
        self.alarm.set(self.machine.deadline()).context("cannot set the timer")?;
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.alarm.as_fd(), PollFlags::POLLIN),
        ];
        let link = self.keeper.as_ref().and_then(|keeper| keeper.link.as_ref());
        let links = link.map(AsFd::as_fd).into_iter().chain(self.job.link());
        fds.extend(links.map(|link| PollFd::new(link, PollFlags::POLLIN)));
        fds.extend(self.writer.awaited().map(|texts| PollFd::new(texts, PollFlags::POLLIN)));
        if self.machine.awaits() == Some(Awaited::Borrowers) {
            fds.extend(self.lending.as_ref().map(|lending| PollFd::new(lending.as_fd(), PollFlags::empty())));
        }
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error).context("cannot wait for events"),
        }
    }

    /// What the keeper tells, and whether the guard has found the lease to be over. The guard's word is read first and
    /// told last: the keeper reports a loss before it has the command killed.
    fn hear_keeper(&mut self) -> anyhow::Result<()> {
        let is_over = self.job.is_lease_over();
        while let Some(event) = self.keeper.as_mut().and_then(Keeper::hear) {
            if event == Event::Keeper(Report::Independent) {
                self.borrowing.give_back();
                // It has copies.
                self.job.dismiss_guard();
            }
            self.happen(event)?;
        }
        for news in [Keeper::answered, Keeper::extended] {
            if let Some(event) = self.keeper.as_mut().and_then(news) {
                self.happen(event)?;
            }
        }
        if is_over && !std::mem::replace(&mut self.told_over, true) {
            self.happen(Event::LeaseOver)?;
        }
        Ok(())
    }

    fn take_signals(&mut self, arrivals: Vec<Arrival>) -> anyhow::Result<()> {
        for arrival in arrivals.into_iter().filter(|arrival| arrival.signal != Signal::CHLD) {
            let shared = self.job.shares_group && arrival.went_to_foreground();
            self.happen(Event::Signal { signal: arrival.signal, shared })?;
        }
        Ok(())
    }

    fn reap(&mut self) -> anyhow::Result<()> {
        while let Some(reaped) = command::reap() {
            match reaped {
                Reaped::Ended(pid, end) if self.is_on_lost(pid) => {
                    log::info!("--on-lost: {end:?}");
                    let failure = self.job.on_lost.take().and_then(|on_lost| on_lost.failure());
                    self.on_lost_ended(failure.as_ref())?;
                }
                Reaped::Ended(pid, end) => self.has_ended(pid, end),
                Reaped::Stopped(pid, signal) if self.job.shares_group && self.is_on_lost(pid) => {
                    self.happen_to_command(CommandEvent::Stopped(signal))?;
                }
                Reaped::Stopped(..) => {}
            }
        }
        self.hear_guard()?;
        if self.have_awaited_gone() {
            self.hear_keeper()?;
            self.happen_to_command(CommandEvent::TreeGone)?;
        }
        Ok(())
    }

    fn is_on_lost(&self, pid: Pid) -> bool {
        self.job.on_lost.as_ref().is_some_and(|on_lost| on_lost.pid == pid)
    }

    /// What the guard tells of the command. The keeper is heard in between: when the lock is lost, it reports that
    /// before it has the command killed, and a command that was killed must not pass for one that ended by itself.
    fn hear_guard(&mut self) -> anyhow::Result<()> {
        let News { stopped, guard_gone, ended } = self.job.news();
        if ended.is_some() || guard_gone {
            self.hear_keeper()?;
        }
        if let Some(signal) = stopped {
            self.happen_to_command(CommandEvent::Stopped(signal))?;
        }
        if guard_gone {
            self.happen(Event::GuardGone)?;
        }
        match ended {
            Some(Ok(end)) => {
                let lent = self.lending.as_mut().is_some_and(|lending| !lending.end());
                self.happen_to_command(if lent { CommandEvent::EndedLending(end) } else { CommandEvent::Ended(end) })?;
            }
            Some(Err(error)) => self.not_started(&error)?,
            None => {}
        }
        Ok(())
    }

    /// Whether the processes that the machine waits for have gone, the command included.
    fn have_awaited_gone(&mut self) -> bool {
        match self.machine.awaits() {
            _ if self.job.has_command() => false,
            None => false,
            Some(Awaited::Everyone) => self.job.has_gone(),
            Some(Awaited::Borrowers) => self.lending.as_ref().is_none_or(Lending::is_over),
        }
    }

    fn happen(&mut self, event: Event) -> anyhow::Result<()> {
        log::debug!("event {event:?}");
        let effects = self.machine.step(clock::now(), event);
        self.perform(effects)
    }

    fn happen_to_command(&mut self, event: CommandEvent) -> anyhow::Result<()> {
        self.happen(Event::Command(event))
    }

    fn perform(&mut self, effects: Vec<Effect>) -> anyhow::Result<()> {
        for effect in effects {
            log::debug!("effect {effect:?}");
            match effect {
                Effect::StartKeeper => self.start_keeper()?,
                Effect::MakeGuard => self.make_guard(),
                Effect::DismissGuard => self.job.dismiss_guard(),
                Effect::Spawn { grant, until } => self.spawn(&grant, until)?,
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
                Effect::StartOnLost => self.start_on_lost()?,
                Effect::ForwardToOnLost(signal) => self.job.forward_to_on_lost(signal),
                Effect::StopSelf(signal) => {
                    self.clear_screen();
                    signals::stop_by(signal).context("cannot stop")?;
                }
                Effect::EndKeeper => self.kill_keeper(),
                Effect::Say(notice) => self.teller.say(&notice),
                Effect::Finish(outcome) => self.outcome = Some(outcome),
            }
        }
        Ok(())
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
        if !self.plan.request.held.is_empty() {
            self.borrowing.borrow();
        }
        self.keeper = Some(Keeper::start(self.plan, self.teller.refresh(), &mut self.borrowing)?);
        Ok(())
    }

    fn make_guard(&mut self) {
        let Some(keeper) = &self.keeper else { return };
        // If there are too many processes now, there may be fewer at our turn.
        if let Err(error) = self.job.make_guard(&self.plan.command, &keeper.ties, &self.borrowing) {
            log::info!("cannot make a guard yet: {error}");
        }
    }

    fn kill_keeper(&self) {
        if let Some(keeper) = &self.keeper {
            keeper.kill();
        }
    }

    fn spawn(&mut self, grant: &Grant, until: Instant) -> anyhow::Result<()> {
        self.clear_screen();
        self.job.prepare(grant);
        // Without a keeper there is no lock.
        let Some(keeper) = &mut self.keeper else {
            return self.happen_to_command(CommandEvent::StartFailed(Unstarted::TooLate));
        };
        let lending = self.lending.insert(Lending::begin().context("cannot create a pipe")?);
        let mut variables = environment::describe(grant, self.plan.request.mode);
        variables.push(environment::held(grant, &self.plan.request.held));
        variables.push(environment::lender(lending.offer()));
        match self.job.start(&self.plan.command, &mut keeper.ties, &self.borrowing, &variables, until) {
            Ok(()) => {
                self.job
                    .refused_parts()
                    .for_each(|part| log::info!("this system has not got {part}; going on without"));
                self.teller.screen.share();
                Ok(())
            }
            Err(error) => self.not_started(&error),
        }
    }

    fn not_started(&mut self, error: &io::Error) -> anyhow::Result<()> {
        self.teller.screen.keep();
        let why = command::unstarted(error);
        if why != Unstarted::TooLate {
            self.teller.screen.line(&format!("{}: {error}", self.plan.command.program.display()));
        }
        self.happen_to_command(CommandEvent::StartFailed(why))
    }

    fn start_on_lost(&mut self) -> anyhow::Result<()> {
        let (Some(line), Some(grant)) = (&self.plan.on_lost, self.job.grant.clone()) else {
            return self.happen(Event::OnLostEnded);
        };
        // It does not hold the lock, so it is not told of held locks.
        let variables = environment::describe(&grant, self.plan.request.mode);
        match self.job.start_on_lost(line, &variables) {
            Ok(()) => Ok(()),
            Err(error) => self.on_lost_ended(Some(&error)),
        }
    }

    fn on_lost_ended(&mut self, failure: Option<&io::Error>) -> anyhow::Result<()> {
        if let (Some(error), Some(line)) = (failure, &self.plan.on_lost) {
            self.teller.screen.line(&format!("--on-lost: {}: {error}", line.program.display()));
        }
        self.happen(Event::OnLostEnded)
    }

    /// Leaves neither the command nor a keeper running. After a run that ended as it should, only a keeper and a guard
    /// that are about to exit are left.
    fn clean_up(&mut self) {
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
        // It exits when its socket is closed.
        if let Some(keeper) = &mut self.keeper {
            keeper.link = None;
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
        while let Some(reaped) = command::reap() {
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
