//! The keeper: the process that holds the ZooKeeper session. It queues, beats and releases.
//!
//! It is a fork of the supervisor, one per session, and deaf to every signal that can be ignored:
//! it goes when it is told to, or when the supervisor has gone, and then only after nothing is
//! left of the command. It may have threads; the supervisor never does.
//!
//! What it needs from outside comes through [`world::World`]: the real one ([`process`]) or that of
//! the simulator.

mod contend;
pub mod process;
pub mod world;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use futures_lite::future::{or, zip};

use self::contend::{Mine, Place};
use self::world::World;
use crate::command::Left;
use crate::plan::{LockPath, Plan};
use crate::rules::contacts::Contacts;
use crate::rules::instant::Instant;
use crate::rules::lease::Terms;
use crate::rules::message::{Connection, Loss, Order, Refusal, Remains, Report};
use crate::session::{Failure, Session};

/// Between two tries of a request that fails at once, so that a server that keeps breaking the
/// connection is not asked a thousand times a second.
const PAUSE: Duration = Duration::from_millis(20);

/// Between two connections that were lost at once, after a while.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long a process may be in the middle of executing a program.
const DOUBT: Duration = Duration::from_secs(1);

/// A keeper, in whatever world.
pub struct Keeper<'p, W: World> {
    plan: &'p Plan,
    /// How often to look where we stand although nothing has happened, if anybody is watching.
    refresh: Option<Duration>,
    world: W,
    /// The command runs, or may be about to: the supervisor knows that we hold.
    started: Cell<Option<Remains>>,
    /// What outlives a lost connection: how far we are, and the last answered beat.
    place: RefCell<Place>,
    /// When the last beat that was answered was sent, and from when the lease counts with it.
    last_beat: Cell<Option<Instant>>,
    lease: Cell<Option<Instant>>,
    contacts: RefCell<Contacts>,
    /// The session, once there is one; over which connection, and with which timeout.
    identity: RefCell<Option<<W::Session as Session>::Identity>>,
    connection: RefCell<Option<Rc<W::Session>>>,
    timeout: Cell<Duration>,
    /// The supervisor knows that there is a session.
    connected: Cell<bool>,
    /// The servers know container nodes, as far as we know.
    containers: Cell<bool>,
    /// Locks with children that are no contenders, of which the supervisor knows.
    told: RefCell<HashSet<String>>,
    /// In the order in which they are taken.
    locks: Vec<&'p LockPath>,
    /// Contenders of zklocks above us that we use, and whether we have looked for them.
    lent: RefCell<Vec<Rc<Mine>>>,
    looked_up: Cell<bool>,
    /// What the next beat is to store in the nodes.
    unpublished: RefCell<Option<Vec<u8>>>,
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

impl<'p, W: World> Keeper<'p, W> {
    /// A keeper that has done nothing yet.
    pub fn new(plan: &'p Plan, refresh: Option<Duration>, world: W) -> Self {
        let mut locks: Vec<_> = plan.request.locks().collect();
        locks.sort_unstable();
        Self {
            plan,
            refresh,
            started: Cell::new(None),
            place: RefCell::default(),
            last_beat: Cell::new(None),
            lease: Cell::new(None),
            contacts: RefCell::new(Contacts::new(world.now())),
            identity: RefCell::new(None),
            connection: RefCell::new(None),
            timeout: Cell::new(plan.settings.session_timeout),
            connected: Cell::new(false),
            containers: Cell::new(true),
            told: RefCell::default(),
            locks,
            lent: RefCell::default(),
            looked_up: Cell::new(false),
            unpublished: RefCell::default(),
            world,
        }
    }

    /// Lives until there is nothing left to keep.
    pub async fn keep(self) {
        let mut life = Box::pin(async { End::Over(or(self.live(), self.guard()).await) });
        let mut end = or(self.orders(), life.as_mut()).await;
        if let End::Told = end {
            self.delete_node().await;
        }
        drop(life);
        if let End::Over(report) = &end {
            let aftermath = async {
                match report {
                    // The supervisor does this too, unless it is stopped, or has just died.
                    Report::Lost(_) => {
                        // Who shows up later is killed by the guard.
                        self.lease.set(None);
                        zip(self.world.report(report), self.end_command()).await;
                    }
                    _ => self.world.report(report).await,
                }
                self.guard().await
            };
            // Orders first: a command that has ended may have left others behind by intention.
            end = or(self.orders(), aftermath).await;
        }
        if let End::Orphaned = end {
            self.end_command().await;
            self.world.borrows_no_more();
        }
        // Past the session timeout there is nothing left to release.
        let enough = async {
            self.world.sleep(self.timeout.get()).await;
            None
        };
        if let Some(report) = or(self.release(), enough).await {
            self.world.report_if_room(&report);
        }
    }

    /// Waits for the end that the supervisor decides on.
    async fn orders(&self) -> End {
        loop {
            match self.world.order().await {
                Some(Order::Started(remains)) => self.started.set(Some(remains)),
                Some(Order::Release) => return End::Told,
                None => return End::Orphaned,
            }
        }
    }

    /// Kills the command and waits until nothing is left of it. Whether there was something.
    async fn end_command(&self) -> bool {
        let Some(remains) = self.started.get() else { return false };
        let mut pause = Duration::from_millis(2);
        let mut found = false;
        let mut doubt_ends = None;
        loop {
            match self.world.kill(remains) {
                Left::Nobody => return found,
                Left::Unknown => {
                    let now = self.world.now();
                    // Execve(2) takes less. What never shows its environment has a reason of its own.
                    if now >= *doubt_ends.get_or_insert(now + DOUBT) {
                        return found;
                    }
                }
                Left::Somebody => (found, doubt_ends) = (true, None),
            }
            self.world.sleep(pause).await;
            // What we may not kill is not asked for ever at this pace.
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// Kills the command at the end of the lease. The supervisor has done so by then, unless it is
    /// stopped: then the command may be stopped with it (Ctrl-Z), and must not go on when both are
    /// continued.
    async fn guard<T>(&self) -> T {
        loop {
            let now = self.world.now();
            let end = self.lease.get().map_or(now, |from| Terms::end_of(self.timeout.get(), from));
            if now >= end && self.end_command().await {
                // It has not ended by itself, and a supervisor that was stopped would think so.
                self.world.report(&Report::Lost(Loss::LeaseOver)).await;
            }
            // Timers stand still while the machine sleeps.
            let due = self.world.sleep(end.saturating_since(now).clamp(PAUSE, Duration::from_secs(1)));
            let timeout = self.timeout.get();
            // A shorter one may have ended the lease already. Nobody is woken: whatever changes it is of the same task.
            let changed = poll_fn(|_| if self.timeout.get() == timeout { Poll::Pending } else { Poll::Ready(()) });
            or(due, changed).await;
        }
    }

    /// Opens a session, queues and holds for as long as the session lasts, over as many connections
    /// as it takes.
    async fn live(&self) -> Report {
        let plan = self.plan;
        // What is said again and again would fill the socket to a supervisor that is stopped, and keep
        // it from hearing of a loss.
        let told = RefCell::new(String::new());
        let unreachable = |reason: String| {
            log::info!("no connection: {reason}");
            if told.replace(reason.clone()) != reason {
                self.world.report_if_room(&Report::Connection(Connection::Unreachable(reason)));
            }
        };
        let opening = self.world.open(plan.settings.session_timeout, unreachable);
        // Looking up the user takes a while: time that the server needs for the session.
        let mut session = match zip(opening, async { self.world.card() }).await.0 {
            Ok(session) => Rc::new(session),
            Err(failure) => return refuse(failure, "/"),
        };
        told.take();
        // A new leader counts with this, whatever is granted later, and this connection may be lost before
        // anything else is done over it.
        self.timeout.set(session.timeout());
        let (id, identity) = (session.id(), session.identity());
        self.identity.replace(Some(identity.clone()));
        let mut pause = Duration::ZERO;
        loop {
            let since = self.world.now();
            self.connection.replace(Some(Rc::clone(&session)));
            let lost = async {
                session.lost().await;
                None
            };
            if let Some(report) = or(lost, or(self.contend(&session), self.pulse(session.timeout()))).await {
                return report;
            }
            log::info!("connection to ZooKeeper lost");
            let lost = self.world.now();
            let heard = self.contacts.borrow().heard_until(session.timeout(), lost);
            self.connection.take();
            if let Some(session) = Rc::into_inner(session) {
                session.abandon().await;
            }
            // A server that closes each connection at once is not asked thousands of times a second.
            let lived = self.world.now().saturating_since(since);
            pause = if lived < LONGEST_PAUSE { (pause * 2).clamp(PAUSE, LONGEST_PAUSE) } else { Duration::ZERO };
            self.world.sleep(pause).await;
            session = loop {
                match self.world.resume(self.timeout.get(), &identity, unreachable).await {
                    // How long the connection may be silent was reckoned from the timeout before.
                    Ok(session) if session.id() == id && session.timeout() < self.timeout.get() => {
                        log::info!("connection to ZooKeeper restored, with a shorter session timeout");
                        self.shorten(&session).await;
                        session.abandon().await;
                    }
                    // Servers that imitate ZooKeeper may give out a new session instead of saying that
                    // the old one is gone.
                    Ok(session) if session.id() == id => break Rc::new(session),
                    Ok(_) | Err(Failure::SessionOver) => {
                        let is_early = Terms::is_early(self.timeout.get(), heard, lost, self.world.now());
                        return Report::Lost(if is_early { Loss::SessionEnded } else { Loss::SessionExpired });
                    }
                    Err(failure) => return refuse(failure, "/"),
                }
            };
            log::info!("connection to ZooKeeper restored");
            if !told.take().is_empty() {
                self.world.report_if_room(&Report::Connection(Connection::Connected { timeout: session.timeout() }));
            }
        }
    }

    /// The servers count with a shorter timeout from now on, whether or not they answer another request.
    async fn shorten(&self, session: &W::Session) {
        let timeout = session.timeout();
        let shortened = |from| Terms::shortened(from, self.timeout.get(), timeout, session.opened());
        let from = self.lease.get().map(shortened);
        self.lease.set(from);
        self.timeout.set(timeout);
        // Both in one word: the one without the other would be too long a lease, or too short.
        self.world.report(&Report::Connection(Connection::Shortened { timeout, from })).await;
        log::info!("session {:#018x}, timeout {timeout:?}", session.id());
    }

    /// Keeps an eye on whether we are running, without an end.
    async fn pulse<T>(&self, timeout: Duration) -> T {
        loop {
            self.world.sleep(Contacts::awake_interval(timeout)).await;
            self.contacts.borrow_mut().awake(timeout, self.world.now());
        }
    }

    /// Deletes our contender nodes over the connection that there is. Before anything else, for
    /// somebody is waiting; before our watches are removed, for that is something else.
    async fn delete_node(&self) {
        let Some(session) = self.connection.borrow().clone() else { return };
        let mine = self.place.borrow().mine();
        // In reverse, and in one flight.
        let ours = mine.iter().rev().filter(|mine| mine.is_ours()).flat_map(|mine| &mine.paths);
        let deletions: Vec<_> = ours.map(|path| (path, session.delete(path))).collect();
        let all = async {
            for (path, deletion) in deletions {
                if let Err(failure) = deletion.await {
                    log::info!("{path}: {failure}");
                }
            }
        };
        or(session.lost(), all).await;
    }

    /// Closes the session, with which the contender node goes too. What is known of that for sure.
    async fn release(&self) -> Option<Report> {
        let Some(identity) = self.identity.take() else { return Some(Report::Released) };
        loop {
            let session = match self.connection.take().and_then(Rc::into_inner) {
                Some(session) => Ok(session),
                None => self.world.resume(self.timeout.get(), &identity, drop).await,
            };
            let released = match session {
                Ok(session) => session.close().await,
                Err(failure) => Err(failure),
            };
            match released {
                Ok(()) => return Some(Report::Released),
                // Who was before us, nobody knows any more.
                Err(Failure::SessionOver) => return Some(Report::Lost(Loss::SessionExpired)),
                Err(Failure::Unknown(why)) => log::info!("not released yet: {why}"),
                Err(_) => return None,
            }
            self.world.sleep(PAUSE).await;
        }
    }
}

/// A failure that no further try will mend, as the supervisor is told of it.
fn refuse(failure: Failure, path: &str) -> Report {
    match failure {
        // Over a connection that lasts the session does, too.
        Failure::SessionOver => Report::Lost(Loss::SessionEnded),
        Failure::Denied => Report::Refused(Refusal::Denied(path.to_owned())),
        failure => Report::Refused(Refusal::Server(format!("{path}: {failure}"))),
    }
}
