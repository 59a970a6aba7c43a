//! What the loop needs from outside, for real.

use anyhow::Context as _;

use super::Supervisor;
use super::keeper::Keeper;
use super::turn::{Change, Outside};
use crate::clock;
use crate::command::{self, Reaped};
use crate::hold::Caller;
use crate::lending;
use crate::rules::event::{Awaited, CommandEvent, Effect, Event, Unstarted};
use crate::rules::guarded::{End, News};
use crate::rules::instant::Instant;
use crate::rules::lease::Span;
use crate::rules::message::{Loss, Order, Progress, Report};
use crate::rules::signal::Signal;
use crate::signals;

impl Outside for Supervisor<'_> {
    type Error = anyhow::Error;

    fn now(&self) -> Instant {
        clock::now()
    }

    fn hear_keeper(&mut self) -> Option<Event> {
        let event = self.keeper.as_mut()?.hear()?;
        if let Event::Keeper(Report::Queue(Progress::Asked(asked))) = event {
            self.asked = Some(asked);
        }
        if let Event::Keeper(Report::Borrows(lenders)) = &event
            && self.borrowing.keep(lenders)
        {
            // It has copies.
            self.job.dismiss_guard();
        }
        Some(event)
    }

    fn has_keeper_died(&self) -> bool {
        self.keeper.as_ref().is_some_and(Keeper::has_died)
    }

    fn answered(&self) -> Option<Instant> {
        self.keeper.as_ref()?.ties.shared.answered()
    }

    fn lease(&self) -> Option<Span> {
        self.keeper.as_ref()?.ties.shared.shown()
    }

    fn has_caller_gone(&mut self) -> bool {
        let has_gone = !self.caller_is_told && self.caller.as_ref().is_some_and(Caller::has_gone);
        self.caller_is_told |= has_gone;
        has_gone
    }

    fn loss(&self, waits: bool) -> Option<Loss> {
        if self.job.needs_loans(waits) && self.borrowing.is_lost(&lending::Proc) {
            return Some(Loss::LenderGone);
        }
        self.job.is_lease_over().then_some(Loss::LeaseOver)
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

    fn end_lending(&mut self, lends_on: bool) -> bool {
        if let Some(keeper) = self.keeper.as_ref().filter(|_| !lends_on) {
            keeper.ties.lent.end();
        }
        !self.may_be_used()
    }

    fn has_command(&self) -> bool {
        self.job.has_command()
    }

    fn spoil(&mut self) {
        if let Some(keeper) = &self.keeper {
            keeper.ties.shared.spoil();
        }
    }

    fn have_gone(&self, awaited: Awaited) -> bool {
        match awaited {
            Awaited::Everyone => self.job.has_gone() && !self.may_be_used(),
            Awaited::Borrowers => !self.may_be_used(),
        }
    }

    fn perform(&mut self, effect: Effect) -> anyhow::Result<Option<Event>> {
        match effect {
            Effect::StartKeeper(queue_at) => self.start_keeper(queue_at)?,
            Effect::MakeGuard => self.make_guard(),
            Effect::DismissGuard => self.job.dismiss_guard(),
            Effect::Spawn { grant, until } => {
                let failed = |why| Event::Command(CommandEvent::StartFailed(why));
                return Ok(self.spawn(&grant, until)?.map(failed));
            }
            Effect::Recall => return Ok(self.recall(Unstarted::TooLate)),
            Effect::Interrupt { signal, shared } => {
                let recalled = self.recall(Unstarted::Interrupted(signal));
                match (&recalled, shared) {
                    (Some(_), _) => {}
                    (None, true) => self.job.forward_outside(signal),
                    (None, false) => self.job.forward(signal, self.plan.settings.wait_descendants),
                }
                return Ok(recalled);
            }
            Effect::Forward(signal) => self.job.forward(signal, self.plan.settings.wait_descendants),
            Effect::ForwardOutside(signal) => self.job.forward_outside(signal),
            Effect::Stop(signal) => {
                // The caller has until SIGKILL to end. What stands in for the command ends when it has.
                if !self.signal_caller(signal) {
                    self.job.stop(signal);
                }
            }
            Effect::Kill => {
                self.job.kill();
                self.call_in();
                self.signal_caller(self.plan.settings.stop_signal);
            }
            Effect::Release => {
                self.job.leave();
                // No process uses a lock any more.
                self.borrowing.give_back();
                if let Some(keeper) = &self.keeper {
                    keeper.order(Order::Release);
                }
                self.teller.screen.keep();
                self.job.restore_terminal();
                // That has been told once, and no confirmation comes.
                if self.keeper.as_ref().is_none_or(|keeper| keeper.link.is_none()) {
                    return Ok(Some(Event::KeeperGone));
                }
            }
            Effect::StartOnLost => return Ok(self.start_on_lost()),
            Effect::ForwardToOnLost(signal) => self.job.forward_to_on_lost(signal),
            Effect::StopSelf(signal) => {
                self.clear_screen();
                signals::stop_by(signal).context("cannot stop")?;
            }
            Effect::EndKeeper => self.kill_keeper(),
            Effect::Say(notice) => {
                if let Some(text) = self.teller.say(&notice) {
                    self.manager.status(&text);
                }
            }
            Effect::Finish(_) => {}
        }
        Ok(None)
    }
}
