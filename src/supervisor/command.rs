//! The start and the end of the command, and what is lent to the runs below it.

use std::io;

use anyhow::Context as _;

use super::Supervisor;
use super::caller::leave_stdout;
use crate::between::lending::Lending;
use crate::cli::LockRequest;
use crate::cli::environment::{self, Variable};
use crate::guard::program;
use crate::rules::event::{CommandEnd, CommandEvent, Unstarted};
use crate::rules::guard_view::CommandFate;
use crate::rules::instant::Instant;
use crate::rules::message::Grant;
use crate::rules::signal::Signal;

impl Supervisor<'_> {
    /// Starts the command. Returns why it could not be started.
    pub(super) fn spawn(&mut self, grant: &Grant, until: Instant) -> anyhow::Result<Option<Unstarted>> {
        self.clear_screen();
        let variables = self.variables(grant);
        match self.job.start(&mut self.keeper.inherited, &variables, until) {
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

    /// What the command finds in its environment. From now on the locks of this run are lent to the runs below it, unless
    /// they are borrowed themselves.
    fn variables(&self, grant: &Grant) -> Vec<Variable> {
        let LockRequest { mode, held, offers, .. } = &self.plan.request;
        if let Some(fence) = &self.plan.fence {
            return vec![environment::token(fence.token)];
        }
        let mut variables = environment::describe(grant, *mode);
        variables.push(environment::held(grant, held));
        let own = self.keeper.pid.map(|_| &self.keeper.inherited.lending);
        let root = |lending: &Lending| self.caller.as_ref().map_or(Some(lending.lender()), |caller| caller.process);
        let offer = own.and_then(|lending| Some(lending.offer(root(lending)?, &self.plan.demand().lent(grant))));
        match offer {
            Some(Ok(offer)) => variables.push(environment::lender(&offer, offers)),
            Some(Err(error)) => log::info!("cannot lend: {error}"),
            None => {}
        }
        variables
    }

    fn not_started(&mut self, error: &io::Error) -> Unstarted {
        self.teller.screen.keep();
        let why = program::unstarted(error);
        if why != Unstarted::TooLate {
            self.teller.screen.line(&program::describe(&self.job.birth.command.program, error));
        }
        why
    }

    /// What the end of the command's process means. If the program was not executed, the user is told why. From now on nothing
    /// more is lent, unless descendants are waited for: a descendant that queued would wait for itself.
    pub(super) fn command_ended(&mut self, end: CommandFate) -> CommandEvent {
        let kill_at = self.keeper.inherited.lease.limits().kill_at;
        let why = self.job.failure(end, kill_at).map(|error| self.not_started(&error));
        let end = match (why, end) {
            (Some(why), _) => return CommandEvent::StartFailed(why),
            (None, CommandFate::Stillborn) => return CommandEvent::StartFailed(Unstarted::NoProcess),
            (None, CommandFate::Reaped(end)) => end,
        };
        if self.caller.is_some() && matches!(end, CommandEnd::Signaled(_)) {
            // The stand-in was killed. The caller relies on the lock, and so do the runs that have borrowed it.
            self.signal_caller(self.plan.settings.stop_signal);
            self.keeper.inherited.lending.call_in();
        }
        if !self.plan.settings.wait_descendants {
            self.keeper.inherited.lending.close_door();
        }
        if self.may_be_used() { CommandEvent::EndedLending(end) } else { CommandEvent::Ended(end) }
    }

    /// Whether a run may use the locks that this run lends. When all processes below the guard have gone, a process elsewhere
    /// may still have the pipe open, because it has got a copy of the command's environment. Nobody waits for that process.
    pub(super) fn may_be_used(&self) -> bool {
        !self.keeper.inherited.lending.is_over() && (self.caller.is_some() || !self.job.has_gone())
    }

    /// With `zklock hold`: signals the caller, because the lock is lost, or about to be. Returns whether the caller has got
    /// the signal.
    pub(super) fn signal_caller(&mut self, signal: Signal) -> bool {
        let Some(caller) = &mut self.caller else { return false };
        self.teller.tells_caller = caller.signal(signal);
        self.teller.tells_caller
    }
}
