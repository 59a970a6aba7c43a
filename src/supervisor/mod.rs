//! The supervisor: the process that the user started.
//!
//! The life of a run in this room:
//! 1. [`run`] makes the keeper, unless a run above lends its locks, and a guard, which makes the command's process.
//! 2. [`turn`] is the loop. It tells the machine what happens, and has the machine's effects performed.
//! 3. Once the lock is held, the supervisor has the guard start the command. From then on it forwards signals.
//! 4. When the command has ended, the keeper is told to release the lock. Then [`clean_up`] ends what is left.
//!
//! [`Supervisor`] is the run: a [`KeeperProcess`], a [`Job`] (guard and command), and those who are told how it goes: the
//! user ([`Teller`]), a service manager ([`Manager`]), the caller of `zklock hold` ([`Caller`]).
//!
//! `main.rs` calls [`run`], and nobody else calls this room. The supervisor speaks no ZooKeeper. The machine decides
//! what a run does next. This room decides how: which processes a signal reaches, and who kills them. By itself it
//! also calls in what is lent once the stand-in for a caller was killed. It has one thread, so it may fork at any time.

mod caller; // the process that `zklock hold` holds a lock for
mod clean_up; // the end of a run, and the reaping of children
mod command; // the start and the end of the command, and what it is lent
mod effects; // performs the machine's effects, and looks at the children
mod job; // the guard, and by it the command
mod keeper; // the keeper's process
mod orphans; // what a guard that has died leaves to the supervisor
mod readiness; // what a service manager is told
mod teller; // which notices are shown, and where
pub mod turn; // the order of things in the loop
mod wait; // what the loop sleeps for

use std::io;
use std::mem::ManuallyDrop;

use anyhow::Context as _;

use self::caller::Caller;
use self::job::Job;
use self::keeper::KeeperProcess;
use self::readiness::Manager;
use self::teller::Teller;
use self::turn::Turns;
use crate::between::lending;
use crate::cli::Plan;
use crate::cli::sentences;
use crate::fence::Fence;
use crate::rules::loans::Loans;
use crate::rules::message::Refusal;
use crate::rules::notice::{LostWhy, Notice};
use crate::rules::outcome::Outcome;
use crate::system::clock::{self, Alarm};
use crate::system::signals::{self, Signals};
use crate::system::terminal::say;
use crate::system::writer::Writer;

/// Runs the plan to its end. An error means that the operating system refused something that a run cannot do without;
/// everything that had been started has been ended by then.
pub fn run<'p>(plan: &'p Plan, writer: &'p mut Writer) -> anyhow::Result<Outcome> {
    let signals = Signals::of_run().context("cannot read signals")?;
    let child_signals = Signals::of_children().context("cannot read signals")?;
    let alarm = Alarm::new().context("cannot create a timer")?;
    if plan.hold.is_some() {
        signals::block_for_command();
    }
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
    let kept_open = fence.iter().map(Fence::descriptor).collect();
    let mut job = match Job::new(command, kept_open) {
        Ok(job) => job,
        Err(error) if error.kind() == io::ErrorKind::Other => {
            say(&format!("cannot supervise what the command starts: {error}"));
            return Ok(Outcome::Unusable);
        }
        Err(error) => return Err(error).context("cannot supervise what the command starts"),
    };
    let keeper = if let Some(fence) = &fence {
        KeeperProcess::of_fence(fence)?
    } else {
        // A run does not queue for what a run above it lends: it would wait for itself.
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
    keeper.pid.into_iter().for_each(|pid| job.orphans.disown(pid));
    // The kernel closes its descriptors when this process ends, so nothing is dropped.
    let mut supervisor = ManuallyDrop::new(Supervisor {
        plan,
        signals,
        child_signals,
        is_behind: false,
        guard_has_news: true,
        alarm,
        keeper,
        job,
        caller,
        caller_is_told: false,
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
    signals: Signals,
    /// SIGCHLD.
    child_signals: Signals,
    /// There may be more children to reap.
    is_behind: bool,
    /// The guard has given a sign since the last turn.
    guard_has_news: bool,
    alarm: Alarm,
    keeper: KeeperProcess,
    job: Job<'p>,
    /// With `zklock hold`: the process that the lock is held for.
    caller: Option<Caller>,
    caller_is_told: bool,
    manager: Manager,
    teller: Teller<'p>,
    writer: &'p mut Writer,
}

impl<'p> Supervisor<'p> {
    fn work(&mut self) -> anyhow::Result<Outcome> {
        let mut turns = Turns::new(self.plan.settings, clock::now());
        // Now, because the servers take a while to open the session and to make a node. If there are too many processes for a
        // guard now, there may be fewer once the lock is held.
        if let Err(error) = self.job.make_guard(&self.keeper.inherited) {
            log::info!("cannot make a guard yet: {error}");
        }
        loop {
            if let Some(outcome) = turns.outcome() {
                return Ok(outcome);
            }
            if self.wait(&turns)? {
                self.start_writer();
            }
            turns.turn(self)?;
        }
    }

    fn start_writer(&mut self) {
        if let Some(writer) = self.writer.start_if_due() {
            self.job.orphans.disown(writer);
        }
    }

    /// Removes the status line before others write to the terminal.
    fn clear_screen(&mut self) {
        if self.teller.screen.clear() {
            self.start_writer();
            self.writer.flush();
        }
    }
}
