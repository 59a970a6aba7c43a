//! What `zklock check` concludes from what the servers have shown.

use crate::zookeeper::net::probe::Cure;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use crate::rules::lease::Terms;
use crate::rules::message::Right;
use crate::rules::outcome::Outcome;

/// The longest tick of the servers that a lease allows for, and the longest with observers that follow a follower, whose
/// word reaches the leader in two steps.
pub(super) const LONGEST_TICK: Duration = Duration::from_secs(4);
const LONGEST_TICK_WITH_OBSERVERS: Duration = Duration::from_secs(2);

/// How many days before its end a certificate is to be renewed at the latest.
const CERTIFICATE_DAYS: i64 = 14;
const DAY: i64 = 86_400;

/// What one address of a server has shown. What is not known is `None`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Server {
    /// As the connect string has it, with the port.
    pub name: String,
    /// `None`: the name has no address.
    pub address: Option<SocketAddr>,
    /// The number of the server in its ensemble.
    pub member: Option<u8>,
    pub version: Option<String>,
    /// `standalone`, `leader`, `follower`, `observer`.
    pub role: Option<String>,
    /// Its tick, where it tells.
    pub tick: Option<Duration>,
    /// How many connections it has from our address beside those of the check, and how many it takes, where it tells.
    pub connections: Option<(usize, usize)>,
    /// The version of its ensemble's configuration, and the numbers of those who vote.
    pub voters: Option<(u64, BTreeSet<u8>)>,
    /// The least session timeout that it grants.
    pub least: Option<Duration>,
    /// The greatest one.
    pub greatest: Option<Duration>,
    /// Round trip of a request that the server answers by itself.
    pub read: Option<Duration>,
    /// Round trip of a request that goes through the leader.
    pub beat: Option<Duration>,
    /// Whether it carries out transactions.
    pub transactions: Option<bool>,
    /// Whether its sessions are local, and can have no ephemeral nodes.
    pub is_local: bool,
    /// Whether the chroot is there.
    pub chroot: Option<bool>,
    pub lacks: Option<Vec<Lack>>,
    /// How its connections are encrypted. `None`: they are not.
    pub tls: Option<SeenTls>,
    /// Why it is of no use, or not of full use.
    pub error: Option<String>,
    /// What helps, if there is an error.
    pub cure: Cure,
}

/// How a connection is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenTls {
    /// The version of the protocol, such as `TLSv1.3`.
    pub protocol: String,
    /// When the server's certificate expires, in seconds since the Unix epoch.
    pub not_after: Option<i64>,
}

/// Something that a lock needs and that the servers refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// An ACL forbids it.
    Denied(Right, String),
    /// It is refused for this reason.
    Refused(String, String),
}

impl Server {
    /// An address, or a name without one, of which nothing is known yet.
    pub(super) fn new(name: String, address: Option<SocketAddr>) -> Self {
        Self {
            name,
            address,
            member: None,
            version: None,
            role: None,
            tick: None,
            connections: None,
            voters: None,
            least: None,
            greatest: None,
            read: None,
            beat: None,
            transactions: None,
            is_local: false,
            chroot: None,
            lacks: None,
            tls: None,
            error: None,
            cure: Cure::default(),
        }
    }

    /// Whether it has opened sessions.
    pub(super) const fn is_reachable(&self) -> bool {
        self.greatest.is_some()
    }

    /// What it grants to a client that asks for this session timeout (`ZooKeeperServer.processConnectRequest`).
    fn grants(&self, asked: Duration) -> Option<Duration> {
        Some(asked.max(self.least?).min(self.greatest?))
    }

    /// Whether it wants another client certificate or another login.
    const fn is_refusing(&self) -> bool {
        matches!(self.cure, Cure::Certificate | Cure::Login)
    }

    fn is_observer(&self) -> bool {
        self.role.as_deref() == Some("observer")
    }

    /// Whether it knows containers, which are there since 3.5.
    fn knows_containers(&self) -> Option<bool> {
        let mut numbers = self.version.as_deref()?.split('.').map(|number| number.parse::<u32>().ok());
        Some((numbers.next()??, numbers.next()??) >= (3, 5))
    }
}

/// Something to mend. The numbers are those of the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// A server does not answer as it should.
    Down(usize),
    /// The servers do not all grant the same session timeouts.
    Differ,
    /// The session timeout that was asked for is not granted, but this one.
    NotGranted(Duration),
    /// The tick is longer than a lease allows for.
    TickTooLong(Tick),
    /// The session timeout is less than two ticks.
    TimeoutTooShort(Duration),
    /// An observer, which may follow a follower; then the tick is too long, or the session timeout less than four ticks.
    Observer(usize, Tick),
    /// Answers take longer than a lease allows for.
    Slow(usize),
    NoContainers(usize),
    NoTransactions(usize),
    /// A server whose sessions can have no ephemeral nodes.
    LocalSessions(usize),
    /// The certificate of a server expires in so many days.
    CertificateEnds(usize, i64),
    /// Our own certificate expires in so many days.
    OwnCertificateEnds(i64),
    NoChroot,
    /// The lock cannot be taken.
    Lacks(Lack),
}

impl Finding {
    /// What programs know it by.
    pub(super) const fn code(&self) -> &'static str {
        match self {
            Self::Down(_) => "server-down",
            Self::Differ => "timeouts-differ",
            Self::NotGranted(_) => "timeout-not-granted",
            Self::TickTooLong(_) => "tick-too-long",
            Self::TimeoutTooShort(_) => "timeout-too-short",
            Self::Observer(..) => "observer",
            Self::Slow(_) => "slow",
            Self::NoContainers(_) => "no-containers",
            Self::NoTransactions(_) => "no-transactions",
            Self::LocalSessions(_) => "local-sessions",
            Self::CertificateEnds(..) => "certificate-ends",
            Self::OwnCertificateEnds(_) => "client-certificate-ends",
            Self::NoChroot => "no-chroot",
            Self::Lacks(Lack::Denied(..)) => "acl",
            Self::Lacks(Lack::Refused(..)) => "lock-refused",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tick {
    pub length: Duration,
    /// A server has told it. Otherwise it is half the least session timeout, as it is unless that was configured.
    pub is_told: bool,
}

/// What holds on these servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Promise {
    /// The session timeout that is granted: the least one, if the servers differ.
    pub session_timeout: Duration,
    /// The longest outage that a command is sure to live through.
    pub patience: Duration,
    /// When the lock of a machine that has died is free.
    pub takeover: Duration,
    /// How many servers there are, and how many of them may fail before the rest has no majority. `None`: not known.
    pub spare: Option<(usize, usize)>,
}

/// What the servers show as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CheckReport {
    pub findings: Vec<Finding>,
    /// `None`: no server answered.
    pub promise: Option<Promise>,
    pub outcome: Outcome,
}

impl CheckReport {
    /// Adds what there is to say about our own certificate, which expires at `not_after`.
    pub(super) fn add_own_certificate(&mut self, not_after: i64, today: i64) {
        if let Some(days) = days_left(not_after, today) {
            self.findings.push(Finding::OwnCertificateEnds(days));
            if self.outcome == Outcome::Exited(0) {
                self.outcome = Outcome::Exited(1);
            }
        }
    }
}

/// For how many days a certificate is still good, if it is to be renewed.
fn days_left(not_after: i64, today: i64) -> Option<i64> {
    Some((not_after - today).div_euclid(DAY)).filter(|days| *days < CERTIFICATE_DAYS)
}

/// Judges the servers. `asked`: the session timeout that a run would ask for; `today`: the time, in seconds since the
/// Unix epoch.
pub(super) fn judge(servers: &[Server], asked: Duration, today: i64) -> CheckReport {
    let numbered = || servers.iter().enumerate();
    let mut findings: Vec<_> = numbered()
        .filter(|(_, server)| server.error.is_some() && !is_other_family(server, servers))
        .map(|(number, _)| Finding::Down(number))
        .collect();
    let promise = promise(servers, asked);
    if let Some((promise, tick)) = promise {
        findings.extend(of_timeouts(servers, asked, promise.session_timeout, tick));
    }
    let timeout = promise.map_or(asked, |(promise, _)| promise.session_timeout);
    findings.extend(numbered().filter(|(_, server)| is_slow(server, timeout)).map(|(number, _)| Finding::Slow(number)));
    let first = |is_it: fn(&Server) -> bool| servers.iter().position(is_it);
    findings.extend(first(|server| server.knows_containers() == Some(false)).map(Finding::NoContainers));
    findings.extend(first(|server| server.transactions == Some(false)).map(Finding::NoTransactions));
    findings.extend(first(|server| server.is_local).map(Finding::LocalSessions));
    let ends = |(number, server): (_, &Server)| Some((number, days_left(server.tls.as_ref()?.not_after?, today)?));
    findings.extend(numbered().filter_map(ends).map(|(number, days)| Finding::CertificateEnds(number, days)));
    // A server that lags may not know yet that it was created.
    let mut chroots = servers.iter().filter_map(|server| server.chroot);
    if chroots.next() == Some(false) && chroots.all(|is_there| !is_there) {
        findings.push(Finding::NoChroot);
    } else if let Some(lacks) = servers.iter().find_map(|server| server.lacks.clone()) {
        findings.extend(lacks.into_iter().map(Finding::Lacks));
    }
    let has = |code| findings.iter().any(|finding| finding.code() == code);
    let outcome = match promise {
        None if servers.iter().any(Server::is_refusing) => Outcome::Denied,
        None => Outcome::Unavailable,
        Some(_) if has("no-chroot") => Outcome::Unusable,
        Some(_) if has("acl") => Outcome::Denied,
        // They open sessions, and refuse the login on all of them.
        Some(_) if servers.iter().all(Server::is_refusing) => Outcome::Denied,
        Some(_) => Outcome::Exited(u8::from(!findings.is_empty())),
    };
    CheckReport { findings, promise: promise.map(|(promise, _)| promise), outcome }
}

/// Whether it is an IPv6 address, say, of a server that is reached by its IPv4 address, and by no IPv6 address: servers
/// may listen on one of the two, as with `localhost`.
fn is_other_family(server: &Server, servers: &[Server]) -> bool {
    let Some(address) = server.address else { return false };
    let reached = || servers.iter().filter(|other| other.name == server.name && other.is_reachable());
    let is_same = |other: &Server| other.address.is_some_and(|other| other.is_ipv4() == address.is_ipv4());
    !server.is_reachable() && reached().next().is_some() && !reached().any(is_same)
}

fn is_slow(server: &Server, timeout: Duration) -> bool {
    let slowest = [server.read, server.beat].into_iter().flatten().max();
    slowest.is_some_and(|slowest| slowest > Terms::between_contacts(timeout))
}

fn of_timeouts(servers: &[Server], asked: Duration, timeout: Duration, tick: Tick) -> Vec<Finding> {
    let mut findings = vec![];
    let granted: BTreeSet<_> = servers.iter().filter_map(|server| Some((server.least?, server.greatest?))).collect();
    if granted.len() > 1 {
        findings.push(Finding::Differ);
    }
    if timeout != asked {
        findings.push(Finding::NotGranted(timeout));
    }
    if tick.length > LONGEST_TICK {
        findings.push(Finding::TickTooLong(tick));
    }
    if tick.is_told && timeout < tick.length * 2 {
        findings.push(Finding::TimeoutTooShort(tick.length));
    }
    if tick.length > LONGEST_TICK_WITH_OBSERVERS || timeout < tick.length * 4 {
        let observers = servers.iter().enumerate().filter(|(_, server)| server.is_observer());
        findings.extend(observers.map(|(number, _)| Finding::Observer(number, tick)));
    }
    findings
}

fn promise(servers: &[Server], asked: Duration) -> Option<(Promise, Tick)> {
    let session_timeout = servers.iter().filter_map(|server| server.grants(asked)).min()?;
    let tick = match servers.iter().filter_map(|server| server.tick).max() {
        Some(length) => Tick { length, is_told: true },
        None => Tick { length: servers.iter().filter_map(|server| server.least).max()? / 2, is_told: false },
    };
    let patience = Terms::with_default_grace(session_timeout).patience();
    // The leader looks for expired sessions once in a tick (ExpiryQueue).
    let takeover = session_timeout + tick.length;
    Some((Promise { session_timeout, patience, takeover, spare: spare(servers) }, tick))
}

/// How many servers there are, and how many may fail. Observers have no vote.
fn spare(servers: &[Server]) -> Option<(usize, usize)> {
    let reachable = || servers.iter().filter(|server| server.is_reachable());
    let up: BTreeSet<_> = reachable().map(|server| &server.name).collect();
    let down: BTreeSet<_> = servers.iter().map(|server| &server.name).filter(|name| !up.contains(name)).collect();
    // The same server may be there by several addresses.
    let members = reachable().filter(|server| !server.is_observer()).filter_map(|server| server.member);
    let mut up: BTreeSet<_> = members.collect();
    let mut all = up.len() + down.len();
    let newest = servers.iter().filter_map(|server| server.voters.as_ref()).max_by_key(|(version, _)| *version);
    if let Some((_, voters)) = newest.filter(|_| all > 1) {
        up.retain(|member| voters.contains(member));
        // Of those that are not named, nothing is known.
        if voters.len() > up.len() + down.len() {
            return None;
        }
        all = voters.len();
    } else if reachable().any(|server| server.role.is_none()) {
        return None;
    }
    Some((all, up.len().saturating_sub(all / 2 + 1)))
}

#[cfg(test)]
mod tests;
