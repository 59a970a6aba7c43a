//! What a keeper does over one connection: queue, wait, hold. A connection that is lost ends all of
//! this wherever it is; the next one goes on from [`Place`].

mod lent;

use std::cell::Cell;
use std::future::{Future, pending, poll_fn};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use futures_lite::future::or;

use super::world::World;
use super::{Keeper, PAUSE, refuse};
use crate::plan::LockPath;
use crate::rules::card::Card;
use crate::rules::contacts::Contacts;
use crate::rules::instant::Instant;
use crate::rules::lease::{Lease, Terms};
use crate::rules::message::{Connection, Grant, Granted, Loss, Progress, Refusal, Remains, Report, View};
use crate::rules::queue::{Contender, ContenderId, Queue, Standing};
use crate::rules::text::printable;
use crate::session::{Change, Created, Failure, Session};

/// A connection over which a server answers nonsense is given up after this long.
const RECONNECT: Duration = Duration::from_secs(1);

/// How far a keeper has come. The locks are taken one after the other, in the order of their paths,
/// so that no two keepers wait for each other.
#[derive(Clone, Default)]
pub(super) struct Place {
    /// The locks that are ours already, in that order.
    won: Vec<Rc<Mine>>,
    /// With the next one; with the last one when there is none left.
    step: Step,
}

#[derive(Clone, Default)]
enum Step {
    /// There is no contender of ours.
    #[default]
    Nowhere,
    /// One with this id may have been created: nobody knows.
    Uncertain(ContenderId),
    /// It is in the queue.
    Queued(Rc<Mine>),
    /// The supervisor has been told that we hold them all.
    Holding,
}

impl Place {
    /// Our contenders that are there for sure, in the order in which they were created.
    pub(super) fn mine(&self) -> Vec<Rc<Mine>> {
        let queued = match &self.step {
            Step::Queued(mine) => Some(mine),
            Step::Nowhere | Step::Uncertain(_) | Step::Holding => None,
        };
        self.won.iter().chain(queued).cloned().collect()
    }

    fn nodes(&self) -> Vec<String> {
        self.mine().iter().flat_map(|mine| mine.paths.clone()).collect()
    }

    fn is_nowhere(&self) -> bool {
        self.won.is_empty() && matches!(self.step, Step::Nowhere)
    }
}

/// Our contender for one lock, or one that a zklock above us lends us.
pub(super) struct Mine {
    lock: String,
    /// The full paths of its nodes: one for each dialect, lowest first.
    pub(super) paths: Vec<String>,
    token: i64,
    owner: Owner,
    /// The children of the lock, when they were listed in the same flight as the creation.
    children: Cell<Option<Vec<String>>>,
}

enum Owner {
    /// We are.
    Us,
    /// A zklock that we descend from: its process id and its session.
    Ancestor { pid: u32, session: i64 },
}

impl Mine {
    /// The names of the nodes.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.paths.iter().map(|path| &path[self.lock.len() + 1..])
    }

    /// The name that decides over our turn. Nobody comes between it and the others.
    fn name(&self) -> &str {
        self.names().next().unwrap_or_default()
    }

    fn lender(&self) -> Option<u32> {
        match self.owner {
            Owner::Us => None,
            Owner::Ancestor { pid, .. } => Some(pid),
        }
    }

    /// Whether the nodes are ours to delete.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self.owner, Owner::Us)
    }
}

/// Why a step was not done.
enum Stop {
    /// Our contender, or one that we use, is there no more.
    Gone(Loss),
    /// There is nothing more to do in this session.
    Final(Report),
    /// This connection is of no use any more.
    Reconnect,
}

impl Stop {
    /// What follows when a request about `path`, which is ours or the lock's, fails for good.
    fn because(failure: Failure, path: &str) -> Self {
        match failure {
            // The lock's node cannot go before ours does.
            Failure::NoNode => Self::Gone(Loss::NodeDeleted),
            failure => Self::Final(refuse(failure, path)),
        }
    }
}

impl<W: World> Keeper<'_, W> {
    /// Queues, waits and holds, from where we are. Gives what ends that for good, or `None` when it
    /// has to go on over another connection.
    pub(super) async fn contend(&self, session: &W::Session) -> Option<Report> {
        if let Err(failure) = self.arrive(session).await {
            return Some(refuse(failure, self.plan.request.lock.as_str()));
        }
        loop {
            let place = self.place.borrow().clone();
            let lock = self.locks.get(place.won.len()).copied().unwrap_or(&self.plan.request.lock).as_str();
            let step = match &place.step {
                Step::Nowhere if place.won.is_empty() && !self.looked_up.get() => self.look_up(session).await,
                Step::Nowhere => self.enter(session, lock).await,
                Step::Uncertain(id) => self.recover(session, lock, *id).await,
                // One watch on each node of ours, through waiting and holding.
                // What happened to us first, for it may have come together with our turn.
                Step::Queued(mine) => {
                    or(self.until_deleted(session, &place.nodes()), self.wait_and_hold(session, &place, mine)).await
                }
                Step::Holding => {
                    let nodes = place.nodes();
                    or(self.until_deleted(session, &nodes), self.keep_beating(session, &nodes)).await
                }
            };
            match step {
                Ok(()) => {}
                Err(Stop::Final(report)) => return Some(report),
                Err(Stop::Reconnect) => return None,
                Err(Stop::Gone(loss)) => {
                    if let Step::Holding = self.place.borrow().step {
                        return Some(Report::Lost(loss));
                    }
                    if let Err(failure) = self.withdraw(session).await {
                        return Some(refuse(failure, lock));
                    }
                    self.world.report(&Report::Queue(Progress::Requeued(loss))).await;
                }
            }
        }
    }

    /// Leaves every queue.
    async fn withdraw(&self, session: &W::Session) -> Result<(), Failure> {
        let mine = self.place.borrow().mine();
        for mine in mine.iter().rev().filter(|mine| mine.is_ours()) {
            for path in &mine.paths {
                self.insist(|| session.delete(path)).await?;
            }
        }
        self.place.take();
        // What is lent to us still is to be used again: to queue for it would be to wait for ourselves.
        // The supervisor shows that we may use it until we find that there is nothing more.
        if !self.lent.take().is_empty() {
            self.looked_up.set(false);
        }
        Ok(())
    }

    /// What comes first over each connection.
    async fn arrive(&self, session: &W::Session) -> Result<(), Failure> {
        self.contacts.replace(Contacts::new(session.opened()));
        let is_first = self.place.borrow().is_nowhere();
        if !is_first {
            self.catch_up(session).await?;
        }
        let timeout = session.timeout();
        if self.timeout.replace(timeout) != timeout || !self.connected.replace(true) {
            self.world.report(&Report::Connection(Connection::Connected { timeout })).await;
            log::info!("session {:#018x}, timeout {timeout:?}", session.id());
        }
        Ok(())
    }

    /// Makes sure that this server is no older than the one that we lost. One that lags might show a queue
    /// without our node: we would take that for deleted, or create a second one and wait behind the first.
    async fn catch_up(&self, session: &W::Session) -> Result<(), Failure> {
        let nodes = self.place.borrow().nodes();
        if nodes.is_empty() {
            let lock = self.plan.request.lock.as_str().to_owned();
            return self.sync_and_check(session, &[lock]).await.map(|_| ());
        }
        // A lease says that our nodes are there, so only an answer that says so extends it. If one was
        // deleted while we were away, the watch that is set on it next will tell.
        if let Some(sent) = self.sync_and_check(session, &nodes).await? {
            self.beat_answered(session, sent);
        }
        Ok(())
    }

    /// Waits until our server knows all that was done before this, and the quorum has answered. Gives when
    /// that was asked for, if all of `nodes` are there.
    ///
    /// `sync` makes a server catch up with its leader. That may be one that has just been deposed and does
    /// not know it yet; a transaction goes through only where there is a quorum.
    async fn sync_and_check(&self, session: &W::Session, nodes: &[String]) -> Result<Option<Instant>, Failure> {
        let ask = || {
            let sent = self.world.now();
            let (synced, checked) = (session.sync(&nodes[0]), session.beat(nodes, None));
            async move {
                synced.await?;
                checked.await.map(|()| sent)
            }
        };
        match self.insist(ask).await {
            Ok(sent) => Ok(Some(sent)),
            Err(Failure::NoNode | Failure::Denied) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Records that a transaction sent then was answered.
    fn beat_answered(&self, session: &W::Session, sent: Instant) {
        let now = self.world.now();
        let mut contacts = self.contacts.borrow_mut();
        let lease = contacts.lease_from(session.timeout(), sent, now);
        contacts.answered(sent, now);
        self.world.answered(now);
        self.last_beat.set(Some(sent));
        // A new connection knows less of the past than the one before.
        let lease = self.lease.get().map_or(lease, |before| before.max(lease));
        self.lease.set(Some(lease));
        self.world.extended(lease);
    }

    /// Begins with a lock: one that is lent to us is ours.
    async fn enter(&self, session: &W::Session, lock: &str) -> Result<(), Stop> {
        let lent = self.lent.borrow().iter().find(|lent| lent.lock == lock).cloned();
        match lent {
            Some(lent) => {
                self.place.borrow_mut().step = Step::Queued(lent);
                Ok(())
            }
            None => self.enqueue(session, lock, ContenderId::new(session.id(), self.world.random())).await,
        }
    }

    /// Creates the contender's nodes. Not for good when the reply is lost.
    async fn enqueue(&self, session: &W::Session, lock: &str, id: ContenderId) -> Result<(), Stop> {
        let prefixes: Vec<_> = self
            .plan
            .request
            .dialects
            .iter()
            .map(|dialect| format!("{lock}/{}", id.prefix(*dialect, self.plan.request.mode)))
            .collect();
        let data = self.world.card().to_bytes();
        loop {
            self.place.borrow_mut().step = Step::Uncertain(id);
            let sent = self.world.now();
            // Both leave in one flight, and are answered in order: the list has the nodes in it.
            let created = session.create(&prefixes, &data);
            let listed = session.children(lock);
            match created.await {
                Ok(Created { paths, stat }) => {
                    // A creation goes through the quorum, as a beat does; but it says nothing of nodes that
                    // we had before.
                    if self.place.borrow().won.is_empty() {
                        self.beat_answered(session, sent);
                    } else {
                        self.contacts.borrow_mut().answered(sent, self.world.now());
                    }
                    // Without a token they are looked up as if the reply had been lost.
                    if let Some(stat) = stat {
                        self.queued(lock, paths, stat.czxid).children.set(listed.await.ok());
                    }
                    return Ok(());
                }
                Err(Failure::NoNode) => self.create_parents(session, lock).await?,
                Err(Failure::Unknown(why)) => {
                    log::info!("nobody knows whether the contender was created: {why}");
                    // As a rule the connection has gone, and this with it before the time is over.
                    self.world.sleep(RECONNECT).await;
                    return Err(Stop::Reconnect);
                }
                Err(failure) => return Err(Stop::Final(refuse(failure, lock))),
            }
        }
    }

    fn queued(&self, lock: &str, paths: Vec<String>, token: i64) -> Rc<Mine> {
        log::info!("contender {}", paths.join(" "));
        let (lock, owner, children) = (lock.to_owned(), Owner::Us, Cell::new(None));
        let mine = Rc::new(Mine { lock, paths, token, owner, children });
        self.place.borrow_mut().step = Step::Queued(Rc::clone(&mine));
        mine
    }

    async fn create_parents(&self, session: &W::Session, lock: &str) -> Result<(), Stop> {
        match session.create_parents(lock, self.containers.get()).await {
            Ok(()) => {}
            Err(Failure::NoNode) => return Err(Stop::Final(Report::Refused(Refusal::NoChroot))),
            Err(Failure::Unimplemented) if self.containers.get() => self.containers.set(false),
            // Nodes that exist already are no error, so it is simply tried again.
            Err(Failure::Unknown(_)) => {
                self.world.sleep(PAUSE).await;
            }
            Err(failure) => return Err(Stop::Final(refuse(failure, lock))),
        }
        Ok(())
    }

    /// Looks for the nodes of a creation whose reply was lost, and creates them if there are none.
    async fn recover(&self, session: &W::Session, lock: &str, id: ContenderId) -> Result<(), Stop> {
        let definite = |failure| Stop::Final(refuse(failure, lock));
        let children = match self.insist(|| session.children(lock)).await {
            Ok(children) => children,
            Err(Failure::NoNode) => return self.enqueue(session, lock, id).await,
            Err(failure) => return Err(definite(failure)),
        };
        let queue = sorted(lock, children)?;
        let ours: Vec<&Contender> = queue.contenders().iter().filter(|contender| contender.id == Some(id)).collect();
        // The lowest that one transaction has created: one node of each dialect, with nobody between
        // them. Others come from a second one, or from one of which somebody has deleted a node.
        let is_whole = |nodes: &&[&Contender]| {
            let expected = self.plan.request.dialects.iter().zip(nodes[0].sequence..);
            expected
                .zip(*nodes)
                .all(|((dialect, sequence), node)| (node.kind.reads(), node.sequence) == (*dialect, sequence))
        };
        let whole = ours.windows(self.plan.request.dialects.len()).find(is_whole).unwrap_or_default();
        for surplus in ours.iter().filter(|node| !whole.contains(node)) {
            let surplus = format!("{lock}/{}", surplus.name);
            log::warn!("deleting {surplus}: a second node of this session");
            self.insist(|| session.delete(&surplus)).await.map_err(definite)?;
        }
        let paths: Vec<_> = whole.iter().map(|node| format!("{lock}/{}", node.name)).collect();
        let Some(first) = paths.first() else { return self.enqueue(session, lock, id).await };
        match self.insist(|| session.read(first)).await {
            Ok((_, stat)) if stat.owner == session.id() => {
                self.queued(lock, paths, stat.czxid);
                Ok(())
            }
            // Gone in between: what is left of them has to go as well.
            Err(Failure::NoNode) => Ok(()),
            // Somebody else's, which the random half of the id rules out.
            Ok(_) => self.enqueue(session, lock, id).await,
            Err(failure) => Err(definite(failure)),
        }
    }

    /// Waits until the lock is ours. If it is the last, says that we hold them all, and does.
    async fn wait_and_hold(&self, session: &W::Session, place: &Place, mine: &Rc<Mine>) -> Result<(), Stop> {
        let nodes = place.nodes();
        if mine.is_ours() {
            self.wait_turn(session, &nodes, mine).await?;
        }
        let won = place.mine();
        if won.len() < self.locks.len() {
            self.world.report_if_room(&Report::Queue(Progress::Turn));
            self.place.replace(Place { won, step: Step::Nowhere });
            return Ok(());
        }
        let from = self.fresh_beat(session, &nodes).await?;
        self.world.report(&Report::Queue(Progress::Held { grant: self.grant(session, &won), from })).await;
        self.started.set(Some(Remains::default()));
        // Not before the first beat: a short command costs no further transaction, and wakes nobody.
        if won.iter().all(|mine| mine.is_ours()) {
            let card = Card { held_since: Some(self.world.wall_millis()), ..self.world.card().clone() };
            self.unpublished.replace(Some(card.to_bytes()));
        }
        self.place.replace(Place { won, step: Step::Holding });
        self.keep_beating(session, &nodes).await
    }

    /// What the supervisor is told of the locks, in the order in which the user named them.
    fn grant(&self, session: &W::Session, won: &[Rc<Mine>]) -> Grant {
        let named = |path: &LockPath| won.iter().find(|mine| mine.lock == path.as_str());
        let granted =
            |mine: &Rc<Mine>| Granted { lock: mine.lock.clone(), node: mine.paths[0].clone(), token: mine.token };
        let first = named(&self.plan.request.lock).expect("the locks that were taken are those of the plan");
        let owner = match first.owner {
            Owner::Us => session.id(),
            Owner::Ancestor { session, .. } => session,
        };
        let and = self.plan.request.and.iter().filter_map(named).map(granted).collect();
        Grant { first: granted(first), and, session: owner }
    }

    /// Waits until the lock is ours. `nodes`: ours of all locks.
    async fn wait_turn(&self, session: &W::Session, nodes: &[String], mine: &Mine) -> Result<(), Stop> {
        let lock = mine.lock.as_str();
        let mut known = mine.children.take();
        loop {
            let names = match known.take() {
                Some(names) => names,
                None => self.insist(|| session.children(lock)).await.map_err(|failure| Stop::because(failure, lock))?,
            };
            let queue = sorted(lock, names.clone())?;
            // From a creation that was taken for lost and came late: the one of these nodes, or an earlier
            // one of which somebody has deleted what we took for it. It would last as long as our session.
            let is_of_session = |id: ContenderId| mine.is_ours() && id.session() == session.id();
            let is_twin = |contender: &&Contender| {
                contender.id.is_some_and(is_of_session) && mine.names().all(|name| name != contender.name)
            };
            if let Some(twin) = queue.contenders().iter().find(is_twin) {
                log::warn!("deleting {lock}/{}: a second node of ours", twin.name);
                let path = format!("{lock}/{}", twin.name);
                self.insist(|| session.delete(&path)).await.map_err(|failure| Stop::because(failure, &path))?;
                // Not listed anew: a server that has missed the deletion would show it for ever.
                known = Some(names.into_iter().filter(|name| *name != twin.name).collect());
                continue;
            }
            self.check_company(lock, &queue, mine)?;
            self.tell_of_foreign(lock, &queue);
            match queue.standing(mine.name()) {
                // Never "nobody before us": the list is as new as our node, so that was deleted.
                Standing::Missing => return Err(Stop::Gone(Loss::NodeDeleted)),
                // Whoever was before us is gone for good, and new ones come after us, however old
                // the list. That our session lives is what the beat says.
                Standing::Holds { .. } => return Ok(()),
                Standing::Waits { position, watch } => {
                    // Those before us only ever become fewer. So when one of them has left, and an old
                    // list without it shows our turn, a new one would, a round trip later.
                    let left = self.watch(session, nodes, mine, &queue, position, &watch).await?;
                    known = left.and_then(|left| {
                        let rest: Vec<String> = names.into_iter().filter(|name| *name != left).collect();
                        let queue = sorted(lock, rest.clone()).ok()?;
                        matches!(queue.standing(mine.name()), Standing::Holds { .. }).then_some(rest)
                    });
                }
            }
        }
    }

    /// Refuses to share a path with a recipe in which we have no part, and a lock with contenders that
    /// do not wait for us, or count otherwise.
    fn check_company(&self, lock: &str, queue: &Queue, mine: &Mine) -> Result<(), Stop> {
        // First: what is said of contenders would not help beside such a recipe.
        let refusal = if let Some(recipe) = queue.other_recipe() {
            Refusal::OtherRecipe { lock: lock.to_owned(), recipe }
        } else if let Some(other) = queue.blind_to(&self.plan.request.dialects, self.plan.request.dialects_given) {
            Refusal::Blind { lock: lock.to_owned(), contender: printable(&other.name), reads: other.kind.reads() }
        } else if let Some(permits) = queue.other_permits(mine.name()) {
            Refusal::OtherPermits { lock: lock.to_owned(), permits }
        } else {
            return Ok(());
        };
        Err(Stop::Final(Report::Refused(refusal)))
    }

    /// Waits until the queue has to be looked at again. Gives the name of who left it, if that is
    /// why.
    async fn watch(
        &self,
        session: &W::Session,
        nodes: &[String],
        mine: &Mine,
        queue: &Queue,
        position: usize,
        watch: &[&Contender],
    ) -> Result<Option<String>, Stop> {
        let lock = mine.lock.as_str();
        let path = |contender: &Contender| format!("{lock}/{}", contender.name);
        // One flight: the watches, and who holds.
        let watched: Vec<String> = watch.iter().map(|contender| path(contender)).collect();
        let replies: Vec<_> = watched.iter().map(|path| session.read_and_watch(path)).collect();
        let view = self.view(session, lock, queue, position);
        let mut watches = vec![];
        for reply in replies {
            match reply.await {
                Ok((_, _, watch)) => watches.push(watch),
                // It has just left: look again.
                Err(Failure::NoNode) => return Ok(None),
                Err(Failure::Unknown(_)) => {
                    self.world.sleep(PAUSE).await;
                    return Ok(None);
                }
                Err(failure) => return Err(Stop::because(failure, lock)),
            }
        }
        self.world.report_if_room(&Report::Queue(Progress::Waiting(view.await)));

        let changed = async {
            let (which, change) = first_of(watches.into_iter()).await;
            Ok(matches!(change, Change::Deleted).then(|| watch[which].name.clone()))
        };
        // Whoever is next in line beats, so that the lease is there when its turn comes.
        let next_in_line =
            watch.iter().any(|contender| matches!(queue.standing(&contender.name), Standing::Holds { .. }));
        let beating = async {
            if next_in_line {
                self.keep_beating(session, nodes).await?;
            }
            pending().await
        };
        or(or(changed, beating), self.keep_looking(session, mine)).await
    }

    /// Looks where we stand, and beside whom, from time to time, if anybody is watching. Sets no
    /// watches: those that are set remain right until one of them fires.
    async fn keep_looking<T>(&self, session: &W::Session, mine: &Mine) -> Result<T, Stop> {
        let Some(period) = self.refresh else { return pending().await };
        loop {
            self.world.sleep(period).await;
            let Ok(children) = session.children(&mine.lock).await else { continue };
            let Ok(queue) = Queue::from_children(children) else { continue };
            self.check_company(&mine.lock, &queue, mine)?;
            if let Standing::Waits { position, .. } = queue.standing(mine.name()) {
                let view = self.view(session, &mine.lock, &queue, position).await;
                self.world.report_if_room(&Report::Queue(Progress::Waiting(view)));
            }
        }
    }

    /// What to tell a user who waits in this queue. The request has left when this returns.
    fn view<'a>(
        &self,
        session: &'a W::Session,
        lock: &str,
        queue: &Queue,
        position: usize,
    ) -> impl Future<Output = View> + use<'a, W> {
        let holder = queue.first_holder().map(|holder| holder.name.clone()).unwrap_or_default();
        let total = queue.size();
        let reply = session.read(&format!("{lock}/{holder}"));
        let lock = lock.to_owned();
        async move {
            let card = reply.await.map(|(data, _)| Card::from_bytes(&data)).unwrap_or_default();
            let holder = card.phrase().unwrap_or_else(|| printable(&holder));
            View { lock, position, total, holder, held_since: card.held_since }
        }
    }

    /// Once for each lock. As a rule it is a lock below a lock.
    fn tell_of_foreign(&self, lock: &str, queue: &Queue) {
        if let Some(name) = queue.foreign().first()
            && self.told.borrow_mut().insert(lock.to_owned())
        {
            self.world
                .report_if_room(&Report::Queue(Progress::Foreign { lock: lock.to_owned(), child: printable(name) }));
        }
    }

    /// A beat that is young enough to start a command under: the last one, or a new one.
    async fn fresh_beat(&self, session: &W::Session, nodes: &[String]) -> Result<Instant, Stop> {
        let terms = Terms::with_default_grace(session.timeout());
        let is_fresh = |from| Lease::new(terms, from).worth_starting(self.world.now());
        // The creation of the one node that there is says that it is there. Of several, or of one that
        // another session has created, only a beat that checks all of them does.
        let mut checked = self.locks.len() == 1 && self.lent.borrow().is_empty();
        loop {
            match self.lease.get() {
                Some(from) if checked && is_fresh(from) => return Ok(from),
                _ => {
                    self.world.report_if_room(&Report::Queue(Progress::Turn));
                    let before = self.last_beat.get();
                    self.beat(session, nodes).await?;
                    checked |= self.last_beat.get() > before;
                }
            }
            // A first beat after a silence is worth little.
            if !self.lease.get().is_some_and(is_fresh) {
                self.world.sleep(terms.beat() / 4).await;
            }
        }
    }

    /// Beats until that fails for good.
    async fn keep_beating(&self, session: &W::Session, nodes: &[String]) -> Result<(), Stop> {
        let interval = Terms::beat_of(session.timeout());
        let age = |since: Option<Instant>| since.map_or(interval, |since| self.world.now().saturating_since(since));
        // A lease that is behind the last beat, as after a silence, is mended by further ones; but
        // not by a torrent.
        let due = || {
            let (lease, beat) = (age(self.lease.get()), age(self.last_beat.get()));
            interval.saturating_sub(lease).max((interval / 4).saturating_sub(beat))
        };
        loop {
            if let Some(half) = due().checked_sub(interval / 2) {
                self.world.sleep(half).await;
                or(self.look(session, nodes), self.world.sleep(interval / 4)).await;
            }
            self.world.sleep(due()).await;
            self.beat(session, nodes).await?;
        }
    }

    /// Lets the server hear from us between two beats.
    async fn look(&self, session: &W::Session, nodes: &[String]) {
        let Some(node) = nodes.first() else { return };
        let sent = self.world.now();
        if session.read(node).await.is_ok() {
            let now = self.world.now();
            self.contacts.borrow_mut().answered(sent, now);
            self.world.answered(now);
        }
    }

    /// Sends one beat. When it is not answered, the last beat stays what it was.
    async fn beat(&self, session: &W::Session, nodes: &[String]) -> Result<(), Stop> {
        let publish = self.unpublished.borrow().clone();
        let sent = self.world.now();
        match session.beat(nodes, publish.as_deref()).await {
            Ok(()) => {
                self.beat_answered(session, sent);
                self.unpublished.take();
            }
            Err(Failure::Unknown(why)) => {
                log::info!("beat not answered: {why}");
                self.world.sleep(PAUSE).await;
            }
            // A quota, say. The lock is worth more than what others would like to know.
            Err(failure @ (Failure::Refused(_) | Failure::Denied)) if publish.is_some() => {
                log::warn!("cannot say in {} that it is held: {failure}", nodes.join(" "));
                self.unpublished.take();
            }
            Err(failure) => return Err(Stop::because(failure, nodes.first().map_or("", String::as_str))),
        }
        Ok(())
    }

    /// Waits until one of `nodes` is deleted, or the session is over.
    async fn until_deleted(&self, session: &W::Session, nodes: &[String]) -> Result<(), Stop> {
        let deleted = async { first_of(nodes.iter().map(|node| self.until_one_is_deleted(session, node))).await.1 };
        or(deleted, self.until_lender_dies()).await
    }

    async fn until_one_is_deleted(&self, session: &W::Session, node: &str) -> Result<(), Stop> {
        loop {
            match session.read_and_watch(node).await {
                Ok((_, _, watch)) => match watch.await {
                    // The beat that publishes since when we hold, or somebody's remark.
                    Change::Data => {}
                    Change::Deleted => return Err(Stop::Gone(Loss::NodeDeleted)),
                    // The connection has gone, and all of this with it in a moment.
                    Change::Unknown => {
                        self.world.sleep(PAUSE).await;
                    }
                },
                Err(Failure::Unknown(_)) => {
                    self.world.sleep(PAUSE).await;
                }
                Err(failure) => return Err(Stop::because(failure, node)),
            }
        }
    }

    /// Repeats a request that changes nothing, or nothing more the second time, until its outcome is
    /// known.
    async fn insist<T, F: Future<Output = Result<T, Failure>>>(&self, request: impl Fn() -> F) -> Result<T, Failure> {
        loop {
            match request().await {
                Err(Failure::Unknown(why)) => {
                    log::info!("asking again: {why}");
                    self.world.sleep(PAUSE).await;
                }
                result => return result,
            }
        }
    }
}

fn sorted(lock: &str, children: Vec<String>) -> Result<Queue, Stop> {
    Queue::from_children(children).map_err(|_| Stop::Final(Report::Refused(Refusal::Exhausted(lock.to_owned()))))
}

/// Waits for the first of several futures. Gives its number and its output.
async fn first_of<F: Future>(futures: impl Iterator<Item = F>) -> (usize, F::Output) {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    poll_fn(|context| {
        for (number, future) in futures.iter_mut().enumerate() {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready((number, output));
            }
        }
        Poll::Pending
    })
    .await
}
