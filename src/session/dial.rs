//! From the addresses of the servers to a session over one connection.

use std::future::{pending, poll_fn};
use std::io::{self, Read as _, Write as _};
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::task::Poll;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};

use super::Failure;
use super::servers::{Servers, brief};
use crate::clock;
use crate::futures::or;
use crate::reactor::Reactor;
use crate::rules::contacts::silence_limit;
use crate::rules::instant::Instant;
use crate::zookeeper::error::NoSession;
use crate::zookeeper::handshake::{Attempt, Granted, Identity};

/// Servers that are down are tried again after this long, then after twice that, and so on.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A server that has not answered for this long is waited for on; but the next one is tried beside it.
const NEXT: Duration = Duration::from_millis(300);

/// How long to wait for a server to say what is the matter with it.
const DIAGNOSIS: Duration = Duration::from_secs(1);

/// A connection that has a session.
pub(super) struct Opened {
    pub(super) socket: TcpStream,
    pub(super) server: SocketAddr,
    pub(super) granted: Granted,
}

/// Tries the servers until one of them opens a session, or goes on with that of `identity`; see
/// [`Outside::open`](crate::keeper::outside::Outside::open).
pub(super) async fn dial(
    servers: &Servers<'_>,
    reactor: &Reactor,
    timeout: Duration,
    identity: Option<&Identity>,
    mut unreachable: impl FnMut(String),
) -> Result<Opened, Failure> {
    let silence = silence_limit(timeout);
    let mut pause = FIRST_PAUSE;
    loop {
        let reason = match round(servers, reactor, timeout, identity).await {
            Ok(opened) => return Ok(opened),
            Err(Reason::SessionOver) => return Err(Failure::SessionOver),
            Err(Reason::Unresolved(reason)) => reason,
            Err(Reason::Unreachable(reasons)) => {
                let first = reasons.into_iter().find(|(server, _)| servers.first() == Some(*server));
                match first {
                    Some((server, Trouble::Io(error))) => format!("{server}: {}", brief(&error)),
                    // While a lease is running, there is no time to ask.
                    Some((server, Trouble::NoSession)) if identity.is_none() => {
                        diagnose(server, reactor, silence.min(DIAGNOSIS)).await
                    }
                    Some((server, Trouble::NoSession)) => no_answer(server),
                    None => String::new(),
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

/// Why a round has led to no session.
enum Reason {
    SessionOver,
    Unresolved(String),
    Unreachable(Vec<(SocketAddr, Trouble)>),
}

/// Why one server was of no use.
enum Trouble {
    Io(io::Error),
    NoSession,
}

/// Tries each server once.
async fn round(
    servers: &Servers<'_>,
    reactor: &Reactor,
    timeout: Duration,
    identity: Option<&Identity>,
) -> Result<Opened, Reason> {
    if servers.first().is_none() {
        servers.look_up(reactor).await.map_err(Reason::Unresolved)?;
        return try_each(servers.in_turn(), reactor, timeout, identity).await;
    }
    // A fault that cuts off the servers may cut off the name servers as well, and the lease does not wait for those.
    let looking_up = async {
        let _ = servers.look_up(reactor).await;
        pending().await
    };
    or(try_each(servers.in_turn(), reactor, timeout, identity), looking_up).await
}

async fn try_each(
    addresses: Vec<SocketAddr>,
    reactor: &Reactor,
    timeout: Duration,
    identity: Option<&Identity>,
) -> Result<Opened, Reason> {
    let mut waiting = addresses.into_iter();
    let mut tried: Vec<Try> = vec![];
    let mut troubles = vec![];
    let mut next_at = clock::now();
    poll_fn(|_| {
        for mut one in mem::take(&mut tried) {
            match one.go_on(reactor) {
                Ok(None) => tried.push(one),
                // Those that lose are closed. If one of them has just opened a session, that expires by itself.
                Ok(Some(granted)) => {
                    return Poll::Ready(Ok(Opened { socket: one.socket, server: one.server, granted }));
                }
                Err(Failed::SessionOver) => return Poll::Ready(Err(Reason::SessionOver)),
                Err(Failed::Trouble(trouble)) => troubles.push((one.server, trouble)),
            }
        }
        while tried.is_empty() || clock::now() >= next_at {
            let Some(server) = waiting.next() else { break };
            match Try::begin(server, timeout, identity) {
                Ok(one) => {
                    next_at = clock::now() + NEXT;
                    tried.push(one);
                    // It may be connected already.
                    reactor.take_another_turn();
                }
                Err(error) => troubles.push((server, Trouble::Io(error))),
            }
        }
        if tried.is_empty() {
            return Poll::Ready(Err(Reason::Unreachable(mem::take(&mut troubles))));
        }
        if waiting.len() > 0 {
            reactor.wake_at(next_at);
        }
        Poll::Pending
    })
    .await
}

/// A server that is being tried.
struct Try {
    server: SocketAddr,
    socket: TcpStream,
    is_connected: bool,
    attempt: Attempt,
    resumes: bool,
    until: Instant,
}

enum Failed {
    SessionOver,
    Trouble(Trouble),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Trouble(Trouble::Io(error))
    }
}

impl Try {
    fn begin(server: SocketAddr, timeout: Duration, identity: Option<&Identity>) -> io::Result<Self> {
        let attempt = match identity {
            Some(identity) => Attempt::resume(identity.clone(), timeout),
            None => Attempt::open(timeout),
        };
        let until = clock::now() + silence_limit(timeout);
        Ok(Self {
            server,
            socket: begin_to_connect(server)?,
            is_connected: false,
            attempt,
            resumes: identity.is_some(),
            until,
        })
    }

    /// Does what can be done without waiting.
    fn go_on(&mut self, reactor: &Reactor) -> Result<Option<Granted>, Failed> {
        if clock::now() >= self.until {
            let trouble = if self.is_connected {
                Trouble::NoSession
            } else {
                Trouble::Io(io::Error::other("connection timed out"))
            };
            return Err(Failed::Trouble(trouble));
        }
        reactor.wake_at(self.until);
        if !self.is_connected {
            if !is_writable(&self.socket) {
                reactor.wake_on(self.socket.as_fd(), PollFlags::POLLOUT);
                return Ok(None);
            }
            match self.socket.take_error()? {
                Some(error) => return Err(error.into()),
                None => self.is_connected = true,
            }
        }
        self.shake_hands(reactor).map_err(|failed| match failed {
            // It was there, but is no server that wants us.
            Failed::Trouble(_) => Failed::Trouble(Trouble::NoSession),
            over => over,
        })
    }

    fn shake_hands(&mut self, reactor: &Reactor) -> Result<Option<Granted>, Failed> {
        while !self.attempt.to_send().is_empty() {
            // Before the bytes leave: the server may answer before we look at the clock again.
            let now = clock::now();
            match self.socket.write(self.attempt.to_send()) {
                Ok(count) => self.attempt.sent(count, now),
                Err(error) if is_for_later(&error) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let mut bytes = [0; 1024];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => return Err(Failed::Trouble(Trouble::NoSession)),
                Ok(count) => match self.attempt.receive(&bytes[..count]) {
                    Ok(None) => {}
                    Ok(granted) => return Ok(granted),
                    Err(NoSession::Expired | NoSession::Another(_)) if self.resumes => {
                        return Err(Failed::SessionOver);
                    }
                    Err(why) => {
                        log::info!("{}: {why}", self.server);
                        return Err(Failed::Trouble(Trouble::NoSession));
                    }
                },
                Err(error) if is_for_later(&error) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let unsent = !self.attempt.to_send().is_empty();
        let events = if unsent { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
        reactor.wake_on(self.socket.as_fd(), events);
        Ok(None)
    }
}

/// A socket that is being connected. It never blocks, and sends at once what it is given.
fn begin_to_connect(server: SocketAddr) -> io::Result<TcpStream> {
    let family = if server.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket: TcpStream = socket(family, SockType::Stream, flags, None)?.into();
    socket.set_nodelay(true)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(server)) {
        Ok(()) | Err(Errno::EINPROGRESS | Errno::EINTR) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

fn is_writable(socket: &TcpStream) -> bool {
    let mut now = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
    poll(&mut now, PollTimeout::ZERO).is_ok_and(|count| count > 0)
}

/// Whether a call on a socket that does not block is to be made again later.
pub(super) fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Why a server that accepts connections opens no session: its answer to `srvr`, the one four letter word that servers
/// answer by default.
async fn diagnose(server: SocketAddr, reactor: &Reactor, patience: Duration) -> String {
    let asked = async {
        let mut socket = begin_to_connect(server)?;
        reactor.ready(&socket, PollFlags::POLLOUT).await;
        socket.write_all(b"srvr")?;
        let mut state = [0; 64];
        reactor.ready(&socket, PollFlags::POLLIN).await;
        let length = socket.read(&mut state)?;
        io::Result::Ok(String::from_utf8_lossy(&state[..length]).into_owned())
    };
    let enough = async {
        reactor.sleep_until(clock::now() + patience).await;
        Ok(String::new())
    };
    match or(asked, enough).await {
        // ZooKeeperServer.ZK_NOT_SERVING
        Ok(state) if state.starts_with("This ZooKeeper instance is not currently serving requests") => {
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
