//! How to take a lock, as the main job and `zklock hold` are told alike.

use std::ffi::OsStr;
use std::ffi::OsString;
use std::num::NonZeroU32;
use std::time::Duration;

use super::config::Surroundings;
use super::options::{AND, CONFLICT_EXIT_CODE, DESCRIBE, DIALECT, EXCLUSIVE, NONBLOCK, PERMITS, SHARED, TIMEOUT};
use super::plan::LockRequest;
use super::refusal::{UsageError, quoted};
use super::values::Values;
use crate::cli::environment;
use crate::rules::duration;
use crate::rules::lock_path::LockPath;
use crate::rules::mode::Mode;
use crate::rules::queue::Dialect;
use crate::rules::settings::Patience;
use crate::zookeeper::net::address::ConnectString;

/// How to take a lock. The further locks are still as they were written.
pub(super) struct Taking {
    pub(super) patience: Patience,
    pub(super) conflict_exit_code: u8,
    pub(super) description: Option<String>,
    pub(super) mode: Mode,
    dialects: Option<Vec<Dialect>>,
    and: Vec<OsString>,
}

impl Taking {
    pub(super) fn read(values: &Values<'_, impl Surroundings>) -> Result<Self, UsageError> {
        let mode = mode(values)?;
        let dialects = values.get(&DIALECT, dialects)?;
        if let (Some(_), Some(dialects)) = (mode.permits(), &dialects)
            && *dialects != [Dialect::Curator]
        {
            return Err(UsageError(
                "--permits works in the dialect curator alone; leave out one of the two".to_owned(),
            ));
        }
        if mode == Mode::Shared && dialects.as_ref().is_some_and(|dialects| dialects.contains(&Dialect::Single)) {
            return Err(UsageError(
                "--shared does not exist in the dialect single, which has one holder; leave out one of the two"
                    .to_owned(),
            ));
        }
        Ok(Self {
            patience: patience(values)?,
            conflict_exit_code: values.required(&CONFLICT_EXIT_CODE, exit_status)?.0,
            description: values.get(&DESCRIBE, description)?.flatten(),
            mode,
            dialects,
            and: values.words(AND.long).collect(),
        })
    }

    /// Which locks to take, `lock` before the further ones.
    pub(super) fn request(
        self,
        lock: LockPath,
        servers: &ConnectString,
        surroundings: &impl Surroundings,
    ) -> Result<LockRequest, UsageError> {
        let lines = |name| surroundings.variable(name).unwrap_or_default();
        Ok(LockRequest {
            and: also(&lock, &self.and, servers)?,
            lock,
            mode: self.mode,
            once_per: None,
            dialects_given: self.dialects.is_some(),
            dialects: self.dialects.unwrap_or_else(|| vec![Dialect::Curator]),
            held: environment::nodes_held(&lines(environment::HELD)),
            offers: environment::offers(&lines(environment::LENDER)),
        })
    }
}

/// The further locks. A lock that is named twice is taken once.
fn also(lock: &LockPath, written: &[OsString], servers: &ConnectString) -> Result<Vec<LockPath>, UsageError> {
    // A report between our own processes carries all of them, each with the name of a node.
    const LONGEST: usize = 16 * 1024;
    const NODE: usize = 100;
    let mut also: Vec<LockPath> = vec![];
    for text in written {
        let path = lock_argument("--and", text, servers)?;
        if path != *lock && !also.contains(&path) {
            also.push(path);
        }
    }
    if also.iter().map(|path| path.as_str().len() + NODE).sum::<usize>() > LONGEST {
        return Err(UsageError(format!("--and: too many locks ({}); take fewer together", also.len())));
    }
    Ok(also)
}

fn mode(values: &Values<'_, impl Surroundings>) -> Result<Mode, UsageError> {
    let permits = values.get(&PERMITS, number_of_permits)?;
    match (values.is_on(&EXCLUSIVE), values.is_on(&SHARED), permits) {
        (_, false, None) => Ok(Mode::Exclusive),
        (false, true, None) => Ok(Mode::Shared),
        (false, false, Some(permits)) => Ok(Mode::Permits(permits)),
        _ => Err(UsageError("--exclusive, --shared and --permits exclude each other; write one of them".to_owned())),
    }
}

fn number_of_permits(text: &str) -> Result<NonZeroU32, String> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let permits = if digits { text.parse().ok() } else { None };
    permits.ok_or_else(|| format!("write a number from 1 to {}", u32::MAX))
}

fn dialects(text: &str) -> Result<Vec<Dialect>, String> {
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

fn patience(values: &Values<'_, impl Surroundings>) -> Result<Patience, UsageError> {
    Ok(match values.get(&TIMEOUT, duration::parse)? {
        // As flock(1) does when it is given both -n and -w.
        _ if values.is_on(&NONBLOCK) => Patience::NoWait,
        None => Patience::Forever,
        Some(Duration::ZERO) => Patience::NoWait,
        Some(timeout) => Patience::AtMost(timeout),
    })
}

fn exit_status(text: &str) -> Result<u8, String> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let status = if digits { text.parse().ok() } else { None };
    status.ok_or_else(|| "write a number from 0 to 255".to_owned())
}

fn description(text: &str) -> Result<Option<String>, String> {
    const LONGEST: usize = 200;
    if let Some(odd) = text.chars().find(|c| c.is_control()) {
        return Err(format!("contains U+{:04X}; write one line of plain text", u32::from(odd)));
    }
    let length = text.chars().count();
    if length > LONGEST {
        return Err(format!("{length} characters long; write at most {LONGEST}"));
    }
    let text = text.trim();
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

pub(super) fn lock_argument(what: &str, written: &OsStr, servers: &ConnectString) -> Result<LockPath, UsageError> {
    match written.to_str() {
        Some(text) => LockPath::parse(text, &servers.chroot),
        None => Err("is not UTF-8; write it in UTF-8".to_owned()),
    }
    .map_err(|why| UsageError(format!("{what} {} {why}", quoted(written))))
}
