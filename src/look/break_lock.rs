//! `zklock break`

use std::cell::Cell;
use std::io::{IsTerminal as _, stderr, stdin};

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::unistd::{gethostname, read};

use super::picture;
use super::roster::{Entry, Roster};
use super::vanished::Vanished;
use super::view::{self, LockState};
use super::visit::{Retry, Visit};
use super::{EarlyEnd, expect_chroot};
use crate::cli::sentences;
use crate::cli::{Break, Operation};
use crate::rules::card::Card;
use crate::rules::duration::show;
use crate::rules::lock_delay;
use crate::rules::message::Right;
use crate::rules::outcome::Outcome;
use crate::rules::revocation::{CURATOR_MARKER, Revocation};
use crate::rules::text::{Legible, stored};
use crate::system::futures::or;
use crate::system::lookup;
use crate::system::reactor::Reactor;
use crate::system::writer;
use crate::zookeeper::net::connect::TcpSession;
use crate::zookeeper::session::{Failure, NodeStat, Session as _};

enum Fate {
    Gone,
    /// It had gone before anything was done.
    Missed,
    /// It was meant as a waiter, and has begun to hold.
    Holds,
    /// It was asked, and is still there.
    Stays,
    Deaf,
}

pub(super) async fn run(
    order: &Break,
    operation: &Operation,
    visit: &Visit<'_>,
    reactor: &Reactor,
) -> Result<Outcome, EarlyEnd> {
    let lock = &order.lock;
    let roster = roster_of(order, operation, visit).await?;
    if let Some(vanished) = roster.vanished.as_ref().filter(|_| order.node.is_none() && roster.holders() == 0) {
        return end_delay(order, vanished, visit, reactor).await;
    }
    let target = match &order.node {
        Some(node) => {
            let named = roster.contenders.iter().find(|entry| entry.nodes.contains(node));
            named.ok_or_else(|| not_free(format!("{} is not there", lock.child(node))))?
        }
        None => match choose(order, &roster, reactor).await? {
            Some(target) => target,
            None => return Ok(Outcome::Exited(1)),
        },
    };
    // In this dialect, the node of the next holder has the same name.
    if order.node.is_some() && target.client == Some("single") {
        let why =
            format!("--node does not tell one holder of {lock} from the next; run zklock break --force on a terminal");
        return Err(EarlyEnd::Because(Outcome::Unusable, why));
    }
    match evict(order, target, visit).await {
        Ok(fate) => report(&fate, order, target),
        Err(EarlyEnd::Failed(Failure::Denied)) => {
            Err(EarlyEnd::Because(Outcome::Denied, sentences::denied(&lock.child(&target.node))))
        }
        Err(stop) => Err(stop),
    }
}

fn not_free(why: String) -> EarlyEnd {
    EarlyEnd::Because(Outcome::NotFree, why)
}

async fn roster_of(order: &Break, operation: &Operation, visit: &Visit<'_>) -> Result<Roster, EarlyEnd> {
    let found = visit.ask(Retry::Limited, async |session| {
        session.sync("/").await?;
        let found = view::look(session, &order.lock).await?;
        if let LockState::Free = found {
            expect_chroot(session, operation).await?;
        }
        Ok(found)
    });
    match found.await? {
        LockState::There(roster) => Ok(roster),
        LockState::Free => Ok(Roster::default()),
        LockState::Denied => {
            let why = sentences::lacks(order.lock.as_str(), Right::Read, &operation.access.login);
            Err(EarlyEnd::Because(Outcome::Denied, why))
        }
    }
}

/// Ends the delay because of a holder that has vanished, if a person confirms that.
async fn end_delay(
    order: &Break,
    vanished: &Vanished,
    visit: &Visit<'_>,
    reactor: &Reactor,
) -> Result<Outcome, EarlyEnd> {
    let lock = &order.lock;
    if !has_terminal() {
        let why = format!("{}; zklock break ends the delay of {lock} on a terminal", vanished.line());
        return Err(EarlyEnd::Because(Outcome::Usage, why));
    }
    let mut asked = Legible::default();
    asked.push_line(&vanished.line()).push("End the delay? Its work elsewhere may still run. [y/N] ");
    if !confirms(&asked, reactor).await {
        return Ok(Outcome::Exited(1));
    }
    let path = lock_delay::path(lock.as_str());
    let ending = visit
        .ask(Retry::Limited, async |session| Ok(session.store(&path, &vanished.released(), vanished.version).await?));
    match ending.await {
        Ok(()) => Ok(Outcome::Exited(0)),
        Err(EarlyEnd::Failed(Failure::Denied)) => Err(EarlyEnd::Because(Outcome::Denied, sentences::denied(&path))),
        Err(EarlyEnd::Failed(Failure::Changed)) => {
            Err(not_free(format!("{path} has just been changed: repeat zklock break")))
        }
        Err(stop) => Err(stop),
    }
}

fn has_terminal() -> bool {
    stdin().is_terminal() && stderr().is_terminal()
}

/// Says what has become of the contender, unless it has gone as ordered.
fn report(fate: &Fate, order: &Break, target: &Entry) -> Result<Outcome, EarlyEnd> {
    let (who, lock) = (picture::who(target), &order.lock);
    let hint = if order.force { "" } else { "; --force deletes its node" };
    Err(match fate {
        Fate::Gone => return Ok(Outcome::Exited(0)),
        Fate::Deaf => EarlyEnd::Because(Outcome::Unusable, format!("{who} cannot be asked to leave {lock}{hint}")),
        Fate::Missed => not_free(format!("{who} is not there any more")),
        Fate::Holds => {
            not_free(format!("{who} holds {lock} now, and its command continues: repeat zklock break to stop it"))
        }
        Fate::Stays => {
            let why = match target.client {
                Some("curator") if !order.force => "; a lock that is not revocable does not react",
                _ => "",
            };
            not_free(format!("{who} has not left {lock} within {}{why}{hint}", show(order.timeout)))
        }
    })
}

/// The holder, if a person confirms that it is to go.
async fn choose<'r>(order: &Break, roster: &'r Roster, reactor: &Reactor) -> Result<Option<&'r Entry>, EarlyEnd> {
    let lock = &order.lock;
    let holders: Vec<&Entry> = roster.contenders.iter().filter(|entry| entry.holds).collect();
    let why = match &holders[..] {
        [] => return Err(not_free(format!("{lock} is free"))),
        [holder] if has_terminal() => return Ok(confirms(&question(order, holder), reactor).await.then_some(*holder)),
        [_] => "there is no terminal, so zklock cannot ask".to_owned(),
        several => format!("{lock} has {} holders", several.len()),
    };
    let why = format!("{why}: name the contender with --node (field node of zklock status --json {lock})");
    Err(EarlyEnd::Because(Outcome::Usage, why))
}

/// Whether this holder is to go.
fn question(order: &Break, holder: &Entry) -> Legible {
    let question = match order.force {
        false => "Ask it to stop its command and to release the lock? [y/N] ",
        true => "Delete its node? The next one may start before this one has stopped. [y/N] ",
    };
    let mut asked = Legible::default();
    asked.push_line(&format!("{} is held by", order.lock)).append(&picture::holder(holder)).push(question);
    asked
}

/// Whether a person at the terminal says yes.
async fn confirms(asked: &Legible, reactor: &Reactor) -> bool {
    writer::say(asked);
    matches!(answer(reactor).await.trim(), "y" | "Y" | "yes")
}

/// A line from the terminal; what there is of it at its end.
async fn answer(reactor: &Reactor) -> String {
    let mut line = vec![];
    loop {
        reactor.ready(stdin(), PollFlags::POLLIN).await;
        let mut piece = [0; 64];
        match read(stdin(), &mut piece) {
            Ok(0) => break,
            Ok(length) => line.extend_from_slice(&piece[..length]),
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(_) => break,
        }
        if line.contains(&b'\n') {
            break;
        }
    }
    String::from_utf8_lossy(&line).into_owned()
}

/// Asks the contender to go, or deletes its nodes, and waits until it has gone.
async fn evict(order: &Break, target: &Entry, visit: &Visit<'_>) -> Result<Fate, EarlyEnd> {
    let nodes: Vec<String> = target.nodes.iter().map(|name| order.lock.child(name)).collect();
    let by = requester();
    let is_sent = Cell::new(false);
    let asking = visit.ask(Retry::Limited, async |session| {
        // The answer was lost with the connection.
        let may_be_done = is_sent.get();
        let fate = match order.force {
            true => delete(session, &nodes, target, &is_sent).await?,
            false => request(session, &nodes[0], target, &by, &is_sent).await?,
        };
        Ok(if may_be_done && matches!(fate, Fate::Missed) { Fate::Gone } else { fate })
    });
    match asking.await? {
        Fate::Stays => {}
        fate => return Ok(fate),
    }
    let going = visit.ask(Retry::Limited, async |session| until_gone(session, &nodes[0], target).await);
    let enough = async {
        visit.sleep(order.timeout).await;
        Ok(Fate::Stays)
    };
    or(going, enough).await
}

/// Deletes all nodes of a contender.
async fn delete(
    session: &TcpSession<'_>,
    nodes: &[String],
    target: &Entry,
    is_sent: &Cell<bool>,
) -> Result<Fate, EarlyEnd> {
    if !is_same(session, &nodes[0], target).await? {
        return Ok(Fate::Missed);
    }
    is_sent.set(true);
    for node in nodes {
        session.delete(node).await?;
    }
    Ok(Fate::Gone)
}

/// Whether the node is the one that was seen. If the lock's own node was made anew, its sequence numbers begin again, and
/// the names of some clients have nothing else that tells them apart.
async fn is_same(session: &TcpSession<'_>, node: &str, target: &Entry) -> Result<bool, EarlyEnd> {
    match session.exists(node).await {
        Ok(stat) => Ok(stat.is_some_and(|stat| !is_anothers(stat, target))),
        // Newer servers tell nothing of a node to those who may not read it, and told nothing before.
        Err(Failure::Denied) => Ok(target.token.is_none()),
        Err(failure) => Err(failure.into()),
    }
}

/// Whether a node of the same name was created later than the one that was seen.
fn is_anothers(stat: NodeStat, target: &Entry) -> bool {
    target.token.is_some_and(|token| token != stat.czxid)
}

/// Stores the request in a node.
async fn request(
    session: &TcpSession<'_>,
    node: &str,
    target: &Entry,
    by: &str,
    is_sent: &Cell<bool>,
) -> Result<Fate, EarlyEnd> {
    loop {
        let (data, stat) = match session.read(node).await {
            Ok(there) => there,
            Err(Failure::NoNode) => return Ok(Fate::Missed),
            Err(failure) => return Err(failure.into()),
        };
        if is_anothers(stat, target) {
            return Ok(Fate::Missed);
        }
        let asked = Revocation { seen_holding: Some(target.holds), by: Some(by.to_owned()) };
        let data = match target.client {
            Some("zklock") => asked.add_to(&data, stat.created, stat.written),
            Some("curator") => Some(CURATOR_MARKER.to_vec()),
            _ => None,
        };
        let Some(data) = data else { return Ok(Fate::Deaf) };
        is_sent.set(true);
        match session.store(node, &data, stat.version).await {
            Ok(()) => return Ok(Fate::Stays),
            Err(Failure::NoNode) => return Ok(Fate::Missed),
            // Another has written to the node: its contender may have published that it holds. Try again.
            Err(Failure::Changed) => {}
            Err(failure) => return Err(failure.into()),
        }
    }
}

/// Waits until the node has gone, or until a contender that was asked as a waiter holds.
async fn until_gone(session: &TcpSession<'_>, node: &str, target: &Entry) -> Result<Fate, EarlyEnd> {
    loop {
        let watch = match session.read_and_watch(node).await {
            Ok((_, stat, _)) if is_anothers(stat, target) => return Ok(Fate::Gone),
            Ok((data, _, _)) if !target.holds && Card::from_bytes(&data).held_since.is_some() => {
                return Ok(Fate::Holds);
            }
            Ok((_, _, watch)) => watch,
            Err(Failure::NoNode) => return Ok(Fate::Gone),
            Err(failure) => return Err(failure.into()),
        };
        watch.await;
    }
}

/// Who asks, for the one that is asked.
fn requester() -> String {
    let host = gethostname().ok().map(|name| name.to_string_lossy().into_owned());
    let parts = [lookup::user_name(), host];
    stored(parts.into_iter().flatten().collect::<Vec<_>>().join("@"))
}
