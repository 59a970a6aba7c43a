//! `zklock status`

use std::cell::{Cell, RefCell};
use std::time::Duration;

use nix::errno::Errno;
use serde_json::json;

use super::EarlyEnd;
use super::output::Output;
use super::picture::{self, ShownLock};
use super::roster::Roster;
use super::view::{self, LockState};
use super::visit::{Retry, Visit};
use crate::cli::sentences;
use crate::cli::{Operation, Status, Verbosity};
use crate::rules::last_run::{LastRun, signed_millis};
use crate::rules::lock_path::LockPath;
use crate::rules::message::Right;
use crate::rules::outcome::Outcome;
use crate::rules::text::Legible;
use crate::system::futures::or;
use crate::system::terminal::{can_rewrite, say};
use crate::zookeeper::net::connect::TcpSession;
use crate::zookeeper::session::Session as _;

/// How often `--watch` looks. A watch of ZooKeeper's on each node would be told at once, and would cost a request for each
/// node again with every change.
const PERIOD: Duration = Duration::from_secs(1);

/// The locks that may be read, and the paths of the others.
struct Picture<'a> {
    locks: Vec<ShownLock<'a>>,
    denied: Vec<&'a LockPath>,
}

pub(super) async fn run(
    status: &Status,
    operation: &Operation,
    visit: &Visit<'_>,
    output: &Output<'_>,
) -> Result<Outcome, EarlyEnd> {
    if status.watch {
        return watch(status, operation, visit, output).await;
    }
    let looked = visit.ask(Retry::Limited, async |session| {
        catch_up(session).await?;
        look(session, status, operation).await
    });
    let picture = looked.await?;
    visit.close().await;
    let quiet = operation.verbosity == Verbosity::Quiet;
    if !quiet {
        output.print(&picture.show(status.json)).await?;
    }
    let is_held = picture.locks.iter().any(|shown| shown.roster.holders() > 0);
    if quiet && is_held {
        return Ok(Outcome::Exited(0));
    }
    Ok(if picture.tell_denied(operation) { Outcome::Denied } else { Outcome::Exited(u8::from(quiet)) })
}

/// Shows what had happened before zklock was started, and what another server has shown before a reconnection.
async fn catch_up(session: &TcpSession<'_>) -> Result<(), EarlyEnd> {
    Ok(session.sync("/").await?)
}

async fn look<'a>(
    session: &TcpSession<'_>,
    status: &'a Status,
    operation: &Operation,
) -> Result<Picture<'a>, EarlyEnd> {
    let mut picture = Picture { locks: vec![], denied: vec![] };
    let mut is_any_there = false;
    for lock in &status.locks {
        let found = view::look(session, lock).await?;
        let last = view::last_run(session, lock).await?;
        is_any_there |= last.is_some() || !matches!(found, LockState::Free);
        match found {
            LockState::There(roster) => picture.locks.push(ShownLock { path: lock, roster, last }),
            LockState::Free => picture.locks.push(ShownLock { path: lock, roster: Roster::default(), last }),
            LockState::Denied => picture.denied.push(lock),
        }
    }
    if !is_any_there {
        super::expect_chroot(session, operation).await?;
    }
    Ok(picture)
}

impl Picture<'_> {
    fn show(&self, json: bool) -> Legible {
        if !json {
            return picture::of_locks(&self.locks);
        }
        let last =
            |last: &LastRun| json!({ "started": last.began(), "took_ms": signed_millis(last.took), "host": last.host });
        let lock = |shown: &ShownLock<'_>| {
            let (last, ShownLock { path, roster, .. }) = (shown.last.as_ref().map(last), shown);
            json!({
                "path": path.as_str(), "last": last, "vanished": roster.vanished, "contenders": roster.contenders,
            })
        };
        // docs/status.schema.json
        Legible::json(&json!({ "v": 1, "locks": self.locks.iter().map(lock).collect::<Vec<_>>() }))
    }

    /// Names the locks that may not be read. Returns whether there are any.
    fn tell_denied(&self, operation: &Operation) -> bool {
        let login = &operation.access.login;
        self.denied.iter().for_each(|lock| say(&sentences::lacks(lock.as_str(), Right::Read, login)));
        !self.denied.is_empty()
    }
}

/// `--watch`: ends only by a signal, when nothing reads what is printed, or by a refusal.
async fn watch(
    status: &Status,
    operation: &Operation,
    visit: &Visit<'_>,
    output: &Output<'_>,
) -> Result<Outcome, EarlyEnd> {
    let redraws = output.is_terminal && can_rewrite() && !status.json;
    let last = RefCell::new(None);
    let is_told = Cell::new(false);
    let tell = |why: &str| {
        if !is_told.replace(true) {
            say(&format!("connection to ZooKeeper lost, trying again: {why}"));
        }
    };
    let watching = visit.ask(Retry::Endless(&tell), async |session| {
        // The message is still on the terminal.
        if is_told.replace(false) && redraws {
            last.replace(None);
        }
        catch_up(session).await?;
        loop {
            let picture = look(session, status, operation).await?;
            if picture.tell_denied(operation) {
                return Ok(Outcome::Denied);
            }
            let text = picture.show(status.json);
            if last.borrow().as_ref() != Some(&text) {
                output.print(&if redraws { picture::redrawn(&text) } else { anew(&text, status.json, &last) }).await?;
                last.replace(Some(text));
            }
            visit.sleep(PERIOD).await;
        }
    });
    let closed = async {
        // Nothing is waited for but the end of what reads it: POLLERR, POLLHUP.
        output.closed().await;
        Err(EarlyEnd::Output(Errno::EPIPE))
    };
    or(closed, watching).await
}

/// What is printed where it cannot be redrawn: an empty line stands between two pictures.
fn anew(text: &Legible, json: bool, last: &RefCell<Option<Legible>>) -> Legible {
    let mut anew = Legible::default();
    anew.control(if json || last.borrow().is_none() { "" } else { "\n" }).append(text);
    anew
}
