//! A lock, as its nodes show it now.

use std::collections::{HashMap, HashSet};

use super::EarlyEnd;
use super::roster::{Roster, SeenNode};
use super::vanished::Vanished;
use super::window::Window;
use crate::rules::card::Card;
use crate::rules::last_run::{self, LastRun};
use crate::rules::lock_delay;
use crate::rules::lock_path::LockPath;
use crate::rules::queue::Contender;
use crate::zookeeper::net::connect::TcpSession;
use crate::zookeeper::session::{Failure, NodeStat, Session as _};

pub(super) enum LockState {
    There(Roster),
    Free,
    Denied,
}

pub(super) async fn look(session: &TcpSession<'_>, lock: &LockPath) -> Result<LockState, EarlyEnd> {
    let queue = look_at_queue(session, lock).await?;
    let mut roster = match &queue {
        LockState::There(roster) => roster.clone(),
        LockState::Free => Roster::default(),
        LockState::Denied => return Ok(queue),
    };
    let is_there = |token| roster.contenders.iter().any(|contender| contender.token == Some(token));
    let record = record(session, &lock_delay::path(lock.as_str())).await?;
    match record.and_then(|(data, stat)| Vanished::new(&data, stat, is_there)) {
        Some(vanished) => {
            roster.delay(vanished);
            Ok(LockState::There(roster))
        }
        None => Ok(queue),
    }
}

async fn look_at_queue(session: &TcpSession<'_>, lock: &LockPath) -> Result<LockState, EarlyEnd> {
    let mut names = match session.children(lock.as_str()).await {
        Ok(names) => names,
        Err(Failure::Denied) => return Ok(LockState::Denied),
        Err(Failure::NoNode) => return Ok(LockState::Free),
        Err(failure) => return Err(failure.into()),
    };
    let contenders: Vec<_> = names.iter().filter(|name| Contender::parse(name).is_some()).cloned().collect();
    let mut asked = contenders.into_iter().map(|name| {
        let reply = session.read(&lock.child(&name));
        (name, reply)
    });
    let (mut seen, mut gone) = (HashMap::new(), HashSet::new());
    let mut window = Window::new();
    while let Some((name, reply)) = window.next(|| asked.next()).await {
        match reply {
            Ok((data, stat)) => {
                drop(seen.insert(name, SeenNode { stat: Some(stat), card: Card::from_bytes(&data) }));
            }
            Err(Failure::NoNode) => drop(gone.insert(name)),
            // It is there, and shows nothing of itself.
            Err(Failure::Denied) => {}
            Err(failure) => return Err(failure.into()),
        }
    }
    names.retain(|name| !gone.contains(name));
    Ok(LockState::There(Roster::new(names, &seen)))
}

/// The last successful run, if it was recorded and may be read.
pub(super) async fn last_run(session: &TcpSession<'_>, lock: &LockPath) -> Result<Option<LastRun>, EarlyEnd> {
    let record = record(session, &last_run::path(lock.as_str())).await?;
    Ok(record.and_then(|(data, stat)| LastRun::from_bytes(&data, stat.written)))
}

/// Data and stat of a record, if it exists and may be read.
async fn record(session: &TcpSession<'_>, path: &str) -> Result<Option<(Vec<u8>, NodeStat)>, EarlyEnd> {
    match session.read(path).await {
        Ok(record) => Ok(Some(record)),
        Err(Failure::NoNode | Failure::Denied) => Ok(None),
        Err(failure) => Err(failure.into()),
    }
}
