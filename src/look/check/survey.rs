//! What the servers show: each address of each server, all at the same time.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::server::{Lack, SeenTls, Server};
use crate::cli::{Access, Check};
use crate::rules::duration::show;
use crate::rules::instant::Instant;
use crate::rules::lock_path::LockPath;
use crate::rules::message::Right;
use crate::rules::text::printable;
use crate::system::clock;
use crate::system::futures::{all, or};
use crate::system::reactor::Reactor;
use crate::zookeeper::net::address::HostPort;
use crate::zookeeper::net::probe::{Cure, NoProbe, Probe, Probes};
use crate::zookeeper::net::servers::{Address, addresses_of};
use crate::zookeeper::net::tls::Encryption;
use crate::zookeeper::net::word::{NOT_SERVING, VERSION};
use crate::zookeeper::session::{Failure, Session as _};

/// What is asked for, to learn the least session timeout and the greatest one. The protocol has 32 bits for it.
const SHORT: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_millis(i32::MAX as u64);

/// How long all of it may take where no server is waited for.
const AT_ONCE: Duration = Duration::from_secs(2);

/// If no server is there, they are looked at again after this long, then after twice that, and so on.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long four letter words may take: zklock can do without their answers.
const WORDS: Duration = Duration::from_secs(2);

/// Where an ensemble says who belongs to it, since 3.5. Anyone may read it by default.
const CONFIG: &str = "/zookeeper/config";

/// How often a round trip is measured. The one in the middle counts.
const TIMES: usize = 3;

struct Survey<'a, 'p> {
    lock: Option<&'a LockPath>,
    chroot: &'p str,
    uses_tls: bool,
    probes: &'a Probes<'p>,
    reactor: &'a Reactor,
    until: Instant,
    limit: Duration,
}

/// Looks at the servers, again and again for as long as none is there, within `--connect-timeout`. `waiting` is told of those
/// that are waited for.
pub(super) async fn survey<'p>(
    check: &Check,
    access: &'p Access,
    probes: &Probes<'p>,
    reactor: &Reactor,
    mut waiting: impl FnMut(&[Server]),
) -> Vec<Server> {
    let waits = !access.connect_timeout.is_zero();
    let limit = if waits { access.connect_timeout } else { AT_ONCE };
    let until = clock::now() + limit;
    let (chroot, uses_tls) = (&access.servers.chroot, access.tls.is_some());
    let survey = Survey { lock: check.lock.as_ref(), chroot, uses_tls, probes, reactor, until, limit };
    let mut pause = FIRST_PAUSE;
    loop {
        let seen = all(access.servers.hosts.iter().map(|host| survey.host(host))).await.concat();
        let again_at = clock::now() + pause;
        if !waits || again_at >= until || !seen.iter().all(Server::may_come_up) {
            return seen;
        }
        waiting(&seen);
        reactor.sleep_until(again_at).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

impl<'p> Survey<'_, 'p> {
    /// Does it until the time is over.
    async fn in_time<T>(&self, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let late = async {
            self.reactor.sleep_until(self.until).await;
            Err(format!("no answer within {}", show(self.limit)))
        };
        or(work, late).await
    }

    async fn host(&self, host: &'p HostPort) -> Vec<Server> {
        let name = host.to_string();
        match self.in_time(addresses_of(host, self.reactor)).await {
            Ok(addresses) => {
                let addresses = addresses.into_iter().map(|socket| Address { socket, server: host });
                all(addresses.map(|address| self.server(&name, address))).await
            }
            Err(why) => vec![Server { error: Some(why), ..Server::new(name, None) }],
        }
    }

    async fn server(&self, name: &str, address: Address<'p>) -> Server {
        let seen = RefCell::new(Server::new(name.to_owned(), Some(address.socket)));
        let is_serving = RefCell::new(None);
        let work = async {
            let sessions = self.sessions(address, &seen).await;
            // One after the other: so a server that is nearly full has room for each.
            let enough = self.reactor.sleep_until(self.until.min(clock::now() + WORDS));
            or(self.words(address, &seen, &is_serving), enough).await;
            sessions.map_err(|why| match (why, *is_serving.borrow()) {
                (Trouble::Lost(why), _) => why,
                (Trouble::Open(NoProbe::Failed(cure, why)), _) => {
                    seen.borrow_mut().cure = cure;
                    why
                }
                (Trouble::Open(NoProbe::NoSession | NoProbe::Closed), Some(false)) => {
                    "it serves no clients now: it is starting, or has no quorum".to_owned()
                }
                (Trouble::Open(NoProbe::NoSession), Some(true)) => "it opens no session".to_owned(),
                (Trouble::Open(NoProbe::Closed), _) => {
                    seen.borrow_mut().cure = Cure::Full;
                    "it closes connections before it answers".to_owned()
                }
                (Trouble::Open(NoProbe::NoSession), None) => {
                    if !self.uses_tls {
                        seen.borrow_mut().cure = Cure::Tls;
                    }
                    "it does not answer as ZooKeeper".to_owned()
                }
            })
        };
        let error = self.in_time(work).await.err();
        Server { error, ..seen.into_inner() }
    }

    /// `srvr`, which servers answer unless they were told not to; `conf` and `cons`, which most do not.
    async fn words(&self, address: Address<'p>, seen: &RefCell<Server>, is_serving: &RefCell<Option<bool>>) {
        let Some((answer, _)) = self.probes.word("srvr", address).await else { return };
        let line = |answer: &str, start: &str| {
            answer.lines().find_map(|line| line.strip_prefix(start)).map(|rest| printable(rest.trim()))
        };
        if answer.starts_with(NOT_SERVING) {
            is_serving.replace(Some(false));
        }
        if let Some(version) = line(&answer, VERSION) {
            is_serving.replace(Some(true));
            let mut seen = seen.borrow_mut();
            seen.version = Some(release(&version).to_owned());
            seen.role = line(&answer, "Mode: ");
        }
        let Some((answer, _)) = self.probes.word("conf", address).await else { return };
        let tick = line(&answer, "tickTime=").and_then(|millis| millis.parse().ok());
        seen.borrow_mut().tick = tick.map(Duration::from_millis);
        let limit = line(&answer, "maxClientCnxns=").and_then(|limit| limit.parse().ok());
        // 0: as many as come.
        let Some(limit) = limit.filter(|limit| *limit > 0) else { return };
        let Some((answer, own)) = self.probes.word("cons", address).await else { return };
        seen.borrow_mut().connections = beside(&answer, own).map(|used| (used, limit));
    }

    async fn sessions(&self, address: Address<'p>, seen: &RefCell<Server>) -> Result<(), Trouble> {
        let session = self.probes.open(address, SHORT, "").await?;
        let least = session.timeout();
        let config = session.with(session.look(CONFIG, false)).await;
        seen.borrow_mut().voters = config.ok().and_then(|(config, ..)| voters(&String::from_utf8_lossy(&config)));
        session.close().await;
        let session = self.probes.open(address, LONG, self.chroot).await?;
        {
            let mut seen = seen.borrow_mut();
            (seen.least, seen.greatest) = (Some(least), Some(session.timeout()));
            seen.tls =
                session.encryption.clone().map(|Encryption { protocol, not_after }| SeenTls { protocol, not_after });
            // The server that opens a session puts its number into the first byte (SessionTrackerImpl).
            seen.member = Some(session.id().to_be_bytes()[0]);
        }
        let ended = session.with(self.requests(&session, seen)).await;
        session.close().await;
        ended.map_err(|failure| match failure {
            Failure::NotLetIn(why) => Trouble::Open(NoProbe::Failed(Cure::Login, why)),
            failure => Trouble::Lost(failure.to_string()),
        })
    }

    async fn requests(&self, session: &Probe<'_, '_>, seen: &RefCell<Server>) -> Result<(), Failure> {
        let root = ["/".to_owned()];
        let mut reads = vec![];
        let mut beats = vec![];
        for _ in 0..TIMES {
            let begin = clock::now();
            let there = session.is_there("/").await?;
            reads.push(clock::now().saturating_since(begin));
            seen.borrow_mut().chroot = Some(there);
        }
        seen.borrow_mut().read = middle(reads);
        for _ in 0..TIMES {
            let begin = clock::now();
            match session.beat(&root, None).await {
                // A refusal has been to the leader as well.
                Ok(()) | Err(Failure::NoNode | Failure::Denied) => {}
                Err(Failure::Unknown(why)) => return Err(Failure::Unknown(why)),
                Err(failure) => {
                    log::info!("a transaction was refused: {failure}");
                    seen.borrow_mut().transactions = Some(false);
                    // The server may have closed the connection over it, and answers nothing more.
                    return Ok(());
                }
            }
            beats.push(clock::now().saturating_since(begin));
            seen.borrow_mut().transactions = Some(true);
        }
        seen.borrow_mut().beat = middle(beats);
        // Followers say in a transaction that such a session has expired.
        let is_local = match session.rehearse(&[], "").await {
            Err(Failure::Unknown(why)) => return Err(Failure::Unknown(why)),
            Err(why) => why == Failure::SessionOver || why == Failure::of_local_session(),
            Ok(()) => false,
        };
        seen.borrow_mut().is_local = is_local;
        if let Some(lock) = self.lock.filter(|_| !is_local) {
            let lacks = lacks(session, lock).await?;
            seen.borrow_mut().lacks = Some(lacks);
        }
        Ok(())
    }
}

async fn lacks(session: &Probe<'_, '_>, lock: &LockPath) -> Result<Vec<Lack>, Failure> {
    let mut lacks = vec![];
    let mut missing = vec![];
    let mut above = lock.as_str();
    while !above.is_empty() && !session.is_there(above).await? {
        missing.insert(0, above.to_owned());
        above = above.rsplit_once('/').map_or("", |(above, _)| above);
    }
    let above = if above.is_empty() { "/" } else { above };
    if missing.is_empty() {
        match session.names(lock.as_str(), false).await {
            Err(Failure::Denied) => lacks.push(Lack::Denied(Right::Read, above.to_owned())),
            Err(Failure::Unknown(why)) => return Err(Failure::Unknown(why)),
            _ => {}
        }
    }
    // To delete one is not needed: a contender goes with its session.
    match session.rehearse(&missing, lock.as_str()).await {
        Ok(()) => {}
        Err(failure @ (Failure::Unknown(_) | Failure::NotLetIn(_))) => return Err(failure),
        Err(Failure::Denied) => lacks.push(Lack::Denied(Right::Create, above.to_owned())),
        Err(failure) => lacks.push(Lack::Refused(lock.to_string(), failure.to_string())),
    }
    Ok(lacks)
}

/// How many connections come from our address, beside the one from `own` that has asked: the answer to `cons` has a line for
/// each, such as ` /127.0.0.1:40938[1](queued=0,...)`. `None`: the server knows us by another address.
fn beside(answer: &str, own: SocketAddr) -> Option<usize> {
    let from = |line: &str| -> Option<(IpAddr, u16)> {
        let (host, port) = line.split_once('/')?.1.split('(').next()?.rsplit_once('[')?.0.rsplit_once(':')?;
        Some((host.trim_matches(['[', ']']).parse().ok()?, port.parse().ok()?))
    };
    let all: Vec<_> = answer.lines().filter_map(from).filter(|(host, _)| *host == own.ip()).collect();
    all.contains(&(own.ip(), own.port())).then(|| all.len() - 1)
}

/// The version of an ensemble's configuration, and the numbers of those who vote. `None`: it is a server alone.
fn voters(config: &str) -> Option<(u64, BTreeSet<u8>)> {
    let version = config.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("version=")?, 16).ok())?;
    let voter = |line: &str| {
        let (number, server) = line.strip_prefix("server.")?.split_once('=')?;
        number.parse().ok().filter(|_| !server.contains(":observer"))
    };
    Some((version, config.lines().filter_map(voter).collect()))
        .filter(|(_, voters): &(_, BTreeSet<_>)| !voters.is_empty())
}

/// Why a server cannot be used.
enum Trouble {
    Open(NoProbe),
    Lost(String),
}

impl From<NoProbe> for Trouble {
    fn from(trouble: NoProbe) -> Self {
        Self::Open(trouble)
    }
}

fn middle(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort();
    times.get(times.len() / 2).copied()
}

/// `3.8.0` of `3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f, built on 2022-02-25 08:49 UTC`; `3.9.0-beta` is one as well.
fn release(version: &str) -> &str {
    let version = version.split([',', ' ']).next().unwrap_or(version);
    match version.split_once('-') {
        Some((release, "alpha" | "beta" | "SNAPSHOT")) if !release.is_empty() => version,
        Some((release, _)) => release,
        None => version,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases() {
        for (version, short) in [
            ("3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f, built on 2022-02-25 08:49 UTC", "3.8.0"),
            ("3.4.13-5--1, built on Mon, 18 Mar 2019 21:43:07 +0100", "3.4.13"),
            ("3.9.0-beta, built on x", "3.9.0-beta"),
            ("3.7.1", "3.7.1"),
            ("", ""),
        ] {
            assert_eq!(release(version), short);
        }
    }

    #[test]
    fn connections_from_our_address() {
        let cons = " /127.0.0.1:40938[1](queued=0,recved=34,sent=34,sid=0x1000,lop=PING)\n /10.0.0.7:40000[1](queued=0)\n \
                    /127.0.0.1:40940[0](queued=0,recved=1,sent=0)\n /0:0:0:0:0:0:0:1:40938[1](queued=0)\n \
                    /[0:0:0:0:0:0:0:1]:40939[1](queued=0)\n\n";
        for (own, others) in [("127.0.0.1:40940", Some(1)), ("[::1]:40939", Some(1)), ("127.0.0.1:1", None)] {
            assert_eq!(beside(cons, own.parse().unwrap()), others, "{own}");
        }
    }

    #[test]
    fn observers_do_not_vote() {
        let config = "server.1=zk1:2888:3888:participant;0.0.0.0:2181\nserver.2=zk2:2888:3888:participant\n\
                      server.3=zk3:2888:3888:observer;0.0.0.0:2181\nversion=10000001a";
        assert_eq!(voters(config), Some((0x1_0000_001a, BTreeSet::from([1, 2]))));
        for alone in ["", "version=0"] {
            assert_eq!(voters(alone), None);
        }
    }
}
