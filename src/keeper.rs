//! The keeper: the process that holds the ZooKeeper session. It queues, beats and releases.
//!
//! It is a fork of the supervisor, one per session, and deaf to every signal that can be ignored:
//! it goes when it is told to, or when the supervisor has gone, and then only after nothing is
//! left of the command. It may have threads; the supervisor never does.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_lite::future::{or, zip};
use nix::fcntl::OFlag;
use nix::sys::stat::Mode as Permissions;
use nix::unistd::{User, dup2_stdin, dup2_stdout, gethostname, getuid, setsid};
use smol::{Async, Timer};

use crate::clock;
use crate::command;
use crate::core::contender::{Card, printable};
use crate::core::lease::{Instant, Terms};
use crate::core::machine::{Grant, Loss, Refusal, Report, View};
use crate::core::queue::{Contender, ContenderId, Queue, Standing};
use crate::plan::Plan;
use crate::session::{Change, Failure, Session, Watch};
use crate::signals;
use crate::wire::{LastBeat, Link, Order, Received};

/// Between two tries of a request that fails at once, so that a server that keeps breaking the
/// connection is not asked a thousand times a second.
const PAUSE: Duration = Duration::from_millis(20);

/// What the keeper is given at its birth.
#[derive(Debug)]
pub struct Birth<'p> {
    /// What the run is to do.
    pub plan: &'p Plan,
    /// The process id of the supervisor, which is the one that users know.
    pub supervisor: u32,
    /// How often to look where we stand although nothing has happened, if anybody is watching.
    pub refresh: Option<Duration>,
    /// The socket to the supervisor.
    pub link: Link,
    /// Where to record answered beats.
    pub last_beat: LastBeat,
}

/// Lives as a keeper until there is nothing left to keep. To be called in a fresh fork.
pub fn run(birth: Birth<'_>) {
    if let Err(error) = detach() {
        log::error!("keeper: {error}");
        return;
    }
    // On one line, as everything that is said.
    std::panic::set_hook(Box::new(|panic| log::error!("keeper: {}", panic.to_string().replace('\n', " "))));
    match Keeper::new(birth) {
        Ok(keeper) => smol::block_on(keeper.keep()),
        Err(error) => log::error!("keeper: {error}"),
    }
}

/// Makes the process its own: out of reach of terminals and of what is sent to groups, with no hold
/// on the caller's pipes but standard error.
fn detach() -> nix::Result<()> {
    signals::turn_deaf()?;
    setsid()?;
    let _ = nix::sys::prctl::set_name(c"zklock-keeper");
    let null = nix::fcntl::open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Permissions::empty())?;
    dup2_stdin(null.as_fd())?;
    dup2_stdout(null.as_fd())?;
    Ok(())
}

struct Keeper<'p> {
    birth: Birth<'p>,
    /// The same socket as `birth.link`, for waiting on it.
    readiness: Async<OwnedFd>,
    /// The command runs, perhaps in a process group of its own.
    started: Cell<Option<Option<i32>>>,
    /// Full path of our contender node, once there is one.
    node: RefCell<Option<String>>,
    /// The user knows of the children that are no contenders.
    warned: Cell<bool>,
    identity: OnceCell<Card>,
}

/// Why the keeper's work ends.
enum End {
    /// The supervisor wants the lock released.
    Told,
    /// The supervisor has gone.
    Orphaned,
    /// There is nothing more to keep.
    Over(Report),
}

/// Our contender node.
struct Mine {
    name: String,
    path: String,
    token: i64,
    /// When the creation was sent, unless its reply was lost: it counts as a beat.
    sent: Option<Instant>,
    /// The children of the lock, listed in the same flight.
    children: Cell<Option<Vec<String>>>,
}

/// Why waiting or holding ends.
enum Stop {
    /// Our contender node was deleted.
    Deleted,
    /// There is nothing more to do in this session.
    Final(Report),
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

impl<'p> Keeper<'p> {
    fn new(birth: Birth<'p>) -> std::io::Result<Self> {
        let readiness = Async::new(birth.link.as_fd().try_clone_to_owned()?)?;
        Ok(Self {
            birth,
            readiness,
            started: Cell::new(None),
            node: RefCell::new(None),
            warned: Cell::new(false),
            identity: OnceCell::new(),
        })
    }

    async fn keep(self) {
        let connecting = async {
            let unreachable = |reason| self.report_if_room(&Report::Unreachable(reason));
            let session = Session::connect(&self.birth.plan.servers, self.birth.plan.session_timeout, unreachable);
            // Looking up the user takes a while: time that the server needs for the session.
            zip(session, async { self.identity() }).await.0
        };
        let session = match or(async { Err(self.orders().await) }, async { Ok(connecting.await) }).await {
            Ok(Ok(session)) => session,
            Ok(Err(failure)) => {
                self.report(&refuse(failure, "/")).await;
                self.orders().await;
                return;
            }
            Err(_) => {
                self.report_if_room(&Report::Released);
                return;
            }
        };
        let end = or(async { self.orders().await }, async { End::Over(self.live(&session).await) }).await;
        let end = match end {
            End::Over(report) => {
                self.report(&report).await;
                if let Report::Lost(_) = report {
                    // The supervisor does this too, unless it is stopped, or has just died.
                    self.end_command().await;
                }
                self.orders().await
            }
            end => end,
        };
        let within = session.timeout();
        let node = self.node.borrow().clone();
        match end {
            End::Orphaned => {
                self.end_command().await;
                // Past the session timeout there is nothing left to release.
                let enough = async {
                    Timer::after(within).await;
                };
                or(session.release(node.as_deref()), enough).await;
            }
            End::Told | End::Over(_) => {
                session.release(node.as_deref()).await;
                self.report_if_room(&Report::Released);
            }
        }
    }

    /// Waits for the end that the supervisor decides on.
    async fn orders(&self) -> End {
        loop {
            match self.birth.link.receive() {
                Received::Message(Order::Started { group }) => self.started.set(Some(group)),
                Received::Message(Order::Release) => return End::Told,
                Received::Gone => return End::Orphaned,
                Received::Nothing => {
                    if let Err(error) = self.readiness.readable().await {
                        log::error!("keeper: {error}");
                        return End::Orphaned;
                    }
                }
            }
        }
    }

    /// Reports, waiting for room if need be: a supervisor that is stopped reads nothing.
    async fn report(&self, report: &Report) {
        while let Err(error) = self.birth.link.send(report) {
            if error.kind() != std::io::ErrorKind::WouldBlock || self.readiness.writable().await.is_err() {
                return;
            }
        }
    }

    /// Reports what is of no interest once it is old.
    fn report_if_room(&self, report: &Report) {
        if let Err(error) = self.birth.link.send(report) {
            log::debug!("keeper: report dropped: {error}");
        }
    }

    /// Kills the command and waits until nothing is left of it.
    async fn end_command(&self) {
        let (Some(group), Some(node)) = (self.started.get(), self.node.borrow().clone()) else { return };
        let mark = format!("ZKLOCK_NODE={node}");
        while command::kill_survivors(group, &mark) > 0 {
            Timer::after(Duration::from_millis(2)).await;
        }
    }

    /// Queues and holds for as long as the session lasts.
    async fn live(&self, session: &Session) -> Report {
        let timeout = session.timeout();
        log::info!("session {:#018x}, timeout {timeout:?}", session.id());
        self.report(&Report::Connected { timeout }).await;
        let silence = async {
            // By then the servers have given the session up, or will when they are back.
            session.silent_for(timeout + timeout / 5).await;
            Report::Lost(Loss::SessionExpired)
        };
        or(async { self.queue_and_hold(session).await }, silence).await
    }

    async fn queue_and_hold(&self, session: &Session) -> Report {
        loop {
            let mine = match self.enqueue(session).await {
                Ok(mine) => mine,
                Err(report) => return report,
            };
            log::info!("contender {}", mine.path);
            self.node.replace(Some(mine.path.clone()));
            let last_beat = Cell::new(mine.sent);
            // One watch on our own node, through waiting and holding.
            let mut deleted = pin!(until_deleted(session, &mine.path));
            let turn = or(self.wait_turn(session, &mine, &last_beat), async { Err(deleted.as_mut().await) }).await;
            let sent = match turn {
                Ok(sent) => sent,
                Err(Stop::Deleted) => {
                    self.report(&Report::Requeued).await;
                    continue;
                }
                Err(Stop::Final(report)) => return report,
            };
            let grant = Grant { node: mine.path.clone(), token: mine.token, session: session.id(), sent };
            self.report(&Report::Held(grant)).await;
            let data = Card { held_since: Some(clock::wall_millis()), ..self.identity().clone() }.to_bytes();
            let beating = self.keep_beating(session, &mine.path, &last_beat, Some(data));
            return match or(or(beating, deleted), self.guard(session, &last_beat)).await {
                Stop::Deleted => Report::Lost(Loss::NodeDeleted),
                Stop::Final(report) => report,
            };
        }
    }

    /// Creates the contender node: exactly one, whatever happens to the replies.
    async fn enqueue(&self, session: &Session) -> Result<Mine, Report> {
        let lock = self.birth.plan.lock.as_str();
        let id = ContenderId::new(session.id(), fastrand::u64(..));
        let prefix = format!("{lock}/{}", id.prefix(self.birth.plan.mode));
        let data = self.identity().to_bytes();
        loop {
            let sent = clock::now();
            // Both leave in one flight, and are answered in order: the list has the node in it.
            let created = session.create_contender(&prefix, &data);
            let listed = session.children(lock);
            match created.await {
                Ok((sequence, stat)) => {
                    let path = format!("{prefix}{sequence:010}");
                    let name = path[lock.len() + 1..].to_owned();
                    return Ok(Mine {
                        name,
                        path,
                        token: stat.czxid,
                        sent: Some(sent),
                        children: Cell::new(listed.await.ok()),
                    });
                }
                Err(Failure::NoNode) => self.create_parents(session).await?,
                Err(Failure::Unknown(why)) => {
                    log::info!("nobody knows whether the contender node was created: {why}");
                    if let Some(mine) = self.recover(session, id).await? {
                        return Ok(mine);
                    }
                }
                Err(failure) => return Err(refuse(failure, lock)),
            }
        }
    }

    async fn create_parents(&self, session: &Session) -> Result<(), Report> {
        let lock = self.birth.plan.lock.as_str();
        match session.create_parents(lock).await {
            Ok(()) => Ok(()),
            Err(Failure::NoNode) => Err(Report::Refused(Refusal::NoChroot)),
            // Nodes that exist already are no error, so it is simply tried again.
            Err(Failure::Unknown(_)) => {
                Timer::after(PAUSE).await;
                Ok(())
            }
            Err(failure) => Err(refuse(failure, lock)),
        }
    }

    /// Looks for the node of a creation whose reply was lost.
    async fn recover(&self, session: &Session, id: ContenderId) -> Result<Option<Mine>, Report> {
        let lock = self.birth.plan.lock.as_str();
        loop {
            // Without sync, a server that lags behind the one that we lost shows no node, and a
            // second one would wait behind the first: for ourselves.
            let synced = session.sync(lock).await;
            let children = match synced {
                Ok(()) => session.children(lock).await,
                Err(failure) => Err(failure),
            };
            let queue = match children {
                Ok(children) => Queue::from_children(children).map_err(|_| Report::Refused(Refusal::Exhausted))?,
                Err(Failure::NoNode) => return Ok(None),
                Err(Failure::Unknown(_)) => {
                    Timer::after(PAUSE).await;
                    continue;
                }
                Err(failure) => return Err(refuse(failure, lock)),
            };
            let mut ours = queue.contenders().iter().filter(|contender| id.owns(&contender.name));
            let Some(first) = ours.next() else { return Ok(None) };
            for duplicate in ours {
                log::warn!("deleting {lock}/{}: a second node of this session", duplicate.name);
                let path = format!("{lock}/{}", duplicate.name);
                insist(|| session.delete(&path)).await.map_err(|failure| refuse(failure, &path))?;
            }
            let path = format!("{lock}/{}", first.name);
            match insist(|| session.read(&path)).await {
                Ok((_, stat)) if stat.owner == session.id() => {
                    log::info!("found {path}: it was created");
                    return Ok(Some(Mine {
                        name: first.name.clone(),
                        path,
                        token: stat.czxid,
                        sent: None,
                        children: Cell::new(None),
                    }));
                }
                // Gone in between, or, which the random half of the id rules out, somebody else's.
                Ok(_) | Err(Failure::NoNode) => return Ok(None),
                Err(failure) => return Err(refuse(failure, &path)),
            }
        }
    }

    /// Waits until the lock is ours. Gives the time at which the last answered beat was sent.
    async fn wait_turn(
        &self,
        session: &Session,
        mine: &Mine,
        last_beat: &Cell<Option<Instant>>,
    ) -> Result<Instant, Stop> {
        let lock = self.birth.plan.lock.as_str();
        let mut children = mine.children.take();
        loop {
            let names = match children.take() {
                Some(names) => names,
                None => insist(|| session.children(lock)).await.map_err(|failure| Stop::because(failure, lock))?,
            };
            let queue = Queue::from_children(names).map_err(|_| Stop::Final(Report::Refused(Refusal::Exhausted)))?;
            self.warn_of_foreign(&queue);
            match queue.standing(&mine.name) {
                // Never "nobody before us": the list is as new as our node, so that was deleted.
                Standing::Missing => return Err(Stop::Deleted),
                // Whoever was before us is gone for good, and new ones come after us, however old
                // the list. That our session lives is what the beat says.
                Standing::Holds { .. } => return self.fresh_beat(session, &mine.path, last_beat).await,
                Standing::Waits { position, watch } => {
                    self.watch(session, mine, last_beat, &queue, position, &watch).await?;
                }
            }
        }
    }

    /// Waits until the queue has to be looked at again.
    async fn watch(
        &self,
        session: &Session,
        mine: &Mine,
        last_beat: &Cell<Option<Instant>>,
        queue: &Queue,
        position: usize,
        watch: &[&Contender],
    ) -> Result<(), Stop> {
        let lock = self.birth.plan.lock.as_str();
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
                Err(Failure::NoNode) => return Ok(()),
                Err(Failure::Unknown(_)) => {
                    Timer::after(PAUSE).await;
                    return Ok(());
                }
                Err(failure) => return Err(Stop::because(failure, lock)),
            }
        }
        self.report_if_room(&Report::Waiting(view.await));

        let changed = async {
            first_of(watches.into_iter().map(Watch::changed)).await;
            Ok(())
        };
        // Whoever is next in line beats, so that the lease is there when its turn comes.
        let next_in_line =
            watch.iter().any(|contender| matches!(queue.standing(&contender.name), Standing::Holds { .. }));
        let beating = async {
            if next_in_line {
                Err(self.keep_beating(session, &mine.path, last_beat, None).await)
            } else {
                pending().await
            }
        };
        or(or(changed, beating), self.keep_looking(session, mine)).await
    }

    /// Looks where we stand from time to time, if anybody is watching. Sets no watches: those that
    /// are set remain right until one of them fires.
    async fn keep_looking<T>(&self, session: &Session, mine: &Mine) -> T {
        let Some(period) = self.birth.refresh else { return pending().await };
        loop {
            Timer::after(period).await;
            let Ok(children) = session.children(self.birth.plan.lock.as_str()).await else { continue };
            let Ok(queue) = Queue::from_children(children) else { continue };
            if let Standing::Waits { position, .. } = queue.standing(&mine.name) {
                let view = self.view(session, &queue, position).await;
                self.report_if_room(&Report::Waiting(view));
            }
        }
    }

    /// What to tell a user who waits in this queue. The request has left when this returns.
    fn view<'a>(
        &self,
        session: &'a Session,
        queue: &Queue,
        position: usize,
    ) -> impl Future<Output = View> + use<'a, 'p> {
        let holder = queue.first_holder().map(|holder| holder.name.clone()).unwrap_or_default();
        let total = queue.contenders().len();
        let reply = session.read(&format!("{}/{holder}", self.birth.plan.lock));
        async move {
            let card = reply.await.map(|(data, _)| Card::from_bytes(&data)).unwrap_or_default();
            let holder = card.phrase().unwrap_or_else(|| printable(&holder));
            View { position, total, holder, held_since: card.held_since }
        }
    }

    fn warn_of_foreign(&self, queue: &Queue) {
        if let (Some(name), false) = (queue.foreign().first(), self.warned.replace(true)) {
            log::warn!("{} has a child that is no contender, ignored: {}", self.birth.plan.lock, printable(name));
        }
    }

    /// A beat that is young enough to start a command under: the last one, or a new one.
    async fn fresh_beat(
        &self,
        session: &Session,
        node: &str,
        last_beat: &Cell<Option<Instant>>,
    ) -> Result<Instant, Stop> {
        let interval = Terms::beat_of(session.timeout());
        loop {
            match last_beat.get() {
                Some(sent) if clock::now().saturating_since(sent) <= interval * 3 / 2 => return Ok(sent),
                _ => self.beat(session, node, last_beat, None).await?,
            }
        }
    }

    /// Beats until that fails for good.
    async fn keep_beating(
        &self,
        session: &Session,
        node: &str,
        last_beat: &Cell<Option<Instant>>,
        mut publish: Option<Vec<u8>>,
    ) -> Stop {
        let interval = Terms::beat_of(session.timeout());
        loop {
            let age = last_beat.get().map_or(interval, |sent| clock::now().saturating_since(sent));
            Timer::after(interval.saturating_sub(age)).await;
            match self.beat(session, node, last_beat, publish.as_deref()).await {
                Ok(()) => publish = None,
                Err(stop) => return stop,
            }
        }
    }

    /// Kills the command at the end of the lease. The supervisor has done so by then, unless it is
    /// stopped: then the command may be stopped with it (Ctrl-Z), and must not go on when both are
    /// continued.
    async fn guard(&self, session: &Session, last_beat: &Cell<Option<Instant>>) -> Stop {
        loop {
            let now = clock::now();
            let end = last_beat.get().map_or(now, |sent| Terms::end_of(session.timeout(), sent));
            if now >= end {
                self.end_command().await;
            }
            let pause = end.saturating_since(now).max(PAUSE);
            Timer::after(pause).await;
        }
    }

    /// Sends one beat. Without an answer, the last beat stays what it was.
    async fn beat(
        &self,
        session: &Session,
        node: &str,
        last_beat: &Cell<Option<Instant>>,
        publish: Option<&[u8]>,
    ) -> Result<(), Stop> {
        let sent = clock::now();
        match session.beat(node, publish).await {
            Ok(()) => {
                last_beat.set(Some(sent));
                self.birth.last_beat.record(sent);
                Ok(())
            }
            Err(Failure::Unknown(why)) => {
                log::info!("beat not answered: {why}");
                Timer::after(PAUSE).await;
                Ok(())
            }
            Err(failure) => Err(Stop::because(failure, node)),
        }
    }

    /// What others may know of us, found out once.
    fn identity(&self) -> &Card {
        self.identity.get_or_init(|| {
            let plan = self.birth.plan;
            let command = if plan.publish_command {
                let words = std::iter::once(&plan.command.program).chain(&plan.command.args);
                Some(words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))
            } else {
                Path::new(&plan.command.program).file_name().map(|name| name.to_string_lossy().into_owned())
            };
            Card {
                host: gethostname().ok().map(|name| name.to_string_lossy().into_owned()),
                pid: Some(self.birth.supervisor),
                user: User::from_uid(getuid()).ok().flatten().map(|user| user.name),
                command,
                describe: plan.description.clone(),
                mode: Some(plan.mode),
                held_since: None,
            }
        })
    }
}

/// Waits until `node` is deleted, or the session is over.
async fn until_deleted(session: &Session, node: &str) -> Stop {
    loop {
        match session.read_and_watch(node).await {
            Ok((_, _, watch)) => match watch.changed().await {
                // The beat that publishes since when we hold, or somebody's remark.
                Change::Data => {}
                Change::Deleted => return Stop::Deleted,
                Change::SessionOver => return Stop::Final(Report::Lost(Loss::SessionExpired)),
            },
            Err(Failure::Unknown(_)) => {
                Timer::after(PAUSE).await;
            }
            Err(failure) => return Stop::because(failure, node),
        }
    }
}

/// Repeats a request that changes nothing, or nothing more the second time, until its outcome is
/// known.
async fn insist<T, F: Future<Output = Result<T, Failure>>>(request: impl Fn() -> F) -> Result<T, Failure> {
    loop {
        match request().await {
            Err(Failure::Unknown(why)) => {
                log::info!("asking again: {why}");
                Timer::after(PAUSE).await;
            }
            result => return result,
        }
    }
}

/// Waits for the first of several futures.
async fn first_of<F: Future>(futures: impl Iterator<Item = F>) -> F::Output {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    poll_fn(|context| {
        for future in &mut futures {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(output);
            }
        }
        Poll::Pending
    })
    .await
}

/// A failure that no further try will mend, as the supervisor is told of it.
fn refuse(failure: Failure, path: &str) -> Report {
    match failure {
        Failure::SessionOver => Report::Lost(Loss::SessionExpired),
        Failure::Denied => Report::Refused(Refusal::Denied(path.to_owned())),
        failure => Report::Refused(Refusal::Server(format!("{path}: {failure}"))),
    }
}
