//! Which servers a session may use, and in which order they are tried.

use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::task::Poll;
use std::time::Duration;

use super::address::{ConnectString, HostPort};
use super::credentials;
use super::tls::{Security, Tls, UnfitFile};
use crate::rules::keep_alive::silence_limit;
use crate::system::clock;
use crate::system::errors::brief;
use crate::system::futures::{all, until};
use crate::system::lookup::Lookup;
use crate::system::reactor::Reactor;
use crate::zookeeper::login::Login;

/// How long after one look-up of the names the next one begins: if one has failed, and if none has.
const LOOK_UP_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

#[derive(Clone, Copy, Debug)]
pub struct Address<'p> {
    pub socket: SocketAddr,
    /// What the user calls it.
    pub server: &'p HostPort,
}

/// The servers that a session may use.
#[derive(Debug)]
pub struct Servers<'p> {
    pub(super) connect: &'p ConnectString,
    /// `None`: connections are not encrypted.
    pub(super) security: Option<Security<'p>>,
    pub(super) login: &'p Login,
    hosts: Vec<Host<'p>>,
    /// Why names have no addresses, once all have been looked up.
    unresolved: RefCell<Option<String>>,
    /// The server that is asked last, because it has shown what is not so.
    pub(super) distrusted: Cell<Option<SocketAddr>>,
    /// How long a server may be silent before there is a session. `None`: as long as the session timeout allows.
    patience: Option<Duration>,
}

/// One server of the connect string.
#[derive(Debug)]
struct Host<'p> {
    server: &'p HostPort,
    is_name: bool,
    /// Its addresses, as they were last found.
    known: RefCell<Vec<SocketAddr>>,
}

impl<'p> Servers<'p> {
    /// The servers of a connect string; nothing is looked up yet.
    pub fn new(connect: &'p ConnectString, tls: Option<&'p Tls>, login: &'p Login) -> Self {
        let host = |server: &'p HostPort| {
            let literal = server.host.parse::<IpAddr>().ok().map(|address| SocketAddr::new(address, server.port));
            Host { server, is_name: literal.is_none(), known: RefCell::new(literal.into_iter().collect()) }
        };
        let hosts = connect.hosts.iter().map(host).collect();
        let security = tls.map(Security::new);
        let (unresolved, distrusted) = (RefCell::default(), Cell::new(None));
        Self { connect, security, login, hosts, unresolved, distrusted, patience: None }
    }

    /// One of the addresses alone. The server there may be silent for `patience`, whatever session timeout is asked for.
    pub fn alone(&self, address: Address<'p>, patience: Duration) -> Self {
        let tls = self.security.as_ref().map(|security| security.tls);
        let known = RefCell::new(vec![address.socket]);
        let hosts = vec![Host { server: address.server, is_name: false, known }];
        Self { hosts, patience: Some(patience), ..Self::new(self.connect, tls, self.login) }
    }

    /// How long a server may be silent when it is asked for a session with this timeout.
    pub(super) fn silence_limit(&self, timeout: Duration) -> Duration {
        self.patience.unwrap_or_else(|| silence_limit(timeout))
    }

    /// The same, and reads all files that a login and TLS need. Also returns what the user is to be warned of. The
    /// error says why a file cannot be used.
    pub fn open(
        connect: &'p ConnectString,
        tls: Option<&'p Tls>,
        login: &'p mut Login,
    ) -> Result<(Self, Vec<String>), UnfitFile> {
        let of_login = credentials::load(login).map_err(|why| UnfitFile { setting: Some("auth-file"), why })?;
        let servers = Self::new(connect, tls, login);
        let of_tls = servers.security.as_ref().map_or(Ok(None), Security::read);
        Ok((servers, of_tls?.into_iter().chain(of_login).collect()))
    }

    /// The addresses that are known, in the order of the connect string.
    pub(super) fn known(&self) -> Vec<Address<'p>> {
        let mut addresses: Vec<Address<'_>> = vec![];
        for host in &self.hosts {
            for &socket in host.known.borrow().iter() {
                // By another name it is another server, if it has to show a certificate for its name.
                let is_same = |known: &Address<'_>| {
                    known.socket == socket && (self.security.is_none() || known.server == host.server)
                };
                if !addresses.iter().any(is_same) {
                    addresses.push(Address { socket, server: host.server });
                }
            }
        }
        addresses
    }

    /// The order in which these are tried. A random one comes first, so that the clients of an ensemble spread over
    /// its servers.
    pub(super) fn shuffled(&self, mut addresses: Vec<Address<'p>>) -> Vec<Address<'p>> {
        fastrand::shuffle(&mut addresses);
        addresses.sort_by_key(|address| self.distrusted.get() == Some(address.socket));
        addresses
    }

    /// Waits until there is an address. Returns the reason if all names have been looked up in vain.
    pub(super) async fn until_known(&self) -> Result<(), String> {
        poll_fn(|_| {
            if self.hosts.iter().any(|host| !host.known.borrow().is_empty()) {
                return Poll::Ready(Ok(()));
            }
            self.unresolved.take().map_or(Poll::Pending, |reason| Poll::Ready(Err(reason)))
        })
        .await
    }

    /// Waits until there is an address of each host.
    pub(super) async fn until_all_known(&self) {
        until(|| self.are_all_known()).await;
    }

    pub(super) fn are_all_known(&self) -> bool {
        self.hosts.iter().all(|host| !host.known.borrow().is_empty())
    }

    /// Looks up the names, all at the same time, again and again. Addresses that are known stay until others are
    /// found for the same name. Never ends.
    pub(super) async fn keep_looking_up<T>(&self, reactor: &Reactor) -> T {
        if !self.hosts.iter().any(|host| host.is_name) {
            return pending().await;
        }
        loop {
            let reason = self.look_up(reactor).await;
            let pause = if reason.is_some() { LOOK_UP_AGAIN.0 } else { LOOK_UP_AGAIN.1 };
            self.unresolved.replace(reason);
            reactor.poll_again();
            reactor.sleep_until(clock::now() + pause).await;
        }
    }

    /// Looks up the names once. Returns why one of them has no address, if any has none.
    async fn look_up(&self, reactor: &Reactor) -> Option<String> {
        let names = self.hosts.iter().filter(|host| host.is_name);
        let failures = all(names.map(|host| async {
            match addresses_of(host.server, reactor).await {
                Ok(found) => {
                    host.known.replace(found);
                    reactor.poll_again();
                    None
                }
                Err(why) => {
                    log::info!("{why}");
                    Some(why)
                }
            }
        }));
        failures.await.into_iter().flatten().last()
    }
}

/// Asks the name servers, which may take for ever.
fn resolve(server: &HostPort) -> Result<Vec<SocketAddr>, String> {
    let addresses = (server.host.as_str(), server.port).to_socket_addrs();
    addresses.map(Iterator::collect).map_err(|error| brief(&error))
}

/// All addresses of one server of the connect string, or why it has none. Asks the name servers once.
pub async fn addresses_of(server: &HostPort, reactor: &Reactor) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = server.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, server.port)]);
    }
    let failed = |why: String| format!("cannot resolve {}: {why}", server.host);
    let lookup = Lookup::begin(|| resolve(server)).map_err(|error| failed(brief(&error)))?;
    let mut addresses: Vec<SocketAddr> = vec![];
    let found: Result<Vec<_>, _> = lookup.answered(reactor).await.and_then(|found| found);
    for address in found.map_err(failed)? {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}
