//! Why there is no plan: help that was asked for, or one line about what is wrong.

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::subcommands::Subcommand;
use crate::rules::text::Legible;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// `--help` or `--version`: this text goes to standard output, and the status is 0.
    Help(String),
    /// Something is wrong: a line for standard error, and the status of a usage error. It names the option or the variable at
    /// fault, and says what to write instead.
    Usage(Legible),
}

impl From<String> for Exit {
    fn from(error: String) -> Self {
        Self::Usage(Legible::new(&error))
    }
}

pub(super) fn refused_job(error: clap::Error, args: &[OsString]) -> Exit {
    // An option of the subcommand may be unknown here only because the subcommand is not where it belongs.
    let before_a_lock = args.iter().filter_map(|word| word.to_str()).take_while(|word| !word.starts_with('/'));
    match before_a_lock.skip(1).find_map(Subcommand::of_name) {
        Some(subcommand) if error.kind() == ErrorKind::UnknownArgument => comes_first(subcommand).into(),
        _ => refused_by_clap(error, None),
    }
}

/// A subcommand stands where the lock belongs.
pub(super) fn comes_first(subcommand: Subcommand) -> String {
    format!("{} comes first; write {}", subcommand.name(), subcommand.usage())
}

/// One line for what clap refuses, instead of its page. `subcommand`: `None` in the main job.
pub(super) fn refused_by_clap(error: clap::Error, subcommand: Option<Subcommand>) -> Exit {
    let sentence = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return Exit::Help(error.render().to_string()),
        ErrorKind::MissingRequiredArgument => match subcommand {
            Some(Subcommand::Fence) => format!("no file; write {}", Subcommand::Fence.usage()),
            Some(subcommand) => format!("no lock; write {}", subcommand.usage()),
            None => "no lock; write zklock LOCK COMMAND [ARG]..., such as zklock /jobs/backup ./backup.sh (zklock -h says more)"
                .to_owned(),
        },
        _ => {
            let text = error.render().to_string();
            let line = text.lines().next().unwrap_or_default();
            let line = line.strip_prefix("error: ").unwrap_or(line);
            let hint = match (error.get(ContextKind::SuggestedArg), subcommand) {
                (Some(ContextValue::String(similar)), _) => format!("did you mean {similar}?"),
                (_, Some(subcommand)) => format!("write {}; zklock {} --help says more", subcommand.usage(), subcommand.name()),
                (_, None) => "zklock --help lists the options; those of the command go after it".to_owned(),
            };
            format!("{line}; {hint}")
        }
    };
    sentence.into()
}

/// Adds what was meant to the refusal of the LOCK of the main job. `args`: all of them, the program's own name first.
pub(super) fn refused_lock(why: String, args: &[OsString], lock: &OsStr) -> String {
    let word = lock.to_str().unwrap_or_default();
    if let Some(subcommand) = Subcommand::of_name(word) {
        return comes_first(subcommand);
    }
    let meant =
        nearest(word, Subcommand::ALL.map(Subcommand::name)).filter(|_| args.get(1).is_some_and(|arg| arg == lock));
    meant.map_or(why.clone(), |meant| format!("{why}; did you mean zklock {meant}?"))
}

/// The one among the known words that this one was meant to be: one letter is missing, superfluous or another, or two are the
/// wrong way round.
pub(super) fn nearest<'w>(word: &str, known: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    let word = word.to_lowercase().replace('_', "-");
    known.into_iter().find(|known| strsim::osa_distance(&word, known) <= 1)
}

/// Text that came from outside, for a message: in quotes, cut when it is long.
pub(super) fn quoted(text: &OsStr) -> String {
    const LONGEST_QUOTE: usize = 100;
    let text = text.to_string_lossy();
    let mut shown: String = text.chars().take(LONGEST_QUOTE).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("'{shown}'")
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
