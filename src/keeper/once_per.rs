//! `--once-per`: whether the command is to run when the lock is ours, and the record of a run that was successful.

use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use super::Keeper;
use super::ending::KeeperEnd;
use super::io::KeeperIo;
use super::place::{Claim, StepEnd};
use crate::rules::instant::Instant;
use crate::rules::last_run::{self, Asked, LastRun, Success};
use crate::rules::message::{Progress, Remark, Report};
use crate::system::futures::or;
use crate::zookeeper::session::{Failure, NodeStat, Session};

/// How long a supervisor may take to say that the command was to be stopped when it ended. The keeper does not wait for a
/// supervisor that is stopped, because others wait for the lock.
const LAST_WORD: Duration = Duration::from_millis(200);

impl<O: KeeperIo> Keeper<'_, O> {
    /// Notes when this run asked for the lock, if the contender that was just created is its first one.
    pub(super) fn note_asked(&self, stat: NodeStat) {
        if self.plan.request.once_per.is_some() && self.run.asked.get().is_none() {
            // A single node is created when our turn has come. Only our own clock shows since when we have waited.
            let waited =
                if self.is_single() { self.io.now().saturating_since(self.run.started) } else { Duration::ZERO };
            let at = stat.created.saturating_sub(last_run::signed_millis(waited));
            // Counted from the start, because this process may have been stopped for long since the creation.
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

    /// Waits until the supervisor has had time to say that the command was being stopped: a Ctrl-C reaches the command
    /// without us. `life`: what goes on meanwhile. Returns why the keeper's work ends, if it is for another reason now.
    pub(super) async fn last_word(&self, life: impl Future<Output = KeeperEnd>) -> Option<KeeperEnd> {
        self.success(self.io.now())?;
        let enough = async {
            let going_on = async {
                life.await;
                pending().await
            };
            or(self.io.sleep(LAST_WORD), going_on).await;
            None
        };
        or(async { Some(self.follow_orders(None).await) }, enough).await
    }

    /// The success to record, if there is one, of a command that ended before `ended`.
    pub(super) fn success(&self, ended: Instant) -> Option<Success> {
        self.plan.request.once_per?;
        self.io.success().map(|began| Success { began, ended })
    }

    /// Records the run and deletes our contenders, over a connection that may be lost meanwhile. If the record may not be
    /// written, reports this, and leaves the contenders.
    pub(super) async fn conclude(&self, session: &O::Session, success: Success) -> Result<(), Failure> {
        let lost = async {
            session.lost().await;
            Err(Failure::Unknown("connection lost".to_owned()))
        };
        let why = match or(lost, self.record(session, success)).await {
            Ok(()) => return Ok(()),
            Err(why @ (Failure::Unknown(_) | Failure::SessionOver)) => return Err(why),
            Err(why) => why,
        };
        self.io.report_if_room(&Report::Remark(Remark::Unrecorded(Some(why.to_string()))));
        Ok(())
    }

    /// The lock is lost. Reports a success that has not been recorded.
    pub(super) fn report_unrecorded(&self, success: Option<Success>) {
        if success.is_some() {
            self.io.report_if_room(&Report::Remark(Remark::Unrecorded(None)));
        }
    }

    async fn record(&self, session: &O::Session, success: Success) -> Result<(), Failure> {
        let claims = self.place.borrow().claims();
        let is_first = |claim: &&Rc<Claim>| claim.lock == self.plan.request.lock;
        let Some(token) = claims.iter().find(is_first).map(|claim| claim.token) else { return Err(Failure::NoNode) };
        let record = last_run::path(self.plan.request.lock.as_str());
        let card = self.io.card();
        // A single node goes with the session: by now it may be another's.
        let mut nodes = if self.is_single() { vec![] } else { self.place.borrow().last_nodes_first() };
        loop {
            let data = success.to_bytes(self.io.now(), token, card.host.as_deref(), card.user.as_deref());
            match session.conclude(&record, &data, self.has_record.get(), &nodes).await {
                Err(Failure::Exists) => self.has_record.set(true),
                // The record is missing, or a node of ours.
                Err(Failure::NoNode) => {
                    let synced = session.sync(&record);
                    let read = session.read(&record);
                    synced.await?;
                    match read.await {
                        Ok((data, stat)) => {
                            let last = LastRun::from_bytes(&data, stat.written);
                            if last.is_some_and(|last| last.token >= Some(token)) {
                                // An earlier attempt has written it, and only the reply was lost; a later run may have
                                // written its own since then.
                                return Ok(());
                            }
                            if self.has_record.replace(true) {
                                return Err(Failure::NoNode);
                            }
                        }
                        Err(Failure::NoNode) if self.has_record.replace(false) => {}
                        Err(failure) => return Err(failure),
                    }
                }
                // The end of the session deletes nodes that we may not delete.
                Err(Failure::Denied) if !nodes.is_empty() => nodes.clear(),
                outcome => return outcome,
            }
        }
    }
}
