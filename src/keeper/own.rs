//! Watches our own nodes: for their deletion, and for requests to give up.

use std::future::pending;

use super::io::KeeperIo;
use super::place::{Place, StepEnd};
use super::{Keeper, PAUSE};
use crate::rules::message::{Loss, Report, Revoker};
use crate::rules::revocation::Revocation;
use crate::system::futures::{first_of, or};
use crate::zookeeper::session::{Change, Failure, Session};

impl<O: KeeperIo> Keeper<'_, O> {
    /// Waits until one of our nodes is deleted. Acts on requests to give up the lock.
    pub(super) async fn until_deleted(&self, session: &O::Session, place: &Place) -> Result<(), StepEnd> {
        let nodes = place.stamped_nodes();
        let each = nodes.iter().map(|(node, created)| self.until_one_is_deleted(session, node, *created));
        first_of(each).await.1
    }

    /// `created`: the transaction that has created the node.
    async fn until_one_is_deleted(&self, session: &O::Session, node: &str, created: i64) -> Result<(), StepEnd> {
        loop {
            let change = match session.read_and_watch(node).await {
                // Our node was deleted while we had no watch on it, and this is a node of somebody else.
                Ok((_, stat, _)) if stat.czxid != created => {
                    log::info!("{node} is the node of another contender now: it was deleted and created anew");
                    Change::Deleted
                }
                Ok((data, _, watch)) => match self.heed(&data)? {
                    Some(report) => or(watch, self.report_revoked(&report)).await,
                    None => watch.await,
                },
                // The connection has gone, and this future is dropped in a moment.
                Err(Failure::Unknown(_)) => {
                    self.io.sleep(PAUSE).await;
                    continue;
                }
                Err(Failure::NoNode) if !self.is_single() => return Err(StepEnd::Unseen(node.to_owned())),
                // A single node that we may not read is not ours.
                Err(Failure::Denied) if self.is_single() => Change::Deleted,
                Err(failure) => return Err(StepEnd::because(failure, node)),
            };
            match change {
                // Changed by our own beat, which publishes since when we hold, or by someone else who wrote
                // to the node.
                Change::Other => {}
                Change::Deleted => return Err(StepEnd::Gone(Loss::NodeDeleted)),
            }
        }
    }

    /// What the data of `node` asks of us, if anything. A waiter leaves; a holder tells the supervisor what is returned, and
    /// holds until the command has been stopped.
    fn heed(&self, data: &[u8]) -> Result<Option<Report>, StepEnd> {
        let told = self.told.borrow();
        let Some(asked) = Revocation::from_bytes(data).filter(|asked| asked.is_for(told.held)) else { return Ok(None) };
        let report = Report::Revoked(Revoker::User(asked.by));
        if told.held { Ok(Some(report).filter(|_| !told.revoked)) } else { Err(StepEnd::Final(report)) }
    }

    /// Tells the supervisor once, as soon as there is room: nothing would ask again. Never ends.
    async fn report_revoked<T>(&self, report: &Report) -> T {
        self.io.report(report).await;
        self.told.borrow_mut().revoked = true;
        pending().await
    }
}
