//! What the values of single options mean. Each error says what to write.

use std::time::Duration;

use crate::rules::duration;
use crate::rules::lease::Terms;
use crate::rules::lock_delay::LONGEST;
use crate::rules::text::{decimal, is_legible};
use crate::zookeeper::login::Protection;

pub(super) fn once_per(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        Duration::ZERO => Err("no run would be skipped; write a longer time, or leave the option out".to_owned()),
        period => Ok(period),
    }
}

pub(super) fn lock_delay(text: &str) -> Result<Duration, String> {
    let delay = duration::parse(text)?;
    let longest = duration::show(LONGEST);
    if delay > LONGEST { Err(format!("longer than the longest delay; write at most {longest}")) } else { Ok(delay) }
}

pub(super) fn session_timeout(text: &str) -> Result<Duration, String> {
    // No server has a tick as short as this. Below it, rounding errors would make up the lease.
    const SHORTEST: Duration = Duration::from_millis(100);
    let timeout = duration::parse(text)?;
    if timeout < SHORTEST {
        return Err(format!("too short for a lease; write at least {}", duration::show(SHORTEST)));
    }
    // The protocol carries milliseconds in a signed 32-bit integer.
    if i32::try_from(timeout.as_millis()).is_err() {
        return Err("longer than ZooKeeper can express; write at most 24d".to_owned());
    }
    Ok(timeout)
}

pub(super) fn kill_after(text: &str, session_timeout: Duration) -> Result<Duration, String> {
    let kill_after = duration::parse(text)?;
    match Terms::new(session_timeout, Some(kill_after)) {
        Ok(_) => Ok(kill_after),
        Err(no_room) => Err(format!(
            "a session timeout of {} has room for {} at most; shorten --kill-after or lengthen --session-timeout",
            duration::show(session_timeout),
            duration::show_limit(no_room.longest),
        )),
    }
}

pub(super) fn connect_timeout(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        Duration::ZERO => Err("no server can answer in no time; write a longer one, such as 15s".to_owned()),
        timeout => Ok(timeout),
    }
}

pub(super) fn protection(text: &str) -> Result<Protection, String> {
    match text {
        "open" => Ok(Protection::Open),
        "creator" => Ok(Protection::Creator),
        "read" => Ok(Protection::Read),
        _ => Err("write open, creator or read".to_owned()),
    }
}

pub(super) fn exit_status(text: &str) -> Result<u8, String> {
    decimal(text).ok_or_else(|| "write a number from 0 to 255".to_owned())
}

pub(super) fn description(text: &str) -> Result<Option<String>, String> {
    const LONGEST_DESCRIPTION: usize = 200;
    if let Some(odd) = text.chars().find(|character| !is_legible(*character)) {
        return Err(format!("contains U+{:04X}; write one line of plain text", u32::from(odd)));
    }
    let length = text.chars().count();
    if length > LONGEST_DESCRIPTION {
        return Err(format!("{length} characters long; write at most {LONGEST_DESCRIPTION}"));
    }
    let text = text.trim();
    Ok((!text.is_empty()).then(|| text.to_owned()))
}
