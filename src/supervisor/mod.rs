//! The supervisor: the process that the user started. It starts the command, forwards signals, watches
//! terminal and clock, and reaps. It speaks no ZooKeeper.
//!
//! It stays single-threaded, so that it may fork at any time.
//!
//! It has one loop. What comes first in it, and what follows from what, is in [`turn`].

mod caller; // the process that `zklock hold` holds a lock for
mod effects; // does what the machine wants, and looks at our children
mod job; // the guard and the command
mod keeper; // the keeper's process
mod readiness; // what a service manager is told
mod teller; // which notices are shown, and where
pub mod turn; // the order of things in the loop
mod wait; // what the loop sleeps for

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::time::Duration;

use anyhow::Context as _;

use self::caller::{Caller, leave_stdout};
use self::job::Job;
use self::keeper::KeeperProcess;
use self::readiness::Manager;
use self::teller::Teller;
use self::turn::Turns;
use self::wait::Ready;
use crate::between::lending::{self, Lending};
use crate::cli::environment::{self, Variable};
use crate::cli::sentences;
use crate::cli::{CommandLine, LockRequest, Plan};
use crate::fence::Fence;
use crate::guard::program;
use crate::rules::event::{CommandEnd, CommandEvent, Event, Unstarted};
use crate::rules::guard_view::CommandFate;
use crate::rules::instant::Instant;
use crate::rules::loans::Loans;
use crate::rules::message::{Grant, Order, Refusal};
use crate::rules::notice::{LostWhy, Notice};
use crate::rules::outcome::Outcome;
use crate::rules::signal::Signal;
use crate::system::clock::{self, Alarm};
use crate::system::process;
use crate::system::signals::{self, Signals};
use crate::system::terminal::say;
use crate::system::writer::Writer;

/// How long a keeper that has nothing left to do may take to exit.
const KEEPER_EXIT: Duration = Duration::from_millis(500);

/// How many children to reap in one turn: processes that fork all the time must not keep the loop from all else.
const REAPS: usize = 1000;

/// How often to look whether a process that is to go has gone.
const CLEAN_UP_PAUSE: Duration = Duration::from_millis(10);

/// How long what has got a signal may take to die before it counts as left behind.
const DYING: Duration = Duration::from_millis(200);

/// Runs the plan to its end. An error means that the operating system refused something that a run cannot do without;
/// everything that had been started has been ended by then.
pub fn run<'p>(plan: &'p Plan, writer: &'p mut Writer) -> anyhow::Result<Outcome> {
    let signals = Signals::of_run().context("cannot read signals")?;
    let child_signals = Signals::of_children().context("cannot read signals")?;
    let alarm = Alarm::new().context("cannot create a timer")?;
    if plan.hold.is_some() {
        signals::block_for_command();
    }
    let mut job = match Job::new() {
        Ok(job) => job,
        Err(error) if error.kind() == io::ErrorKind::Other => {
            say(&format!("cannot look after what the command starts: {error}"));
            return Ok(Outcome::Unusable);
        }
        Err(error) => return Err(error).context("cannot look after what the command starts"),
    };
    let fence = match plan.fence.as_ref().map(Fence::open).transpose() {
        Ok(fence) => fence,
        Err(refusal) => {
            say(&sentences::refused(&refusal, plan));
            return Ok(refusal.outcome());
        }
    };
    let teller = Teller::new(plan);
    let caller = plan.hold.as_ref().map(Caller::find).transpose().context("cannot watch the caller")?;
    let stand_in = caller.as_ref().map(|caller| caller.command(plan.settings.stop_signal));
    let command = plan.command.as_ref().or(stand_in.as_ref()).context("there is no command")?;
    let keeper = if let Some(fence) = &fence {
        KeeperProcess::of_fence(fence)?
    } else {
        // What runs above us lend is not queued for: that would be to wait for ourselves.
        match plan.demand().borrow(&plan.request.offers, std::process::id(), &lending::Proc) {
            Loans::All { grant, lender } => KeeperProcess::of_lender(lender, grant)?,
            Loans::Nothing(seen) => KeeperProcess::start(plan, teller.refresh(), seen)?,
            Loans::Unfit { lock, why } => {
                let refusal = Refusal::Unfit { lock, why };
                say(&sentences::refused(&refusal, plan));
                return Ok(refusal.outcome());
            }
        }
    };
    keeper.pid.into_iter().for_each(|pid| job.disown(pid));
    // The kernel closes its descriptors when this process ends, so nothing is dropped.
    let mut supervisor = ManuallyDrop::new(Supervisor {
        plan,
        command,
        signals,
        child_signals,
        alarm,
        keeper,
        job,
        fence,
        caller,
        caller_is_told: false,
        ready: Ready::default(),
        manager: Manager::new(clock::now()),
        teller,
        writer,
    });
    let mut outcome = supervisor.work();
    if let (Ok(Outcome::Signaled(signal)), Some(_)) = (&outcome, plan.hold.as_ref()) {
        // The stand-in of `zklock hold` died, and no command: the caller relied on the lock.
        supervisor.teller.say(&Notice::Lost(LostWhy::Killed(*signal)));
        outcome = Ok(Outcome::Lost);
    }
    supervisor.clean_up(outcome.is_err());
    outcome
}

struct Supervisor<'p> {
    plan: &'p Plan,
    command: &'p CommandLine,
    signals: Signals,
    /// Tells that a child has ended or was stopped.
    child_signals: Signals,
    alarm: Alarm,
    keeper: KeeperProcess,
    job: Job,
    /// With `zklock fence`: the files in place of a lock.
    fence: Option<Fence>,
    /// With `zklock hold`: the process that the lock is held for.
    caller: Option<Caller>,
    caller_is_told: bool,
    /// What is worth reading in this turn.
    ready: Ready,
    manager: Manager,
    teller: Teller<'p>,
    writer: &'p mut Writer,
}

impl<'p> Supervisor<'p> {
    fn work(&mut self) -> anyhow::Result<Outcome> {
        let mut turns = Turns::begin(self.plan.settings, clock::now());
        // Now, because the servers take a while to open the session and to make our node. If there are too many processes, there
        // may be fewer at our turn.
        if let Err(error) = self.job.make_guard(self.command, &self.keeper.inherited, &self.descriptors_of_guard()) {
            log::info!("cannot make a guard yet: {error}");
        }
        loop {
            if let Some(outcome) = turns.outcome() {
                return Ok(outcome);
            }
            self.wait(&turns)?;
            if self.ready.texts {
                self.start_writer();
            }
            turns.turn(self)?;
        }
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

    /// Starts the command. Returns why it could not be started.
    fn spawn(&mut self, grant: &Grant, until: Instant) -> anyhow::Result<Option<Unstarted>> {
        self.clear_screen();
        self.job.prepare();
        let descriptors = self.descriptors_of_guard();
        let variables = self.variables(grant);
        match self.job.start(self.command, &mut self.keeper.inherited, &descriptors, &variables, until) {
            Ok(()) => {
                self.teller.screen.share();
                self.manager.ready();
                if self.caller.is_some() {
                    leave_stdout().context("cannot leave standard output")?;
                }
                Ok(None)
            }
            Err(error) => Ok(Some(self.not_started(&error))),
        }
    }

    /// What the command finds in its environment. What we hold ourselves is lent to the runs below from now on.
    fn variables(&self, grant: &Grant) -> Vec<Variable> {
        let LockRequest { mode, held, offers, .. } = &self.plan.request;
        if let Some(fence) = &self.plan.fence {
            return vec![environment::token(fence.token)];
        }
        let mut variables = environment::describe(grant, *mode);
        variables.push(environment::held(grant, held));
        let own = self.keeper.pid.map(|_| &self.keeper.inherited.lent);
        let root = |lent: &Lending| self.caller.as_ref().map_or(Some(lent.lender()), Caller::process);
        let offer = own.and_then(|lent| Some(lent.offer(root(lent)?, &self.plan.demand().lent(grant))));
        match offer {
            Some(Ok(offer)) => variables.push(environment::lender(&offer, offers)),
            Some(Err(error)) => log::info!("cannot lend: {error}"),
            None => {}
        }
        variables
    }

    /// What shows, as long as it is open, that something of the command is left.
    fn descriptors_of_guard(&self) -> Vec<RawFd> {
        self.fence.iter().map(Fence::descriptor).collect()
    }

    /// Whether a run may use our locks. Once all below the guard has gone, what has the pipe open is as a rule a process
    /// elsewhere that has got a copy of our command's environment. It finds that out, or may be stopped.
    fn may_be_used(&self) -> bool {
        !self.keeper.inherited.lent.is_over() && (self.caller.is_some() || !self.job.has_gone())
    }

    /// Has all killed that runs under our locks elsewhere.
    fn call_in(&self) {
        self.keeper.inherited.lent.call_in();
    }

    /// With `zklock hold`: the lock is, or is about to be, lost.
    fn signal_caller(&mut self, signal: Signal) -> bool {
        let Some(caller) = &mut self.caller else { return false };
        self.teller.tells_caller = caller.signal(signal);
        self.teller.tells_caller
    }

    /// Takes the command back, unless it has passed the gate.
    fn recall(&mut self, why: Unstarted) -> Option<Event> {
        self.job.recall().then_some(Event::Command(CommandEvent::StartFailed(why)))
    }

    fn not_started(&mut self, error: &io::Error) -> Unstarted {
        self.teller.screen.keep();
        let why = program::unstarted(error);
        if why != Unstarted::TooLate {
            self.teller.screen.line(&program::describe(&self.command.program, error));
        }
        why
    }

    /// Leaves neither the command nor the keeper running. After a run that ended as it should, only a keeper and a guard
    /// that are about to exit are left.
    fn clean_up(&mut self, has_failed: bool) {
        self.manager.stopping();
        self.teller.screen.clear();
        self.start_writer();
        if has_failed && self.job.has_command() {
            self.signal_caller(self.plan.settings.stop_signal);
        }
        while self.job.is_left() {
            self.pause(CLEAN_UP_PAUSE);
        }
        let until = clock::now() + KEEPER_EXIT;
        // It exits when its socket is closed. After a run that has failed, it does not know that nothing is left. What a
        // caller runs below our locks is not below our guard: the keeper waits for that, but not if it is told to release.
        if has_failed && self.caller.is_none() {
            self.keeper.order(Order::Release);
        }
        self.keeper.link = None;
        self.keeper.inherited.close_guard_alive();
        while !self.keeper.reaped {
            let left = until.saturating_since(clock::now());
            if left.is_zero() {
                self.keeper.kill();
            }
            if clock::now() > until + KEEPER_EXIT {
                // A file system that does not answer keeps it from dying.
                break;
            }
            self.pause(left.max(CLEAN_UP_PAUSE));
        }
        // A process that has got a signal may need a moment to die.
        let until = clock::now() + DYING;
        while self.job.is_interrupted() && self.job.left_behind().is_some() && clock::now() < until {
            self.pause(CLEAN_UP_PAUSE);
        }
        // This comes last, so that processes that are about to end are not counted.
        if let Some(notice) = self.job.left_behind() {
            self.teller.say(&notice);
        }
    }

    /// Waits for a child to end, but no longer than `time`, and reaps.
    fn pause(&mut self, time: Duration) {
        self.child_signals.pause(time);
        // Children that this leaves unreaped are reaped after the next pause.
        self.reap();
    }

    /// Takes note of our children that have ended. There may be more after that, for another turn.
    fn reap(&mut self) {
        self.child_signals.clear();
        for _ in 0..REAPS {
            let Ok(Some((pid, status))) = process::reap(0) else {
                self.ready.children = false;
                return;
            };
            let end = program::end_of(status);
            self.writer.ended(pid);
            self.job.reaped(pid, end);
            if self.keeper.pid == Some(pid) {
                self.keeper.ended(end);
            }
        }
    }

    /// What the end of the command's process means: the user is told why the program was not executed, if it was not. From now
    /// on nothing more is lent, unless descendants are waited for: they would wait for themselves in the queue.
    fn end(&mut self, end: CommandFate) -> CommandEvent {
        let why = self.job.failure(end).map(|error| self.not_started(&error));
        let end = match (why, end) {
            (Some(why), _) => return CommandEvent::StartFailed(why),
            (None, CommandFate::Stillborn) => return CommandEvent::StartFailed(Unstarted::NoProcess),
            (None, CommandFate::Reaped(end)) => end,
        };
        if self.caller.is_some() && matches!(end, CommandEnd::Signaled(_)) {
            // What stood in for a command was killed: what has borrowed the lock relies on it, and so does the caller.
            self.signal_caller(self.plan.settings.stop_signal);
            self.call_in();
        }
        if !self.plan.settings.wait_descendants {
            self.keeper.inherited.lent.close_door();
        }
        if self.may_be_used() { CommandEvent::EndedLending(end) } else { CommandEvent::Ended(end) }
    }
}
