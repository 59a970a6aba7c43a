//! `zklock list --complete`: how a path may go on. The completions of the shells ask for it when a user presses TAB.

use std::time::Duration;

use super::EarlyEnd;
use super::output::Output;
use super::visit::{Retry, Visit};
use super::window::Window;
use crate::cli::{Complete, Operation};
use crate::rules::child_name::ChildName;
use crate::rules::lock_path::{is_servers_own, join};
use crate::rules::outcome::Outcome;
use crate::rules::queue::{Contender, SINGLE};
use crate::rules::text::{Legible, is_legible};
use crate::rules::{last_run, lock_delay};
use crate::system::futures::or;
use crate::zookeeper::net::connect::TcpSession;
use crate::zookeeper::session::{Failure, Session as _};

/// A user waits for the answer, and does not know for what.
const PATIENCE: Duration = Duration::from_millis(250);

/// Prints one path in each line. Says nothing of what goes wrong: the user is in the middle of a line.
pub(super) async fn run(
    typed: &Complete,
    operation: &Operation,
    visit: &Visit<'_>,
    output: &Output<'_>,
) -> Result<Outcome, EarlyEnd> {
    // A guess at a server on this host would be a surprise.
    if operation.access.servers_given {
        let search = visit.ask(Retry::Limited, async |session| search(session, typed, operation).await);
        let enough = async {
            visit.sleep(PATIENCE).await;
            Ok(vec![])
        };
        let mut paths = or(search, enough).await.unwrap_or_else(|stop| {
            log::debug!("no paths: {stop:?}");
            vec![]
        });
        paths.sort();
        let mut lines = Legible::default();
        for path in paths {
            lines.push_line(&path);
        }
        output.print(&lines).await?;
    }
    Ok(Outcome::Exited(0))
}

/// What may follow: the paths of nodes, and with a slash at the end those of nodes that may have locks below them.
async fn search(session: &TcpSession<'_>, typed: &Complete, operation: &Operation) -> Result<Vec<String>, EarlyEnd> {
    let names = session.children(&typed.directory).await?;
    let chroot = &operation.access.servers.chroot;
    // A node with the name of a single one may be a lock as well.
    let is_contender = |name: &ChildName| *name != SINGLE && Contender::parse(name).is_some();
    let is_lock = |name: &ChildName| {
        is_plain(name) && !is_contender(name) && !last_run::is_record(name) && !lock_delay::is_record(name)
    };
    let is_wanted = |name: &ChildName| name.starts_with(&typed.begun) && is_lock(name);
    let nodes = names.into_iter().filter(is_wanted).map(|name| join(&typed.directory, &name));
    let mut nodes = nodes.filter(|path| !is_servers_own(path, chroot));
    let mut found = vec![];
    let mut window = Window::new();
    let ask = |path: String| {
        let reply = session.names_and_stat(&path);
        (path, reply)
    };
    while let Some((path, reply)) = window.next(|| nodes.next().map(ask)).await {
        let names = match reply {
            // Nothing can be below an ephemeral node, no lock's contender either.
            Ok((_, stat)) if stat.owner != 0 => continue,
            Ok((names, _)) => names,
            Err(Failure::NoNode) => continue,
            // It may be one that they may lock.
            Err(Failure::Denied) => vec![],
            Err(failure) => return Err(failure.into()),
        };
        let contenders = names.iter().filter(|name| is_contender(name)).count();
        if contenders < names.len() {
            found.push(format!("{path}/"));
        }
        if contenders > 0 || names.is_empty() || names.iter().any(|name| *name == SINGLE) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Whether every shell takes the name as it is. bash cuts words at some other characters, such as a colon, and the rest
/// would have to be quoted in each shell's own way.
fn is_plain(name: &str) -> bool {
    name.chars().all(|c| is_legible(c) && c.is_alphanumeric() || "._-+,%".contains(c))
}
