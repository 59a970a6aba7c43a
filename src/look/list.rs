//! `zklock list`

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde_json::json;

use super::EarlyEnd;
use super::output::Output;
use super::picture::{self, Lock};
use super::roster::{Roster, SeenNode};
use super::visit::{Retry, Visit};
use super::window::Window;
use crate::cli::sentences;
use crate::cli::{List, Operation, Verbosity};
use crate::rules::card::Card;
use crate::rules::child_name::ChildName;
use crate::rules::instant::Instant;
use crate::rules::lock_path::{is_servers_own, join};
use crate::rules::message::Right;
use crate::rules::outcome::Outcome;
use crate::rules::queue::{Contender, Queue};
use crate::rules::text::Legible;
use crate::system::clock;
use crate::system::terminal::{Screen, can_rewrite, has_reader, say};
use crate::zookeeper::net::connect::TcpSession;
use crate::zookeeper::session::{Failure, Session as _};

/// How often the line that shows the progress is rewritten.
const PROGRESS: Duration = Duration::from_millis(100);

/// How much memory the nodes that were found may take. A tree can grow while it is looked at, and a server can
/// invent nodes without end.
const MOST_MEMORY: usize = 512 << 20;

/// What a node takes besides its path.
const MEMORY_OF_NODE: usize = 128;

struct FoundLocks {
    locks: Vec<Lock>,
    denied: Vec<String>,
    /// There are more nodes than these.
    stopped_after: Option<usize>,
}

pub(super) async fn run(
    list: &List,
    operation: &Operation,
    visit: &Visit<'_>,
    output: &Output<'_>,
) -> Result<Outcome, EarlyEnd> {
    let shows_progress = operation.verbosity != Verbosity::Quiet && has_reader() && can_rewrite();
    let found = visit.ask(Retry::Limited, async |session| search(session, list, operation, shows_progress).await);
    let FoundLocks { mut locks, mut denied, stopped_after } = found.await?;
    visit.close().await;
    locks.sort_by(|one, other| one.path.split('/').cmp(other.path.split('/')));
    denied.sort();
    output
        .print(&match (list.json, output.is_terminal) {
            // docs/list.schema.json
            (true, _) => Legible::json(&json!({ "v": 1, "locks": locks })),
            (false, true) => picture::rows(&locks),
            (false, false) => picture::lines(&locks),
        })
        .await?;
    let login = &operation.access.login;
    denied.iter().for_each(|node| say(&sentences::lacks(node, Right::Read, login)));
    if let Some(nodes) = stopped_after {
        say(&format!(
            "there is more: stopped after {nodes} nodes, whose names fill the memory that a list may take; name a ROOT \
             further down"
        ));
        return Ok(Outcome::Unusable);
    }
    Ok(if denied.is_empty() { Outcome::Exited(0) } else { Outcome::Denied })
}

/// A walk over nodes, as far as it has come.
struct Walk<'o> {
    /// A stack, so that few are on it at a time. With each: whether it may be a contender, as far as its name tells.
    ahead: Vec<(String, bool)>,
    queues: Vec<(String, Vec<ChildName>)>,
    /// Nodes that have the name of a contender, but are none, or have gone.
    foreign: HashSet<String>,
    denied: Vec<String>,
    chroot: &'o str,
    room: usize,
}

impl<'o> Walk<'o> {
    fn new(root: &str, operation: &'o Operation) -> Self {
        let (ahead, queues, foreign) = (vec![(root.to_owned(), false)], vec![], HashSet::new());
        Self { ahead, queues, foreign, denied: vec![], chroot: &operation.access.servers.chroot, room: MOST_MEMORY }
    }

    /// Takes in what is below a node. Returns false if that is too much.
    fn enter(&mut self, path: String, may_contend: bool, names: Vec<ChildName>) -> bool {
        let memory: usize = names.iter().map(|name| 2 * (path.len() + name.len()) + MEMORY_OF_NODE).sum();
        let Some(room) = self.room.checked_sub(memory) else { return false };
        self.room = room;
        if may_contend {
            self.foreign.insert(path.clone());
        }
        let is_like_contender = |name: &ChildName| Contender::parse(name).is_some();
        let below = names.iter().map(|name| (join(&path, name), is_like_contender(name)));
        self.ahead.extend(below.filter(|(path, _)| !is_servers_own(path, self.chroot)));
        let contenders: Vec<_> = names.into_iter().filter(is_like_contender).collect();
        if !contenders.is_empty() {
            self.queues.push((path, contenders));
        }
        true
    }
}

/// Walks over the root and all nodes below it.
async fn search(
    session: &TcpSession<'_>,
    list: &List,
    operation: &Operation,
    shows_progress: bool,
) -> Result<FoundLocks, EarlyEnd> {
    session.sync("/").await?;
    let mut progress = ProgressLine::new(shows_progress);
    let mut walk = Walk::new(&list.root, operation);
    let mut window = Window::new();
    let mut stopped_after = None;
    let ask = |(path, may_contend): (String, bool)| {
        let reply = session.names_and_stat(&path);
        ((path, may_contend), reply)
    };
    while let Some(((path, may_contend), reply)) = window.next(|| walk.ahead.pop().map(ask)).await {
        let names = match reply {
            Ok((_, stat)) if may_contend && stat.owner != 0 => continue,
            Ok((names, _)) => names,
            Err(Failure::NoNode) => {
                if path == list.root {
                    super::expect_chroot(session, operation).await?;
                }
                walk.foreign.insert(path);
                continue;
            }
            Err(Failure::Denied) => {
                // A node with the name of a contender probably is one, so it is not reported as unreadable.
                if !may_contend {
                    walk.denied.push(path);
                }
                continue;
            }
            Err(failure) => return Err(failure.into()),
        };
        progress.advance();
        if !walk.enter(path, may_contend, names) {
            stopped_after = Some(progress.nodes);
            break;
        }
    }
    // Their replies are of no use any more.
    drop(window);
    for (path, contenders) in &mut walk.queues {
        contenders.retain(|name| !walk.foreign.contains(&join(path, name)));
    }
    Ok(FoundLocks { locks: look_at_holders(session, walk.queues).await?, denied: walk.denied, stopped_after })
}

/// The locks with these contenders. Of each only the first is looked at.
async fn look_at_holders(
    session: &TcpSession<'_>,
    queues: Vec<(String, Vec<ChildName>)>,
) -> Result<Vec<Lock>, EarlyEnd> {
    let mut locks = vec![];
    let mut window = Window::new();
    let mut asked = queues.into_iter().filter_map(|(path, names)| {
        let first = Queue::as_numbered(names.iter().cloned()).first_holder()?.name.clone();
        let reply = session.read(&join(&path, &first));
        Some(((path, names, first), reply))
    });
    while let Some(((path, names, first), reply)) = window.next(|| asked.next()).await {
        let seen = match reply {
            Ok((data, stat)) => HashMap::from([(first, SeenNode { stat: Some(stat), card: Card::from_bytes(&data) })]),
            // It may have gone meanwhile; then nothing more is known of it.
            Err(Failure::NoNode | Failure::Denied) => HashMap::new(),
            Err(failure) => return Err(failure.into()),
        };
        let roster = Roster::new(names, &seen);
        let (holders, waiters) = (roster.holders(), roster.waiters());
        locks.push(Lock { path, holders, waiters, first: roster.contenders.into_iter().next() });
    }
    Ok(locks)
}

/// The line on a terminal that says how far the search has come.
struct ProgressLine {
    screen: Option<Screen>,
    nodes: usize,
    shown: Instant,
}

impl ProgressLine {
    fn new(is_shown: bool) -> Self {
        Self { screen: is_shown.then(|| Screen::new(true)), nodes: 0, shown: clock::now() }
    }

    fn advance(&mut self) {
        self.nodes += 1;
        let Some(screen) = &mut self.screen else { return };
        let now = clock::now();
        if now.saturating_since(self.shown) >= PROGRESS {
            self.shown = now;
            screen.status(&format!("{} nodes searched", self.nodes));
        }
    }
}
