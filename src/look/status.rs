//! `zklock status`

use std::cell::{Cell, RefCell};
use std::time::Duration;

use nix::errno::Errno;
use serde::Serialize;
use serde_json::{Value, json};

use super::EarlyEnd;
use super::output::Output;
use super::picture::{self, ShownLock};
use super::roster::{Entry, Roster};
use super::view::{LockState, LockView, until_changed};
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

/// How long after a change the next look begins, so that a crowd that comes at once is one change.
const PAUSE: Duration = Duration::from_millis(50);

/// `--json`; docs/status.schema.json describes it.
#[derive(Serialize)]
struct StatusJson<'a> {
    v: u32,
    locks: Vec<JsonLock<'a>>,
}

#[derive(Serialize)]
struct JsonLock<'a> {
    path: &'a str,
    last: Option<Value>,
    contenders: &'a [Entry],
}

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
        let mut views = views(status, session).await?;
        look(session, &mut views, operation).await
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

async fn views<'a>(status: &'a Status, session: &TcpSession<'_>) -> Result<Vec<LockView<'a>>, EarlyEnd> {
    // What had happened before we were started is to be seen; and what a server has seen before a reconnection.
    session.sync("/").await?;
    Ok(status.locks.iter().map(|lock| LockView::new(lock, status.watch)).collect())
}

async fn look<'a>(
    session: &TcpSession<'_>,
    views: &mut [LockView<'a>],
    operation: &Operation,
) -> Result<Picture<'a>, EarlyEnd> {
    let mut picture = Picture { locks: vec![], denied: vec![] };
    let mut is_any_there = false;
    for view in views {
        let found = view.look(session).await?;
        let last = view.last(session).await?;
        is_any_there |= last.is_some();
        match found {
            LockState::There(roster) => {
                is_any_there = true;
                picture.locks.push(ShownLock { path: view.lock, roster, last });
            }
            LockState::Free => picture.locks.push(ShownLock { path: view.lock, roster: Roster::default(), last }),
            LockState::Denied => {
                is_any_there = true;
                picture.denied.push(view.lock);
            }
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
        let locks = self.locks.iter().map(|shown| JsonLock {
            path: shown.path.as_str(),
            last: shown.last.as_ref().map(last),
            contenders: &shown.roster.contenders,
        });
        Legible::json(&StatusJson { v: 1, locks: locks.collect() })
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
        let mut views = views(status, session).await?;
        loop {
            let picture = look(session, &mut views, operation).await?;
            if picture.tell_denied(operation) {
                return Ok(Outcome::Denied);
            }
            let text = picture.show(status.json);
            if last.borrow().as_ref() != Some(&text) {
                output.print(&if redraws { picture::redrawn(&text) } else { anew(&text, status.json, &last) }).await?;
                last.replace(Some(text));
            }
            until_changed(&mut views).await;
            visit.sleep(PAUSE).await;
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
