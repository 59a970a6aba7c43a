//! What `zklock check` concludes from what the servers have shown.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::cli::{Access, sentences};
use crate::rules::duration::show;
use crate::rules::lease::Terms;
use crate::rules::outcome::Outcome;
use crate::zookeeper::session::Failure;

/// The longest tick of the servers that a lease allows for.
const LONGEST_TICK: Duration = Duration::from_secs(4);

/// What one address of a server has shown. What is not known is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Server {
    /// As the connect string has it, with the port.
    pub name: String,
    /// `None`: the name has no address.
    pub address: Option<SocketAddr>,
    pub version: Option<String>,
    /// `standalone`, `leader`, `follower`, `observer`.
    pub role: Option<String>,
    /// The least session timeout that it grants, and the greatest one.
    #[serde(rename = "min_session_timeout_ms", serialize_with = "known_millis")]
    pub least: Option<Duration>,
    #[serde(rename = "max_session_timeout_ms", serialize_with = "known_millis")]
    pub greatest: Option<Duration>,
    /// Round trip of a request that goes through the leader.
    #[serde(rename = "beat_ms", serialize_with = "fraction_of_millis")]
    pub beat: Option<Duration>,
    /// Why it cannot be used, or not yet.
    pub error: Option<String>,
    /// It has shown everything, or `failure` says why it never will.
    #[serde(skip)]
    pub is_done: bool,
    #[serde(skip)]
    pub failure: Option<Failure>,
    #[serde(skip)]
    pub has_chroot: Option<bool>,
    /// What keeps the lock, or any lock, from being taken, once the server was asked.
    #[serde(skip)]
    pub lacks: Option<Vec<Finding>>,
}

/// Something to fix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// What programs know it by.
    pub code: &'static str,
    /// What is wrong, and what to do about it.
    pub text: String,
}

/// What holds on these servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Promise {
    /// The session timeout that is granted: the least one, if the servers differ.
    #[serde(rename = "session_timeout_ms", serialize_with = "millis")]
    pub session_timeout: Duration,
    /// The longest outage that a command is sure to survive.
    #[serde(rename = "patience_ms", serialize_with = "millis")]
    pub patience: Duration,
    /// When the lock of a machine that has died is free.
    #[serde(rename = "takeover_ms", serialize_with = "millis")]
    pub takeover: Duration,
}

/// What the servers show as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CheckReport {
    pub findings: Vec<Finding>,
    /// `None`: no server has opened a session.
    pub promise: Option<Promise>,
    /// A server was asked for all that the lock needs, and nothing is in its way.
    pub permits_lock: bool,
    pub outcome: Outcome,
}

fn millis<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    time.as_millis().serialize(serializer)
}

fn known_millis<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_millis()).serialize(serializer)
}

fn fraction_of_millis<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| (time.as_secs_f64() * 1e6).round() / 1e3).serialize(serializer)
}

impl Server {
    /// The least session timeout that it grants, and the greatest one, if it has opened sessions.
    pub(super) fn timeouts(&self) -> Option<(Duration, Duration)> {
        self.least.zip(self.greatest)
    }

    /// Whether it is an IPv6 address, say, of a server that is reached by its IPv4 address, and by no IPv6 address:
    /// servers may listen on one of the two, as with `localhost`.
    fn is_other_family(&self, servers: &[Self]) -> bool {
        let Some(address) = self.address else { return false };
        let reached = || servers.iter().filter(|other| other.name == self.name && other.least.is_some());
        let is_same = |other: &Self| other.address.is_some_and(|other| other.is_ipv4() == address.is_ipv4());
        self.least.is_none() && reached().next().is_some() && !reached().any(is_same)
    }

    fn down(&self, access: &Access) -> Option<Finding> {
        let why = self.error.as_ref()?;
        if let Some(Failure::ClickHouseKeeper(server)) = &self.failure {
            return Some(Finding { code: "clickhouse-keeper", text: sentences::clickhouse_keeper(server) });
        }
        // A reason that comes from the connection begins with the address.
        let name = if why.starts_with(&self.name) { String::new() } else { format!("{}: ", self.name) };
        let hint = sentences::which_servers(access.servers_given);
        Some(Finding { code: "server-down", text: format!("{name}{why}{hint}") })
    }
}

/// Judges the servers. `asked`: the session timeout that a run would ask for.
pub(super) fn judge(servers: &[Server], asked: Duration, access: &Access) -> CheckReport {
    let down = servers.iter().filter(|server| !server.is_other_family(servers));
    let mut findings: Vec<_> = down.filter_map(|server| server.down(access)).collect();
    let promise = promise(servers, asked);
    if let Some(promise) = promise {
        findings.extend(of_times(servers, asked, promise.session_timeout));
    }
    // A server that lags may not know yet that it was created.
    let mut chroots = servers.iter().filter_map(|server| server.has_chroot);
    let lacks = servers.iter().find_map(|server| server.lacks.as_ref());
    let lacks_chroot = chroots.next() == Some(false) && chroots.all(|is_there| !is_there);
    if lacks_chroot {
        findings.push(Finding { code: "no-chroot", text: sentences::no_chroot(&access.servers) });
    } else {
        findings.extend(lacks.into_iter().flatten().cloned());
    }
    let has = |code| findings.iter().any(|finding| finding.code == code);
    let is_refused = servers.iter().any(|server| matches!(server.failure, Some(Failure::NotLetIn(_))));
    let lacks_library = servers.iter().any(|server| matches!(server.failure, Some(Failure::NoLibrary(_))));
    let outcome = if has("clickhouse-keeper") || lacks_chroot || lacks_library {
        Outcome::Unusable
    } else if servers.iter().all(|server| server.error.is_some()) {
        if is_refused { Outcome::Denied } else { Outcome::Unavailable }
    } else if has("acl") {
        Outcome::Denied
    } else {
        Outcome::Exited(u8::from(!findings.is_empty()))
    };
    CheckReport { permits_lock: !lacks_chroot && lacks.is_some_and(Vec::is_empty), findings, promise, outcome }
}

/// What the servers grant to one that asks for this session timeout (`ZooKeeperServer.processConnectRequest`), and what
/// follows from it.
fn promise(servers: &[Server], asked: Duration) -> Option<Promise> {
    let granted = servers.iter().filter_map(Server::timeouts).map(|(least, greatest)| asked.max(least).min(greatest));
    let session_timeout = granted.min()?;
    let patience = Terms::with_default_grace(session_timeout).patience();
    // The leader looks for expired sessions once in a tick (ExpiryQueue).
    Some(Promise { session_timeout, patience, takeover: session_timeout + tick(servers) })
}

/// The tick of the servers: half of the least session timeout, unless that was configured.
fn tick(servers: &[Server]) -> Duration {
    servers.iter().filter_map(|server| server.least).max().unwrap_or_default() / 2
}

/// What is wrong with session timeouts, ticks and answers. `timeout`: what is granted of the one that was asked for.
fn of_times(servers: &[Server], asked: Duration, timeout: Duration) -> Vec<Finding> {
    let mut findings = vec![];
    let mut found = |code, text| findings.push(Finding { code, text });
    if servers.iter().filter_map(Server::timeouts).collect::<BTreeSet<_>>().len() > 1 {
        let range = |server: &Server| {
            let (least, greatest) = server.timeouts()?;
            Some(format!("{} {} to {}", server.name, show(least), show(greatest)))
        };
        let ranges: Vec<_> = servers.iter().filter_map(range).collect();
        let how = "set the same tickTime, minSessionTimeout and maxSessionTimeout on all servers";
        found(
            "timeouts-differ",
            format!("the servers grant different session timeouts ({}): {how}", ranges.join(", ")),
        );
    }
    if timeout != asked {
        let limit = if timeout < asked { "raise maxSessionTimeout" } else { "lower minSessionTimeout" };
        let (granted, asked) = (show(timeout), show(asked));
        let text = format!(
            "the servers grant a session timeout of {granted}, not {asked}: {limit} on all servers, or use \
             --session-timeout {granted}"
        );
        found("timeout-not-granted", text);
    }
    if tick(servers) > LONGEST_TICK {
        let text = format!(
            "the tick, half of the least session timeout, is {}, so the servers may give a lock away before zklock expects \
             it: set tickTime to {} at most on all servers; if minSessionTimeout alone was raised, all is well",
            show(tick(servers)),
            LONGEST_TICK.as_millis()
        );
        found("tick-too-long", text);
    }
    for server in servers.iter().filter(|server| server.beat > Some(Terms::between_contacts(timeout))) {
        let text = format!(
            "{} answers too slowly for this session timeout: look at its disk, network and load, or use a longer \
             --session-timeout",
            server.name
        );
        found("slow", text);
    }
    findings
}

#[cfg(test)]
mod tests;
