//! The keeper: the process that holds the ZooKeeper session of a run. It queues for each lock, beats while it holds, and
//! releases.
//!
//! The supervisor forks it once for a run ([`process`]; of a `zklock fence`, see [`crate::fence`]). Its life, from the top:
//!
//! 1. [`sessions::keep`] lives as long as the run. It makes a [`Keeper`] for each session, until no further session is to
//!    follow. What outlives a session is in [`sessions::RunState`].
//! 2. [`Keeper::keep`] (`ending`) keeps one session until there is an end ([`ending::KeeperEnd`]): an order, the end of the
//!    command, the supervisor's death, or the loss of the lock. It does then what is left to do, and closes the session.
//! 3. [`Keeper::live`] opens the session, and resumes it over as many connections as it takes.
//! 4. [`Keeper::contend`] does the work over one connection. It takes the locks one after the other, in the order of their
//!    paths: it creates our nodes, waits, and holds. When the connection is lost, it is dropped wherever it is. What it has
//!    reached is in [`place::Place`].
//!
//! A beat asks the quorum whether our nodes still exist ([`Session::beat`]). Only the answer to a beat, or to a transaction
//! that says as much, extends the lease.
//!
//! All that the keeper needs from outside comes through [`io::KeeperIo`]: from `process`, or from the simulator. It has one
//! thread ([`crate::system::reactor`]), and is deaf to the signals that are usually sent to whole groups. It neither starts nor
//! signals the command, and touches no terminal. It never releases the lock while something of the command may be left.

mod beat; // beats, and the lease that they extend
mod conclude; // what is written beside the locks at the end of a run
mod contend; // creates our node, and finds it again after a lost reply
mod ending; // what is left to do when the work in a session ends
mod hold; // takes a lock at our turn, and holds
pub mod io; // what a keeper needs from outside
mod leader; // what our server shows, held against what the leader knows
mod lock_delay; // the record of the holder before us, and ours
mod once_per; // whether the command is skipped, and the record of a success
mod own; // what becomes of our own nodes
mod place; // how far a keeper has come
pub mod process; // the process, and the real `io`
pub mod sessions; // one session after the other, until the run has the lock
mod single; // the dialect without a queue
mod suitable; // whether we can wait in a queue
mod wait; // waits in the queue until it is our turn

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use self::io::KeeperIo;
use self::leader::SeenChildren;
use self::place::{Place, refuse};
use self::sessions::RunState;
use crate::cli::Plan;
use crate::rules::card::Card;
use crate::rules::closings::Closings;
use crate::rules::contacts::Contacts;
use crate::rules::instant::Instant;
use crate::rules::lock_path::LockPath;
use crate::rules::message::{Connectivity, Loss, Refusal, Report};
use crate::system::futures::{or, zip};
use crate::zookeeper::session::{Failure, RecordWrite, Session};

/// The pause before a request that has failed at once is repeated, so that a server that keeps breaking the
/// connection is not asked a thousand times a second.
const PAUSE: Duration = Duration::from_millis(20);

/// The longest pause, where pauses grow.
const LONGEST_SESSION_PAUSE: Duration = Duration::from_secs(1);

/// Why the servers are not asked again.
const OVER_THE_SAME: &str = "the server closes the connection over the same request each time; it may be larger than the \
                             server's jute.maxbuffer";

/// A keeper in one session, and what outlives each of its connections. Nothing of it goes into the next session.
struct Keeper<'p, O: KeeperIo> {
    plan: &'p Plan,
    /// The locks in the order in which they are taken.
    locks: Vec<&'p LockPath>,
    /// How often to look at the queue although nothing has happened, if a user is watching.
    refresh: Option<Duration>,
    io: &'p O,
    run: &'p RunState,
    session: SessionState<O::Session>,
    beats: Beats,
    place: RefCell<Place>,
    /// Whether there was a record of the last successful run when we looked for it.
    has_record: Cell<bool>,
    /// With `--lock-delay`: what replaces our records if this run ends cleanly.
    releases: RefCell<Vec<RecordWrite>>,
    told: RefCell<Told>,
    /// Nodes with names of contenders that the leader no longer has, but that a server went on showing, or that are not
    /// ephemeral.
    ignored: RefCell<HashSet<String>>,
    /// Nodes whose names have our session's id, and that belong to another session.
    impostors: RefCell<HashSet<String>>,
    /// What we have seen in the lists of each lock, whatever became of our own nodes.
    seen: RefCell<HashMap<LockPath, SeenChildren>>,
}

/// The session, whatever the connection.
struct SessionState<S: Session> {
    /// Set once there is a session.
    identity: RefCell<Option<S::Identity>>,
    connection: RefCell<Option<Rc<S>>>,
    /// The granted timeout, and before that the one to ask for.
    timeout: Cell<Duration>,
    /// Whether a server has said that it is older than ZooKeeper 3.5: it knows neither `create2`, which answers with the
    /// stat of the new node, nor `createContainer`, and closes the connection over both.
    is_before_3_5: Cell<bool>,
}

/// The beats that were answered, and the lease that follows from them.
struct Beats {
    /// When the last beat that was answered was sent.
    last: Cell<Option<Instant>>,
    lease_from: Cell<Option<Instant>>,
    contacts: RefCell<Contacts>,
    /// Whether the next beat is due at once, whatever the lease.
    urged: Cell<bool>,
    /// What the next beat is to store in the nodes, and since when the lock has been held.
    unpublished: RefCell<Option<(Card, Instant)>>,
}

/// What the supervisor has been told and is not told again. Repetitions would fill the socket to a supervisor that is
/// suspended, and a loss would have no room.
#[derive(Default)]
struct Told {
    connected: bool,
    /// That we hold the locks; or it is just being told.
    held: bool,
    /// That the record of the last successful run makes no sense.
    misrecorded: bool,
    /// That we have been asked to give up the locks.
    revoked: bool,
    /// Why no server can be reached; empty while one can.
    unreachable: String,
    /// The lock that we wait for, and our node in its queue; `None` if it has no queue.
    waits: Option<(LockPath, Option<String>)>,
    /// Until when a holder that has vanished delays us.
    delayed_until: Option<Instant>,
    /// The locks with children that are no contenders.
    foreign: HashSet<LockPath>,
}

impl<'p, O: KeeperIo> Keeper<'p, O> {
    /// A keeper that has no session yet.
    fn new(plan: &'p Plan, refresh: Option<Duration>, run: &'p RunState, io: &'p O) -> Self {
        let mut locks: Vec<_> = plan.request.locks().collect();
        locks.sort_unstable();
        Self {
            plan,
            locks,
            refresh,
            session: SessionState {
                identity: RefCell::new(None),
                connection: RefCell::new(None),
                timeout: Cell::new(plan.settings.session_timeout),
                is_before_3_5: Cell::new(false),
            },
            beats: Beats {
                last: Cell::new(None),
                lease_from: Cell::new(None),
                contacts: RefCell::new(Contacts::new(io.now())),
                urged: Cell::new(false),
                unpublished: RefCell::new(None),
            },
            place: RefCell::default(),
            has_record: Cell::new(false),
            releases: RefCell::default(),
            told: RefCell::default(),
            ignored: RefCell::default(),
            impostors: RefCell::default(),
            seen: RefCell::default(),
            run,
            io,
        }
    }

    /// Opens a session, queues and holds for as long as the session lasts, over as many connections as it
    /// takes.
    async fn live(&self) -> Report {
        self.io.sleep(self.run.pause.get()).await;
        let opening = self.io.open(self.session.timeout.get(), |reason| self.report_unreachable(reason));
        // Looking up the user takes a while. The server opens the session in that time.
        let mut session = match zip(opening, async { self.io.card() }).await.0 {
            Ok(session) => Rc::new(session),
            Err(failure) => return refuse(failure, "/"),
        };
        self.told.borrow_mut().unreachable.clear();
        // The timeout is noted at once, because the connection may be lost before anything else is done over it. A new
        // leader counts with this timeout, whatever a later connection is granted.
        self.session.timeout.set(session.timeout());
        let (id, identity) = (session.id(), session.identity());
        self.session.identity.replace(Some(identity.clone()));
        let mut pause = Duration::ZERO;
        let mut closings = Closings::default();
        loop {
            let since = self.io.now();
            self.session.connection.replace(Some(Rc::clone(&session)));
            let lost = async {
                session.lost().await;
                None
            };
            // The first requests leave before the supervisor is told.
            let telling = async {
                self.tell_of_session(&session).await;
                pending().await
            };
            let contending = or(self.contend(&session), telling);
            if let Some(report) = or(lost, or(self.collect_contacts(&session), contending)).await {
                return report;
            }
            log::info!("connection to ZooKeeper lost");
            self.session.connection.take();
            let lived = self.io.now().saturating_since(since);
            if closings.add(session.closed_over_creation(), lived) && !self.told.borrow().held {
                return Report::Refused(Refusal::Unusable(format!("{}: {OVER_THE_SAME}", self.plan.request.lock)));
            }
            // The connection is closed, and not the session.
            drop(session);
            // A server that closes each connection at once is not asked thousands of times a second.
            pause = if lived < LONGEST_SESSION_PAUSE {
                (pause * 2).clamp(PAUSE, LONGEST_SESSION_PAUSE)
            } else {
                Duration::ZERO
            };
            self.io.sleep(pause).await;
            session = match self.reconnect(id, &identity).await {
                Ok(session) => Rc::new(session),
                Err(Failure::SessionOver) => {
                    // There is nothing left to close.
                    self.session.identity.take();
                    return Report::Lost(Loss::SessionOver);
                }
                Err(failure) => return refuse(failure, "/"),
            };
            log::info!("connection to ZooKeeper restored");
            if !std::mem::take(&mut self.told.borrow_mut().unreachable).is_empty() {
                self.io.report_if_room(&Report::Connection(Connectivity::Connected(session.timeout())));
            }
        }
    }

    /// Goes on with the session over a new connection, however long that takes.
    async fn reconnect(&self, id: i64, identity: &<O::Session as Session>::Identity) -> Result<O::Session, Failure> {
        let timeout = self.session.timeout.get();
        let unreachable = |reason| self.report_unreachable(reason);
        let shortened = |timeout, asked_at| {
            self.shorten_lease(id, timeout, asked_at);
            // The report makes the supervisor look at the lease. If there is no room, it has other reports to read.
            self.io.report_if_room(&Report::Connection(Connectivity::Shortened(timeout)));
        };
        self.io.resume(timeout, identity, unreachable, shortened).await
    }

    fn report_unreachable(&self, reason: String) {
        log::info!("no connection: {reason}");
        let told = std::mem::replace(&mut self.told.borrow_mut().unreachable, reason.clone());
        if told != reason {
            self.io.report_if_room(&Report::Connection(Connectivity::Unreachable(reason)));
        }
    }
}
