//! Words that are nearly something else: what was meant.

use std::ffi::{OsStr, OsString};

use super::UsageError;
use crate::cli::Subcommand;

/// Units as people write them, and as durations are written here.
const UNITS: [(&[&str], &str); 5] = [
    (&["ms", "msec", "millis", "milliseconds"], "ms"),
    (&["s", "sec", "secs", "second", "seconds"], "s"),
    (&["m", "min", "mins", "minute", "minutes"], "m"),
    (&["h", "hr", "hrs", "hour", "hours"], "h"),
    (&["d", "day", "days"], "d"),
];

/// The options whose value is a duration.
const DURATIONS: [&str; 9] = [
    "-w",
    "--wait",
    "--timeout",
    "-k",
    "--kill-after",
    "--max-run",
    "--once-per",
    "--connect-timeout",
    "--session-timeout",
];

/// Adds what was meant to the refusal of the LOCK of the main job. `args`: all of them, the program's own name first.
pub(super) fn with_hint(error: UsageError, args: &[OsString], lock: &OsStr) -> UsageError {
    match hint(args, lock) {
        Some(hint) => UsageError(format!("{error}; {hint}")),
        None => error,
    }
}

fn hint(args: &[OsString], lock: &OsStr) -> Option<String> {
    let word = lock.to_str()?;
    let is_first = args.get(1).is_some_and(|first| first == lock);
    if is_first && let Some(meant) = nearest(word, Subcommand::ALL.map(Subcommand::name)) {
        return Some(format!("did you mean zklock {meant}?"));
    }
    let (_, unit) = UNITS.iter().find(|(words, _)| words.contains(&word))?;
    let at = args.iter().position(|arg| arg == lock)?;
    let number = args[at.checked_sub(1)?].to_str()?;
    if !DURATIONS.iter().any(|option| args[at.saturating_sub(2)] == *option) {
        return None;
    }
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    is_number.then(|| format!("write {number}{unit}, in one word"))
}

/// The one among the known words that this one was meant to be.
pub(super) fn nearest<'w>(word: &str, known: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    let word = word.to_lowercase().replace('_', "-");
    known.into_iter().find(|known| is_slip(&word, known))
}

/// Whether one letter is missing, superfluous or another, or two are the wrong way round.
fn is_slip(word: &str, meant: &str) -> bool {
    let (word, meant): (Vec<_>, Vec<_>) = (word.chars().collect(), meant.chars().collect());
    let same = |(a, b): &(&char, &char)| a == b;
    let front = word.iter().zip(&meant).take_while(same).count();
    let (word, meant) = (&word[front..], &meant[front..]);
    let back = word.iter().rev().zip(meant.iter().rev()).take_while(same).count();
    match (&word[..word.len() - back], &meant[..meant.len() - back]) {
        ([] | [_], [] | [_]) => true,
        ([a, b], [c, d]) => (a, b) == (d, c),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slip_is_near() {
        for word in ["stauts", "statu", "Status", "statuss", "tsatus", "xtatus", "status"] {
            assert_eq!(nearest(word, ["hold", "status"]), Some("status"), "{word}");
        }
        for word in ["", "stats-x", "statsu-", "take", "state", "sattsu", "jobs/backup"] {
            assert_eq!(nearest(word, ["hold", "status"]), None, "{word}");
        }
        assert_eq!(nearest("tls_key", ["tls", "tls-key"]), Some("tls-key"));
        assert_eq!(nearest("tls-keys", ["tls", "tls-key"]), Some("tls-key"));
    }
}
