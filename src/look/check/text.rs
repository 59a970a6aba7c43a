//! What people read of a check.

use crate::zookeeper::net::probe::Cure;
use std::fmt::Write as _;
use std::time::Duration;

use crate::cli::{Access, Check, Setting};
use crate::look::check::findings::{CheckReport, Finding, LONGEST_TICK, Lack, Promise, Server, Tick};
use crate::rules::duration::{show, show_limit};
use crate::rules::text::{legible, table};

/// The servers, what is to be mended, and what a command lives through.
pub(super) fn of(seen: &[Server], report: &CheckReport, check: &Check, access: &Access) -> String {
    let mut text = servers(seen);
    for server in seen {
        if let Some((used, limit)) = server.connections {
            let who = who(server);
            let _ =
                writeln!(text, "{who} has {used} of the {limit} connections that it takes from here (maxClientCnxns)");
        }
    }
    for finding in &report.findings {
        let (what, remedy) = sentences(finding, seen, check, access);
        let _ = write!(text, "\n{}: {what}\n  {remedy}\n", finding.code());
    }
    if let Some(promise) = &report.promise {
        let _ = writeln!(text, "\nWith a session timeout of {}:", show(promise.session_timeout));
        for (what, comes) in through(promise) {
            let _ = writeln!(text, "  {what:25}  {comes}");
        }
    }
    match &check.lock {
        None if report.promise.is_some() => text += "\nWithout LOCK, permissions were not looked at.\n",
        Some(lock) if may_be_used(seen, report) => {
            let _ = writeln!(text, "\n{}: may be used", legible(lock.as_str()));
        }
        _ => {}
    }
    text
}

/// Whether a server was asked for all that the lock needs, and nothing is in its way.
fn may_be_used(seen: &[Server], report: &CheckReport) -> bool {
    let is_in_the_way = |finding: &Finding| {
        use Finding::{Lacks, LocalSessions, NoChroot, NoTransactions};
        matches!(finding, Lacks(_) | NoChroot | NoTransactions(_) | LocalSessions(_))
    };
    seen.iter().any(|server| server.lacks.is_some()) && !report.findings.iter().any(is_in_the_way)
}

pub(super) fn settings(settings: &[Setting]) -> String {
    let row = |setting: &Setting| {
        let value = legible(setting.value.as_deref().unwrap_or("(not shown)"));
        [setting.name.to_owned(), value, setting.origin.to_string()]
    };
    "\nSettings:\n".to_owned() + &table("  ", &settings.iter().map(row).collect::<Vec<_>>())
}

fn servers(seen: &[Server]) -> String {
    let unknown = || "?".to_owned();
    let mut rows =
        vec![["server", "address", "role", "version", "session timeouts", "read", "beat"].map(str::to_owned)];
    for server in seen {
        let address = server.address.map(|address| address.to_string());
        let granted = match (server.least, server.greatest) {
            (Some(least), Some(greatest)) => format!("{} to {}", show(least), show(greatest)),
            _ => server.error.clone().unwrap_or_else(unknown),
        };
        rows.push([
            server.name.clone(),
            address.unwrap_or_else(unknown),
            server.role.clone().unwrap_or_else(unknown),
            server.version.clone().unwrap_or_else(unknown),
            granted,
            server.read.map(in_millis).unwrap_or_default(),
            server.beat.map(in_millis).unwrap_or_default(),
        ]);
    }
    table("", &rows)
}

fn in_millis(time: Duration) -> String {
    format!("{:.1}ms", time.as_secs_f64() * 1e3)
}

/// What may happen, and what comes of it.
fn through(promise: &Promise) -> Vec<(&'static str, String)> {
    let (patience, takeover) = (show_limit(promise.patience), show(promise.takeover));
    let sure = format!("a command lives through up to {patience}");
    let server = match promise.spare {
        None => sure.clone(),
        Some((0 | 1, _)) => format!("{sure}; no other one is named"),
        Some((all, 0)) => format!("{sure}: none of the {all} can be spared now"),
        Some((all, spare)) => {
            format!("a command goes on if the others have a leader within {patience}; {spare} of {all} can be spared")
        }
    };
    vec![
        ("an outage of ZooKeeper", format!("{sure}, and is stopped if it is longer")),
        ("the death of a server", server),
        ("the death of this machine", format!("the lock is free after {takeover}")),
        (
            "the death of zklock",
            format!("its command is killed, and the lock is free; after {takeover} if all its processes are killed"),
        ),
    ]
}

fn in_days(days: i64) -> String {
    match days {
        ..1 => "within a day".to_owned(),
        1 => "in 1 day".to_owned(),
        _ => format!("in {days} days"),
    }
}

/// What is the matter, and what to do about it.
pub(super) fn sentences(finding: &Finding, seen: &[Server], check: &Check, access: &Access) -> (String, String) {
    let asked = show(check.session_timeout);
    match finding {
        Finding::Down(number) => (
            format!("{} does not answer as it should: {}", who(&seen[*number]), why(&seen[*number])),
            cure(&seen[*number], access).to_owned(),
        ),
        Finding::Differ => (
            format!("the servers do not grant the same session timeouts: {}", ranges(seen)),
            "Set the same tickTime, minSessionTimeout and maxSessionTimeout on all servers.".to_owned(),
        ),
        Finding::NotGranted(granted) if *granted < check.session_timeout => (
            format!("the servers grant a session timeout of {}, not {asked}", show(*granted)),
            format!("Raise maxSessionTimeout on all servers, or give --session-timeout {}.", show(*granted)),
        ),
        Finding::NotGranted(granted) => (
            format!("the servers grant a session timeout of {}, not {asked}", show(*granted)),
            format!("Lower minSessionTimeout on all servers, or give --session-timeout {}.", show(*granted)),
        ),
        Finding::TickTooLong(tick) => (
            format!("a tick of {}: the servers may give a lock away before zklock expects it", show(tick.length)),
            format!("Set tickTime on all servers to {} at most.{}", LONGEST_TICK.as_millis(), unless(*tick)),
        ),
        Finding::TimeoutTooShort(tick) => (
            format!("the session timeout is shorter than two ticks ({})", show(*tick * 2)),
            format!("Give --session-timeout {} or more.", show(*tick * 2)),
        ),
        Finding::Observer(number, tick) => (
            format!(
                "{} is an observer, with a tick of {}: if it follows a follower (observerMasterPort), the servers may \
                 give a lock away before zklock expects it",
                who(&seen[*number]),
                show(tick.length)
            ),
            format!(
                "Take it out of --zookeeper, or set tickTime to 2000 at most and give four ticks to --session-timeout.{}",
                unless(*tick)
            ),
        ),
        Finding::Slow(number) => (
            format!("{} takes too long to answer for a session timeout as short as this", who(&seen[*number])),
            "Find out what slows it down (disk, network, load), or give a longer --session-timeout.".to_owned(),
        ),
        Finding::NoContainers(number) => (
            format!("{} has no containers: the missing parents of a lock are created to stay", who(&seen[*number])),
            "Use ZooKeeper 3.5 or later.".to_owned(),
        ),
        Finding::NoTransactions(number) => (
            format!("{} refuses transactions, so no lock can be held", who(&seen[*number])),
            "Use ZooKeeper 3.4 or later.".to_owned(),
        ),
        Finding::LocalSessions(number) => (
            format!("the sessions of {} are local and can have no ephemeral nodes", who(&seen[*number])),
            "Set localSessionsUpgradingEnabled=true on all servers, or localSessionsEnabled=false.".to_owned(),
        ),
        Finding::CertificateEnds(number, days) => (
            format!("the certificate of {} expires {}", who(&seen[*number]), in_days(*days)),
            "Renew it: once it has expired, no new connection is made.".to_owned(),
        ),
        Finding::OwnCertificateEnds(days) => (
            format!("the certificate of --tls-cert expires {}", in_days(*days)),
            "Renew it: once it has expired, servers that want one refuse new connections.".to_owned(),
        ),
        Finding::NoChroot => (
            "the chroot does not exist".to_owned(),
            "Create it, or correct --zookeeper: zklock never creates it.".to_owned(),
        ),
        Finding::Lacks(Lack::Denied(right, path)) => {
            let (what, letters) = (right.phrase(), right.letter());
            let path = legible(path);
            let add = format!("dd the permission {letters} to the ACL of {path}");
            let remedy = if access.login.is_given() {
                format!(
                    "A{add} for this login, or, with digest, correct its password: a wrong one makes another identity"
                )
            } else {
                format!("Log in (--auth-file), or a{add}")
            };
            (format!("an ACL forbids to {what} {path}"), format!("{remedy}; a lock needs rc on its node."))
        }
        Finding::Lacks(Lack::Refused(path, why)) => (
            format!("the servers refuse a contender below {}: {why}", legible(path)),
            "Choose another path for the lock, or mend its node.".to_owned(),
        ),
    }
}

/// What to do about a server that does not answer as it should.
fn cure(server: &Server, access: &Access) -> &'static str {
    match server.cure {
        Cure::Server if !access.servers_given => {
            "Start a server there, or name the servers: --zookeeper, ZKLOCK_ZOOKEEPER or a configuration file."
        }
        Cure::Server => "Mend or start this server, or take it out of --zookeeper.",
        Cure::Tls => "If this is its secureClientPort, use --tls; otherwise name its clientPort.",
        Cure::Full if access.tls.is_some() => {
            "Raise its maxClientCnxns, if it is full; otherwise name a ZooKeeper server."
        }
        Cure::Full => {
            "Raise its maxClientCnxns, if it is full; if this is its secureClientPort, use --tls; otherwise name its \
             clientPort."
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

fn who(server: &Server) -> String {
    match server.address.map(|address| address.to_string()) {
        Some(address) if address != server.name => format!("{} ({address})", server.name),
        _ => server.name.clone(),
    }
}

fn why(server: &Server) -> &str {
    server.error.as_deref().unwrap_or_default()
}

/// Which servers grant what.
fn ranges(seen: &[Server]) -> String {
    let range =
        |server: &Server| Some(format!("{} {} to {}", who(server), show(server.least?), show(server.greatest?)));
    seen.iter().filter_map(range).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{self, Subject, Task};
    use crate::rules::message::Right;

    /// The remedy, as these arguments have it.
    fn remedy(finding: &Finding, cure: Cure, args: &[&str]) -> String {
        let args = ["zklock", "check"].iter().chain(args).map(Into::into);
        let Ok(Task::Operation(operation)) = cli::task(args, &|_: &str| None) else { panic!("a subcommand") };
        let Subject::Check(check) = &operation.subject else { panic!("check") };
        let server = Server { cure, ..Server::new("zk1:2181".to_owned(), None) };
        sentences(finding, &[server], check, &operation.access).1
    }

    #[test]
    fn remedies_fit_the_settings() {
        let (down, lacks) = (Finding::Down(0), Finding::Lacks(Lack::Denied(Right::Create, "/l".to_owned())));
        for (finding, cure, args, expected) in [
            (&down, Cure::Server, &["-z", "zk1"][..], "Mend or start this server, or take it out of --zookeeper."),
            (&down, Cure::Server, &[], "Start a server there, or name the servers: "),
            (
                &down,
                Cure::Name,
                &["--tls"],
                "Name it as its certificate does, or give it a certificate with this name (subjectAltName). \
                 --tls-no-verify-hostname accepts any name, and so an impostor ",
            ),
            (&down, Cure::Trust, &["--tls"], "Give the server another certificate, or name the CA"),
            (&down, Cure::Certificate, &["--tls"], "Give a client certificate: "),
            (&down, Cure::Certificate, &["--tls-cert", "c"], "Give a certificate that this server accepts "),
            (&down, Cure::Login, &[], "Log in (--auth-file)."),
            (&down, Cure::Login, &["--auth", "digest:a:b"], "Correct the login "),
            (&lacks, Cure::Server, &[], "Log in (--auth-file), or add the permission c to the ACL of /l; "),
            (
                &lacks,
                Cure::Server,
                &["--auth", "digest:a:b"],
                "Add the permission c to the ACL of /l for this login, or, with digest, ",
            ),
        ] {
            let remedy = remedy(finding, cure, args);
            assert!(remedy.starts_with(expected), "{remedy}");
        }
    }

    #[test]
    fn a_cell_at_the_end_of_its_line_makes_no_column_wide() {
        let down = Server { error: Some("x".repeat(70)), ..Server::new("zk2:2181".to_owned(), None) };
        let up = Server {
            least: Some(Duration::from_secs(4)),
            greatest: Some(Duration::from_secs(40)),
            read: Some(Duration::from_micros(440)),
            beat: Some(Duration::from_millis(2)),
            ..Server::new("zk1:2181".to_owned(), None)
        };
        assert_eq!(
            servers(&[up, down]),
            format!(
                "server    address  role  version  session timeouts  read   beat\n\
                 zk1:2181  ?        ?     ?        4s to 40s         0.4ms  2.0ms\n\
                 zk2:2181  ?        ?     ?        {}\n",
                "x".repeat(70)
            )
        );
    }
}
