//! The dialect `single`: one node, of the client that has created it, and no queue.
//!
//! All holders have a node of the same name. So the session to which the node belongs says whether it is ours, and its czxid
//! says whether it was created anew.

use std::future::pending;

use super::io::KeeperIo;
use super::place::{StepEnd, queue_of};
use super::{Keeper, PAUSE};
use crate::rules::card::Card;
use crate::rules::child_name::ChildName;
use crate::rules::lock_path::LockPath;
use crate::rules::message::{Progress, QueueView, Report};
use crate::rules::queue::{ContenderId, Dialect, Queue, SINGLE};
use crate::system::futures::or;
use crate::zookeeper::session::{Change, Failure, Session};

impl<O: KeeperIo> Keeper<'_, O> {
    pub(super) fn is_single(&self) -> bool {
        self.plan.request.dialects == [Dialect::Single]
    }

    /// The queue of a lock with these children. A node with the name of a single one is a contender if it is ephemeral.
    pub(super) async fn queue(
        &self,
        session: &O::Session,
        lock: &LockPath,
        children: Vec<ChildName>,
    ) -> Result<Queue, StepEnd> {
        let queue = queue_of(lock, children)?;
        if self.is_single() || !queue.has_single() {
            return Ok(queue);
        }
        match self.insist(|| session.read(&lock.child(SINGLE))).await {
            Ok((_, stat)) if stat.owner != 0 => Ok(queue),
            // The node may be a contender. To be refused is better than to run beside it.
            Err(Failure::Denied) => Ok(queue),
            Ok(_) | Err(Failure::NoNode) => Ok(queue.without(|name| *name == SINGLE)),
            Err(failure) => Err(StepEnd::because(failure, lock)),
        }
    }

    /// The node exists, or may exist. If it is ours, the lock is ours. If it is another's, waits until it may have gone, and
    /// tries to create it again.
    pub(super) async fn wait_for_single(
        &self,
        session: &O::Session,
        lock: &LockPath,
        id: ContenderId,
    ) -> Result<(), StepEnd> {
        let node = lock.child(SINGLE);
        let stop = |failure| StepEnd::because(failure, lock);
        let seen = match session.read_and_watch(&node).await {
            Ok((_, stat, _)) if stat.owner == session.id() => {
                self.record_claim(lock, vec![node], stat);
                return Ok(());
            }
            Ok((_, stat, watch)) if stat.owner == 0 => Ok(("a node that is not ephemeral".to_owned(), watch)),
            Ok((data, stat, watch)) => {
                let card = Card::from_bytes(&data);
                self.expect_no_run_above(lock, SINGLE, &card, stat.owner)?;
                Ok((card.phrase().unwrap_or_else(|| SINGLE.to_owned()), watch))
            }
            // Servers send no event about a node that we may not read, but one about the children of the lock.
            Err(Failure::Denied) => {
                let watched = session.watch_children(lock.as_str()).await;
                watched.map(|(_, watch)| ("a node that may not be read".to_owned(), watch))
            }
            Err(failure) => Err(failure),
        };
        let (holder, watch) = match seen {
            Ok(seen) => seen,
            Err(Failure::NoNode) => return self.enqueue(session, lock, id).await,
            Err(Failure::Unknown(_)) => {
                self.io.sleep(PAUSE).await;
                return Ok(());
            }
            Err(failure) => return Err(stop(failure)),
        };
        let children = match self.insist(|| self.list(session, lock)).await {
            Err(Failure::NoNode) => return Ok(()),
            children => children.map_err(stop)?,
        };
        self.suitable(session, lock, children, SINGLE).await?;
        self.report_waiting(lock, holder);

        // The creation is tried again now and then in any case. The leader decides about it, although our server may go on
        // showing a node that has gone (ZOOKEEPER-5010).
        let changed = or(async { Ok(watch.await) }, async {
            self.io.sleep(session.timeout()).await;
            Ok(Change::Deleted)
        });
        // Meanwhile we beat for the locks that we have, and watch their nodes.
        let place = self.place.borrow().clone();
        let nodes = place.nodes();
        let beating = async {
            if !nodes.is_empty() {
                self.keep_beating(session, &nodes).await?;
            }
            pending().await
        };
        let deleted = async {
            self.until_deleted(session, &place).await?;
            pending().await
        };
        match or(deleted, or(beating, changed)).await? {
            Change::Deleted => self.enqueue(session, lock, id).await,
            Change::Other => Ok(()),
        }
    }

    /// The leader has the node. `listed`: the children that our server has shown just after that.
    ///
    /// Our server may lack the node for good (ZOOKEEPER-5010). Then it shows no holder, and there is nothing to watch.
    pub(super) fn single_exists(
        &self,
        session: &O::Session,
        lock: &LockPath,
        listed: Result<Vec<ChildName>, Failure>,
    ) -> Result<(), StepEnd> {
        match listed {
            Ok(names) if names.iter().all(|name| *name != SINGLE) => {
                self.report_waiting(lock, "a node that this server does not show".to_owned());
                log::info!("{} exists, but this server does not show it; asking another one", lock.child(SINGLE));
                session.distrust();
                Err(StepEnd::Reconnect)
            }
            // Without this permission we could not wait either.
            Err(Failure::Denied) => Err(StepEnd::because(Failure::Denied, lock)),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn report_waiting(&self, lock: &LockPath, holder: String) {
        let view = QueueView { lock: lock.to_string(), place: None, holder, held_since: None, free_at: None };
        self.told.borrow_mut().waits = Some((lock.clone(), None));
        self.io.report_if_room(&Report::Queue(Progress::Waiting(view)));
    }
}
