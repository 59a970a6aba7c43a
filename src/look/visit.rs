//! A session for as long as something is asked. If its connection is lost, another session follows. The lost one has no nodes,
//! and ends by itself.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use super::EarlyEnd;
use crate::cli::{Access, sentences};
use crate::rules::duration;
use crate::rules::outcome::Outcome;
use crate::system::clock;
use crate::system::futures::or;
use crate::system::reactor::Reactor;
use crate::zookeeper::net::connect::TcpSession;
use crate::zookeeper::net::servers::Servers;
use crate::zookeeper::session::{Failure, Session as _};

/// The session timeout that is asked for. Short, so that a server that is frozen is given up soon, and so that little is
/// left behind by a process that is killed.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the end waits for the answer to the request that closes the session. The server carries it out all the same.
const LAST_ANSWER: Duration = Duration::from_millis(200);

/// The pause after a connection was lost, so that few lost sessions wait for their end at the servers.
const PAUSE: Duration = Duration::from_millis(200);

/// How many connections are lost before it is given up, unless it goes on for ever.
const CONNECTIONS: usize = 5;

pub(super) struct Visit<'p> {
    access: &'p Access,
    servers: &'p Servers<'p>,
    reactor: &'p Reactor,
    session: RefCell<Option<Rc<TcpSession<'p>>>>,
}

/// How long to go on when servers do not answer.
pub(super) enum Retry<'a> {
    /// As long as `--connect-timeout`.
    Limited,
    /// After the first connection, for ever. It is told why there is no connection.
    Endless(&'a dyn Fn(&str)),
}

impl<'p> Visit<'p> {
    pub(super) fn new(access: &'p Access, servers: &'p Servers<'p>, reactor: &'p Reactor) -> Self {
        Self { access, servers, reactor, session: RefCell::new(None) }
    }

    pub(super) async fn sleep(&self, time: Duration) {
        self.reactor.sleep_until(clock::now() + time).await;
    }

    /// Asks something, from the beginning each time that a connection was lost.
    pub(super) async fn ask<T>(
        &self,
        patience: Retry<'_>,
        ask: impl AsyncFn(&TcpSession<'p>) -> Result<T, EarlyEnd>,
    ) -> Result<T, EarlyEnd> {
        let mut number = 0;
        loop {
            let has_been_connected = number > 0;
            self.connect(&patience, has_been_connected).await?;
            number += 1;
            let session = self.session.borrow().clone().expect("it was just opened");
            let lost = async {
                let mut lost = pin!(session.lost());
                poll_fn(|context| {
                    // Dropped so that they do not pile up: only a lease needs the contacts.
                    session.take_contacts();
                    lost.as_mut().poll(context)
                })
                .await;
                Err(EarlyEnd::Failed(Failure::Unknown("the connection was lost".to_owned())))
            };
            let why = match or(lost, ask(&session)).await {
                Err(EarlyEnd::Failed(why @ (Failure::Unknown(_) | Failure::SessionOver))) => why,
                ended => return ended,
            };
            log::info!("asking again: {why}");
            if matches!(patience, Retry::Limited) && number == CONNECTIONS {
                let said = sentences::cut_off(&self.access.servers, CONNECTIONS, &why.to_string());
                return Err(EarlyEnd::Because(Outcome::Unavailable, said));
            }
            self.session.take();
            self.sleep(PAUSE).await;
        }
    }

    /// Opens a session, unless there is one.
    async fn connect(&self, patience: &Retry<'_>, has_been_connected: bool) -> Result<(), EarlyEnd> {
        if self.session.borrow().is_some() {
            return Ok(());
        }
        let reason = RefCell::new("no answer".to_owned());
        let unreachable = |why: String| {
            log::info!("no connection: {why}");
            if let Retry::Endless(tell) = patience
                && has_been_connected
            {
                tell(&why);
            }
            reason.replace(why);
        };
        let opening = async {
            let opening =
                TcpSession::connect(self.servers, self.reactor, SESSION_TIMEOUT, None, unreachable, |_, _| {});
            let session = opening.await?;
            log::info!("session {:#x} with a timeout of {}", session.id(), duration::show(session.timeout()));
            self.session.replace(Some(Rc::new(session)));
            Ok(())
        };
        if has_been_connected && matches!(patience, Retry::Endless(_)) {
            return opening.await;
        }
        let enough = async {
            self.sleep(self.access.connect_timeout).await;
            Err(self.unreachable(&reason.borrow()))
        };
        or(opening, enough).await
    }

    fn unreachable(&self, reason: &str) -> EarlyEnd {
        let Access { servers, servers_given, connect_timeout, .. } = self.access;
        EarlyEnd::Because(
            Outcome::Unavailable,
            sentences::unreachable(servers, *servers_given, *connect_timeout, reason),
        )
    }

    /// Closes the session, if there is one. To be called when nothing uses it.
    pub(super) async fn close(&self) {
        let Some(session) = self.session.take().and_then(Rc::into_inner) else { return };
        let closed = async { drop(session.close().await) };
        or(closed, self.sleep(LAST_ANSWER)).await;
    }
}
