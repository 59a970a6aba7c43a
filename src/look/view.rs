//! What is below the node of a lock, and whether it still is.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::task::{Context, Poll};

use super::EarlyEnd;
use super::roster::{Roster, SeenNode};
use super::window::Window;
use crate::rules::card::Card;
use crate::rules::child_name::ChildName;
use crate::rules::last_run::{self, LastRun};
use crate::rules::lock_path::LockPath;
use crate::rules::queue::Contender;
use crate::zookeeper::net::connect::TcpSession;
use crate::zookeeper::session::{Failure, Watch};

/// What is known of the lock of this path, and the watches that say when it is out of date.
pub(super) struct LockView<'a> {
    pub(super) lock: &'a LockPath,
    is_watched: bool,
    /// On the lock's children, or on its coming into being.
    list: Option<Watch>,
    nodes: HashMap<ChildName, (SeenNode, Option<Watch>)>,
    /// The last successful run, once it was looked for, and the watch on its record, or on the record's coming into being.
    last: Option<(Option<LastRun>, Option<Watch>)>,
}

pub(super) enum LockState {
    There(Roster),
    Free,
    Denied,
}

impl<'a> LockView<'a> {
    pub(super) fn new(lock: &'a LockPath, is_watched: bool) -> Self {
        Self { lock, is_watched, list: None, nodes: HashMap::new(), last: None }
    }

    /// Asks for all that is not known, or out of date.
    pub(super) async fn look(&mut self, session: &TcpSession<'_>) -> Result<LockState, EarlyEnd> {
        let names = loop {
            match session.names(self.lock.as_str(), self.is_watched).await {
                Ok((names, watch)) => {
                    self.list = watch;
                    break names;
                }
                Err(Failure::Denied) => return Ok(LockState::Denied),
                Err(Failure::NoNode) if !self.is_watched => return Ok(LockState::Free),
                Err(Failure::NoNode) => {
                    if let (None, watch) = session.exists(self.lock.as_str(), true).await? {
                        self.list = watch;
                        self.nodes.clear();
                        return Ok(LockState::Free);
                    }
                }
                Err(failure) => return Err(failure.into()),
            }
        };
        let gone = self.look_at_contenders(session, &names).await?;
        let seen: HashMap<_, _> = self.nodes.iter().map(|(name, (seen, _))| (name.clone(), seen.clone())).collect();
        Ok(LockState::There(Roster::new(names.into_iter().filter(|name| !gone.contains(name)), &seen)))
    }

    /// The last successful run, if it was recorded and may be read.
    pub(super) async fn last(&mut self, session: &TcpSession<'_>) -> Result<Option<LastRun>, EarlyEnd> {
        if let Some((last, _)) = &self.last {
            return Ok(last.clone());
        }
        let record = last_run::path(self.lock.as_str());
        let (last, watch) = loop {
            match session.look(&record, self.is_watched).await {
                Ok((data, stat, watch)) => break (LastRun::from_bytes(&data, stat.written), watch),
                Err(Failure::NoNode) if !self.is_watched => break (None, None),
                Err(why @ (Failure::NoNode | Failure::Denied)) => {
                    let (stat, watch) = match session.exists(&record, self.is_watched).await {
                        // Newer servers tell nothing of a node to those who may not read it.
                        Err(Failure::Denied) => break (None, None),
                        told => told?,
                    };
                    let has_just_come = why == Failure::NoNode && stat.is_some();
                    if !has_just_come {
                        break (None, watch);
                    }
                }
                Err(failure) => return Err(failure.into()),
            }
        };
        self.last = Some((last.clone(), watch));
        Ok(last)
    }

    /// Looks at those of these children that are contenders and not known yet. Returns those that have gone meanwhile.
    async fn look_at_contenders(
        &mut self,
        session: &TcpSession<'_>,
        names: &[ChildName],
    ) -> Result<HashSet<ChildName>, EarlyEnd> {
        let mut gone = HashSet::new();
        let listed: HashSet<_> = names.iter().filter(|name| self.nodes.contains_key(*name)).collect();
        self.nodes.retain(|name, _| listed.contains(name));
        let unknown = names.iter().filter(|name| Contender::parse(name).is_some() && !self.nodes.contains_key(*name));
        let mut unknown = unknown.cloned().collect::<Vec<_>>().into_iter();
        let ask = |name: ChildName| {
            let reply = session.look(&self.lock.child(&name), self.is_watched);
            (name, reply)
        };
        let mut window = Window::new();
        while let Some((name, reply)) = window.next(|| unknown.next().map(ask)).await {
            let (known, watch) = match reply {
                Ok((data, stat, watch)) => (Some(SeenNode { stat: Some(stat), card: Card::from_bytes(&data) }), watch),
                Err(Failure::NoNode) => (None, None),
                Err(Failure::Denied) => match session.exists(&self.lock.child(&name), self.is_watched).await {
                    Ok((stat, watch)) => (stat.map(|_| SeenNode { stat, card: Card::default() }), watch),
                    // It is there; the list will tell when it has gone.
                    Err(Failure::Denied) => (Some(SeenNode::default()), None),
                    Err(failure) => return Err(failure.into()),
                },
                Err(failure) => return Err(failure.into()),
            };
            match known {
                Some(known) => drop(self.nodes.insert(name, (known, watch))),
                None => drop(gone.insert(name)),
            }
        }
        Ok(gone)
    }

    /// Whether something has changed since the last look. What has changed is no longer known.
    pub(super) fn has_changed(&mut self, context: &mut Context<'_>) -> bool {
        let mut fired = |watch: &mut Option<Watch>| {
            let is_fired = watch.as_mut().is_some_and(|watch| watch.as_mut().poll(context).is_ready());
            if is_fired {
                *watch = None;
            }
            is_fired
        };
        let known = self.nodes.len();
        let is_list_old = fired(&mut self.list);
        self.nodes.retain(|_, (_, watch)| !fired(watch));
        let is_record_old = self.last.take_if(|(_, watch)| fired(watch)).is_some();
        is_list_old || is_record_old || self.nodes.len() < known
    }
}

/// Waits until something has changed in one of these.
pub(super) async fn until_changed(views: &mut [LockView<'_>]) {
    poll_fn(|context| {
        // All are asked: each forgets what is old.
        let changed = views.iter_mut().filter_map(|view| view.has_changed(context).then_some(())).count();
        if changed > 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
