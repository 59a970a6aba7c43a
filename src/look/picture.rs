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
        if let Some(vanished) = &roster.vanished {
            text.push_line(&format!("  {}", vanished.line()));
        }
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
    let names: Vec<_> = names.iter().map(|name| &**name).collect();
    format!("children that are no contenders ({}): {}", names.len(), printable(&names.join(", ")))
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

/// The same for people.
pub(super) fn rows(locks: &[Lock]) -> Legible {
    let row = |lock: &Lock| [lock.path.clone(), format!("{}: {}", count(lock.holders, lock.waiters), first(lock))];
    table("", &locks.iter().map(row).collect::<Vec<_>>())
}

fn first(lock: &Lock) -> String {
    lock.first
        .as_ref()
        .map(|first| [who(first), since(first)].join(", ").trim_end_matches(", ").to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_read_well() {
        for (holders, waiters, text) in
            [(0, 0, "free"), (1, 0, "1 holds"), (3, 0, "3 hold"), (1, 1, "1 holds, 1 waits"), (2, 5, "2 hold, 5 wait")]
        {
            assert_eq!(count(holders, waiters), text);
        }
    }
}
