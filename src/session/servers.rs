//! Which servers a session may use, and in which order they are tried.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use nix::poll::PollFlags;

use crate::lookup::Lookup;
use crate::plan::{ConnectString, HostPort};
use crate::reactor::Reactor;

/// The servers that a session may use, and their addresses as they were last looked up.
#[derive(Debug)]
pub struct Servers<'p> {
    pub(super) connect: &'p ConnectString,
    known: RefCell<Vec<SocketAddr>>,
    /// The server that is asked last, because it has shown what is not so.
    pub(super) distrusted: Cell<Option<SocketAddr>>,
}

impl<'p> Servers<'p> {
    /// The servers of a connect string; nothing is looked up yet.
    pub fn new(connect: &'p ConnectString) -> Self {
        Self { connect, known: RefCell::default(), distrusted: Cell::new(None) }
    }

    /// The addresses that are known, in the order in which they are tried. A random one comes first, so that the
    /// clients of an ensemble spread over its servers.
    pub(super) fn in_turn(&self) -> Vec<SocketAddr> {
        let mut addresses = self.known.borrow().clone();
        fastrand::shuffle(&mut addresses);
        addresses.sort_by_key(|address| self.distrusted.get() == Some(*address));
        addresses
    }

    /// The first address that is known.
    pub(super) fn first(&self) -> Option<SocketAddr> {
        self.known.borrow().first().copied()
    }

    /// Looks up every host, all at the same time. Returns the reason if no address is found; those that were known
    /// before stay then.
    pub(super) async fn look_up(&self, reactor: &Reactor) -> Result<(), String> {
        let answers: Vec<_> = self.connect.hosts.iter().map(Answer::begin).collect();
        let (mut addresses, mut reason) = (vec![], String::new());
        for (server, answer) in self.connect.hosts.iter().zip(answers) {
            match answer.wait(reactor).await {
                Ok(found) => addresses.extend(found),
                Err(error) => {
                    reason = format!("cannot resolve {}: {error}", server.host);
                    log::info!("{reason}");
                }
            }
        }
        if addresses.is_empty() {
            return Err(reason);
        }
        self.known.replace(addresses);
        Ok(())
    }
}

/// The addresses of one host.
enum Answer {
    Known(SocketAddr),
    Awaited(io::Result<Lookup>),
}

impl Answer {
    fn begin(server: &HostPort) -> Self {
        match server.host.parse::<IpAddr>() {
            Ok(address) => Self::Known(SocketAddr::new(address, server.port)),
            Err(_) => Self::Awaited(Lookup::begin(|| resolve(server))),
        }
    }

    async fn wait(self, reactor: &Reactor) -> Result<Vec<SocketAddr>, String> {
        let mut lookup = match self {
            Self::Known(address) => return Ok(vec![address]),
            Self::Awaited(lookup) => lookup.map_err(|error| brief(&error))?,
        };
        let answer = loop {
            match lookup.answer() {
                Some(answer) => break String::from_utf8_lossy(&answer).into_owned(),
                None => reactor.ready(&lookup, PollFlags::POLLIN).await,
            }
        };
        // An address for each line, or one line that says why there is none.
        let addresses: Vec<_> = answer.lines().filter_map(|line| line.parse().ok()).collect();
        if addresses.is_empty() { Err(answer) } else { Ok(addresses) }
    }
}

/// What is sent back by the process that asks the name servers.
fn resolve(server: &HostPort) -> Vec<u8> {
    let text = match (server.host.as_str(), server.port).to_socket_addrs() {
        Ok(addresses) => addresses.map(|address| format!("{address}\n")).collect(),
        Err(error) => brief(&error),
    };
    text.into_bytes()
}

/// An I/O error without the words that std puts around it.
pub(super) fn brief(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    let text = text.split(" (os error").next().unwrap_or(text);
    text.to_owned()
}
