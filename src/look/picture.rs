//! What people read of locks: text.

use std::io::stdout;
use std::time::Duration;

use serde::Serialize;

use super::roster::{Entry, Roster};
use crate::cli::sentences;
use crate::rules::child_name::ChildName;
use crate::rules::duration::{show_age, show_measured};
use crate::rules::last_run::LastRun;
use crate::rules::lock_path::LockPath;
use crate::rules::text::{Legible, fitting, printable, table};

/// How many children that are no contenders are named.
const NAMED: usize = 3;

#[derive(Debug, Serialize)]
pub(super) struct Lock {
    pub(super) path: String,
    pub(super) holders: usize,
    pub(super) waiters: usize,
    pub(super) first: Option<Entry>,
}

pub(super) struct ShownLock<'a> {
    pub(super) path: &'a LockPath,
    pub(super) roster: Roster,
    pub(super) last: Option<LastRun>,
}

/// One block for each lock: a line for the lock, a line for each contender, and what else there is to know.
pub(super) fn of_locks(locks: &[ShownLock<'_>]) -> Legible {
    let mut text = Legible::default();
    for ShownLock { path, roster, last } in locks {
        text.push_line(&format!("{path}: {}", count(roster.holders(), roster.waiters())));
        let rows: Vec<_> = roster.contenders.iter().map(row).collect();
        text.append(&table("  ", &rows));
        if let Some(last) = last {
            text.push_line(&format!("  {}", last_run(last)));
        }
        if roster.is_exhausted {
            text.control("  the sequence numbers are used up: this may not be the order of arrival\n");
        }
        if let Some(recipe) = roster.recipe {
            text.push_line(&format!("  used by {}, which does not queue with others", sentences::recipe(recipe)));
        } else if !roster.foreign.is_empty() {
            text.push_line(&format!("  {}", strangers(&roster.foreign)));
        }
    }
    text
}

fn count(holders: usize, waiters: usize) -> String {
    let verb = |number, singular, plural| format!("{number} {}", if number == 1 { singular } else { plural });
    match (holders, waiters) {
        (0, 0) => "free".to_owned(),
        (holders, 0) => verb(holders, "holds", "hold"),
        (holders, waiters) => format!("{}, {}", verb(holders, "holds", "hold"), verb(waiters, "waits", "wait")),
    }
}

fn last_run(last: &LastRun) -> String {
    let host = last.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
    let took = if last.took < Duration::from_secs(60) { show_measured(last.took) } else { show_age(last.took) };
    format!("last success{host}: began {}, took {took}", short(&last.began().unwrap_or_default()))
}

fn strangers(names: &[ChildName]) -> String {
    let shown: Vec<_> = names.iter().take(NAMED).map(|name| printable(name)).collect();
    let more = match names.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let are = if names.len() == 1 { "child that is no contender" } else { "children that are no contenders" };
    format!("{} {are}: {}{more}", names.len(), shown.join(", "))
}

fn row(entry: &Entry) -> [String; 6] {
    [
        entry.position.to_string(),
        (if entry.holds { "holds" } else { "waits" }).to_owned(),
        entry.mode.clone(),
        since(entry),
        entry.session.clone().unwrap_or_default(),
        who(entry),
    ]
}

/// Since when it holds; if that is not known, since when it queues.
fn since(entry: &Entry) -> String {
    let (what, time) = match &entry.held_since {
        Some(time) => ("holds since", Some(time)),
        None => ("queued", entry.queued_since.as_ref()),
    };
    time.map(|time| format!("{what} {}", short(time))).unwrap_or_default()
}

/// A time without the fraction of the second.
fn short(time: &str) -> String {
    format!("{}Z", time.split('.').next().unwrap_or(time))
}

/// A holder, in a line of its own.
pub(super) fn holder(entry: &Entry) -> Legible {
    table("  ", &[[who(entry), since(entry)]])
}

/// Who it is, as the waiting line of a run says it; and its library, unless that is this program.
pub(super) fn who(entry: &Entry) -> String {
    let phrase = entry.phrase.clone().unwrap_or_else(|| printable(&entry.node));
    match entry.client {
        Some("zklock") => phrase,
        Some(client) => format!("{phrase} [{client}]"),
        None => format!("{phrase} [unknown client]"),
    }
}

/// The screen of a terminal with this text at its top, and nothing below. What does not fit is cut.
pub(super) fn redrawn(text: &Legible) -> Legible {
    const HOME: &str = "\x1b[H";
    const REST_OF_LINE: &str = "\x1b[K\r\n";
    const REST_OF_SCREEN: &str = "\x1b[J";
    let size = terminal_size::terminal_size_of(stdout());
    let (width, height) = size.map_or((80, 24), |(width, height)| (usize::from(width.0), usize::from(height.0)));
    // The cursor stands in the line below.
    let room = height.saturating_sub(1).max(1);
    let mut screen = Legible::default();
    screen.control(HOME);
    for line in text.as_str().lines().take(room) {
        screen.push(fitting(line, width.saturating_sub(1))).control(REST_OF_LINE);
    }
    screen.control(REST_OF_SCREEN);
    screen
}

/// One line for each lock, for other programs: path, holders, waiters and first holder, with tabs between them.
pub(super) fn lines(locks: &[Lock]) -> Legible {
    let mut text = Legible::default();
    for lock in locks {
        let (holders, waiters) = (lock.holders.to_string(), lock.waiters.to_string());
        text.push(&lock.path).control("\t").push(&holders).control("\t").push(&waiters).control("\t");
        text.push_line(&first(lock));
    }
    text
}

fn first(lock: &Lock) -> String {
    lock.first
        .as_ref()
        .map(|first| [who(first), since(first)].join(", ").trim_end_matches(", ").to_owned())
        .unwrap_or_default()
}

/// A part of a path, and what is below it.
#[derive(Default)]
struct Branch<'a> {
    name: &'a str,
    lock: Option<&'a Lock>,
    branches: Vec<Self>,
}

/// The locks as a tree. They come in the order of their paths' components.
pub(super) fn tree(locks: &[Lock]) -> Legible {
    /// A deeper tree is wider than any terminal.
    const DEEPEST: usize = 50;
    if locks.iter().any(|lock| lock.path.matches('/').count() > DEEPEST) {
        return lines(locks);
    }
    if locks.is_empty() {
        return Legible::default();
    }
    let mut root = Branch { name: "/", ..Branch::default() };
    for lock in locks {
        let mut branch = &mut root;
        for name in lock.path.split('/').filter(|name| !name.is_empty()) {
            if branch.branches.last().is_none_or(|last| last.name != name) {
                branch.branches.push(Branch { name, ..Branch::default() });
            }
            branch = branch.branches.last_mut().expect("there is one");
        }
        branch.lock = Some(lock);
    }
    let mut rows = vec![];
    draw(&root, "", "", &mut rows);
    table("", &rows)
}

fn draw(branch: &Branch<'_>, lead: &str, below: &str, rows: &mut Vec<[String; 2]>) {
    let what = branch.lock.map(|lock| format!("{}: {}", count(lock.holders, lock.waiters), first(lock)));
    rows.push([format!("{lead}{}", branch.name), what.unwrap_or_default()]);
    for (number, next) in branch.branches.iter().enumerate() {
        let is_last = number + 1 == branch.branches.len();
        let (corner, bar) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        draw(next, &format!("{below}{corner}"), &format!("{below}{bar}"), rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(path: &str) -> Lock {
        Lock { path: path.to_owned(), holders: 1, waiters: 2, first: None }
    }

    #[test]
    fn counts_read_well() {
        for (holders, waiters, text) in
            [(0, 0, "free"), (1, 0, "1 holds"), (3, 0, "3 hold"), (1, 1, "1 holds, 1 waits"), (2, 5, "2 hold, 5 wait")]
        {
            assert_eq!(count(holders, waiters), text);
        }
    }

    #[test]
    fn a_tree_has_a_line_for_each_part_of_a_path() {
        let locks = ["/", "/a/日", "/a/日/c", "/d"].map(lock);
        let expected = [
            "/           1 holds, 2 wait:",
            "├─ a",
            "│  └─ 日    1 holds, 2 wait:",
            "│     └─ c  1 holds, 2 wait:",
            "└─ d        1 holds, 2 wait:",
        ];
        assert_eq!(tree(&locks).as_str().lines().collect::<Vec<_>>(), expected);
        assert_eq!(tree(&[]), Legible::default());
    }

    #[test]
    fn a_path_that_is_too_deep_is_no_tree() {
        let deep = "/x".repeat(200_000);
        assert_eq!(tree(&[lock(&deep)]).as_str(), format!("{deep}\t1\t2\t\n"));
    }
}
