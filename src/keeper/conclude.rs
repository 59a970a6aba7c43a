//! What is written beside the locks at the end of a run: a success for `--once-per`, and a clean end for `--lock-delay`. Both
//! are written in the transaction that deletes our contenders, so that the next run finds them.

use std::future::pending;
use std::time::Duration;

use super::Keeper;
use super::ending::KeeperEnd;
use super::io::KeeperIo;
use crate::rules::instant::Instant;
use crate::rules::last_run::{self, LastRun, Success};
use crate::rules::lock_delay::{self, HolderFate, HolderRecord};
use crate::rules::message::{Remark, Report};
use crate::system::futures::or;
use crate::zookeeper::session::{Failure, NodeStat, RecordWrite, Replaced, Session};

/// How long a supervisor may take to say that the command was to be stopped when it ended. The keeper does not wait for a
/// supervisor that is suspended, because others wait for the lock.
const LAST_WORD: Duration = Duration::from_millis(200);

impl<O: KeeperIo> Keeper<'_, O> {
    /// Waits until the supervisor has had time to say that the command was being stopped: a Ctrl-C reaches the command
    /// without us. `life`: what goes on meanwhile. Returns why the keeper's work ends, if it is for another reason now.
    pub(super) async fn last_word(&self, life: impl Future<Output = KeeperEnd>) -> Option<KeeperEnd> {
        if self.success(self.io.now()).is_none() && self.releases.borrow().is_empty() {
            return None;
        }
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
        self.io.own_end().filter(|(_, status)| *status == 0).map(|(began, _)| Success { began, ended })
    }

    /// Whether the command has exited by itself.
    pub(super) fn has_exited(&self) -> bool {
        self.io.own_end().is_some_and(|(_, status)| libc::WIFEXITED(status))
    }

    /// Records the end and deletes our contenders, over a connection that may be lost meanwhile. What may not be written is
    /// reported; then the contenders are left to the end of the session.
    pub(super) async fn conclude(&self, session: &O::Session, success: Option<Success>) -> Result<(), Failure> {
        loop {
            let lost = async {
                session.lost().await;
                Err(Failure::Unknown("connection lost".to_owned()))
            };
            let why = match or(lost, self.record(session, success)).await {
                Ok(()) => return Ok(()),
                Err(why @ (Failure::Unknown(_) | Failure::SessionOver)) => return Err(why),
                Err(why) => why.to_string(),
            };
            let was_clean = !self.releases.take().is_empty();
            let remark = if was_clean { Remark::Unreleased(why) } else { Remark::Unrecorded(Some(why)) };
            self.io.report_if_room(&Report::Remark(remark));
            if !was_clean || success.is_none() {
                return Ok(());
            }
        }
    }

    /// The lock is lost. Reports a success that has not been recorded.
    pub(super) fn report_unrecorded(&self, success: Option<Success>) {
        if success.is_some() {
            self.io.report_if_room(&Report::Remark(Remark::Unrecorded(None)));
        }
    }

    async fn record(&self, session: &O::Session, success: Option<Success>) -> Result<(), Failure> {
        let token = self.token_of(&last_run::path(self.plan.request.lock.as_str()), last_run::path);
        let Some(token) = token else { return Err(Failure::NoNode) };
        let card = self.io.card();
        // A single node goes with the session: by now it may be another's.
        let mut nodes = if self.is_single() { vec![] } else { self.place.borrow().last_nodes_first() };
        let mut checked = vec![];
        loop {
            let last = success.map(|success| RecordWrite {
                path: last_run::path(self.plan.request.lock.as_str()),
                data: success.to_bytes(self.io.now(), token, card.host.as_deref(), card.user.as_deref()),
                replaces: if self.has_record.get() { Replaced::Anything } else { Replaced::Nothing },
            });
            let records: Vec<_> = last.into_iter().chain(self.releases.borrow().clone()).collect();
            match session.transact(&checked, &records, &nodes).await {
                Err(Failure::Exists) => self.has_record.set(true),
                // A record has another version, or is missing, or a node of ours is.
                Err(failure @ (Failure::NoNode | Failure::Changed)) => {
                    let first = &records[0].path;
                    let (synced, read) = (session.sync(first), session.read(first));
                    synced.await?;
                    let found = match read.await {
                        Err(Failure::NoNode) => None,
                        found => Some(found?),
                    };
                    let (is_missing, is_needed) =
                        (found.is_none(), self.is_still_needed(first, found, success.is_some()));
                    if !is_needed {
                        return Ok(());
                    }
                    if success.is_none() || self.has_record.replace(!is_missing) != is_missing {
                        return Err(failure);
                    }
                }
                // The end of the session deletes nodes that we may not delete.
                Err(Failure::Denied) if !nodes.is_empty() => checked = std::mem::take(&mut nodes),
                outcome => return outcome,
            }
        }
    }

    /// Whether this record, which is `found` to be like that, does not say yet how the run has ended. An earlier attempt may have
    /// written it, with its reply lost, and a later run may have written its own since then. `of_success`: whether the record
    /// is that of the last successful run.
    fn is_still_needed(&self, path: &str, found: Option<(Vec<u8>, NodeStat)>, of_success: bool) -> bool {
        if of_success {
            let own = self.token_of(path, last_run::path);
            let last = found.and_then(|(data, stat)| LastRun::from_bytes(&data, stat.written));
            return last.is_none_or(|last| last.token < own);
        }
        let own = self.token_of(path, lock_delay::path);
        let holder = found.and_then(|(data, _)| HolderRecord::from_bytes(&data));
        holder.is_some_and(|holder| holder.fate == HolderFate::Held && Some(holder.token) == own)
    }

    /// Our token for the lock whose record has this path.
    fn token_of(&self, path: &str, record_of: impl Fn(&str) -> String) -> Option<i64> {
        let claims = self.place.borrow().claims();
        claims.iter().find(|claim| record_of(claim.lock.as_str()) == path).map(|claim| claim.token)
    }
}
