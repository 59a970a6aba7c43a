//! What a keeper does over one connection: queue, wait, hold. A connection that is lost ends all of
//! this wherever it is; the next one goes on from [`Place`].

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use futures_lite::future::or;

use super::world::World;
use super::{Keeper, PAUSE, refuse};
use crate::command::Remains;
use crate::core::contender::{Card, printable};
use crate::core::lease::{Instant, Terms};
use crate::core::machine::{Grant, Loss, Refusal, Report, View};
use crate::core::queue::{Contender, ContenderId, Queue, Standing};
use crate::session::{Change, Created, Failure, Session};

/// A connection over which a server answers nonsense is given up after this long.
const RECONNECT: Duration = Duration::from_secs(1);

/// How far a keeper has come.
#[derive(Clone, Default)]
pub(super) enum Place {
    /// There is no contender node of ours.
    #[default]
    Nowhere,
    /// One with this id may have been created: nobody knows.
    Uncertain(ContenderId),
    /// It is in the queue.
    Queued(Rc<Mine>),
    /// The supervisor has been told that we hold.
    Holding(Rc<Mine>),
}

impl Place {
    /// Our contender node, if there is one for sure.
    pub(super) fn mine(&self) -> Option<Rc<Mine>> {
        match self {
            Self::Nowhere | Self::Uncertain(_) => None,
            Self::Queued(mine) | Self::Holding(mine) => Some(Rc::clone(mine)),
        }
    }
}

/// Our contender node.
pub(super) struct Mine {
    id: ContenderId,
    name: String,
    /// Its full path.
    pub(super) path: String,
    token: i64,
    /// The children of the lock, when they were listed in the same flight as the creation.
    children: Cell<Option<Vec<String>>>,
    /// What the next beat is to store in the node.
    unpublished: RefCell<Option<Vec<u8>>>,
}

/// Why a step was not done.
enum Stop {
    /// Our contender node was deleted.
    Deleted,
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
            Failure::NoNode => Self::Deleted,
            failure => Self::Final(refuse(failure, path)),
        }
    }
}

impl<W: World> Keeper<'_, W> {
    /// Queues, waits and holds, from where we are. Gives what ends that for good, or `None` when it
    /// has to go on over another connection.
    pub(super) async fn contend(&self, session: &W::Session) -> Option<Report> {
        if let Err(failure) = self.arrive(session).await {
            return Some(refuse(failure, self.plan.lock.as_str()));
        }
        loop {
            let place = self.place.borrow().clone();
            let step = match &place {
                Place::Nowhere => self.enqueue(session, ContenderId::new(session.id(), self.world.random())).await,
                Place::Uncertain(id) => self.recover(session, *id).await,
                // One watch on our own node, through waiting and holding.
                // What happened to us first, for it may have come together with our turn.
                Place::Queued(mine) => {
                    or(self.until_deleted(session, &mine.path), self.wait_and_hold(session, mine)).await
                }
                Place::Holding(mine) => {
                    or(self.until_deleted(session, &mine.path), self.keep_beating(session, mine)).await
                }
            };
            match step {
                Ok(()) => {}
                Err(Stop::Final(report)) => return Some(report),
                Err(Stop::Reconnect) => return None,
                Err(Stop::Deleted) => {
                    if let Place::Holding(_) = *self.place.borrow() {
                        return Some(Report::Lost(Loss::NodeDeleted));
                    }
                    self.place.replace(Place::Nowhere);
                    self.world.report(&Report::Requeued).await;
                }
            }
        }
    }

    /// What comes first over each connection.
    async fn arrive(&self, session: &W::Session) -> Result<(), Failure> {
        // A server that lags behind the one that we lost might show a queue without our node. We
        // would take that for deleted, or create a second one and wait behind the first.
        let is_first = matches!(*self.place.borrow(), Place::Nowhere);
        if !is_first {
            let lock = self.plan.lock.as_str();
            let sent = self
                .insist(|| {
                    let sent = self.world.now();
                    let caught_up = session.catch_up(lock);
                    async move { caught_up.await.map(|()| sent) }
                })
                .await?;
            self.beaten(sent);
        }
        // After that beat, for the terms of a shorter timeout may be over with the one before.
        let timeout = session.timeout();
        if self.timeout.replace(timeout) != timeout || !self.connected.replace(true) {
            self.world.report(&Report::Connected { timeout }).await;
            log::info!("session {:#018x}, timeout {timeout:?}", session.id());
        }
        Ok(())
    }

    /// Records that a transaction sent then was answered.
    fn beaten(&self, sent: Instant) {
        self.last_beat.set(Some(sent));
        self.world.beaten(sent);
    }

    /// Creates the contender node. Not for good when the reply is lost.
    async fn enqueue(&self, session: &W::Session, id: ContenderId) -> Result<(), Stop> {
        let lock = self.plan.lock.as_str();
        let prefix = format!("{lock}/{}", id.prefix(self.plan.mode));
        let data = self.world.card().to_bytes();
        loop {
            self.place.replace(Place::Uncertain(id));
            let sent = self.world.now();
            // Both leave in one flight, and are answered in order: the list has the node in it.
            let prefixes = [prefix.clone()];
            let created = session.create(&prefixes, &data);
            let listed = session.children(lock);
            match created.await {
                Ok(Created { mut paths, stat }) => {
                    // A creation goes through the quorum, as a beat does.
                    self.beaten(sent);
                    if let (Some(path), Some(stat)) = (paths.pop(), stat) {
                        let name = path[lock.len() + 1..].to_owned();
                        self.queued(id, name, path, stat.czxid).children.set(listed.await.ok());
                    }
                    return Ok(());
                }
                Err(Failure::NoNode) => self.create_parents(session).await?,
                Err(Failure::Unknown(why)) => {
                    log::info!("nobody knows whether the contender node was created: {why}");
                    // As a rule the connection has gone, and this with it before the time is over.
                    self.world.sleep(RECONNECT).await;
                    return Err(Stop::Reconnect);
                }
                Err(failure) => return Err(Stop::Final(refuse(failure, lock))),
            }
        }
    }

    fn queued(&self, id: ContenderId, name: String, path: String, token: i64) -> Rc<Mine> {
        log::info!("contender {path}");
        let mine = Rc::new(Mine { id, name, path, token, children: Cell::new(None), unpublished: RefCell::new(None) });
        self.place.replace(Place::Queued(Rc::clone(&mine)));
        mine
    }

    async fn create_parents(&self, session: &W::Session) -> Result<(), Stop> {
        let lock = self.plan.lock.as_str();
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

    /// Looks for the node of a creation whose reply was lost, and creates it if there is none.
    async fn recover(&self, session: &W::Session, id: ContenderId) -> Result<(), Stop> {
        let lock = self.plan.lock.as_str();
        let definite = |failure| Stop::Final(refuse(failure, lock));
        let children = match self.insist(|| session.children(lock)).await {
            Ok(children) => children,
            Err(Failure::NoNode) => return self.enqueue(session, id).await,
            Err(failure) => return Err(definite(failure)),
        };
        let queue = sorted(children)?;
        let mut ours = queue.contenders().iter().filter(|contender| id.owns(&contender.name));
        let Some(first) = ours.next() else { return self.enqueue(session, id).await };
        for duplicate in ours {
            log::warn!("deleting {lock}/{}: a second node of this session", duplicate.name);
            let path = format!("{lock}/{}", duplicate.name);
            self.insist(|| session.delete(&path)).await.map_err(definite)?;
        }
        let path = format!("{lock}/{}", first.name);
        match self.insist(|| session.read(&path)).await {
            Ok((_, stat)) if stat.owner == session.id() => {
                self.queued(id, first.name.clone(), path, stat.czxid);
                Ok(())
            }
            // Gone in between, or, which the random half of the id rules out, somebody else's.
            Ok(_) | Err(Failure::NoNode) => self.enqueue(session, id).await,
            Err(failure) => Err(definite(failure)),
        }
    }

    /// Waits until the lock is ours, says so, and holds it.
    async fn wait_and_hold(&self, session: &W::Session, mine: &Rc<Mine>) -> Result<(), Stop> {
        let sent = self.wait_turn(session, mine).await?;
        let grant = Grant { node: mine.path.clone(), token: mine.token, session: session.id(), sent };
        self.world.report(&Report::Held(grant)).await;
        self.started.set(Some(Remains::default()));
        self.place.replace(Place::Holding(Rc::clone(mine)));
        // Not before the first beat: a short command costs no further transaction, and wakes nobody.
        let card = Card { held_since: Some(self.world.wall_millis()), ..self.world.card().clone() };
        mine.unpublished.replace(Some(card.to_bytes()));
        self.keep_beating(session, mine).await
    }

    /// Waits until the lock is ours. Gives the time at which the last answered beat was sent.
    async fn wait_turn(&self, session: &W::Session, mine: &Mine) -> Result<Instant, Stop> {
        let lock = self.plan.lock.as_str();
        let mut known = mine.children.take();
        loop {
            let names = match known.take() {
                Some(names) => names,
                None => self.insist(|| session.children(lock)).await.map_err(|failure| Stop::because(failure, lock))?,
            };
            let queue = sorted(names.clone())?;
            self.warn_of_foreign(&queue);
            // From a creation that was taken for lost and came late.
            let twin = |contender: &&Contender| mine.id.owns(&contender.name) && contender.name != mine.name;
            if let Some(twin) = queue.contenders().iter().find(twin) {
                log::warn!("deleting {lock}/{}: a second node of ours", twin.name);
                let path = format!("{lock}/{}", twin.name);
                self.insist(|| session.delete(&path)).await.map_err(|failure| Stop::because(failure, &path))?;
                continue;
            }
            match queue.standing(&mine.name) {
                // Never "nobody before us": the list is as new as our node, so that was deleted.
                Standing::Missing => return Err(Stop::Deleted),
                // Whoever was before us is gone for good, and new ones come after us, however old
                // the list. That our session lives is what the beat says.
                Standing::Holds { .. } => return self.fresh_beat(session, mine).await,
                Standing::Waits { position, watch } => {
                    // Those before us only ever become fewer. So when one of them has left, and an old
                    // list without it shows our turn, a new one would, a round trip later.
                    let left = self.watch(session, mine, &queue, position, &watch).await?;
                    known = left.and_then(|left| {
                        let rest: Vec<String> = names.into_iter().filter(|name| *name != left).collect();
                        let queue = sorted(rest.clone()).ok()?;
                        matches!(queue.standing(&mine.name), Standing::Holds { .. }).then_some(rest)
                    });
                }
            }
        }
    }

    /// Waits until the queue has to be looked at again. Gives the name of who left it, if that is
    /// why.
    async fn watch(
        &self,
        session: &W::Session,
        mine: &Mine,
        queue: &Queue,
        position: usize,
        watch: &[&Contender],
    ) -> Result<Option<String>, Stop> {
        let lock = self.plan.lock.as_str();
        let path = |contender: &Contender| format!("{lock}/{}", contender.name);
        // One flight: the watches, and who holds.
        let watched: Vec<String> = watch.iter().map(|contender| path(contender)).collect();
        let replies: Vec<_> = watched.iter().map(|path| session.read_and_watch(path)).collect();
        let view = self.view(session, queue, position);
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
        self.world.report_if_room(&Report::Waiting(view.await));

        let changed = async {
            let (which, change) = first_of(watches.into_iter()).await;
            Ok(matches!(change, Change::Deleted).then(|| watch[which].name.clone()))
        };
        // Whoever is next in line beats, so that the lease is there when its turn comes.
        let next_in_line =
            watch.iter().any(|contender| matches!(queue.standing(&contender.name), Standing::Holds { .. }));
        let beating = async {
            if next_in_line {
                self.keep_beating(session, mine).await?;
            }
            pending().await
        };
        or(or(changed, beating), self.keep_looking(session, mine)).await
    }

    /// Looks where we stand from time to time, if anybody is watching. Sets no watches: those that
    /// are set remain right until one of them fires.
    async fn keep_looking<T>(&self, session: &W::Session, mine: &Mine) -> T {
        let Some(period) = self.refresh else { return pending().await };
        loop {
            self.world.sleep(period).await;
            let Ok(children) = session.children(self.plan.lock.as_str()).await else { continue };
            let Ok(queue) = Queue::from_children(children) else { continue };
            if let Standing::Waits { position, .. } = queue.standing(&mine.name) {
                let view = self.view(session, &queue, position).await;
                self.world.report_if_room(&Report::Waiting(view));
            }
        }
    }

    /// What to tell a user who waits in this queue. The request has left when this returns.
    fn view<'a>(
        &self,
        session: &'a W::Session,
        queue: &Queue,
        position: usize,
    ) -> impl Future<Output = View> + use<'a, W> {
        let holder = queue.first_holder().map(|holder| holder.name.clone()).unwrap_or_default();
        let total = queue.contenders().len();
        let reply = session.read(&format!("{}/{holder}", self.plan.lock));
        async move {
            let card = reply.await.map(|(data, _)| Card::from_bytes(&data)).unwrap_or_default();
            let holder = card.phrase().unwrap_or_else(|| printable(&holder));
            View { position, total, holder, held_since: card.held_since }
        }
    }

    fn warn_of_foreign(&self, queue: &Queue) {
        if let (Some(name), false) = (queue.foreign().first(), self.warned.replace(true)) {
            log::warn!("{} has a child that is no contender, ignored: {}", self.plan.lock, printable(name));
        }
    }

    /// A beat that is young enough to start a command under: the last one, or a new one.
    async fn fresh_beat(&self, session: &W::Session, mine: &Mine) -> Result<Instant, Stop> {
        let interval = Terms::beat_of(session.timeout());
        loop {
            match self.last_beat.get() {
                Some(sent) if self.world.now().saturating_since(sent) <= interval * 3 / 2 => return Ok(sent),
                _ => self.beat(session, mine).await?,
            }
        }
    }

    /// Beats until that fails for good.
    async fn keep_beating(&self, session: &W::Session, mine: &Mine) -> Result<(), Stop> {
        let interval = Terms::beat_of(session.timeout());
        loop {
            let age = self.last_beat.get().map_or(interval, |sent| self.world.now().saturating_since(sent));
            self.world.sleep(interval.saturating_sub(age)).await;
            self.beat(session, mine).await?;
        }
    }

    /// Sends one beat. When it is not answered, the last beat stays what it was.
    async fn beat(&self, session: &W::Session, mine: &Mine) -> Result<(), Stop> {
        let publish = mine.unpublished.borrow().clone();
        let sent = self.world.now();
        match session.beat(std::slice::from_ref(&mine.path), publish.as_deref()).await {
            Ok(()) => {
                self.beaten(sent);
                mine.unpublished.take();
            }
            Err(Failure::Unknown(why)) => {
                log::info!("beat not answered: {why}");
                self.world.sleep(PAUSE).await;
            }
            // A quota, say. The lock is worth more than what others would like to know.
            Err(failure @ (Failure::Refused(_) | Failure::Denied)) if publish.is_some() => {
                log::warn!("cannot say in {} that it is held: {failure}", mine.path);
                mine.unpublished.take();
            }
            Err(failure) => return Err(Stop::because(failure, &mine.path)),
        }
        Ok(())
    }

    /// Waits until `node` is deleted, or the session is over.
    async fn until_deleted(&self, session: &W::Session, node: &str) -> Result<(), Stop> {
        loop {
            match session.read_and_watch(node).await {
                Ok((_, _, watch)) => match watch.await {
                    // The beat that publishes since when we hold, or somebody's remark.
                    Change::Data => {}
                    Change::Deleted => return Err(Stop::Deleted),
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

fn sorted(children: Vec<String>) -> Result<Queue, Stop> {
    Queue::from_children(children).map_err(|_| Stop::Final(Report::Refused(Refusal::Exhausted)))
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
