//! The end of a run, and the reaping of children.

use std::time::Duration;

use super::Supervisor;
use crate::guard::program;
use crate::rules::message::Order;
use crate::system::{clock, process};

/// How long a keeper that has nothing left to do may take to exit.
const KEEPER_EXIT: Duration = Duration::from_millis(500);

/// How many children to reap in one turn: processes that fork all the time must not keep the loop from everything else.
const REAPS: usize = 1000;

/// How often to look whether a process that is to go has gone.
const CLEAN_UP_PAUSE: Duration = Duration::from_millis(10);

/// How long a process that has got a signal may take to die before it counts as left behind.
const DYING: Duration = Duration::from_millis(200);

impl Supervisor<'_> {
    /// Leaves neither the command nor the keeper running. After a run that ended as it should, only a keeper and a guard
    /// that are about to exit are left.
    pub(super) fn clean_up(&mut self, has_failed: bool) {
        self.manager.stopping();
        self.teller.screen.clear();
        self.start_writer();
        if has_failed && self.job.has_command() {
            self.signal_caller(self.plan.settings.stop_signal);
        }
        while self.job.remains() {
            self.pause(CLEAN_UP_PAUSE);
        }
        let until = clock::now() + KEEPER_EXIT;
        // The keeper exits when its socket is closed. After a run that has failed, the keeper does not know that nothing is left.
        // Below `zklock hold` there may be borrowers that no guard has ended. The keeper waits for these, unless it is told to
        // release.
        if has_failed && self.caller.is_none() {
            self.keeper.order(Order::Release);
        }
        self.keeper.link = None;
        self.keeper.inherited.close_guard_alive();
        while !self.keeper.reaped {
            let remaining = until.saturating_since(clock::now());
            if remaining.is_zero() {
                self.keeper.kill();
            }
            if clock::now() > until + KEEPER_EXIT {
                // A file system that does not answer keeps the keeper from dying.
                break;
            }
            self.pause(remaining.max(CLEAN_UP_PAUSE));
        }
        // A process that has got a signal may need a moment to die.
        let until = clock::now() + DYING;
        while self.keeper.inherited.page.is_spoiled() && self.job.left_behind().is_some() && clock::now() < until {
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

    /// Takes note of the children that have ended. Returns whether there may be more, for another turn.
    pub(super) fn reap(&mut self) -> bool {
        for _ in 0..REAPS {
            let Ok(Some((pid, status))) = process::reap(0) else { return false };
            let end = program::end_of(status);
            self.writer.ended(pid);
            self.job.reaped(pid, end);
            if self.keeper.pid == Some(pid) {
                self.keeper.ended(end);
            }
        }
        true
    }
}
