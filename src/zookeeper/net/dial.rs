//! From the addresses of the servers to a session over one connection.

use std::future::poll_fn;
use std::io;
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::task::Poll;
use std::time::Duration;

use super::servers::{Address, Servers};
use super::tcp::{TcpChannel, Unconnected};
use super::tls::{self, Security};
use super::word::{NOT_SERVING, VERSION, Word};
use crate::rules::instant::Instant;
use crate::rules::pace::silence_limit;
use crate::system::clock;
use crate::system::futures::or;
use crate::system::reactor::Reactor;
use crate::zookeeper::session::Failure;
use crate::zookeeper::session::channel::{Channel as _, Rejected, shake_hands};
use crate::zookeeper::wire::handshake::{Attempt, Granted, Identity};

/// Servers that are down are tried again after this long, then after twice that, and so on.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(50);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A server that has not answered for this long is waited for on; but the next one is tried beside it.
const NEXT: Duration = Duration::from_millis(300);

/// How long to wait for the addresses of other names when there is one of the first.
const OTHER_NAMES: Duration = Duration::from_millis(50);

/// How long to wait for a server to say what is the matter with it.
const DIAGNOSIS: Duration = Duration::from_secs(1);

/// Tries the servers until one of them opens a session, or goes on with that of `identity`; see
/// [`Outside::open`](crate::keeper::outside::Outside::open).
pub(super) async fn dial<'p>(
    servers: &'p Servers<'p>,
    reactor: &'p Reactor,
    timeout: Duration,
    identity: Option<&Identity>,
    unreachable: impl FnMut(String),
) -> Result<(TcpChannel<'p>, Granted), Failure> {
    // A fault that cuts off the servers may cut off the name servers as well, and the lease does not wait for those.
    or(servers.keep_looking_up(reactor), try_until_one_answers(servers, reactor, timeout, identity, unreachable)).await
}

async fn try_until_one_answers<'p>(
    servers: &'p Servers<'p>,
    reactor: &'p Reactor,
    timeout: Duration,
    identity: Option<&Identity>,
    mut unreachable: impl FnMut(String),
) -> Result<(TcpChannel<'p>, Granted), Failure> {
    let mut pause = FIRST_PAUSE;
    loop {
        let reason = match servers.until_known().await {
            Err(reason) => reason,
            Ok(()) => {
                // The first server need not be the best one: most look-ups take as long.
                or(servers.until_all_known(), reactor.sleep_until(clock::now() + OTHER_NAMES)).await;
                let known = servers.known();
                match try_each(servers, known.clone(), reactor, timeout, identity).await {
                    Ok(opened) => return Ok(opened),
                    Err(Failed::SessionOver) => return Err(Failure::SessionOver),
                    Err(Failed::Troubles(troubles)) => {
                        // What was found since then may let us in, and so may a certificate that was being replaced.
                        let is_final = servers.are_all_known()
                            && servers.known().len() == known.len()
                            && !servers.security.as_ref().is_some_and(Security::is_outdated);
                        if let Some(why) = not_let_in(&troubles).filter(|_| identity.is_none() && is_final) {
                            return Err(Failure::NotLetIn(why));
                        }
                        let round = Round { servers, reactor, timeout, identity, known: &known };
                        // Boxed, because this future is large and rarely needed.
                        Box::pin(round.tell(&troubles)).await
                    }
                }
            }
        };
        unreachable(reason);
        // Not all clients of a server that comes back at the same moment.
        let jitter = pause.mul_f64(fastrand::f64() / 2.0);
        reactor.sleep_until(clock::now() + pause - jitter).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The reason, if servers want a client certificate or refuse ours, and none of the others may let us in later.
fn not_let_in(troubles: &[(SocketAddr, Trouble)]) -> Option<String> {
    let may_do = |trouble: &Trouble| matches!(trouble, Trouble::NoSession { .. });
    let refused = |(server, trouble): &(SocketAddr, Trouble)| match trouble {
        Trouble::Unconnected(Unconnected::Tls(tls::Trouble::Refused(why))) => Some(format!("{server}: {why}")),
        _ => None,
    };
    troubles.iter().find_map(refused).filter(|_| !troubles.iter().any(|(_, trouble)| may_do(trouble)))
}

/// Why a round has led to no session.
enum Failed {
    SessionOver,
    Troubles(Vec<(SocketAddr, Trouble)>),
}

/// Why one server was of no use.
enum Trouble {
    SessionOver,
    Unconnected(Unconnected),
    /// `wants_certificate`: it has asked for one, and we have none. `is_closed`: [`Rejected::Closed`].
    NoSession {
        wants_certificate: bool,
        is_closed: bool,
    },
}

async fn try_each<'p>(
    servers: &'p Servers<'p>,
    addresses: Vec<Address<'p>>,
    reactor: &'p Reactor,
    timeout: Duration,
    identity: Option<&Identity>,
) -> Result<(TcpChannel<'p>, Granted), Failed> {
    let mut waiting = servers.in_turn(addresses).into_iter();
    let mut tried: Vec<Try<'_>> = vec![];
    let mut troubles = vec![];
    let mut next_at = clock::now();
    poll_fn(|_| {
        loop {
            let mut round = mem::take(&mut tried).into_iter();
            while let Some(mut one) = round.next() {
                // A request to resume a session cannot be taken back: the server that gets it last has the session. So
                // only one server is asked at a time, while others are being connected to.
                let mut others = tried.iter().chain(round.as_slice());
                let may_ask = identity.is_none() || others.all(|other| !other.has_asked);
                match one.go_on(may_ask, reactor) {
                    Ok(None) => tried.push(one),
                    Ok(Some(granted)) => {
                        one.channel.losers =
                            mem::take(&mut tried).into_iter().chain(round).filter_map(Try::lose).collect();
                        return Poll::Ready(Ok((one.channel, granted)));
                    }
                    Err(Trouble::SessionOver) => return Poll::Ready(Err(Failed::SessionOver)),
                    Err(trouble) => {
                        troubles.push((one.channel.server, trouble));
                        // Where only one server is asked at a time, another may be asked now.
                        reactor.take_another_turn();
                    }
                }
            }
            if !tried.is_empty() && clock::now() < next_at {
                break;
            }
            let Some(address) = waiting.next() else { break };
            match TcpChannel::begin(servers, reactor, address) {
                // It may be connected already, and is asked before this process does anything else.
                Ok(channel) => {
                    next_at = clock::now() + NEXT;
                    tried.push(Try::new(channel, timeout, identity));
                }
                Err(error) => troubles.push((address.socket, Trouble::Unconnected(error))),
            }
        }
        if tried.is_empty() {
            return Poll::Ready(Err(Failed::Troubles(mem::take(&mut troubles))));
        }
        if waiting.len() > 0 {
            reactor.wake_at(next_at);
        }
        Poll::Pending
    })
    .await
}

/// A server that is being tried.
struct Try<'p> {
    channel: TcpChannel<'p>,
    is_connected: bool,
    has_asked: bool,
    attempt: Attempt,
    resumes: bool,
    /// How long it may be silent.
    patience: Duration,
    until: Instant,
}

impl<'p> Try<'p> {
    fn new(channel: TcpChannel<'p>, timeout: Duration, identity: Option<&Identity>) -> Self {
        let attempt = match identity {
            Some(identity) => Attempt::resume(identity.clone(), timeout),
            None => Attempt::open(timeout),
        };
        let (resumes, patience) = (identity.is_some(), silence_limit(timeout));
        let until = clock::now() + patience;
        Self { channel, is_connected: false, has_asked: false, attempt, resumes, patience, until }
    }

    /// Another was faster. The session that this one opens sooner or later is to be closed. Returns the connection on
    /// which it was asked to.
    fn lose(mut self) -> Option<TcpStream> {
        if self.resumes || !self.has_asked {
            return None;
        }
        self.attempt.abandon();
        // If there is no room, the session expires by itself.
        let _ = self.channel.write(self.attempt.to_send());
        Some(self.channel.socket)
    }

    /// Does what can be done without waiting. An error after it was asked means that it was there, but is no server
    /// that wants us.
    fn go_on(&mut self, may_ask: bool, reactor: &Reactor) -> Result<Option<Granted>, Trouble> {
        if !self.is_connected {
            self.is_connected = self.channel.connect_on().map_err(Trouble::Unconnected)?;
        }
        if self.is_connected && !self.has_asked {
            if !may_ask {
                return Ok(None);
            }
            (self.has_asked, self.until) = (true, clock::now() + self.patience);
        }
        if self.has_asked
            && let Some(granted) =
                shake_hands(&mut self.attempt, &self.channel, self.resumes).map_err(|why| self.rejected(why))?
        {
            return Ok(Some(granted));
        }
        if clock::now() >= self.until {
            return Err(match self.channel.is_accepted() {
                true => self.rejected(Rejected::NoSession),
                false => Trouble::Unconnected(io::Error::other("connection timed out").into()),
            });
        }
        reactor.wake_at(self.until);
        Ok(None)
    }

    fn rejected(&self, why: Rejected) -> Trouble {
        match (why, self.channel.tls_trouble()) {
            (Rejected::SessionOver, _) => Trouble::SessionOver,
            (_, Some(trouble)) => Trouble::Unconnected(Unconnected::Tls(trouble)),
            (why, None) => Trouble::NoSession {
                wants_certificate: self.channel.lacks_certificate(),
                is_closed: why == Rejected::Closed,
            },
        }
    }
}

/// A round in which all servers were tried in vain.
struct Round<'a, 'p> {
    servers: &'p Servers<'p>,
    reactor: &'p Reactor,
    timeout: Duration,
    identity: Option<&'a Identity>,
    known: &'a [Address<'p>],
}

impl Round<'_, '_> {
    /// Why one of the servers was of no use: the first one where TLS has failed, or else the first one. The same one each
    /// time, so that the same reason is not told again.
    async fn tell(&self, troubles: &[(SocketAddr, Trouble)]) -> String {
        let trouble = |server| troubles.iter().find(|(troubled, _)| *troubled == server).map(|(_, trouble)| trouble);
        let has_failed = |server| matches!(trouble(server), Some(Trouble::Unconnected(Unconnected::Tls(_))));
        let address = self.known.iter().find(|address| has_failed(address.socket)).unwrap_or(&self.known[0]);
        let server = address.socket;
        // While a lease is running, there is no time to ask.
        let may_ask = self.identity.is_none();
        match trouble(server) {
            Some(Trouble::Unconnected(Unconnected::Tls(tls::Trouble::Closed)))
                if may_ask && self.is_plain(*address).await =>
            {
                format!("{server} speaks ZooKeeper without TLS: name its secureClientPort, or connect without TLS")
            }
            Some(Trouble::Unconnected(why)) => format!("{server}: {why}"),
            other => {
                let is_closed = matches!(other, Some(Trouble::NoSession { is_closed: true, .. }));
                let state = if may_ask { self.state(*address).await } else { None };
                let state = state.unwrap_or_else(|| format!("{server} {}", self.no_answer(is_closed)));
                match other {
                    Some(Trouble::NoSession { wants_certificate: true, .. }) => {
                        format!("{state}; it has asked for a client certificate (--tls-cert)")
                    }
                    _ => state,
                }
            }
        }
    }

    const fn no_answer(&self, is_closed: bool) -> &'static str {
        match (is_closed, self.servers.security.is_none()) {
            (true, true) => {
                "closes connections before it answers: it is starting, or full (maxClientCnxns), wants TLS \
                 (--tls), or is no ZooKeeper server"
            }
            (true, false) => {
                "closes connections before it answers: it is starting, or full (maxClientCnxns), or is no \
                 ZooKeeper server"
            }
            (false, true) => {
                "accepts connections but does not answer as ZooKeeper; if this is its secureClientPort, use --tls"
            }
            (false, false) => "accepts connections but does not answer as ZooKeeper",
        }
    }

    /// Why a server that accepts connections opens no session, by its answer to `srvr`, the one four letter word that servers
    /// answer by default.
    async fn state(&self, address: Address<'_>) -> Option<String> {
        let server = address.socket;
        match self.ask(TcpChannel::begin(self.servers, self.reactor, address)).await {
            state if state.starts_with(NOT_SERVING) => {
                let why = "serves no clients now: it is starting, or has no quorum";
                Some(format!("{server} is a ZooKeeper server that {why}"))
            }
            state if state.starts_with(VERSION) => {
                Some(format!("{server} is a ZooKeeper server, but opens no session now"))
            }
            _ => None,
        }
    }

    /// Whether it is a ZooKeeper server that does not use TLS.
    async fn is_plain(&self, address: Address<'_>) -> bool {
        let answer = self.ask(TcpChannel::begin_plain(self.servers, self.reactor, address)).await;
        answer.starts_with(NOT_SERVING) || answer.starts_with(VERSION)
    }

    /// What it answers to `srvr`; empty, if it does not.
    async fn ask(&self, channel: Result<TcpChannel<'_>, Unconnected>) -> String {
        let Ok(channel) = channel else { return String::new() };
        let asked = async {
            let mut asked = Word::ask(channel, "srvr").await.ok()?;
            asked.read().await.ok()?;
            Some(asked.text())
        };
        let enough = async {
            let patience = silence_limit(self.timeout).min(DIAGNOSIS);
            self.reactor.sleep_until(clock::now() + patience).await;
            None
        };
        or(asked, enough).await.unwrap_or_default()
    }
}
