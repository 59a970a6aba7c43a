//! Holds what our server shows against what the leader knows.
//!
//! A server of an ensemble may differ from its leader for good. It may go on showing a node that was deleted
//! (ZOOKEEPER-5010), which would make us wait for ever. It may lack a node that exists, because it lost a transaction when
//! it came to follow another leader; then two would hold.

use std::collections::HashSet;
use std::slice;
use std::time::Duration;

use super::Keeper;
use super::io::KeeperIo;
use super::place::{Claim, StepEnd, queue_of};
use crate::rules::child_name::ChildName;
use crate::rules::lock_path::LockPath;
use crate::rules::queue::{Contender, SINGLE, Standing};
use crate::rules::settings::Patience;
use crate::zookeeper::session::{Failure, Session};

/// The children of a lock that we have seen in its lists, and that may still be there.
///
/// A server that comes to follow another leader closes the connections of its clients first. So a child that vanishes from
/// the lists of one connection has gone. One that is missing from the first list of the next connection may still be there.
#[derive(Default)]
pub(super) struct SeenChildren {
    /// The children in the last list over this connection.
    listed: HashSet<ChildName>,
    /// The children that were in the last list over an earlier connection, and in no list since.
    vanished: HashSet<ChildName>,
}

/// How many questions are sent together.
pub(super) const TOGETHER: usize = 100;

impl<O: KeeperIo> Keeper<'_, O> {
    /// Lists the children of a lock, and remembers them.
    pub(super) async fn list(&self, session: &O::Session, lock: &LockPath) -> Result<Vec<ChildName>, Failure> {
        let names = session.children(lock.as_str()).await?;
        self.remember(lock, &names);
        Ok(names)
    }

    /// Our server has listed these children of a lock.
    pub(super) fn remember(&self, lock: &LockPath, names: &[ChildName]) {
        let mut seen = self.seen.borrow_mut();
        let SeenChildren { listed, vanished } = seen.entry(lock.clone()).or_default();
        *listed = names.iter().cloned().collect();
        vanished.retain(|name| !listed.contains(name));
    }

    /// The next lists come over another connection.
    pub(super) fn expect_other_lists(&self) {
        self.seen
            .borrow_mut()
            .values_mut()
            .for_each(|SeenChildren { listed, vanished }| vanished.extend(listed.drain()));
    }

    /// These names say that it is our turn. Completes if the leader has none of the vanished contenders that come before us,
    /// or if those do not keep us from the lock.
    pub(super) async fn ask_for_vanished(
        &self,
        session: &O::Session,
        claim: &Claim,
        mut names: Vec<ChildName>,
    ) -> Result<(), StepEnd> {
        let lock = &claim.lock;
        let vanished = self.seen.borrow().get(lock).map(|seen| seen.vanished.iter().cloned().collect());
        let mut vanished: Vec<_> = self.without_ignored(lock, vanished.unwrap_or_default());
        vanished.retain(|name| claim.names().all(|own| *name != own));
        if vanished.is_empty() {
            return Ok(());
        }
        names.extend(vanished.iter().cloned());
        let queue = queue_of(lock, names)?;
        if let Standing::Holds = queue.standing(claim.name()) {
            return Ok(());
        }
        let before = queue.contenders().iter().take_while(|contender| contender.name != claim.name());
        let before = before.filter(|contender| vanished.contains(&contender.name));
        let nodes: Vec<String> = before.map(|contender| lock.child(&contender.name)).collect();
        if self.are_hidden(session, &nodes).await.map_err(|failure| StepEnd::because(failure, lock))? {
            return Err(StepEnd::Reconnect);
        }
        if let Some(seen) = self.seen.borrow_mut().get_mut(lock) {
            seen.vanished.retain(|name| !nodes.contains(&lock.child(name)));
        }
        Ok(())
    }

    /// Our server does not show these nodes. Returns whether the leader has one of them; the next connection is to another
    /// server then.
    pub(super) async fn are_hidden(&self, session: &O::Session, nodes: &[String]) -> Result<bool, Failure> {
        for nodes in nodes.chunks(TOGETHER) {
            let ask = |node| session.beat(slice::from_ref(node), None);
            let answers: Vec<_> = nodes.iter().map(ask).collect();
            for (answer, node) in answers.into_iter().zip(nodes) {
                let answer = match answer.await {
                    Err(Failure::Unknown(_)) => self.insist(|| ask(node)).await,
                    answer => answer,
                };
                match answer {
                    Err(Failure::NoNode) => {}
                    // What does not exist has no ACL.
                    Ok(()) | Err(Failure::Denied) => {
                        log::warn!("{node} exists, but this server does not show it; asking another one");
                        session.distrust();
                        return Ok(true);
                    }
                    Err(failure) => return Err(failure),
                }
            }
        }
        Ok(false)
    }

    /// Asks whether a contender is still before us at the lock that we have told that we wait for. What we have told may be
    /// old: this process may have been suspended since then, or the network silent. Our own node may have gone by now.
    /// The requests are queued at once; the answer is false if one of them is not answered as it should be.
    pub(super) fn ask_if_busy<'s>(&'s self, session: &'s O::Session) -> impl Future<Output = bool> + use<'s, O> {
        let is_delayed = self.told.borrow().delayed_until.is_some_and(|until| self.io.now() < until);
        let waits = self.told.borrow().waits.clone().filter(|_| !is_delayed);
        // With --nonblock, the queue was read a moment ago, so it is not asked for again.
        let is_asked = !self.told.borrow().held && self.plan.settings.patience != Patience::NoWait;
        let asked = waits.filter(|_| is_asked).map(|(lock, own)| {
            let single = lock.child(SINGLE);
            let synced = session.sync(lock.as_str());
            let (listed, read) = (session.children(lock.as_str()), session.read(&single));
            // Our server may lack it.
            let exists = own.is_none().then(|| session.beat(slice::from_ref(&single), None));
            (lock, own, synced, listed, read, exists)
        });
        async move {
            let Some((lock, own, synced, listed, read, exists)) = asked else { return is_delayed };
            let owner = read.await.map(|(_, stat)| stat.owner);
            if let Some(exists) = exists {
                // What does not exist has no ACL.
                return owner != Ok(session.id()) && matches!(exists.await, Ok(()) | Err(Failure::Denied));
            }
            let (Ok(()), Ok(names)) = (synced.await, listed.await) else { return false };
            let Some(own) = own.and_then(ChildName::parse) else { return false };
            let mut names = self.without_ignored(&lock, names);
            // Our server may show an earlier node of ours that was deleted.
            let id = |name: &ChildName| Contender::parse(name).and_then(|contender| contender.id);
            names.retain(|name| id(name).is_none_or(|id| id.session() != session.id()) || *name == own);
            if !names.contains(&own) {
                names.push(own.clone());
            }
            let Ok(queue) = queue_of(&lock, names) else { return false };
            let has_single = !matches!(owner, Ok(0) | Err(Failure::NoNode));
            let queue = queue.without(|name| *name == SINGLE && !has_single);
            matches!(queue.standing(&own), Standing::Waits { .. })
        }
    }

    /// Asks the leader every `period` whether the nodes that we watch exist. Completes when one of them does not,
    /// although no watch of ours has fired: a server may miss a deletion for good (ZOOKEEPER-5010).
    pub(super) async fn until_gone(
        &self,
        session: &O::Session,
        watched: &[String],
        period: Duration,
    ) -> Result<(), StepEnd> {
        loop {
            self.io.sleep(period).await;
            for node in watched {
                // Apart from the beats: a beat fails if any node is missing.
                match session.beat(slice::from_ref(node), None).await {
                    Err(Failure::NoNode) => return self.see_through(session, node).await,
                    Err(failure @ Failure::SessionOver) => return Err(StepEnd::because(failure, node)),
                    Ok(()) | Err(_) => {}
                }
            }
        }
    }

    /// The leader does not have `node`, which we watch. Completes if our server does not have it either.
    async fn see_through(&self, session: &O::Session, node: &str) -> Result<(), StepEnd> {
        let stop = |failure| StepEnd::because(failure, node);
        // Our server may not have heard of the deletion yet.
        self.insist(|| session.sync(node)).await.map_err(stop)?;
        match self.insist(|| session.read(node)).await {
            Err(Failure::NoNode) => return Ok(()),
            Ok(_) | Err(Failure::Denied) => {}
            Err(failure) => return Err(stop(failure)),
        }
        log::info!("{node} was deleted, but this server still shows it; asking another one");
        self.ignored.borrow_mut().insert(node.to_owned());
        session.distrust();
        Err(StepEnd::Reconnect)
    }

    /// The children of a lock without those that the leader no longer has, and those that are
    /// [no contenders](Self::note_if_foreign). If no other server can be reached, the leader's word is enough: numbers are not
    /// given out twice as long as our own node is there, so no contender of this name comes before it.
    pub(super) fn without_ignored(&self, lock: &LockPath, mut names: Vec<ChildName>) -> Vec<ChildName> {
        let ignored = self.ignored.borrow();
        if !ignored.is_empty() {
            names.retain(|name| !ignored.contains(&lock.child(name)));
        }
        names
    }
}
