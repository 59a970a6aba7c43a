//! Which locks to take, how, and how long to wait.

use std::ffi::OsStr;
use std::num::NonZeroU32;
use std::time::Duration;

use super::meaning;
use super::options::{AND, DIALECT, EXCLUSIVE, LOCK_DELAY, NONBLOCK, PERMITS, SHARED, TIMEOUT};
use super::refusal::quoted;
use super::values::Values;
use crate::rules::duration;
use crate::rules::lock_path::LockPath;
use crate::rules::mode::Mode;
use crate::rules::queue::Dialect;
use crate::rules::settings::Patience;
use crate::rules::text::decimal;
use crate::zookeeper::net::address::ConnectString;

/// The further locks. A lock that is named twice is taken once.
pub(super) fn also(lock: &LockPath, values: &Values<'_>, servers: &ConnectString) -> Result<Vec<LockPath>, String> {
    // A report between the processes of zklock carries all of them, each with the name of a node.
    const LONGEST_SUM: usize = 16 * 1024;
    const NODE: usize = 100;
    let mut also: Vec<LockPath> = vec![];
    for text in values.words(AND.long) {
        let path = lock_argument("--and", &text, servers)?;
        if path != *lock && !also.contains(&path) {
            also.push(path);
        }
    }
    if also.iter().map(|path| path.as_str().len() + NODE).sum::<usize>() > LONGEST_SUM {
        return Err(format!("--and: too many locks ({}); take fewer together", also.len()));
    }
    Ok(also)
}

pub(super) fn mode(values: &Values<'_>) -> Result<Mode, String> {
    let permits = values.get(&PERMITS, number_of_permits)?;
    match (values.is_written(&EXCLUSIVE), values.is_written(&SHARED), permits) {
        (_, false, None) => Ok(Mode::Exclusive),
        (false, true, None) => Ok(Mode::Shared),
        (false, false, Some(permits)) => Ok(Mode::Permits(permits)),
        _ => Err("--exclusive, --shared and --permits exclude each other; write one of them".to_owned()),
    }
}

fn number_of_permits(text: &str) -> Result<NonZeroU32, String> {
    decimal(text).ok_or_else(|| format!("write a number from 1 to {}", u32::MAX))
}

/// `None`: the user has named none.
pub(super) fn dialects(values: &Values<'_>, mode: Mode) -> Result<Option<Vec<Dialect>>, String> {
    let Some(dialects) = values.get(&DIALECT, names_of_dialects)? else { return Ok(None) };
    if mode.permits().is_some() && dialects != [Dialect::Curator] {
        return Err("--permits works in the dialect curator alone; leave out one of the two".to_owned());
    }
    if mode == Mode::Shared && dialects.contains(&Dialect::Single) {
        let why = "--shared does not exist in the dialect single, which has one holder; leave out one of the two";
        return Err(why.to_owned());
    }
    Ok(Some(dialects))
}

fn names_of_dialects(text: &str) -> Result<Vec<Dialect>, String> {
    let mut dialects = vec![];
    for name in text.split(',') {
        let dialect = Dialect::ALL.into_iter().find(|dialect| dialect.name() == name.trim());
        let dialect =
            dialect.ok_or("write single, or one or several of curator, curator-rw, kazoo, separated by commas")?;
        if !dialects.contains(&dialect) {
            dialects.push(dialect);
        }
    }
    if dialects.len() > 1 && dialects.contains(&Dialect::Single) {
        return Err(
            "single has no queue, and cannot be combined with dialects that have one; write it alone".to_owned()
        );
    }
    Ok(dialects)
}

/// Zero if the mode or the dialect has no delays: a variable or a file may speak of all locks.
pub(super) fn lock_delay(values: &Values<'_>, mode: Mode, dialects: Option<&[Dialect]>) -> Result<Duration, String> {
    let delay = values.get(&LOCK_DELAY, meaning::lock_delay)?.unwrap_or_default();
    let other = match dialects {
        _ if mode.permits().is_some() => "--permits",
        Some([Dialect::Single]) => "--dialect single",
        _ => return Ok(delay),
    };
    match values.is_written(&LOCK_DELAY) && !delay.is_zero() {
        true => Err(format!("--lock-delay and {other} exclude each other; leave out one of the two")),
        false => Ok(Duration::ZERO),
    }
}

pub(super) fn patience(values: &Values<'_>) -> Result<Patience, String> {
    Ok(match values.get(&TIMEOUT, duration::parse)? {
        // As flock(1) does when it is given both -n and -w.
        _ if values.is_written(&NONBLOCK) => Patience::NoWait,
        None => Patience::Forever,
        Some(Duration::ZERO) => Patience::NoWait,
        Some(timeout) => Patience::AtMost(timeout),
    })
}

pub(super) fn lock_argument(what: &str, written: &OsStr, servers: &ConnectString) -> Result<LockPath, String> {
    argument(what, written, |text| LockPath::parse(text, &servers.chroot))
}

/// Reads an operand, or an option of which no variable and no file says anything.
pub(super) fn argument<T>(
    what: &str,
    written: &OsStr,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, String> {
    let text = written.to_str().ok_or_else(|| "is not UTF-8; write it in UTF-8".to_owned());
    text.and_then(parse).map_err(|why| format!("{what} {} {why}", quoted(written)))
}
