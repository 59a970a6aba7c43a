//! `--once-per`: whether the command is to run when the lock is ours.

use std::time::Duration;

use super::Keeper;
use super::io::KeeperIo;
use super::place::StepEnd;
use crate::rules::last_run::{self, Asked, LastRun};
use crate::rules::message::{Progress, Remark, Report};
use crate::zookeeper::session::{Failure, NodeStat, Session};

impl<O: KeeperIo> Keeper<'_, O> {
    /// Notes when this run asked for the lock, if the contender that was just created is its first one.
    pub(super) fn note_asked(&self, stat: NodeStat) {
        if self.plan.request.once_per.is_some() && self.run.asked.get().is_none() {
            // A single node is created when our turn has come. Only our own clock shows since when we have waited.
            let waited =
                if self.is_single() { self.io.now().saturating_since(self.run.started) } else { Duration::ZERO };
            let at = stat.created.saturating_sub(last_run::signed_millis(waited));
            // Counted from the start, because this process may have been suspended for long since the creation.
            self.run.asked.set(Some(Asked { at, after: self.run.started }));
        }
    }

    /// Returns if the command is to run; if not, stops with the last run, which was recent. To be called when it is our turn.
    ///
    /// What our server shows of the record is new enough. The record of a run is written in the transaction that deletes
    /// the contender of that run, or before that. If a contender was before us, this server has shown us that it is gone.
    /// If none was, our own contender is newer than all that went before, and this server knows ours. Only a server that
    /// has missed transactions for good, and has to be believed because no other one answers, may have missed the record
    /// as well.
    pub(super) async fn judge_last_run(&self, session: &O::Session) -> Result<(), StepEnd> {
        let (Some(period), Some(asked)) = (self.plan.request.once_per, self.run.asked.get()) else { return Ok(()) };
        let record = last_run::path(self.plan.request.lock.as_str());
        let (data, stat) = match self.insist(|| session.read(&record)).await {
            Err(Failure::NoNode) => {
                self.has_record.set(false);
                return Ok(());
            }
            read => read.map_err(|failure| StepEnd::because(failure, &record))?,
        };
        self.has_record.set(true);
        if data.is_empty() {
            // An administrator has made the record for users who may write but not create it.
            return Ok(());
        }
        let last = LastRun::from_bytes(&data, stat.written);
        let Some(last) = last.filter(|last| !last.is_absurd(asked, self.io.now(), period)) else {
            if !std::mem::replace(&mut self.told.borrow_mut().misrecorded, true) {
                self.io.report_if_room(&Report::Remark(Remark::Misrecorded(record)));
            }
            return Ok(());
        };
        if last.is_recent(asked, period) { Err(StepEnd::Final(Report::Queue(Progress::Skipped(last)))) } else { Ok(()) }
    }
}
