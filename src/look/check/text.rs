//! What people read of a check.

use std::time::Duration;

use super::findings::{CheckReport, Finding, Promise};
use super::server::Server;
use crate::cli::{Check, Setting};
use crate::rules::duration::{show, show_limit};
use crate::rules::text::{Legible, table};

/// What is waited for: the first of the servers, and why it is not there.
pub(super) fn waiting(seen: &[Server], limit: Duration) -> String {
    let why = |server: &Server| format!(": {server}: {}", server.error.as_deref().unwrap_or("no answer"));
    format!("waiting up to {} for a ZooKeeper server{}", show(limit), seen.first().map(why).unwrap_or_default())
}

/// The servers, what is to be mended, and what a command lives through.
pub(super) fn of(seen: &[Server], report: &CheckReport, check: &Check) -> Legible {
    let mut text = servers(seen);
    for server in seen {
        if let Some((used, limit)) = server.connections {
            text.push_line(&format!(
                "{server} has {used} of the {limit} connections that it takes from here (maxClientCnxns)"
            ));
        }
    }
    for Finding { code, text: what, remedy } in &report.findings {
        text.control("\n").push_line(&format!("{code}: {what}")).push_line(&format!("  {remedy}"));
    }
    if let Some(promise) = &report.promise {
        text.control("\n").push_line(&format!("With a session timeout of {}:", show(promise.session_timeout)));
        for (what, comes) in through(promise) {
            text.push_line(&format!("  {what:25}  {comes}"));
        }
    }
    match &check.lock {
        None if report.promise.is_some() => {
            text.control("\nWithout LOCK, permissions were not looked at.\n");
        }
        Some(lock) if may_be_used(seen, report) => {
            text.control("\n").push_line(&format!("{lock}: may be used"));
        }
        _ => {}
    }
    text
}

/// Whether a server was asked for all that the lock needs, and nothing is in its way.
fn may_be_used(seen: &[Server], report: &CheckReport) -> bool {
    let is_in_the_way = |finding: &Finding| {
        ["acl", "lock-refused", "no-chroot", "no-transactions", "local-sessions"].contains(&finding.code)
    };
    seen.iter().any(|server| server.lacks.is_some()) && !report.findings.iter().any(is_in_the_way)
}

pub(super) fn settings(settings: &[Setting]) -> Legible {
    let row = |setting: &Setting| {
        let value = setting.value.as_deref().unwrap_or("(not shown)");
        [setting.name.to_owned(), value.to_owned(), setting.origin.to_string()]
    };
    let mut text = Legible::default();
    text.control("\nSettings:\n").append(&table("  ", &settings.iter().map(row).collect::<Vec<_>>()));
    text
}

fn servers(seen: &[Server]) -> Legible {
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

#[cfg(test)]
mod tests {
    use super::*;

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
            servers(&[up, down]).as_str(),
            format!(
                "server    address  role  version  session timeouts  read   beat\n\
                 zk1:2181  ?        ?     ?        4s to 40s         0.4ms  2.0ms\n\
                 zk2:2181  ?        ?     ?        {}\n",
                "x".repeat(70)
            )
        );
    }
}
