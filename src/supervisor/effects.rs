//! What the loop needs from outside, for real.

use anyhow::Context as _;

use super::Supervisor;
use super::caller::Caller;
use super::turn::{Snapshot, SupervisorIo};
use crate::rules::event::{CommandEvent, Effect, Event};
use crate::rules::guard::{Stage, Targets};
use crate::rules::instant::Instant;
use crate::rules::lease::Span;
use crate::rules::message::{Loss, Order, Report};
use crate::rules::signal::Signal;
use crate::system::clock;
use crate::system::signals;

impl SupervisorIo for Supervisor<'_> {
    type Error = anyhow::Error;

    fn now(&self) -> Instant {
        clock::now()
    }

    fn look(&mut self, waits: bool) -> Snapshot {
        // A signal comes for each child that ends, but perhaps later than the sign that a guard has died.
        let may_reap = self.child_signals.clear() || self.is_behind || self.guard_has_news;
        self.is_behind = may_reap && self.reap();
        let mut snapshot = Snapshot { is_behind: self.is_behind, ..Snapshot::default() };
        let news = self.job.command_news(self.guard_has_news);
        if let Some(notice) = self.job.denied() {
            self.teller.say(&notice);
        }
        (snapshot.has_ended, snapshot.has_command) = (news.ended.is_some(), self.job.has_command());
        snapshot.events = news.events(|end| self.command_ended(end));
        snapshot.is_emptied = self.keeper.inherited.page.stage() == Stage::Empty;
        if waits || snapshot.has_ended {
            snapshot.borrowers_have_gone = !self.may_be_used();
            snapshot.everyone_has_gone = snapshot.borrowers_have_gone && self.job.has_gone();
        }
        let is_lease_over = self.keeper.inherited.page.is_lease_over();
        // Once there is a command, the guard watches the lender.
        if (is_lease_over || self.job.is_gated()) && self.keeper.inherited.has_lost_lender() {
            snapshot.loss = Some(Loss::LenderGone);
        } else if is_lease_over {
            snapshot.loss = Some(Loss::LeaseOver);
        }
        snapshot.has_keeper_died = snapshot.loss.is_some() && self.keeper.died;
        if !self.caller_is_told && self.caller.as_ref().is_some_and(Caller::has_gone) {
            self.caller_is_told = true;
            snapshot.caller_has_gone = true;
        }
        snapshot
    }

    fn hear_keeper(&mut self) -> Option<Event> {
        self.keeper.hear()
    }

    fn lease(&self) -> (Option<Span>, Option<Instant>) {
        let lease = self.keeper.inherited.lease;
        (lease.span(), lease.answered_at())
    }

    fn signals(&mut self) -> anyhow::Result<Vec<(Signal, bool)>> {
        let shares = self.job.shares_group();
        let signals = self.signals.drain().into_iter();
        Ok(signals.map(|arrival| (arrival.signal, shares && arrival.went_to_foreground())).collect())
    }

    fn spoil(&mut self) {
        self.keeper.inherited.page.spoil();
    }

    fn perform(&mut self, effect: Effect) -> anyhow::Result<Option<Event>> {
        let failed = |why| Event::Command(CommandEvent::StartFailed(why));
        match effect {
            Effect::Spawn { grant, until } => return Ok(self.spawn(&grant, until)?.map(failed)),
            Effect::Recall(why) => return Ok(self.job.recall().then_some(failed(why))),
            Effect::Signal { signal, whom: Targets::Strayed } => self.job.forward_to_strayed(signal),
            Effect::Signal { signal, .. } => self.job.forward(signal, self.plan.settings.wait_descendants),
            Effect::Stop(signal) => {
                // The caller has until SIGKILL to end. The stand-in ends once the caller has.
                if !self.signal_caller(signal) {
                    self.job.stop(signal);
                }
            }
            Effect::Kill => {
                self.job.kill();
                self.keeper.inherited.lending.call_in();
                self.signal_caller(self.plan.settings.stop_signal);
            }
            Effect::QueueAgain => self.keeper.order(Order::QueueAgain),
            Effect::Release => {
                self.job.leave();
                self.keeper.order(Order::Release);
                self.teller.screen.keep();
                self.job.restore_terminal();
                if self.keeper.pid.is_none() {
                    return Ok(Some(Event::Keeper(Report::Released { was_busy: false })));
                }
                // The machine was told once that the keeper has gone. Such a keeper confirms nothing.
                if self.keeper.link.is_none() {
                    return Ok(Some(Event::KeeperGone));
                }
            }
            Effect::SuspendSelf(signal) => {
                self.clear_screen();
                signals::suspend_by(signal).context("cannot suspend zklock")?;
                // The kernel does not suspend an orphaned group, and then nobody continues what has left it
                // (setpgid(2)).
                self.job.forward_to_strayed(Signal::CONT);
                // zklock may have been suspended for long, so anything may have come.
                self.guard_has_news = true;
            }
            Effect::EndKeeper => self.keeper.kill(),
            Effect::Say(notice) => {
                let (weight, text) = self.teller.say(&notice);
                self.manager.status(weight, &text);
            }
            Effect::Finish(_) => {}
        }
        Ok(None)
    }
}
