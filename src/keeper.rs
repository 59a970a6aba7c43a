//! The keeper: the process that holds the ZooKeeper session. It queues, beats and releases.
//!
//! It is a fork of the supervisor, one per session, and deaf to every signal that can be ignored:
//! it goes when it is told to, or when the supervisor has gone, and then only after nothing is
//! left of the command. It may have threads; the supervisor never does.

mod contend;

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use futures_lite::future::{or, zip};
use nix::fcntl::OFlag;
use nix::sys::stat::Mode as Permissions;
use nix::unistd::{User, dup2_stdin, dup2_stdout, gethostname, getuid, setsid};
use smol::{Async, LocalExecutor, Timer};

use self::contend::Place;
use crate::clock;
use crate::command::{KEEPER_NAME, Remains};
use crate::core::contender::Card;
use crate::core::lease::{Instant, Terms};
use crate::core::machine::{Loss, Refusal, Report};
use crate::plan::Plan;
use crate::session::{Failure, Identity, Servers, Session};
use crate::signals;
use crate::wire::{LastBeat, Link, Order, Received};

/// Between two tries of a request that fails at once, so that a server that keeps breaking the
/// connection is not asked a thousand times a second.
const PAUSE: Duration = Duration::from_millis(20);

/// Between two connections that were lost at once, after a while.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

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
    let executor = LocalExecutor::new();
    match Keeper::new(birth, &executor) {
        Ok(keeper) => smol::block_on(executor.run(keeper.keep())),
        Err(error) => log::error!("keeper: {error}"),
    }
}

/// Makes the process its own: out of reach of terminals and of what is sent to groups, with no hold
/// on the caller's pipes but standard error.
fn detach() -> nix::Result<()> {
    signals::turn_deaf()?;
    setsid()?;
    let _ = nix::sys::prctl::set_name(KEEPER_NAME);
    let null = nix::fcntl::open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Permissions::empty())?;
    dup2_stdin(null.as_fd())?;
    dup2_stdout(null.as_fd())?;
    Ok(())
}

struct Keeper<'p> {
    birth: Birth<'p>,
    servers: Servers<'p>,
    /// The same socket as `birth.link`, for waiting on it.
    readiness: Async<OwnedFd>,
    /// The command runs, or may be about to: the supervisor knows that we hold.
    started: Cell<Option<Remains>>,
    /// What outlives a lost connection: how far we are, and the last answered beat.
    place: RefCell<Place>,
    last_beat: Cell<Option<Instant>>,
    /// The session, once there is one; over which connection, and with which timeout.
    identity: RefCell<Option<Identity>>,
    connection: RefCell<Option<Rc<Session>>>,
    timeout: Cell<Duration>,
    /// The supervisor knows that there is a session.
    connected: Cell<bool>,
    /// The servers know container nodes, as far as we know.
    containers: Cell<bool>,
    /// The user knows of the children that are no contenders.
    warned: Cell<bool>,
    card: OnceCell<Card>,
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

impl<'p> Keeper<'p> {
    fn new(birth: Birth<'p>, executor: &'p LocalExecutor<'static>) -> io::Result<Self> {
        let readiness = Async::new(birth.link.as_fd().try_clone_to_owned()?)?;
        let timeout = Cell::new(birth.plan.session_timeout);
        let servers = Servers::new(&birth.plan.servers, executor);
        Ok(Self {
            birth,
            servers,
            readiness,
            started: Cell::new(None),
            place: RefCell::new(Place::Nowhere),
            last_beat: Cell::new(None),
            identity: RefCell::new(None),
            connection: RefCell::new(None),
            timeout,
            connected: Cell::new(false),
            containers: Cell::new(true),
            warned: Cell::new(false),
            card: OnceCell::new(),
        })
    }

    async fn keep(self) {
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
                    Report::Lost(_) => zip(self.report(report), self.end_command()).await.0,
                    _ => self.report(report).await,
                }
                self.guard().await
            };
            // Orders first: a command that has ended may have left others behind by intention.
            end = or(self.orders(), aftermath).await;
        }
        if let End::Orphaned = end {
            self.end_command().await;
        }
        // Past the session timeout there is nothing left to release.
        let enough = async {
            Timer::after(self.timeout.get()).await;
            false
        };
        if or(self.release(), enough).await {
            self.report_if_room(&Report::Released);
        }
    }

    /// Waits for the end that the supervisor decides on.
    async fn orders(&self) -> End {
        loop {
            match self.birth.link.receive() {
                Received::Message(Order::Started(remains)) => self.started.set(Some(remains)),
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
            match error.raw_os_error() {
                Some(libc::EAGAIN) if self.readiness.writable().await.is_ok() => {}
                Some(libc::ENOBUFS | libc::EINTR) => {
                    Timer::after(PAUSE).await;
                }
                _ => return,
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
        let (Some(remains), Some(mine)) = (self.started.get(), self.place.borrow().mine()) else { return };
        let mut pause = Duration::from_millis(2);
        while !remains.kill(&mine.path) {
            Timer::after(pause).await;
            // What we may not kill is not asked for ever at this pace.
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// Kills the command at the end of the lease. The supervisor has done so by then, unless it is
    /// stopped: then the command may be stopped with it (Ctrl-Z), and must not go on when both are
    /// continued.
    async fn guard<T>(&self) -> T {
        loop {
            let now = clock::now();
            let end = self.last_beat.get().map_or(now, |sent| Terms::end_of(self.timeout.get(), sent));
            if now >= end {
                self.end_command().await;
            }
            // Timers stand still while the machine sleeps.
            Timer::after(end.saturating_since(now).clamp(PAUSE, Duration::from_secs(1))).await;
        }
    }

    /// Opens a session, queues and holds for as long as the session lasts, over as many connections
    /// as it takes.
    async fn live(&self) -> Report {
        let plan = self.birth.plan;
        let unreachable = |reason: String| {
            log::info!("no connection: {reason}");
            self.report_if_room(&Report::Unreachable(reason));
        };
        let opening = Session::open(&self.servers, plan.session_timeout, unreachable);
        // Looking up the user takes a while: time that the server needs for the session.
        let mut session = match zip(opening, async { self.card() }).await.0 {
            Ok(session) => Rc::new(session),
            Err(failure) => return refuse(failure, "/"),
        };
        let identity = session.identity();
        self.identity.replace(Some(identity.clone()));
        let mut pause = Duration::ZERO;
        loop {
            let since = clock::now();
            self.connection.replace(Some(Rc::clone(&session)));
            let lost = async {
                session.lost().await;
                None
            };
            if let Some(report) = or(lost, self.contend(&session)).await {
                return report;
            }
            log::info!("connection to ZooKeeper lost");
            self.connection.take();
            if let Some(session) = Rc::into_inner(session) {
                session.abandon().await;
            }
            // A server that closes each connection at once is not asked thousands of times a second.
            let lived = clock::now().saturating_since(since);
            pause = if lived < LONGEST_PAUSE { (pause * 2).clamp(PAUSE, LONGEST_PAUSE) } else { Duration::ZERO };
            Timer::after(pause).await;
            session = match Session::resume(&self.servers, self.timeout.get(), &identity, unreachable).await {
                // Servers that imitate ZooKeeper may give out a new session instead of saying that
                // the old one is gone.
                Ok(session) if session.id() == identity.id() => Rc::new(session),
                Ok(_) | Err(Failure::SessionOver) => return Report::Lost(Loss::SessionExpired),
                Err(failure) => return refuse(failure, "/"),
            };
            log::info!("connection to ZooKeeper restored");
        }
    }

    /// Deletes the contender node over the connection that there is. Before anything else, for
    /// somebody is waiting; before our watches are removed, for that is something else.
    async fn delete_node(&self) {
        let (session, mine) = (self.connection.borrow().clone(), self.place.borrow().mine());
        if let (Some(session), Some(mine)) = (session, mine) {
            let lost = async {
                session.lost().await;
                Ok(())
            };
            if let Err(failure) = or(lost, session.delete(&mine.path)).await {
                log::info!("{}: {failure}", mine.path);
            }
        }
    }

    /// Closes the session, with which the contender node goes too. Whether it is closed for sure.
    async fn release(&self) -> bool {
        let Some(identity) = self.identity.take() else { return true };
        loop {
            let session = match self.connection.take().and_then(Rc::into_inner) {
                Some(session) => Ok(session),
                None => Session::resume(&self.servers, self.timeout.get(), &identity, drop).await,
            };
            let released = match session {
                Ok(session) => session.close().await,
                Err(failure) => Err(failure),
            };
            match released {
                Ok(()) | Err(Failure::SessionOver) => return true,
                Err(Failure::Unknown(why)) => log::info!("not released yet: {why}"),
                Err(_) => return false,
            }
            Timer::after(PAUSE).await;
        }
    }

    /// What others may know of us, found out once.
    fn card(&self) -> &Card {
        self.card.get_or_init(|| {
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

/// A failure that no further try will mend, as the supervisor is told of it.
fn refuse(failure: Failure, path: &str) -> Report {
    match failure {
        Failure::SessionOver => Report::Lost(Loss::SessionExpired),
        Failure::Denied => Report::Refused(Refusal::Denied(path.to_owned())),
        failure => Report::Refused(Refusal::Server(format!("{path}: {failure}"))),
    }
}
