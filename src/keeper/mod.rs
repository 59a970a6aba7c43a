//! The keeper: the process that holds the ZooKeeper session. It queues, beats and releases. A beat asks the
//! quorum whether our nodes still exist ([`Session::beat`]); an answer extends the lease.
//!
//! It is a fork of the supervisor, one for each session, and deaf to every signal that is usually sent to
//! whole groups. It ends when it is told to, or when the supervisor has gone, and then only after nothing is
//! left of the command. It has one thread ([`crate::system::reactor`]).
//!
//! What it needs from outside comes through [`io::KeeperIo`]: the real one ([`process`]) or that of the
//! simulator.

mod beat; // beats, and the lease that they extend
mod contend; // creates our node, and finds it again after a lost reply
pub mod io; // what a keeper needs from outside
mod leader; // what our server shows, held against what the leader knows
mod lent; // locks of an outer run
mod once_per; // whether the command is skipped, and the record of a success
mod own; // what becomes of our own nodes
mod place; // how far a keeper has come
pub mod process; // the process, and the real `io`
mod single; // the dialect without a queue
mod wait; // waits in the queue until it is our turn

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use self::io::KeeperIo;
use self::leader::SeenChildren;
use self::place::{Claim, Place, refuse};
use crate::cli::Plan;
use crate::rules::card::Card;
use crate::rules::closings::Closings;
use crate::rules::contacts::Contacts;
use crate::rules::instant::Instant;
use crate::rules::last_run::{Asked, LastRun, Success};
use crate::rules::lease::Terms;
use crate::rules::lock_path::LockPath;
use crate::rules::message::{Connectivity, Loss, Order, Refusal, Report};
use crate::rules::pace::Pace;
use crate::system::futures::{or, zip};
use crate::zookeeper::session::{Failure, Session};

/// The pause before a request that has failed at once is repeated, so that a server that keeps breaking the
/// connection is not asked a thousand times a second.
const PAUSE: Duration = Duration::from_millis(20);

/// The longest pause, where pauses grow.
const LONGEST_SESSION_PAUSE: Duration = Duration::from_secs(1);

/// Why the servers are not asked again.
const OVER_THE_SAME: &str = "the server closes the connection over the same request each time; it may be larger than the \
                             server's jute.maxbuffer";

/// A keeper, and what outlives each of its connections.
pub struct Keeper<'p, O: KeeperIo> {
    plan: &'p Plan,
    /// The locks in the order in which they are taken.
    locks: Vec<&'p LockPath>,
    /// How often to look at the queue although nothing has happened, if a user is watching.
    refresh: Option<Duration>,
    io: O,
    born: Instant,
    session: SessionState<O::Session>,
    beats: Beats,
    place: RefCell<Place>,
    /// With `--once-per`: when this run asked.
    asked: Cell<Option<Asked>>,
    /// The recent run because of which our command is skipped.
    skips: RefCell<Option<LastRun>>,
    /// Whether there was a record of the last successful run when we looked for it.
    has_record: Cell<bool>,
    /// What zklocks above us lend us, once we have looked for it.
    lent: RefCell<Option<Vec<Rc<Claim>>>>,
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
    /// When the last of them was sent.
    last: Cell<Option<Instant>>,
    /// The instant from which the lease counts.
    lease_from: Cell<Option<Instant>>,
    contacts: RefCell<Contacts>,
    /// Whether the next beat is due at once, whatever the lease.
    urged: Cell<bool>,
    /// What the next beat is to store in the nodes, and since when the lock has been held.
    unpublished: RefCell<Option<(Card, Instant)>>,
}

/// What the supervisor has been told and is not told again. Repetitions would fill the socket to a supervisor
/// that is stopped, and keep it from hearing of a loss.
#[derive(Default)]
struct Told {
    connected: bool,
    /// That we hold the locks; or it is just being told.
    held: bool,
    /// When this run asked for its first lock.
    asked: bool,
    /// That the record of the last successful run makes no sense.
    misrecorded: bool,
    /// That we have been asked to give them up.
    revoked: bool,
    /// Why no server can be reached; empty while one can.
    unreachable: String,
    /// The lock that we wait for, and our node in its queue; `None` if it has no queue.
    waits: Option<(LockPath, Option<String>)>,
    /// The locks with children that are no contenders.
    foreign: HashSet<LockPath>,
}

/// Why the keeper's work ends.
enum KeeperEnd {
    /// Nothing is left of the command.
    Emptied,
    /// The supervisor wants the lock released.
    Released,
    /// The supervisor has gone.
    Orphaned,
    /// There is nothing more to keep.
    Over(Report),
}

impl<'p, O: KeeperIo> Keeper<'p, O> {
    /// A keeper that has done nothing yet. `asked`: when this run asked for its first lock, as an earlier keeper has told.
    pub fn new(plan: &'p Plan, refresh: Option<Duration>, asked: Option<Asked>, io: O) -> Self {
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
                contacts: RefCell::new(Contacts::new(Pace::brisk(plan.settings.session_timeout), io.now())),
                urged: Cell::new(false),
                unpublished: RefCell::new(None),
            },
            place: RefCell::default(),
            asked: Cell::new(asked),
            skips: RefCell::new(None),
            has_record: Cell::new(false),
            lent: RefCell::new(None),
            told: RefCell::default(),
            ignored: RefCell::default(),
            impostors: RefCell::default(),
            seen: RefCell::default(),
            born: io.now(),
            io,
        }
    }

    pub async fn keep(self) {
        let mut life = Box::pin(async { KeeperEnd::Over(self.without_blame(self.live().await)) });
        let mut emptied = pin!(async {
            self.io.emptied().await;
            KeeperEnd::Emptied
        });
        let end = or(self.follow_orders(), or(emptied.as_mut(), life.as_mut())).await;
        let ended = self.io.now();
        let is_over = matches!(end, KeeperEnd::Over(_));
        let (end, nothing_left) = self.settle(end, ended, life.as_mut(), emptied.as_mut()).await;
        if !nothing_left {
            // Supervisor and guard have died. What they have left may run on for a moment, and no process is left to
            // look after it: the session is to expire.
            log::info!("leaving the lock to its session timeout: the guard died before the command had ended");
            return;
        }
        // Of an orphan's command no process can say whether it was stopped.
        let success = if is_over || matches!(end, KeeperEnd::Orphaned) { None } else { self.success(ended) };
        if !is_over && success.is_none() {
            self.request_deletion();
        }
        // This drops the watches as well: the session can be closed only when none is left.
        drop(life);
        // Past the session timeout there is nothing left to release.
        let enough = async {
            self.io.sleep(self.session.timeout.get()).await;
            None
        };
        let report = or(self.release(success), enough).await;
        if let KeeperEnd::Emptied | KeeperEnd::Over(_) = end {
            // The supervisor expects no answer before it has asked.
            self.follow_orders().await;
        }
        if let Some(report) = report {
            self.io.report_if_room(&report);
        }
    }

    /// Until nothing is left of the command, or no process is left that sees to that. Returns how the work ends now, and
    /// whether nothing is left.
    async fn settle(
        &self,
        mut end: KeeperEnd,
        ended: Instant,
        mut life: Pin<&mut impl Future<Output = KeeperEnd>>,
        mut emptied: Pin<&mut impl Future<Output = KeeperEnd>>,
    ) -> (KeeperEnd, bool) {
        let mut nothing_left = true;
        match &end {
            // The lock is kept until the guard has ended the command.
            KeeperEnd::Orphaned if self.told.borrow().held => {
                let going_on = async {
                    life.as_mut().await;
                    pending().await
                };
                // What waits at the gate, and its guard, may be stopped for good.
                nothing_left = self.io.recall() || or(self.io.guard_gone(), going_on).await;
            }
            KeeperEnd::Over(report) => {
                if let Report::Lost(_) = report {
                    self.report_unrecorded(self.success(ended));
                    // Reported first, so that the supervisor learns why the command is killed. But a supervisor that
                    // is stopped is not waited for.
                    zip(self.io.report(report), async { self.io.revoke_lease() }).await;
                } else {
                    self.io.report(report).await;
                }
                // Before a lock was reported there is no command to end, and the order may never come from a supervisor
                // that is stopped.
                if self.told.borrow().held {
                    // Once nothing is left of the command, the other locks do not wait for the order.
                    end = or(self.follow_orders(), emptied.as_mut()).await;
                    if let KeeperEnd::Orphaned = end {
                        nothing_left = self.io.recall() || self.io.guard_gone().await;
                    }
                }
            }
            // The order to release follows, but the next holder need not wait for it.
            KeeperEnd::Emptied => {
                if let Some(other) = self.last_word(life.as_mut()).await {
                    end = other;
                }
            }
            // Without a supervisor that knows of a lock there is no command, even if a guard is left.
            KeeperEnd::Released | KeeperEnd::Orphaned => {}
        }
        (end, nothing_left)
    }

    /// Takes orders until one of them is the end, or the supervisor has gone.
    async fn follow_orders(&self) -> KeeperEnd {
        match self.io.order().await {
            Some(Order::Release) => KeeperEnd::Released,
            None => KeeperEnd::Orphaned,
        }
    }

    /// Opens a session, queues and holds for as long as the session lasts, over as many connections as it
    /// takes.
    async fn live(&self) -> Report {
        let opening = self.io.open(self.session.timeout.get(), |reason| self.report_unreachable(reason));
        // Looking up the user takes a while. The server opens the session in that time.
        let mut session = match zip(opening, async { self.io.card() }).await.0 {
            Ok(session) => Rc::new(session),
            Err(failure) => return refuse(failure, "/"),
        };
        self.told.borrow_mut().unreachable.clear();
        // Noted at once, because this connection may be lost before anything else is done over it. A new
        // leader counts with this timeout, whatever is granted later.
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
            if let Some(report) = or(lost, or(self.watch_for_pauses(&session), self.contend(&session))).await {
                return report;
            }
            log::info!("connection to ZooKeeper lost");
            let lost = self.io.now();
            let heard = self.beats.contacts.borrow().heard_until(lost);
            self.session.connection.take();
            let lived = lost.saturating_since(since);
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
                    let is_early = Terms::is_early(self.session.timeout.get(), heard, lost, self.io.now());
                    return Report::Lost(if is_early { Loss::SessionEnded } else { Loss::SessionExpired });
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
            // So that the supervisor looks. If there is no room, it has other reports to read.
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

    /// Deletes our contender nodes over the connection that there is. The requests leave together with the one that
    /// closes the session, so their replies are not waited for. Closing deletes the nodes as well; but servers have
    /// kept the nodes of closed sessions (ZOOKEEPER-4541).
    fn request_deletion(&self) {
        // A single node may have been deleted by others, and be another's by now.
        let Some(session) = self.session.connection.borrow().clone().filter(|_| !self.is_single()) else { return };
        for node in self.place.borrow().own_nodes() {
            drop(session.delete(&node));
        }
    }

    /// Closes the session, with which our contender nodes go as well. Records a run that was a success before that. Returns
    /// what is known of the end of the session for sure.
    async fn release(&self, success: Option<Success>) -> Option<Report> {
        let Some(identity) = self.session.identity.take() else { return Some(Report::Released { was_busy: false }) };
        let success = Cell::new(success);
        loop {
            let closing = async {
                let session = match self.session.connection.take().and_then(Rc::into_inner) {
                    Some(session) => session,
                    None => self.io.resume(self.session.timeout.get(), &identity, drop, |_, _| {}).await?,
                };
                if let Some(to_record) = success.get() {
                    self.conclude(&session, to_record).await?;
                    success.take();
                }
                // They leave together, and are answered in their order.
                let is_busy = self.ask_if_busy(&session);
                session.close().await?;
                Ok(or(is_busy, async { false }).await)
            };
            match closing.await {
                Ok(was_busy) => return Some(Report::Released { was_busy }),
                // Whether a contender was still before us is no longer known.
                Err(Failure::SessionOver) => {
                    self.report_unrecorded(success.get());
                    return Some(Report::Lost(Loss::SessionExpired));
                }
                Err(Failure::Unknown(why)) => log::info!("not released yet: {why}"),
                Err(_) => return None,
            }
            self.io.sleep(PAUSE).await;
        }
    }
}
