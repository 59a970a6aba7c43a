//! What `zklock check` concludes from what the servers have shown.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use super::server::{Lack, Server};
use crate::cli::Access;
use crate::cli::sentences::KEEPER_UNFIT;
use crate::rules::duration::show;
use crate::rules::lease::Terms;
use crate::rules::outcome::Outcome;
use crate::zookeeper::net::probe::Cure;

/// The longest tick of the servers that a lease allows for, and the longest with observers that follow a follower, whose
/// word reaches the leader in two steps.
const LONGEST_TICK: Duration = Duration::from_secs(4);
const LONGEST_TICK_WITH_OBSERVERS: Duration = Duration::from_secs(2);

/// How many days before its end a certificate is to be renewed at the latest.
const CERTIFICATE_DAYS: i64 = 14;
const DAY: i64 = 86_400;

/// Something to mend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// What programs know it by.
    pub code: &'static str,
    /// What is the matter.
    pub text: String,
    /// What to do about it.
    pub remedy: String,
}

impl Finding {
    fn new(code: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { code, text: text.into(), remedy: remedy.into() }
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
            self.findings.push(Finding::new(
                "client-certificate-ends",
                format!("the certificate of --tls-cert expires {}", in_days(days)),
                "Renew it: once it has expired, servers that want one refuse new connections.",
            ));
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
pub(super) fn judge(servers: &[Server], asked: Duration, today: i64, access: &Access) -> CheckReport {
    let is_down = |server: &&Server| server.error.is_some() && !is_other_family(server, servers);
    let mut findings: Vec<_> = servers.iter().filter(is_down).map(|server| down(server, access)).collect();
    let promise = promise(servers, asked);
    if let Some((promise, tick)) = promise {
        findings.extend(of_timeouts(servers, asked, promise.session_timeout, tick));
    }
    findings.extend(of_servers(servers, promise.map_or(asked, |(promise, _)| promise.session_timeout)));
    findings.extend(servers.iter().filter_map(|server| of_certificate(server, today)));
    // A server that lags may not know yet that it was created.
    let mut chroots = servers.iter().filter_map(|server| server.chroot);
    if chroots.next() == Some(false) && chroots.all(|is_there| !is_there) {
        let remedy = "Create it, or correct --zookeeper: zklock never creates it.";
        findings.push(Finding::new("no-chroot", "the chroot does not exist", remedy));
    } else if let Some(lacks) = servers.iter().find_map(|server| server.lacks.as_ref()) {
        findings.extend(lacks.iter().map(|lack| of_lack(lack, access)));
    }
    let has = |code| findings.iter().any(|finding| finding.code == code);
    let outcome = match promise {
        _ if has("clickhouse-keeper") => Outcome::Unusable,
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

fn down(server: &Server, access: &Access) -> Finding {
    if server.cure == Cure::ZooKeeper {
        let text = format!("{server} is ClickHouse Keeper: {KEEPER_UNFIT}");
        return Finding::new("clickhouse-keeper", text, cure(server.cure, access));
    }
    let why = server.error.as_deref().unwrap_or_default();
    Finding::new("server-down", format!("{server} does not answer as it should: {why}"), cure(server.cure, access))
}

/// What single servers cannot do, or do too slowly.
fn of_servers(servers: &[Server], timeout: Duration) -> Vec<Finding> {
    let slow = servers.iter().filter(|server| is_slow(server, timeout)).map(|server| {
        Finding::new(
            "slow",
            format!("{server} takes too long to answer for a session timeout as short as this"),
            "Find out what slows it down (disk, network, load), or give a longer --session-timeout.",
        )
    });
    let first = |is_it: fn(&Server) -> bool| servers.iter().find(|server| is_it(server));
    let no_containers = first(|server| server.knows_containers() == Some(false)).map(|server| {
        Finding::new(
            "no-containers",
            format!("{server} has no containers: the missing parents of a lock are created to stay"),
            "Use ZooKeeper 3.5 or later.",
        )
    });
    let no_transactions = first(|server| server.transactions == Some(false)).map(|server| {
        let text = format!("{server} refuses transactions, so no lock can be held");
        Finding::new("no-transactions", text, "Use ZooKeeper 3.4 or later.")
    });
    let local = first(|server| server.is_local).map(|server| {
        Finding::new(
            "local-sessions",
            format!("the sessions of {server} are local and can have no ephemeral nodes"),
            "Set localSessionsUpgradingEnabled=true on all servers, or localSessionsEnabled=false.",
        )
    });
    slow.chain(no_containers).chain(no_transactions).chain(local).collect()
}

fn of_certificate(server: &Server, today: i64) -> Option<Finding> {
    let days = days_left(server.tls.as_ref()?.not_after?, today)?;
    Some(Finding::new(
        "certificate-ends",
        format!("the certificate of {server} expires {}", in_days(days)),
        "Renew it: once it has expired, no new connection is made.",
    ))
}

fn in_days(days: i64) -> String {
    match days {
        ..1 => "within a day".to_owned(),
        1 => "in 1 day".to_owned(),
        _ => format!("in {days} days"),
    }
}

fn of_lack(lack: &Lack, access: &Access) -> Finding {
    match lack {
        Lack::Denied(right, path) => {
            let (what, letter, path) = (right.phrase(), right.letter(), path);
            let add = format!("dd the permission {letter} to the ACL of {path}");
            let remedy = match access.login.is_given() {
                true => format!(
                    "A{add} for this login, or, with digest, correct its password: a wrong one makes another identity"
                ),
                false => format!("Log in (--auth-file), or a{add}"),
            };
            let remedy = format!("{remedy}; a lock needs rc on its node.");
            Finding::new("acl", format!("an ACL forbids to {what} {path}"), remedy)
        }
        Lack::Refused(path, why) => Finding::new(
            "lock-refused",
            format!("the servers refuse a contender below {path}: {why}"),
            "Choose another path for the lock, or mend its node.",
        ),
    }
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
        let range = |server: &Server| Some(format!("{server} {} to {}", show(server.least?), show(server.greatest?)));
        let ranges: Vec<_> = servers.iter().filter_map(range).collect();
        findings.push(Finding::new(
            "timeouts-differ",
            format!("the servers do not grant the same session timeouts: {}", ranges.join(", ")),
            "Set the same tickTime, minSessionTimeout and maxSessionTimeout on all servers.",
        ));
    }
    if timeout != asked {
        let limit = if timeout < asked { "Raise maxSessionTimeout" } else { "Lower minSessionTimeout" };
        findings.push(Finding::new(
            "timeout-not-granted",
            format!("the servers grant a session timeout of {}, not {}", show(timeout), show(asked)),
            format!("{limit} on all servers, or give --session-timeout {}.", show(timeout)),
        ));
    }
    if tick.length > LONGEST_TICK {
        let length = show(tick.length);
        findings.push(Finding::new(
            "tick-too-long",
            format!("a tick of {length}: the servers may give a lock away before zklock expects it"),
            format!("Set tickTime on all servers to {} at most.{}", LONGEST_TICK.as_millis(), unless(tick)),
        ));
    }
    if tick.is_told && timeout < tick.length * 2 {
        let least = show(tick.length * 2);
        findings.push(Finding::new(
            "timeout-too-short",
            format!("the session timeout is shorter than two ticks ({least})"),
            format!("Give --session-timeout {least} or more."),
        ));
    }
    if tick.length > LONGEST_TICK_WITH_OBSERVERS || timeout < tick.length * 4 {
        findings.extend(servers.iter().filter(|server| server.is_observer()).map(|server| observer(server, tick)));
    }
    findings
}

fn observer(server: &Server, tick: Tick) -> Finding {
    Finding::new(
        "observer",
        format!(
            "{server} is an observer, with a tick of {}: if it follows a follower (observerMasterPort), the servers may \
             give a lock away before zklock expects it",
            show(tick.length)
        ),
        format!(
            "Take it out of --zookeeper, or set tickTime to 2000 at most and give four ticks to --session-timeout.{}",
            unless(tick)
        ),
    )
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

/// What to do about a server that does not answer as it should.
fn cure(cure: Cure, access: &Access) -> &'static str {
    match cure {
        Cure::Server if !access.servers_given => {
            "Start a server there, or name the servers: --zookeeper, ZKLOCK_ZOOKEEPER or a configuration file."
        }
        Cure::Server => "Mend or start this server, or take it out of --zookeeper.",
        Cure::Tls => "If this is its secureClientPort, use --tls; otherwise name its clientPort.",
        Cure::Full if access.tls.is_some() => {
            "Wait, if it is starting; raise its maxClientCnxns, if it is full; otherwise name a ZooKeeper server."
        }
        Cure::Full => {
            "Wait, if it is starting; raise its maxClientCnxns, if it is full; if this is its secureClientPort, use --tls; \
             otherwise name its clientPort."
        }
        Cure::NoTls => {
            "Name its secureClientPort, or connect without TLS; if it is the right port, raise its maxClientCnxns."
        }
        Cure::Name => {
            "Name it as its certificate does, or give it a certificate with this name (subjectAltName). \
             --tls-no-verify-hostname accepts any name, and so an impostor with a certificate of the same CA."
        }
        Cure::Trust => "Give the server another certificate, or name the CA of this one (--tls-ca).",
        Cure::Certificate if access.tls.as_ref().is_some_and(|tls| tls.own.is_some()) => {
            "Give a certificate that this server accepts (--tls-cert and --tls-key)."
        }
        Cure::Certificate => "Give a client certificate: --tls-cert and --tls-key.",
        Cure::Login if access.login.is_given() => "Correct the login (--auth-file), or let the server accept it.",
        Cure::Login => "Log in (--auth-file).",
        Cure::ZooKeeper => "Name servers of ZooKeeper: zklock does not run with ClickHouse Keeper.",
    }
}

/// What makes the tick a guess.
fn unless(tick: Tick) -> &'static str {
    if tick.is_told {
        ""
    } else {
        " The tick is taken for half of the least session timeout: if minSessionTimeout was raised, let the servers \
         answer the word conf (4lw.commands.whitelist), which tells it."
    }
}

#[cfg(test)]
mod tests;
