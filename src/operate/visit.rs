//! A session for as long as something is asked, over as many connections as that takes.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use super::Stop;
use crate::clock;
use crate::duration;
use crate::futures::or;
use crate::plan::Access;
use crate::reactor::Reactor;
use crate::rules::instant::Instant;
use crate::session::servers::Servers;
use crate::session::tcp::TcpSession;
use crate::session::{Failure, Session as _};
use crate::zookeeper::handshake::Identity;

/// The session timeout that is asked for. Short, so that a server that is frozen is given up soon, and so that little is
/// left behind by a process that is killed.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the end waits for the answer to the request that closes the session. The server carries it out all the same.
pub(super) const LAST_ANSWER: Duration = Duration::from_millis(200);

/// The pause after a connection was lost. It doubles while that goes on.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How many connections that were of use are lost before it is given up, unless it goes on for ever.
const CONNECTIONS: usize = 5;

/// See the module.
pub(super) struct Visit<'p> {
    access: &'p Access,
    servers: &'p Servers<'p>,
    reactor: &'p Reactor,
    /// Set while there is a session.
    identity: RefCell<Option<Identity>>,
    timeout: Cell<Duration>,
    session: RefCell<Option<Rc<TcpSession<'p>>>>,
}

/// How long to go on when servers do not answer.
pub(super) enum Patience<'a> {
    /// As long as `--connect-timeout`.
    Limited,
    /// After the first connection, for ever. It is told why there is no connection.
    Endless(&'a dyn Fn(&str)),
}

impl<'p> Visit<'p> {
    pub(super) fn new(access: &'p Access, servers: &'p Servers<'p>, reactor: &'p Reactor) -> Self {
        Self {
            access,
            servers,
            reactor,
            identity: RefCell::new(None),
            timeout: Cell::new(SESSION_TIMEOUT),
            session: RefCell::new(None),
        }
    }

    pub(super) async fn sleep(&self, time: Duration) {
        self.reactor.sleep_until(clock::now() + time).await;
    }

    /// Asks something, from the beginning each time that a connection was lost.
    pub(super) async fn ask<T>(
        &self,
        patience: Patience<'_>,
        ask: impl AsyncFn(&TcpSession<'p>) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        let enough = self.access.connect_timeout;
        let (mut number, mut pause, mut trouble_since) = (0, PAUSE, clock::now());
        let mut last: Option<String> = None;
        loop {
            self.connect(&patience, last.as_deref(), trouble_since + enough).await?;
            let connected = clock::now();
            let session = self.session.borrow().clone().expect("it was just opened");
            let lost = async {
                let mut lost = pin!(session.lost());
                poll_fn(|context| {
                    // They are of use to a lease alone.
                    session.take_contacts();
                    if lost.as_mut().poll(context).is_ready() {
                        let why = "the connection was lost again and again";
                        return Poll::Ready(Err(Stop::Failed(Failure::Unknown(why.to_owned()))));
                    }
                    // Even of a server that answers pings.
                    if let (Patience::Limited, Some(since)) = (&patience, session.waits_since()) {
                        if clock::now() >= since + enough {
                            let why = format!("a request waited for {}", duration::show(enough));
                            return Poll::Ready(Err(Stop::Unanswered(why)));
                        }
                        self.reactor.wake_at(since + enough);
                    }
                    Poll::Pending
                })
                .await
            };
            let why = match or(lost, ask(&session)).await {
                Err(Stop::Failed(why @ (Failure::Unknown(_) | Failure::SessionOver))) => why,
                ended => return ended,
            };
            log::info!("asking again: {why}");
            if why == Failure::SessionOver {
                self.identity.take();
            }
            // It has answered, or had nothing to answer.
            if clock::now() >= connected + enough {
                (number, pause, trouble_since) = (number + 1, PAUSE, clock::now());
            }
            if matches!(patience, Patience::Limited)
                && (number == CONNECTIONS || clock::now() >= trouble_since + enough)
            {
                return Err(Stop::Unanswered(why.to_string()));
            }
            last = Some(why.to_string());
            // The connection is closed, and not the session.
            self.session.take();
            drop(session);
            self.sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Opens a session, or goes on with the one that there is. `last`: why the connection before this was lost, if there was
    /// one.
    async fn connect(&self, patience: &Patience<'_>, last: Option<&str>, until: Instant) -> Result<(), Stop> {
        if self.session.borrow().is_some() {
            return Ok(());
        }
        let reason = RefCell::new(last.unwrap_or("no answer").to_owned());
        let opening = async {
            loop {
                let identity = self.identity.borrow().clone();
                let unreachable = |why: String| {
                    log::info!("no connection: {why}");
                    if let Patience::Endless(tell) = patience
                        && last.is_some()
                    {
                        tell(&why);
                    }
                    reason.replace(why);
                };
                let timeout = self.timeout.get();
                let identity = identity.as_ref();
                let opened = TcpSession::connect(self.servers, self.reactor, timeout, identity, unreachable, |_, _| {});
                match opened.await {
                    Ok(session) => {
                        let granted = duration::show(session.timeout());
                        log::info!("session {:#x} with a timeout of {granted}", session.id());
                        self.identity.replace(Some(session.identity()));
                        self.timeout.set(session.timeout());
                        self.session.replace(Some(Rc::new(session)));
                        return Ok(());
                    }
                    Err(Failure::SessionOver) => drop(self.identity.take()),
                    Err(failure) => return Err(failure.into()),
                }
            }
        };
        if last.is_some() && matches!(patience, Patience::Endless(_)) {
            return opening.await;
        }
        let enough = async {
            self.reactor.sleep_until(until).await;
            let reason = reason.borrow().clone();
            Err(if last.is_some() { Stop::Unanswered(reason) } else { Stop::Unreachable(reason) })
        };
        or(opening, enough).await
    }

    /// Closes the session, if there is one. To be called when nothing uses it.
    pub(super) async fn close(&self) {
        let Some(session) = self.session.take().and_then(Rc::into_inner) else { return };
        self.identity.take();
        let closed = async { drop(session.close().await) };
        or(closed, self.sleep(LAST_ANSWER)).await;
    }
}
