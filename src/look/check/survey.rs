//! What the servers show: each address of each server, all at the same time.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

use super::findings::{Finding, Server};
use crate::cli::{Access, Check, sentences};
use crate::rules::duration::show;
use crate::rules::lock_path::LockPath;
use crate::rules::message::Right;
use crate::rules::text::printable;
use crate::system::clock;
use crate::system::futures::{all, or, until};
use crate::system::reactor::Reactor;
use crate::zookeeper::net::address::HostPort;
use crate::zookeeper::net::connect::TcpSession;
use crate::zookeeper::net::servers::{Address, Servers, addresses_of};
use crate::zookeeper::net::word::{VERSION, srvr};
use crate::zookeeper::session::{Failure, Session as _};

/// What is asked for, to learn the least session timeout and the greatest one. The protocol has 32 bits for it.
const SHORT: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_millis(i32::MAX as u64);

/// How long all of it may take where no server is waited for.
const AT_ONCE: Duration = Duration::from_secs(2);

/// How long a server may take to open a session, whose timeout says nothing about that.
const PATIENCE: Duration = Duration::from_secs(5);

/// A name that has no address is looked up again after this long.
const LOOK_UP_AGAIN: Duration = Duration::from_secs(1);

/// How long `srvr` may take: zklock can do without the answer.
const WORD: Duration = Duration::from_secs(2);

struct Survey<'a, 'p> {
    lock: Option<&'a LockPath>,
    access: &'p Access,
    servers: &'p Servers<'p>,
    reactor: &'p Reactor,
}

/// Looks at all servers, each again and again until it answers. Ends when all of them have answered or told why not, and one
/// of them has answered or never will; or else with `--connect-timeout`. `waiting` is told what is waited for.
pub(super) async fn survey<'p>(
    check: &Check,
    access: &'p Access,
    servers: &'p Servers<'p>,
    reactor: &'p Reactor,
    waiting: impl Fn(&str),
) -> Vec<Server> {
    let waits = !access.connect_timeout.is_zero();
    let limit = if waits { access.connect_timeout } else { AT_ONCE };
    let survey = Survey { lock: check.lock.as_ref(), access, servers, reactor };
    let hosts = &access.servers.hosts;
    let seen: Vec<_> = hosts.iter().map(|host| RefCell::new(vec![unseen(host, None)])).collect();
    let servers_now = || -> Vec<Server> { seen.iter().flat_map(|seen| seen.borrow().clone()).collect() };
    let is_enough = || {
        let servers = servers_now();
        let told = servers.iter().all(|server| server.is_done || server.error.is_some());
        let is_enough = told && (!waits || servers.iter().any(|server| server.is_done));
        if let (true, false, Some(why)) = (told, is_enough, &servers[0].error) {
            waiting(why);
        }
        is_enough
    };
    let looking = all(hosts.iter().zip(&seen).map(|(host, seen)| survey.host(host, seen)));
    let enough = or(until(is_enough), reactor.sleep_until(clock::now() + limit));
    or(async { drop(looking.await) }, enough).await;
    let mut servers = servers_now();
    for server in servers.iter_mut().filter(|server| !server.is_done) {
        server.error.get_or_insert_with(|| format!("no answer within {}", show(limit)));
    }
    servers
}

/// A server that has shown nothing yet.
fn unseen(host: &HostPort, address: Option<SocketAddr>) -> Server {
    Server { name: host.to_string(), address, ..Server::default() }
}

/// Where it is noted what one address of a server shows.
#[derive(Clone, Copy)]
struct Notes<'a> {
    servers: &'a RefCell<Vec<Server>>,
    index: usize,
}

impl Notes<'_> {
    fn note(self, change: impl FnOnce(&mut Server)) {
        change(&mut self.servers.borrow_mut()[self.index]);
    }
}

impl<'p> Survey<'_, 'p> {
    async fn host(&self, host: &'p HostPort, servers: &RefCell<Vec<Server>>) {
        let addresses = loop {
            match addresses_of(host, self.reactor).await {
                Ok(addresses) => break addresses,
                Err(why) => Notes { servers, index: 0 }.note(|server| server.error = Some(why)),
            }
            self.reactor.sleep_until(clock::now() + LOOK_UP_AGAIN).await;
        };
        servers.replace(addresses.iter().map(|socket| unseen(host, Some(*socket))).collect());
        all(addresses.into_iter().enumerate().map(async |(index, socket)| {
            let seen = Notes { servers, index };
            let ended = self.server(Address { socket, server: host }, seen).await;
            seen.note(|server| {
                server.is_done = true;
                server.failure = ended.err();
                server.error = server.failure.as_ref().map(Failure::to_string);
            });
        }))
        .await;
    }

    async fn server(&self, address: Address<'p>, seen: Notes<'_>) -> Result<(), Failure> {
        let alone = self.servers.alone(address, PATIENCE);
        let open = |timeout| {
            let unreachable = |why| seen.note(|server| server.error = Some(why));
            TcpSession::connect(&alone, self.reactor, timeout, None, unreachable, |_, _| {})
        };
        let session = open(SHORT).await?;
        let least = session.timeout();
        let _ = session.close().await;
        let session = open(LONG).await?;
        seen.note(|server| {
            (server.least, server.greatest) = (Some(least), Some(session.timeout()));
            server.error = None;
        });
        let lost = async {
            session.lost().await;
            Err(Failure::Unknown("the connection was lost".to_owned()))
        };
        let asked = or(lost, self.requests(&session, seen)).await;
        let _ = session.close().await;
        // One after the other: so a server that is nearly full has room for each.
        let enough = async {
            self.reactor.sleep_until(clock::now() + WORD).await;
            None
        };
        let answer = or(srvr(&alone, self.reactor, address), enough).await.unwrap_or_default();
        let line = |start| answer.lines().find_map(|line| line.strip_prefix(start)).map(|rest| printable(rest.trim()));
        seen.note(|server| {
            server.version = line(VERSION).map(|version| release(&version).to_owned());
            server.role = line("Mode: ");
        });
        asked
    }

    async fn requests(&self, session: &TcpSession<'_>, seen: Notes<'_>) -> Result<(), Failure> {
        let has_chroot = session.is_there("/").await?;
        seen.note(|server| server.has_chroot = Some(has_chroot));
        let mut beats = [Duration::ZERO; 3];
        for beat in &mut beats {
            let begin = clock::now();
            match session.beat(&["/".to_owned()], None).await {
                // A refusal has been to the leader as well.
                Ok(()) | Err(Failure::NoNode | Failure::Denied) => *beat = clock::now().saturating_since(begin),
                Err(failure) => return Err(failure),
            }
        }
        beats.sort();
        seen.note(|server| server.beat = Some(beats[1]));
        // Followers say in a transaction that such a session has expired.
        let is_local = |why: Failure| why == Failure::SessionOver || why == Failure::of_local_session();
        let lacks = if session.rehearse(&[], "").await.is_err_and(is_local) {
            vec![Finding { code: "local-sessions", text: Failure::of_local_session().to_string() }]
        } else if let Some(lock) = self.lock {
            self.lacks(session, lock).await?
        } else {
            return Ok(());
        };
        seen.note(|server| server.lacks = Some(lacks));
        Ok(())
    }

    async fn lacks(&self, session: &TcpSession<'_>, lock: &LockPath) -> Result<Vec<Finding>, Failure> {
        let denied =
            |right, node: &str| vec![Finding { code: "acl", text: sentences::lacks(node, right, &self.access.login) }];
        let mut missing = vec![];
        let mut above = lock.as_str();
        while !above.is_empty() && !session.is_there(above).await? {
            missing.insert(0, above.to_owned());
            above = above.rsplit_once('/').map_or("", |(above, _)| above);
        }
        let above = if above.is_empty() { "/" } else { above };
        if missing.is_empty() && matches!(session.children(lock.as_str()).await, Err(Failure::Denied)) {
            return Ok(denied(Right::Read, above));
        }
        // To delete one is not needed: a contender goes with its session.
        let why = match session.rehearse(&missing, lock.as_str()).await {
            Ok(()) => return Ok(vec![]),
            Err(failure @ (Failure::Unknown(_) | Failure::NotLetIn(_))) => return Err(failure),
            Err(Failure::Denied) => return Ok(denied(Right::Create, above)),
            Err(failure) => failure,
        };
        Ok(vec![Finding { code: "lock-refused", text: format!("the servers refuse a contender below {lock}: {why}") }])
    }
}

/// `3.8.0` of `3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f, built on 2022-02-25 08:49 UTC`.
fn release(version: &str) -> &str {
    version.split(['-', ',']).next().unwrap_or(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases() {
        for (version, short) in [
            ("3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f, built on 2022-02-25 08:49 UTC", "3.8.0"),
            ("3.4.13-5--1, built on Mon, 18 Mar 2019 21:43:07 +0100", "3.4.13"),
            ("3.9.0-beta, built on x", "3.9.0"),
            ("3.7.1", "3.7.1"),
            ("", ""),
        ] {
            assert_eq!(release(version), short);
        }
    }
}
