//! One round over the servers: all are tried, the first that opens a session wins.

use std::future::poll_fn;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use super::diagnosis::ServerTrouble;
use super::servers::{Address, Servers};
use super::tcp::TcpChannel;
use crate::rules::instant::Instant;
use crate::system::clock;
use crate::system::reactor::Reactor;
use crate::zookeeper::session::Failure;
use crate::zookeeper::session::channel::{Rejected, shake_hands};
use crate::zookeeper::wire::handshake::{Attempt, Granted, Identity};

/// A server that has not answered for this long is waited for on; but the next one is tried beside it.
const NEXT: Duration = Duration::from_millis(300);

/// Why a round has led to no session.
pub(super) enum Lost {
    /// It makes no sense to try again.
    Final(Failure),
    Troubles(Vec<(SocketAddr, ServerTrouble)>),
}

/// Tries these servers, at random, until one of them opens a session or goes on with that of `identity`.
pub(super) async fn race<'p>(
    servers: &'p Servers<'p>,
    addresses: Vec<Address<'p>>,
    reactor: &'p Reactor,
    timeout: Duration,
    identity: Option<&Identity>,
) -> Result<(TcpChannel<'p>, Granted), Lost> {
    let mut waiting = servers.shuffled(addresses).into_iter();
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
                    // A session that a slower server may still open has no nodes, and ends with its timeout.
                    Ok(Some(granted)) => return Poll::Ready(Ok((one.channel, granted))),
                    Err(ServerTrouble::NoSession { why: Rejected::SessionOver, .. }) => {
                        return Poll::Ready(Err(Lost::Final(Failure::SessionOver)));
                    }
                    Err(ServerTrouble::NoSession { why: Rejected::ClickHouseKeeper, .. }) => {
                        return Poll::Ready(Err(Lost::Final(Failure::ClickHouseKeeper(one.channel.to_string()))));
                    }
                    Err(trouble) => {
                        troubles.push((one.channel.address.socket, trouble));
                        // Where only one server is asked at a time, another may be asked now.
                        reactor.poll_again();
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
                    tried.push(Try::new(channel, timeout, servers.silence_limit(timeout), identity));
                }
                Err(error) => troubles.push((address.socket, ServerTrouble::Unconnected(error))),
            }
        }
        if tried.is_empty() {
            return Poll::Ready(Err(Lost::Troubles(mem::take(&mut troubles))));
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
    fn new(channel: TcpChannel<'p>, timeout: Duration, patience: Duration, identity: Option<&Identity>) -> Self {
        let attempt = match identity {
            Some(identity) => Attempt::resume(identity.clone(), timeout),
            None => Attempt::open(timeout),
        };
        let (resumes, until) = (identity.is_some(), clock::now() + patience);
        Self { channel, is_connected: false, has_asked: false, attempt, resumes, patience, until }
    }

    /// Does what can be done without waiting. An error after it was asked means that it was there, but is no server
    /// that wants us.
    fn go_on(&mut self, may_ask: bool, reactor: &Reactor) -> Result<Option<Granted>, ServerTrouble> {
        if !self.is_connected {
            self.is_connected = self.channel.connect_on().map_err(ServerTrouble::Unconnected)?;
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
                true => self.rejected(Rejected::Silent),
                false => ServerTrouble::Unconnected(io::Error::other("connection timed out").into()),
            });
        }
        reactor.wake_at(self.until);
        Ok(None)
    }

    fn rejected(&self, why: Rejected) -> ServerTrouble {
        match self.channel.tls_trouble() {
            Some(trouble) => ServerTrouble::Unconnected(trouble),
            None => ServerTrouble::NoSession { wants_certificate: self.channel.lacks_certificate(), why },
        }
    }
}
