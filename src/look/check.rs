//! `zklock check`

mod findings;
mod server;
mod survey;
mod text;

use std::borrow::Cow;
use std::time::Duration;

use serde::Serialize;

use self::findings::{CheckReport, Finding, judge};
use self::server::Server;
use super::EarlyEnd;
use super::output::Output;
use super::visit::LAST_ANSWER;
use crate::cli::{Check, Operation, Origin, Setting, Verbosity};
use crate::rules::outcome::Outcome;
use crate::rules::rfc3339::rfc3339;
use crate::rules::text::Legible;
use crate::system::clock;
use crate::system::futures::or;
use crate::system::reactor::Reactor;
use crate::system::terminal::say;
use crate::zookeeper::net::probe::Probes;
use crate::zookeeper::net::tls;

/// `--json`; docs/check.schema.json describes it.
#[derive(Serialize)]
struct CheckJson<'a> {
    v: u32,
    ok: bool,
    servers: Vec<JsonServer<'a>>,
    client_certificate: Option<JsonCertificate>,
    findings: &'a [Finding],
    promise: Option<JsonPromise>,
    settings: Vec<JsonSetting<'a>>,
}

#[derive(Serialize)]
struct JsonServer<'a> {
    name: &'a str,
    address: Option<String>,
    reachable: bool,
    version: Option<&'a str>,
    role: Option<&'a str>,
    min_session_timeout_ms: Option<u128>,
    max_session_timeout_ms: Option<u128>,
    connections: Option<JsonConnections>,
    read_ms: Option<f64>,
    beat_ms: Option<f64>,
    /// `None`: connections are not encrypted.
    tls: Option<JsonTls<'a>>,
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct JsonConnections {
    used: usize,
    limit: usize,
}

#[derive(Serialize)]
struct JsonTls<'a> {
    protocol: &'a str,
    not_after: Option<String>,
}

#[derive(Serialize)]
struct JsonCertificate {
    not_after: Option<String>,
}

#[derive(Serialize)]
struct JsonSetting<'a> {
    name: &'a str,
    value: Option<&'a str>,
    source: &'static str,
    variable: Option<&'a str>,
    file: Option<Cow<'a, str>>,
    line: Option<usize>,
}

#[derive(Serialize)]
struct JsonPromise {
    session_timeout_ms: u128,
    patience_ms: u128,
    takeover_ms: u128,
}

pub(super) async fn run<'p>(
    check: &Check,
    operation: &'p Operation,
    probes: &Probes<'p>,
    reactor: &Reactor,
    output: &Output<'_>,
) -> Result<Outcome, EarlyEnd> {
    let is_quiet = operation.messages.verbosity == Verbosity::Quiet;
    let mut told = String::new();
    let waiting = |seen: &[Server]| {
        let sentence = text::waiting(seen, operation.access.connect_timeout);
        if !is_quiet && sentence != told {
            say(&sentence);
            told = sentence;
        }
    };
    let seen = survey::survey(check, &operation.access, probes, reactor, waiting).await;
    close(probes, reactor).await;
    let today = i64::try_from(clock::wall_millis() / 1000).unwrap_or(i64::MAX);
    let mut report = judge(&seen, check.session_timeout, today, &operation.access);
    let own = operation.access.tls.as_ref().filter(|tls| tls.own.is_some()).map(tls::own_not_after);
    if let Some(Some(not_after)) = own {
        report.add_own_certificate(not_after, today);
    }
    if !is_quiet {
        let text = if check.json {
            json(&seen, own, &report, &operation.access.origins)
        } else {
            let mut text = text::of(&seen, &report, check);
            text.append(&text::settings(&operation.access.origins));
            text
        };
        output.print(&text).await?;
    }
    Ok(report.outcome)
}

/// Closes the sessions that are left. To be called when nothing uses them.
pub(super) async fn close(probes: &Probes<'_>, reactor: &Reactor) {
    or(probes.close(), reactor.sleep_until(clock::now() + LAST_ANSWER)).await;
}

fn json(seen: &[Server], own: Option<Option<i64>>, report: &CheckReport, settings: &[Setting]) -> Legible {
    Legible::json(&CheckJson {
        v: 1,
        ok: report.findings.is_empty(),
        servers: seen.iter().map(server).collect(),
        client_certificate: own.map(|not_after| JsonCertificate { not_after: not_after.and_then(time) }),
        findings: &report.findings,
        promise: report.promise.map(|promise| JsonPromise {
            session_timeout_ms: promise.session_timeout.as_millis(),
            patience_ms: promise.patience.as_millis(),
            takeover_ms: promise.takeover.as_millis(),
        }),
        settings: settings.iter().map(setting).collect(),
    })
}

fn setting(setting: &Setting) -> JsonSetting<'_> {
    let (source, variable, place) = match &setting.origin {
        Origin::Default => ("default", None, None),
        Origin::File { path, line } => ("file", None, Some((path, *line))),
        Origin::Variable(name) => ("variable", Some(*name), None),
        Origin::Option(_) => ("option", None, None),
    };
    JsonSetting {
        name: setting.name,
        value: setting.value.as_deref(),
        source,
        variable,
        file: place.map(|(path, _)| path.to_string_lossy()),
        line: place.map(|(_, line)| line),
    }
}

fn time(seconds: i64) -> Option<String> {
    rfc3339(seconds.saturating_mul(1000))
}

fn server(server: &Server) -> JsonServer<'_> {
    let millis = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    JsonServer {
        name: &server.name,
        address: server.address.map(|address| address.to_string()),
        reachable: server.is_reachable(),
        version: server.version.as_deref(),
        role: server.role.as_deref(),
        min_session_timeout_ms: server.least.map(|least| least.as_millis()),
        max_session_timeout_ms: server.greatest.map(|greatest| greatest.as_millis()),
        connections: server.connections.map(|(used, limit)| JsonConnections { used, limit }),
        read_ms: server.read.map(millis),
        beat_ms: server.beat.map(millis),
        tls: server
            .tls
            .as_ref()
            .map(|tls| JsonTls { protocol: &tls.protocol, not_after: tls.not_after.and_then(time) }),
        error: server.error.as_deref(),
    }
}
