//! From the addresses of the servers to a session over one connection.

use std::future::poll_fn;
use std::io;
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::task::Poll;
use std::time::Duration;

use nix::poll::PollFlags;

use super::Failure;
use super::channel::{Channel as _, Rejected, shake_hands};
use super::servers::{Servers, brief};
use super::tcp::TcpChannel;
use super::word::{NOT_SERVING, Word};
use crate::clock;
use crate::futures::or;
use crate::reactor::Reactor;
use crate::rules::contacts::silence_limit;
use crate::rules::instant::Instant;
use crate::zookeeper::handshake::{Attempt, Granted, Identity};

/// Servers that are down are tried again after this long, then after twice that, and so on.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A server that has not answered for this long is waited for on; but the next one is tried beside it.
const NEXT: Duration = Duration::from_millis(300);

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
                let known = servers.known();
                match try_each(servers, known.clone(), reactor, timeout, identity).await {
                    Ok(opened) => return Ok(opened),
                    Err(Failed::SessionOver) => return Err(Failure::SessionOver),
                    Err(Failed::Troubles(troubles)) => tell(troubles, known[0], reactor, timeout, identity).await,
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

/// Why the server `first` was of no use.
async fn tell(
    troubles: Vec<(SocketAddr, Trouble)>,
    first: SocketAddr,
    reactor: &Reactor,
    timeout: Duration,
    identity: Option<&Identity>,
) -> String {
    match troubles.into_iter().find(|(server, _)| *server == first) {
        Some((_, Trouble::Io(error))) => format!("{first}: {}", brief(&error)),
        // While a lease is running, there is no time to ask.
        _ if identity.is_none() => diagnose(first, reactor, silence_limit(timeout).min(DIAGNOSIS)).await,
        _ => no_answer(first),
    }
}

/// Why a round has led to no session.
enum Failed {
    SessionOver,
    Troubles(Vec<(SocketAddr, Trouble)>),
}

/// Why one server was of no use.
enum Trouble {
    SessionOver,
    Io(io::Error),
    NoSession,
}

/// Tries each server once.
async fn try_each<'p>(
    servers: &'p Servers<'p>,
    addresses: Vec<SocketAddr>,
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
                        // Another may ask now.
                        reactor.take_another_turn();
                    }
                }
            }
            if !tried.is_empty() && clock::now() < next_at {
                break;
            }
            let Some(server) = waiting.next() else { break };
            match TcpChannel::begin(servers, reactor, server) {
                // It may be connected already, and is asked before this process does anything else.
                Ok(channel) => {
                    next_at = clock::now() + NEXT;
                    tried.push(Try::new(channel, timeout, identity));
                }
                Err(error) => troubles.push((server, Trouble::Io(error))),
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

impl From<Rejected> for Trouble {
    fn from(rejected: Rejected) -> Self {
        match rejected {
            Rejected::SessionOver => Self::SessionOver,
            Rejected::NoSession => Self::NoSession,
        }
    }
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
        if !self.is_connected && self.channel.is_writable() {
            match self.channel.socket.take_error() {
                Ok(None) => self.is_connected = true,
                Ok(Some(error)) | Err(error) => return Err(Trouble::Io(error)),
            }
        }
        if self.is_connected && !self.has_asked {
            if !may_ask {
                return Ok(None);
            }
            (self.has_asked, self.until) = (true, clock::now() + self.patience);
        }
        if self.has_asked
            && let Some(granted) = shake_hands(&mut self.attempt, &self.channel, self.resumes)?
        {
            return Ok(Some(granted));
        }
        if clock::now() >= self.until {
            let timed_out = || Trouble::Io(io::Error::other("connection timed out"));
            return Err(if self.is_connected { Trouble::NoSession } else { timed_out() });
        }
        reactor.wake_at(self.until);
        if !self.is_connected {
            reactor.wake_on(self.channel.socket.as_fd(), PollFlags::POLLOUT);
        }
        Ok(None)
    }
}

/// Why a server that accepts connections opens no session: its answer to `srvr`, the one four letter word that servers
/// answer by default.
async fn diagnose(server: SocketAddr, reactor: &Reactor, patience: Duration) -> String {
    let asked = async {
        let mut asked = Word::ask(server, reactor, "srvr").await?;
        asked.read(reactor).await?;
        io::Result::Ok(asked.text())
    };
    let enough = async {
        reactor.sleep_until(clock::now() + patience).await;
        Ok(String::new())
    };
    match or(asked, enough).await {
        Ok(state) if state.starts_with(NOT_SERVING) => {
            format!("{server} is a ZooKeeper server that serves no clients now: it is starting, or has no quorum")
        }
        Ok(state) if state.starts_with("Zookeeper version: ") => {
            format!("{server} is a ZooKeeper server, but opens no session now")
        }
        _ => no_answer(server),
    }
}

fn no_answer(server: SocketAddr) -> String {
    format!("{server} accepts connections but does not answer as ZooKeeper")
}
