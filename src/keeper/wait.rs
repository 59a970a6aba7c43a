//! Waits in the queue of a lock until it is our turn.

use std::future::pending;

use super::contend::Owner;
use super::io::KeeperIo;
use super::place::{Claim, StepEnd, lacking, queue_of};
use super::{Keeper, PAUSE};
use crate::rules::card::Card;
use crate::rules::child_name::ChildName;
use crate::rules::keep_alive::KeepAlive;
use crate::rules::lease::Terms;
use crate::rules::lock_path::LockPath;
use crate::rules::message::{Loss, Progress, QueueView, Report, Right};
use crate::rules::queue::{Contender, Queue, Standing};
use crate::rules::text::printable;
use crate::system::futures::{first_of, or, zip};
use crate::zookeeper::session::{Change, Failure, NodeStat, Session, Watch};

/// What a waiter has found out about its queue.
enum Outlook {
    Left(ChildName),
    /// This contender says that it holds. Anyone can write that, so it decides nothing. But if the contender holds, a list that
    /// is made now will show our turn as soon as the contender has gone.
    SaysItHolds(ChildName),
    /// The same list has to be looked at again: the data of a contender that we watch was written, or a node in it is no
    /// contender.
    Again,
    /// The queue has to be listed anew.
    Unclear,
}

/// What has come of an attempt to watch nodes.
enum Watched {
    Set(Watching),
    /// Enough is known without a watch.
    Known(Outlook),
}

/// The nodes that a waiter watches.
struct Watching {
    paths: Vec<String>,
    /// One for each of them.
    watches: Vec<Watch>,
    /// The paths that an ACL hides from us.
    hidden: Vec<String>,
    /// The data of the first node, unless that is hidden.
    nearest: Option<(Vec<u8>, NodeStat)>,
}

impl<O: KeeperIo> Keeper<'_, O> {
    /// Waits until no contender before our own keeps us from the lock. `nodes`: our nodes of all locks. Returns whether
    /// there was one.
    pub(super) async fn wait_turn(
        &self,
        session: &O::Session,
        nodes: &[String],
        claim: &Claim,
    ) -> Result<bool, StepEnd> {
        let lock = &claim.lock;
        let stop = |failure| lacking(failure, lock, Right::Read);
        let mut known = claim.listed.take();
        let mut has_waited = false;
        loop {
            let names = match known.take() {
                Some(names) => names,
                // A list that shows our turn is followed by a beat, which needs a `sync` before it: both leave together.
                None => {
                    let listed = self.insist(|| self.list(session, lock));
                    zip(listed, self.ask_for_sync(session)).await.0.map_err(stop)?
                }
            };
            let (names, queue) = self.suitable(session, lock, names, claim.name()).await?;
            if let Some(twin) = self.delete_twin(session, claim, &queue).await? {
                // The queue is not listed anew: a server that has missed the deletion would go on showing the twin.
                known = Some(names.into_iter().filter(|name| *name != twin).collect());
                continue;
            }
            if let Some(name) = queue.foreign().first() {
                self.report_foreign(lock, name);
            }
            match queue.standing(claim.name()) {
                // The list is at least as new as our node. So the node has been deleted, or this server has lost it.
                Standing::Missing => return Err(StepEnd::Unseen(claim.nodes[0].clone())),
                // It is our turn, however old the list is: new contenders come after us, and those that were before us are
                // gone for good, unless this server has lost them. The beat will say whether our session lives.
                Standing::Holds => {
                    return self.ask_for_vanished(session, claim, names).await.map(|()| has_waited);
                }
                Standing::Waits { position, watch } => {
                    has_waited = true;
                    // The contenders before us only ever become fewer. So if an old list without those that are known
                    // to have gone shows our turn, a new list would do the same, a round trip later.
                    known = match self.wait_for_change(session, nodes, claim, &queue, position, &watch).await? {
                        Outlook::Left(left) => {
                            let rest: Vec<ChildName> = names.into_iter().filter(|name| *name != left).collect();
                            let queue = queue_of(lock, rest.clone())?;
                            matches!(queue.standing(claim.name()), Standing::Holds).then_some(rest)
                        }
                        Outlook::SaysItHolds(contender) => {
                            claim.holder.replace(Some(contender));
                            None
                        }
                        Outlook::Again => Some(names),
                        Outlook::Unclear => None,
                    };
                }
            }
        }
    }

    /// Deletes a second node of this session, if there is one, and returns its name. It comes from a creation that we had
    /// given up for lost and that took effect late, for this contender or for an earlier one whose node someone else deleted.
    /// If we left the node, it would last as long as our session.
    async fn delete_twin(
        &self,
        session: &O::Session,
        claim: &Claim,
        queue: &Queue,
    ) -> Result<Option<ChildName>, StepEnd> {
        let node = |contender: &Contender| claim.lock.child(&contender.name);
        let has_our_id = |contender: &&Contender| {
            contender.id.is_some_and(|id| id.session() == session.id()) && !claim.is(contender)
        };
        let named: Vec<_> = queue.contenders().iter().filter(has_our_id).collect();
        self.impostors.borrow_mut().retain(|known| named.iter().any(|contender| node(contender) == *known));
        let is_unknown = |contender: &&Contender| !self.impostors.borrow().contains(&node(contender));
        let unknown: Vec<_> = named.into_iter().filter(is_unknown).collect();
        let nodes: Vec<_> = unknown.iter().map(|contender| node(contender)).collect();
        // Anyone can give a node such a name.
        for (twin, owner) in unknown.into_iter().zip(self.owners(session, &nodes).await?) {
            let is_deleted = match owner {
                Owner::Us(_) => self.delete_second(session, &node(twin)).await?,
                Owner::Hidden if twin.id == claim.id() => false,
                Owner::Hidden | Owner::Another => {
                    self.impostors.borrow_mut().insert(node(twin));
                    continue;
                }
            };
            // A twin that we may not delete goes with the session. If it is before our node, we would wait for ourselves.
            if !is_deleted && queue.comes_before(twin, claim.name()) {
                return Err(StepEnd::Final(Report::Lost(Loss::SessionOver)));
            }
            return Ok(Some(twin.name.clone()));
        }
        Ok(None)
    }

    /// Waits until the queue has to be looked at again. Returns what is known of it by then.
    async fn wait_for_change(
        &self,
        session: &O::Session,
        nodes: &[String],
        claim: &Claim,
        queue: &Queue,
        position: usize,
        watch: &[&Contender],
    ) -> Result<Outlook, StepEnd> {
        let lock = &claim.lock;
        let next_in_line = is_next_in_line(queue, watch);
        // By an old list there are others before the contender that we watch. If that one holds, the others have gone.
        let head = match watch {
            [contender] if !next_in_line && claim.holder.borrow().as_ref() != Some(&contender.name) => Some(*contender),
            _ => None,
        };
        let Watching { paths, watches, hidden, nearest } = match self.set_watches(session, lock, watch, head).await? {
            Watched::Set(watching) => watching,
            Watched::Known(outlook) => return Ok(outlook),
        };
        let Some(view) = self.view(session, claim, queue, position, watch, nearest).await? else {
            return Ok(Outlook::Again);
        };
        self.told.borrow_mut().waits = Some((lock.clone(), Some(claim.name().to_owned())));
        self.io.report_if_room(&Report::Queue(Progress::Waiting(view)));

        let changed = async {
            let (which, change) = first_of(watches.into_iter()).await;
            Ok(match change {
                Change::Deleted => Outlook::Left(watch[which].name.clone()),
                // Perhaps it says that it holds.
                Change::Other => Outlook::Again,
            })
        };
        // The contender that is next in line beats, so that it has a lease when its turn comes.
        let beating = async {
            if next_in_line {
                self.keep_beating(session, nodes).await?;
            }
            pending().await
        };
        // The other waiters send as little as possible. They ask the leader as well, because no message tells
        // a waiter that it has become the next in line.
        let period = session.timeout() * if next_in_line { 1 } else { 4 };
        let asking = async {
            let gone = self.until_gone(session, &paths, period);
            match hidden.is_empty() {
                false => or(self.until_not_listed(session, lock, &hidden), gone).await,
                true => gone.await,
            }
            .map(|()| Outlook::Unclear)
        };
        if !next_in_line {
            session.set_keep_alive(KeepAlive::calm(session.timeout()));
        }
        let found = or(or(changed, beating), or(asking, self.look_again(session, claim, next_in_line))).await;
        session.set_keep_alive(KeepAlive::brisk(session.timeout()));
        found
    }

    /// Watches these contenders. `head`: the one of them that may have begun to hold, and say so. Returns what is known
    /// without a watch, if that is enough.
    async fn set_watches(
        &self,
        session: &O::Session,
        lock: &LockPath,
        watch: &[&Contender],
        head: Option<&Contender>,
    ) -> Result<Watched, StepEnd> {
        // These requests leave back to back.
        let paths: Vec<String> = watch.iter().map(|contender| lock.child(&contender.name)).collect();
        let replies: Vec<_> = paths.iter().map(|path| session.read_and_watch(path)).collect();
        let mut watching = Watching { paths: paths.clone(), watches: vec![], hidden: vec![], nearest: None };
        for ((reply, path), contender) in replies.into_iter().zip(paths).zip(watch) {
            match reply.await {
                Ok((_, stat, _)) if self.note_if_foreign(lock, &contender.name, stat) => {
                    return Ok(Watched::Known(Outlook::Again));
                }
                Ok((data, stat, watch)) => {
                    if let Some(contender) = head.filter(|_| Card::from_bytes(&data).held_since.is_some()) {
                        return Ok(Watched::Known(Outlook::SaysItHolds(contender.name.clone())));
                    }
                    if watching.watches.is_empty() {
                        watching.nearest = Some((data, stat));
                    }
                    watching.watches.push(watch);
                }
                Err(Failure::Denied) => {
                    watching.hidden.push(path);
                    watching.watches.push(Box::pin(pending()));
                }
                // The contender has just left.
                Err(Failure::NoNode) => return Ok(Watched::Known(Outlook::Unclear)),
                Err(Failure::Unknown(_)) => {
                    self.io.sleep(PAUSE).await;
                    return Ok(Watched::Known(Outlook::Unclear));
                }
                Err(failure) => return Err(StepEnd::because(failure, lock)),
            }
        }
        Ok(Watched::Set(watching))
    }

    /// Waits until one of the nodes that an ACL hides from us is not among the children of the lock. No event tells of the end
    /// of such a node: servers keep it from those who may not read the node (CVE-2024-23944). If an event of the lock is
    /// missed, the leader tells ([`Self::until_gone`]): what does not exist has no ACL.
    async fn until_not_listed(&self, session: &O::Session, lock: &LockPath, hidden: &[String]) -> Result<(), StepEnd> {
        loop {
            let asked = self.insist(|| session.watch_children(lock.as_str())).await;
            let (names, changed) = asked.map_err(|failure| lacking(failure, lock, Right::Read))?;
            self.remember(lock, &names);
            let is_listed = |node: &String| names.iter().any(|name| lock.child(name) == *node);
            if !hidden.iter().all(is_listed) {
                return Ok(());
            }
            changed.await;
        }
    }

    /// Looks at the queue from time to time. If a user is watching, reports our standing. If we are next in line, our turn
    /// comes without another list, so here we look for contenders that came after the last list and would not wait for us.
    /// Sets no watches: those that are set remain right until one of them fires.
    async fn look_again<T>(&self, session: &O::Session, claim: &Claim, next_in_line: bool) -> Result<T, StepEnd> {
        let period = match self.refresh {
            Some(period) => period,
            None if next_in_line => Terms::beat_of(session.timeout()),
            None => return pending().await,
        };
        let lock = &claim.lock;
        loop {
            self.io.sleep(period).await;
            let Ok(children) = self.list(session, lock).await else { continue };
            let (_, queue) = self.suitable(session, lock, children, claim.name()).await?;
            if let Standing::Waits { position, watch } = queue.standing(claim.name())
                && self.refresh.is_some()
                && let Some(view) = self.view(session, claim, &queue, position, &watch, None).await?
            {
                self.io.report_if_room(&Report::Queue(Progress::Waiting(view)));
            }
        }
    }

    /// What a waiting user is told of this queue. `nearest`: the data of the first node that we watch, if it is known. `None`:
    /// the first in the queue is no contender. Ends the wait if the first holder is a run above us.
    async fn view(
        &self,
        session: &O::Session,
        claim: &Claim,
        queue: &Queue,
        position: usize,
        watch: &[&Contender],
        nearest: Option<(Vec<u8>, NodeStat)>,
    ) -> Result<Option<QueueView>, StepEnd> {
        let lock = &claim.lock;
        let holder = queue.first_holder().map(|holder| &*holder.name).unwrap_or_default();
        let read = match nearest.filter(|_| watch[0].name == holder) {
            Some(read) => Some(read),
            None => session.read(&lock.child(holder)).await.ok(),
        };
        if read.as_ref().is_some_and(|(_, stat)| self.note_if_foreign(lock, holder, *stat)) {
            return Ok(None);
        }
        let card = read.as_ref().map(|(data, _)| Card::from_bytes(data)).unwrap_or_default();
        self.expect_no_run_above(lock, holder, &card, read.as_ref().map_or(0, |(_, stat)| stat.owner))?;
        let held_at = read.and_then(|(_, stat)| card.held_at(stat.created, stat.written));
        Ok(Some(QueueView {
            lock: lock.to_string(),
            place: Some((position, queue.size())),
            holder: card.phrase().unwrap_or_else(|| printable(holder)),
            held_since: held_at.map(|held_at| claim.on_our_clock(held_at)),
            free_at: None,
        }))
    }
}

/// Whether one of the contenders that we watch holds: then its end may make it our turn.
fn is_next_in_line(queue: &Queue, watch: &[&Contender]) -> bool {
    watch.iter().any(|contender| queue.holds(contender))
}
