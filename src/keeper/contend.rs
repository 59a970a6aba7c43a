//! What a keeper does over one connection: it joins the queue of each lock, waits and holds. When the connection is lost,
//! this work is dropped at any point; over the next connection the keeper continues from its
//! [`Place`](super::place::Place).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use super::io::KeeperIo;
use super::leader::TOGETHER;
use super::place::{Claim, Step, StepEnd, lacking, queue_of, refuse};
use super::{Keeper, PAUSE};
use crate::rules::contacts::{Beat, Contacts};
use crate::rules::lock_path::LockPath;
use crate::rules::message::{Connectivity, Loss, Refusal, Report, Right};
use crate::rules::queue::{Contender, ContenderId, Dialect, Queue, is_numbered};
use crate::system::futures::or;
use crate::zookeeper::session::{Created, Failure, NodeStat, Session};

/// How long a connection may last after a request over it has failed without a known outcome.
const RECONNECT: Duration = Duration::from_secs(1);

/// Whose a node is.
pub(super) enum Owner {
    Us(NodeStat),
    /// Another session's, or nobody's any more.
    Another,
    /// We may not read the node.
    Hidden,
}

impl<O: KeeperIo> Keeper<'_, O> {
    /// Queues, waits and holds, from our place on. Returns how the work ends for good, or `None` if it has to continue over
    /// another connection.
    pub(super) async fn contend(&self, session: &O::Session) -> Option<Report> {
        if let Err(failure) = self.arrive(session).await {
            return Some(refuse(failure, &self.plan.request.lock));
        }
        loop {
            let place = self.place.borrow().clone();
            let lock = self.locks.get(place.won.len()).copied().unwrap_or(&self.plan.request.lock);
            let step = match &place.step {
                Step::Nowhere => self.enqueue(session, lock, ContenderId::new(session.id(), self.io.random())).await,
                Step::Uncertain(id) => self.recover(session, lock, *id).await,
                // One watch on each of our nodes, through waiting and holding. What happened to our nodes
                // comes first, because it may arrive together with our turn.
                Step::Queued(claim) => {
                    or(self.until_deleted(session, &place), self.wait_and_hold(session, claim)).await
                }
                Step::Holding => {
                    let nodes = place.nodes();
                    or(self.until_deleted(session, &place), self.keep_beating(session, &nodes)).await
                }
            };
            return match step {
                Ok(()) => continue,
                Err(StepEnd::Final(report)) => Some(report),
                Err(StepEnd::Reconnect) => None,
                // A waiter queues again with another session. With this session go the nodes that we may not delete, and a
                // node of ours that a restored backup has brought back in the queue of a later lock: a contender behind that
                // node, which holds the lock that we wait for here, would wait for ever.
                Err(StepEnd::Gone(loss)) => Some(Report::Lost(loss)),
                // A holder believes its server: there may be another holder already.
                Err(StepEnd::Unseen(_)) if self.told.borrow().held => Some(Report::Lost(Loss::NodeDeleted)),
                Err(StepEnd::Unseen(node)) => match self.are_hidden(session, &[node]).await {
                    Ok(false) => Some(Report::Lost(Loss::NodeDeleted)),
                    Ok(true) => None,
                    Err(failure) => Some(refuse(failure, lock)),
                },
            };
        }
    }

    /// Gets this server up to date before anything else is asked over its connection.
    async fn arrive(&self, session: &O::Session) -> Result<(), Failure> {
        self.beats.contacts.replace(Contacts::new(session.opened()));
        self.expect_other_lists();
        if !self.place.borrow().is_nowhere() {
            // The list came over an earlier connection.
            if let Step::Queued(claim) = &self.place.borrow().step {
                claim.listed.take();
            }
            self.catch_up(session).await?;
        }
        self.session.timeout.set(session.timeout());
        Ok(())
    }

    /// Tells the supervisor that there is a session, once.
    pub(super) async fn tell_of_session(&self, session: &O::Session) {
        if self.told.borrow().connected {
            return;
        }
        let timeout = session.timeout();
        self.io.report(&Report::Connection(Connectivity::Connected(timeout))).await;
        // Set after the report: while the report waits for room, the connection may be lost.
        self.told.borrow_mut().connected = true;
        log::info!("session {:#018x}, timeout {timeout:?}", session.id());
    }

    /// Makes sure that this server knows all that the server before has shown us. A server that lags might show a queue
    /// without our node: we would take the node for deleted, or create a second one and wait behind the first.
    async fn catch_up(&self, session: &O::Session) -> Result<(), Failure> {
        let nodes = self.place.borrow().stamped_nodes();
        if nodes.is_empty() {
            let lock = self.plan.request.lock.to_string();
            return self.sync_and_check(session, &[lock]).await.map(|_| ());
        }
        let (paths, created): (Vec<_>, Vec<_>) = nodes.into_iter().unzip();
        let Some(beat) = self.sync_and_check(session, &paths).await? else { return Ok(()) };
        // A lease says that our nodes exist, so it is extended only if the answer says so of the very nodes that we have
        // created. If one was deleted meanwhile, the watch that is set next tells us.
        let stamps: Vec<_> = paths.iter().map(|path| session.read(path)).collect();
        for (stamp, created) in stamps.into_iter().zip(created) {
            if !stamp.await.is_ok_and(|(_, stat)| stat.czxid == created) {
                return Ok(());
            }
        }
        self.extend_lease(session, beat);
        Ok(())
    }

    /// Waits until our server knows all that was done before now. Returns the beat that was answered, or `None` if one of
    /// `nodes` does not exist, or an ACL forbids the check.
    ///
    /// `sync` makes a server catch up with its leader. But the leader may have been deposed without knowing it, so a beat
    /// follows: a transaction goes through only where there is a quorum.
    async fn sync_and_check(&self, session: &O::Session, nodes: &[String]) -> Result<Option<Beat>, Failure> {
        let ask = || {
            let beat = self.beat_now();
            let (synced, checked) = (session.sync(&nodes[0]), session.beat(nodes, None));
            async move {
                synced.await?;
                checked.await.map(|()| beat)
            }
        };
        match self.insist(ask).await {
            Ok(beat) => Ok(Some(beat)),
            Err(Failure::NoNode | Failure::Denied) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Creates the contender's nodes. If the reply is lost, the step stays uncertain.
    pub(super) async fn enqueue(&self, session: &O::Session, lock: &LockPath, id: ContenderId) -> Result<(), StepEnd> {
        let request = &self.plan.request;
        let prefixes: Vec<_> =
            request.dialects.iter().map(|dialect| lock.child(&id.prefix(*dialect, request.mode))).collect();
        let data = self.io.card().to_bytes();
        // If the lock was deleted meanwhile, its numbers begin anew, and so do the names.
        self.ignored.borrow_mut().retain(|node| !node.starts_with(&lock.child("")));
        loop {
            self.place.borrow_mut().step = Step::Uncertain(id);
            let beat = self.beat_now();
            // Of several nodes the servers would say nothing anyway.
            let with_stat = prefixes.len() == 1 && !self.session.is_before_3_5.get();
            // Both requests leave back to back and are answered in order, so the list contains the nodes.
            let created = session.create(&prefixes, &data, !self.is_single(), with_stat);
            let listed = session.children(lock.as_str());
            let created = created.await;
            match created {
                Ok(Created { paths, stat }) => {
                    // A creation goes through the quorum, as a beat does, but it says nothing about the nodes of earlier
                    // locks.
                    if self.place.borrow().won.is_empty() {
                        self.extend_lease(session, beat);
                    }
                    // Without a token, the nodes are looked for as if the reply had been lost.
                    if let Some(stat) = stat {
                        let claim = self.record_claim(lock, paths, stat);
                        claim.listed.set(listed.await.ok().inspect(|names| self.remember(lock, names)));
                    }
                    return Ok(());
                }
                Err(Failure::NoNode) => self.create_parents(session, lock).await?,
                // The node is another's, or our own from a creation whose reply was lost: the step is still uncertain.
                Err(Failure::Exists) if self.is_single() => return self.single_exists(session, lock, listed.await),
                // Somebody who knows our id has taken the name that comes next. So we try again with another id.
                Err(Failure::Exists) => {
                    self.place.borrow_mut().step = Step::Nowhere;
                    return Ok(());
                }
                Err(Failure::Unimplemented) if with_stat => return Err(self.note_before_3_5()),
                Err(Failure::Unknown(why)) => {
                    log::info!("the contender may or may not have been created: {why}");
                    // As a rule the connection has gone, and this future is dropped before the time is over.
                    self.io.sleep(RECONNECT).await;
                    return Err(StepEnd::Reconnect);
                }
                // Servers that do not upgrade local sessions answer a transaction so, and the session goes on.
                Err(Failure::SessionOver) if session.sync(lock.as_str()).await.is_ok() => {
                    return Err(StepEnd::because(Failure::of_local_session(), lock));
                }
                Err(failure) => return Err(lacking(failure, lock, Right::Create)),
            }
        }
    }

    pub(super) fn record_claim(&self, lock: &LockPath, nodes: Vec<String>, stat: NodeStat) -> Rc<Claim> {
        log::info!("contender {}", nodes.join(" "));
        self.note_asked(stat);
        let servers_clock = (stat.created, self.io.now());
        let (lock, token, listed, holder) = (lock.clone(), stat.czxid, Cell::default(), RefCell::default());
        let claim = Rc::new(Claim { lock, nodes, token, servers_clock, listed, holder });
        self.place.borrow_mut().step = Step::Queued(Rc::clone(&claim));
        claim
    }

    async fn create_parents(&self, session: &O::Session, lock: &LockPath) -> Result<(), StepEnd> {
        let containers = !self.session.is_before_3_5.get();
        match session.create_parents(lock.as_str(), containers).await {
            Ok(()) => {}
            Err((Failure::NoNode, _)) => return Err(StepEnd::Final(Report::Refused(Refusal::NoChroot))),
            Err((Failure::Unimplemented, _)) if containers => return Err(self.note_before_3_5()),
            // Nodes that exist already are no error, so the caller can simply try again.
            Err((Failure::Unknown(_), _)) => self.io.sleep(PAUSE).await,
            Err((failure, node)) => {
                let above = node.rsplit_once('/').map(|(above, _)| above).filter(|above| !above.is_empty());
                return Err(lacking(failure, above.unwrap_or("/"), Right::Create));
            }
        }
        Ok(())
    }

    /// The server does not know a request that ZooKeeper has had since 3.5, and closes the connection over it.
    fn note_before_3_5(&self) -> StepEnd {
        log::info!("the server is older than ZooKeeper 3.5");
        self.session.is_before_3_5.set(true);
        StepEnd::Reconnect
    }

    /// Looks for the nodes of a creation whose reply was lost, and creates them if there are none.
    async fn recover(&self, session: &O::Session, lock: &LockPath, id: ContenderId) -> Result<(), StepEnd> {
        if self.is_single() {
            return self.wait_for_single(session, lock, id).await;
        }
        let children = match self.insist(|| self.list(session, lock)).await {
            Err(Failure::NoNode) => return self.enqueue(session, lock, id).await,
            children => children.map_err(|failure| lacking(failure, lock, Right::Read))?,
        };
        let queue = queue_of(lock, children)?;
        let ours = self.created_as(session, lock, id, &queue).await?;
        // The lowest nodes that one transaction has created: one of each dialect, with no other contender
        // between them. Further nodes come from a second transaction, or from one of which a node was
        // deleted.
        let is_whole = |nodes: &&[(&Contender, NodeStat)]| {
            let expected = self.plan.request.dialects.iter().zip(nodes[0].0.sequence..);
            let is_next = |((dialect, sequence), node): ((&Dialect, i32), &Contender)| {
                (node.reads, node.sequence) == (*dialect, sequence)
            };
            expected.zip(nodes.iter().map(|(node, _)| *node)).all(is_next)
        };
        let whole = ours.windows(self.plan.request.dialects.len()).find(is_whole).unwrap_or_default();
        for (surplus, _) in ours.iter().filter(|node| !whole.contains(node)) {
            // If we may not delete the node, `delete_twin` finds out whether it is in our way.
            self.delete_second(session, &lock.child(&surplus.name)).await?;
        }
        let Some((_, stat)) = whole.first() else { return self.enqueue(session, lock, id).await };
        let nodes = whole.iter().map(|(node, _)| lock.child(&node.name)).collect();
        self.record_claim(lock, nodes, *stat);
        Ok(())
    }

    /// The nodes of this queue that our creation with this id has made, and what the server says of them. Others can see the
    /// id and use it in a name. Our nodes have the names that we asked for, and belong to our session.
    async fn created_as<'q>(
        &self,
        session: &O::Session,
        lock: &LockPath,
        id: ContenderId,
        queue: &'q Queue,
    ) -> Result<Vec<(&'q Contender, NodeStat)>, StepEnd> {
        let request = &self.plan.request;
        let is_asked = |contender: &&Contender| {
            let has = |dialect: &Dialect| is_numbered(&contender.name, &id.prefix(*dialect, request.mode));
            request.dialects.iter().any(has)
        };
        let asked: Vec<_> = queue.contenders().iter().filter(is_asked).collect();
        let nodes: Vec<_> = asked.iter().map(|contender| lock.child(&contender.name)).collect();
        let mut ours = vec![];
        for (contender, owner) in asked.into_iter().zip(self.owners(session, &nodes).await?) {
            match owner {
                Owner::Us(stat) => ours.push((contender, stat)),
                Owner::Another => {}
                // If the node is ours, we would wait for ourselves. With the end of this session it is gone.
                Owner::Hidden => return Err(StepEnd::Final(Report::Lost(Loss::SessionOver))),
            }
        }
        Ok(ours)
    }

    /// Whose nodes these are. The questions leave together.
    pub(super) async fn owners(&self, session: &O::Session, nodes: &[String]) -> Result<Vec<Owner>, StepEnd> {
        let mut owners = vec![];
        for nodes in nodes.chunks(TOGETHER) {
            let answers: Vec<_> = nodes.iter().map(|node| session.read(node)).collect();
            for (answer, node) in answers.into_iter().zip(nodes) {
                let answer = match answer.await {
                    Err(Failure::Unknown(_)) => self.insist(|| session.read(node)).await,
                    answer => answer,
                };
                owners.push(match answer {
                    Ok((_, stat)) if stat.owner == session.id() => Owner::Us(stat),
                    Ok(_) | Err(Failure::NoNode) => Owner::Another,
                    Err(Failure::Denied) => Owner::Hidden,
                    Err(failure) => return Err(StepEnd::because(failure, node)),
                });
            }
        }
        Ok(owners)
    }

    /// Deletes a second node of this session. Returns whether we may do that.
    pub(super) async fn delete_second(&self, session: &O::Session, node: &str) -> Result<bool, StepEnd> {
        match self.insist(|| session.delete(node)).await {
            Ok(()) => log::warn!("deleted {node}: a second node of this session"),
            Err(Failure::Denied) => return Ok(false),
            Err(failure) => return Err(StepEnd::because(failure, node)),
        }
        Ok(true)
    }

    /// Repeats a request until its outcome is known. The request must change nothing, or nothing more the second time.
    pub(super) async fn insist<T>(&self, request: impl AsyncFn() -> Result<T, Failure>) -> Result<T, Failure> {
        loop {
            match request().await {
                Err(Failure::Unknown(why)) => {
                    log::info!("asking again: {why}");
                    self.io.sleep(PAUSE).await;
                }
                result => return result,
            }
        }
    }
}
