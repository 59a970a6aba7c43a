//! `zklock check`

mod findings; // what is to be fixed, and what holds on these servers
mod survey; // what each address of each server shows

use std::cell::RefCell;

use serde_json::json;

use self::findings::{CheckReport, Finding, Promise, Server, judge};
use super::EarlyEnd;
use super::output::Output;
use crate::cli::{Check, Operation, Setting, Verbosity};
use crate::rules::duration::{show, show_limit};
use crate::rules::outcome::Outcome;
use crate::rules::text::{Legible, table};
use crate::system::reactor::Reactor;
use crate::system::terminal::say;
use crate::zookeeper::net::servers::Servers;

pub(super) async fn run<'p>(
    check: &Check,
    operation: &'p Operation,
    servers: &'p Servers<'p>,
    reactor: &'p Reactor,
    output: &Output<'_>,
) -> Result<Outcome, EarlyEnd> {
    let access = &operation.access;
    let is_quiet = operation.verbosity == Verbosity::Quiet;
    let said = RefCell::new(String::new());
    let waiting = |why: &str| {
        if !is_quiet && said.replace(why.to_owned()) != why {
            say(&format!("waiting up to {} for a ZooKeeper server: {why}", show(access.connect_timeout)));
        }
    };
    let servers = survey::survey(check, access, servers, reactor, waiting).await;
    let report = judge(&servers, check.session_timeout, access);
    if !is_quiet {
        let CheckReport { findings, promise, .. } = &report;
        let shown = if check.json {
            // docs/check.schema.json
            let ok = findings.is_empty();
            let settings = &access.origins;
            Legible::json(&json!({
                "v": 1, "ok": ok, "servers": servers, "findings": findings, "promise": promise, "settings": settings,
            }))
        } else {
            in_words(&servers, &report, check, &access.origins)
        };
        output.print(&shown).await?;
    }
    Ok(report.outcome)
}

fn in_words(servers: &[Server], report: &CheckReport, check: &Check, settings: &[Setting]) -> Legible {
    let mut text = shown_servers(servers);
    text.control(if report.findings.is_empty() { "" } else { "\n" });
    for Finding { code, text: what } in &report.findings {
        text.push_line(&format!("{code}: {what}"));
    }
    if let Some(Promise { session_timeout, patience, takeover }) = report.promise {
        let (timeout, patience, takeover) = (show(session_timeout), show_limit(patience), show(takeover));
        text.control("\n").push_line(&format!(
            "With a session timeout of {timeout}, a command survives an outage of ZooKeeper of {patience},"
        ));
        text.push_line(&format!("and the lock of a machine that dies is free after {takeover}."));
    }
    if let Some(lock) = check.lock.as_ref().filter(|_| report.permits_lock) {
        text.push_line(&format!("{lock}: may be used"));
    }
    text.control("\nSettings:\n").append(&shown_settings(settings));
    text
}

fn shown_servers(servers: &[Server]) -> Legible {
    let mut rows = vec![["server", "address", "role", "version", "session timeouts", "beat"].map(str::to_owned)];
    rows.extend(servers.iter().map(|server| {
        let timeouts = server.timeouts().map(|(least, greatest)| format!("{} to {}", show(least), show(greatest)));
        [
            Some(server.name.clone()),
            server.address.map(|address| address.to_string()),
            server.role.clone(),
            server.version.clone(),
            timeouts,
            server.beat.map(|beat| format!("{:.1}ms", beat.as_secs_f64() * 1e3)),
        ]
        .map(|cell| cell.unwrap_or_else(|| "?".to_owned()))
    }));
    table("", &rows)
}

fn shown_settings(settings: &[Setting]) -> Legible {
    let row = |setting: &Setting| {
        let value = setting.value.as_deref().unwrap_or("(not shown)");
        [setting.name.to_owned(), value.to_owned(), setting.origin.to_string()]
    };
    table("  ", &settings.iter().map(row).collect::<Vec<_>>())
}
