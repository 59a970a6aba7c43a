//! Waits in the queue of a lock until it is our turn, and watches what must not change.

use std::future::pending;
use std::rc::Rc;
use std::slice;
use std::time::Duration;

use super::contend::queue_of;
use super::outside::Outside;
use super::place::{Claim, Place, Step, Stop};
use super::{Keeper, PAUSE};
use crate::futures::{first_of, or};
use crate::plan::LockPath;
use crate::rules::card::Card;
use crate::rules::message::{Grant, Granted, Loss, Progress, Refusal, Report, View};
use crate::rules::queue::{Contender, Queue, Standing};
use crate::rules::text::printable;
use crate::session::{Change, Failure, Session};

impl<O: Outside> Keeper<'_, O> {
    /// Waits until we have the lock. If it is the last one, reports that we hold them all, and holds.
    pub(super) async fn wait_and_hold(&self, session: &O::Session, claim: &Claim) -> Result<(), Stop> {
        let nodes = self.place.borrow().nodes();
        if claim.is_own() {
            self.wait_turn(session, &nodes, claim).await?;
        }
        let won = self.place.borrow().claims();
        if won.len() < self.locks.len() {
            self.outside.report_if_room(&Report::Queue(Progress::Turn));
            self.place.replace(Place { won, step: Step::Nowhere });
            return Ok(());
        }
        let from = self.fresh_lease(session, &nodes).await?;
        self.outside.report(&Report::Queue(Progress::Held { grant: self.grant(session, &won), from })).await;
        // Published with the first beat and no earlier: so a short command costs no further transaction, and
        // wakes no watcher.
        if won.iter().all(|claim| claim.is_own()) {
            let card = Card { held_since: Some(self.outside.wall_millis()), ..self.outside.card().clone() };
            self.beats.unpublished.replace(Some(card.to_bytes()));
        }
        self.place.replace(Place { won, step: Step::Holding });
        self.keep_beating(session, &nodes).await
    }

    /// What the supervisor is told of the locks, in the order in which the user named them.
    fn grant(&self, session: &O::Session, won: &[Rc<Claim>]) -> Grant {
        let named = |lock: &LockPath| won.iter().find(|claim| claim.lock == *lock);
        let granted = |claim: &Rc<Claim>| Granted {
            lock: claim.lock.to_string(),
            node: claim.nodes[0].clone(),
            token: claim.token,
        };
        let first = named(&self.plan.request.lock).expect("the locks that were taken are those of the plan");
        let and = self.plan.request.and.iter().filter_map(named).map(granted).collect();
        let session = first.lender.map_or(session.id(), |lender| lender.session);
        Grant { first: granted(first), and, session }
    }

    /// Waits until no contender before our own keeps us from the lock. `nodes`: our nodes of all locks.
    async fn wait_turn(&self, session: &O::Session, nodes: &[String], claim: &Claim) -> Result<(), Stop> {
        let lock = &claim.lock;
        let stop = |failure| Stop::because(failure, lock);
        let mut known = claim.listed.take();
        loop {
            let names = match known.take() {
                Some(names) => names,
                None => self.insist(|| session.children(lock.as_str())).await.map_err(stop)?,
            };
            let names = self.without_ghosts(lock, names);
            let queue = queue_of(lock, names.clone())?;
            // A second node of this session comes from a creation that we had given up for lost and that took
            // effect late. It belongs to this contender, or to an earlier one whose node someone else
            // deleted. If we left it, it would last as long as our session.
            let is_twin = |contender: &&Contender| {
                contender.id.is_some_and(|id| id.session() == session.id())
                    && claim.names().all(|name| name != contender.name)
            };
            if let Some(twin) = queue.contenders().iter().find(is_twin) {
                let path = lock.child(&twin.name);
                log::warn!("deleting {path}: a second node of this session");
                self.insist(|| session.delete(&path)).await.map_err(|failure| Stop::because(failure, &path))?;
                // Not listed anew: a server that has missed the deletion would go on showing it.
                known = Some(names.into_iter().filter(|name| *name != twin.name).collect());
                continue;
            }
            self.check_company(lock, &queue, claim)?;
            self.report_foreign(lock, &queue);
            match queue.standing(claim.name()) {
                // This never means that we are not queued yet: the list is at least as new as our node, so
                // the node has been deleted.
                Standing::Missing => return Err(Stop::Gone(Loss::NodeDeleted)),
                // This holds however old the list is: contenders that were before us are gone for good, and
                // new ones come after us. Whether our session lives is for the beat to say.
                Standing::Holds => return Ok(()),
                Standing::Waits { position, watch } => {
                    // The contenders before us only ever become fewer. So if one of them has left, and an old
                    // list without it shows our turn, a new list would do the same, a round trip later.
                    let left = self.wait_for_change(session, nodes, claim, &queue, position, &watch).await?;
                    known = left.and_then(|left| {
                        let rest: Vec<String> = names.into_iter().filter(|name| *name != left).collect();
                        let queue = queue_of(lock, rest.clone()).ok()?;
                        matches!(queue.standing(claim.name()), Standing::Holds).then_some(rest)
                    });
                }
            }
        }
    }

    /// Refuses a path that another library's recipe uses, and a lock with contenders that ignore our node or
    /// count another number of permits.
    fn check_company(&self, lock: &LockPath, queue: &Queue, claim: &Claim) -> Result<(), Stop> {
        let (lock, request) = (lock.to_string(), &self.plan.request);
        // The recipe first: as long as it uses the path, advice about contenders would not help.
        let refusal = if let Some(recipe) = queue.other_recipe() {
            Refusal::OtherRecipe { lock, recipe }
        } else if let Some(other) = queue.blind_to(&request.dialects, request.dialects_given) {
            Refusal::Blind { lock, contender: printable(&other.name), reads: other.reads }
        } else if let Some(permits) = queue.other_permits(claim.name()) {
            Refusal::OtherPermits { lock, permits }
        } else {
            return Ok(());
        };
        Err(Stop::Final(Report::Refused(refusal)))
    }

    /// Waits until the queue has to be looked at again. If that is because a contender has left it, returns
    /// its name.
    async fn wait_for_change(
        &self,
        session: &O::Session,
        nodes: &[String],
        claim: &Claim,
        queue: &Queue,
        position: usize,
        watch: &[&Contender],
    ) -> Result<Option<String>, Stop> {
        let lock = &claim.lock;
        // These requests leave back to back: the watches, and the data of the holder.
        let watched: Vec<String> = watch.iter().map(|contender| lock.child(&contender.name)).collect();
        let replies: Vec<_> = watched.iter().map(|path| session.read_and_watch(path)).collect();
        let view = self.view(session, lock, queue, position, watch);
        let mut watches = vec![];
        for reply in replies {
            match reply.await {
                Ok((_, _, watch)) => watches.push(watch),
                // It has just left: look again.
                Err(Failure::NoNode) => return Ok(None),
                Err(Failure::Unknown(_)) => {
                    self.outside.sleep(PAUSE).await;
                    return Ok(None);
                }
                Err(failure) => return Err(Stop::because(failure, lock)),
            }
        }
        self.outside.report_if_room(&Report::Queue(Progress::Waiting(view.await)));

        let changed = async {
            let (which, change) = first_of(watches.into_iter()).await;
            Ok(matches!(change, Change::Deleted).then(|| watch[which].name.clone()))
        };
        // The contender that is next in line beats, so that it has a lease when its turn comes.
        let next_in_line = is_next_in_line(queue, watch);
        let beating = async {
            if next_in_line {
                self.keep_beating(session, nodes).await?;
            }
            pending().await
        };
        // The other waiters send the leader as little as possible. They ask it as well, because no message tells
        // a waiter that it has become the next in line.
        let period = session.timeout() * if next_in_line { 1 } else { 4 };
        let asking = async { self.until_gone(session, &watched, period).await.map(|()| None) };
        or(or(changed, beating), or(asking, self.refresh_view(session, claim))).await
    }

    /// Asks the leader every `period` whether the nodes that we watch exist. Completes when one of them does not,
    /// although no watch of ours has fired: a server may miss a deletion for good (ZOOKEEPER-5010).
    async fn until_gone(&self, session: &O::Session, watched: &[String], period: Duration) -> Result<(), Stop> {
        loop {
            self.outside.sleep(period).await;
            for node in watched {
                // Apart from the beats: a beat fails if any node is missing.
                match session.beat(slice::from_ref(node), None).await {
                    Err(Failure::NoNode) => return self.see_through(session, node).await,
                    Err(failure @ Failure::SessionOver) => return Err(Stop::because(failure, node)),
                    Ok(()) | Err(_) => {}
                }
            }
        }
    }

    /// The leader does not have `node`, which we watch. Completes if our server does not have it either.
    async fn see_through(&self, session: &O::Session, node: &str) -> Result<(), Stop> {
        let stop = |failure| Stop::because(failure, node);
        // Our server may not have heard of the deletion yet.
        self.insist(|| session.sync(node)).await.map_err(stop)?;
        match self.insist(|| session.read(node)).await {
            Err(Failure::NoNode) => return Ok(()),
            read => read.map_err(stop)?,
        };
        log::info!("{node} was deleted, but this server still shows it; asking another one");
        self.ghosts.borrow_mut().insert(node.to_owned());
        session.distrust();
        Err(Stop::Reconnect)
    }

    /// The children of a lock without those that the leader no longer has. If no other server can be reached, its
    /// word is enough: numbers are not given out twice, so such a node never comes back.
    pub(super) fn without_ghosts(&self, lock: &LockPath, mut names: Vec<String>) -> Vec<String> {
        let ghosts = self.ghosts.borrow();
        if !ghosts.is_empty() {
            names.retain(|name| !ghosts.contains(&lock.child(name)));
        }
        names
    }

    /// Looks at the queue from time to time, if a user is watching, and reports our standing. Sets no
    /// watches: those that are set remain right until one of them fires.
    async fn refresh_view<T>(&self, session: &O::Session, claim: &Claim) -> Result<T, Stop> {
        let Some(period) = self.refresh else { return pending().await };
        let lock = &claim.lock;
        loop {
            self.outside.sleep(period).await;
            let Ok(children) = session.children(lock.as_str()).await else { continue };
            let Ok(queue) = Queue::from_children(self.without_ghosts(lock, children)) else { continue };
            self.check_company(lock, &queue, claim)?;
            if let Standing::Waits { position, watch } = queue.standing(claim.name()) {
                let view = self.view(session, lock, &queue, position, &watch).await;
                self.outside.report_if_room(&Report::Queue(Progress::Waiting(view)));
            }
        }
    }

    /// What a waiting user is told of this queue. The request has left when this returns.
    fn view<'a>(
        &self,
        session: &'a O::Session,
        lock: &LockPath,
        queue: &Queue,
        position: usize,
        watch: &[&Contender],
    ) -> impl Future<Output = View> + use<'a, O> {
        let holder = queue.first_holder().map(|holder| holder.name.clone()).unwrap_or_default();
        let (total, next_in_line) = (queue.size(), is_next_in_line(queue, watch));
        let reply = session.read(&lock.child(&holder));
        let lock = lock.to_string();
        async move {
            let card = reply.await.map(|(data, _)| Card::from_bytes(&data)).unwrap_or_default();
            let holder = card.phrase().unwrap_or_else(|| printable(&holder));
            View { lock, position, total, next_in_line, holder, held_since: card.held_since }
        }
    }

    /// Reports a child that is no contender, once for each lock. As a rule it is a lock below a lock.
    fn report_foreign(&self, lock: &LockPath, queue: &Queue) {
        if let Some(name) = queue.foreign().first()
            && self.told.borrow_mut().foreign.insert(lock.clone())
        {
            self.outside
                .report_if_room(&Report::Queue(Progress::Foreign { lock: lock.to_string(), child: printable(name) }));
        }
    }

    /// Waits until one of our nodes is deleted, or a lender has gone.
    pub(super) async fn until_deleted(&self, session: &O::Session, place: &Place) -> Result<(), Stop> {
        let nodes = place.stamped_nodes();
        let each = nodes.iter().map(|(node, created)| self.until_one_is_deleted(session, node, *created));
        let deleted = async { first_of(each).await.1 };
        or(deleted, self.until_lender_dies()).await
    }

    /// `created`: the transaction that has created the node.
    async fn until_one_is_deleted(&self, session: &O::Session, node: &str, created: i64) -> Result<(), Stop> {
        loop {
            let change = match session.read_and_watch(node).await {
                // Ours was deleted while we had no watch on it, and this is another.
                Ok((_, stat, _)) if stat.czxid != created => {
                    log::info!("{node} is not our node any more: it was deleted and created anew");
                    Change::Deleted
                }
                Ok((_, _, watch)) => watch.await,
                Err(Failure::Unknown(_)) => Change::Unknown,
                Err(failure) => return Err(Stop::because(failure, node)),
            };
            match change {
                // Changed by our own beat, which publishes since when we hold, or by someone else who wrote
                // to the node.
                Change::Data => {}
                Change::Deleted => return Err(Stop::Gone(Loss::NodeDeleted)),
                // The connection has gone, and this future is dropped in a moment.
                Change::Unknown => self.outside.sleep(PAUSE).await,
            }
        }
    }
}

/// Whether one of the contenders that we watch holds: then its end may make it our turn.
fn is_next_in_line(queue: &Queue, watch: &[&Contender]) -> bool {
    watch.iter().any(|contender| matches!(queue.standing(&contender.name), Standing::Holds))
}
