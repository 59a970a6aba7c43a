//! Why there is no plan: help that was asked for, or one line about what is wrong.

use std::ffi::{OsStr, OsString};
use std::fmt;

use clap::ArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;

use crate::cli::{self, Subcommand};

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// `--help` or `--version`: this text goes to standard output, and the status is 0.
    Help(String),
    /// Something is wrong: one line for standard error, and the status of a usage error.
    Usage(UsageError),
}

/// One line that names the option or the variable at fault and says what to write instead. It
/// contains no control characters, whatever the arguments did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError(pub(super) String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

impl From<UsageError> for Exit {
    fn from(error: UsageError) -> Self {
        Self::Usage(error)
    }
}

/// One line for what clap refuses of the main job.
pub(super) fn refused_job(error: clap::Error, args: &[OsString]) -> Exit {
    // An option of the subcommand may be unknown here only because the subcommand is not where it belongs.
    if error.kind() == ErrorKind::UnknownArgument
        && let Ok(matches) = cli::command().ignore_errors(true).try_get_matches_from(args)
        && let Some(misplaced) = misplaced_subcommand(&matches)
    {
        return misplaced.into();
    }
    refused_by_clap(error, None)
}

/// A subcommand stands where the lock belongs.
pub(super) fn misplaced_subcommand(matches: &ArgMatches) -> Option<UsageError> {
    let words = |id: &str| matches.try_get_raw(id).ok().flatten().into_iter().flatten();
    let lock = words("lock").next()?;
    let subcommand = Subcommand::of_name(lock.to_str()?)?;
    if words("command").next().is_none() {
        let (name, usage) = (subcommand.name(), subcommand.usage());
        return Some(UsageError(format!("{name} comes first; write {usage}")));
    }
    let mut instead = format!("zklock {}", subcommand.name());
    if matches.value_source("zookeeper") == Some(ValueSource::CommandLine) {
        words("zookeeper").for_each(|servers| instead += &format!(" -z {}", shown(servers)));
    }
    let mut is_secret = false;
    for word in words("command") {
        let (option, value) = word.to_str().and_then(|word| word.split_once('=')).unzip();
        let shown = match option {
            _ if is_secret => "SCHEME:CREDENTIAL".to_owned(),
            Some("--auth") if value.is_some() => "--auth=SCHEME:CREDENTIAL".to_owned(),
            _ => shown(word),
        };
        is_secret = word == "--auth";
        instead += &format!(" {shown}");
    }
    Some(UsageError(without_controls(&format!("{} comes first; write {instead}", subcommand.name()))))
}

/// One line for what clap refuses, instead of its page. `subcommand`: `None` in the main job.
pub(super) fn refused_by_clap(error: clap::Error, subcommand: Option<Subcommand>) -> Exit {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => texts.first().cloned(),
        _ => None,
    };
    let argument = context(ContextKind::InvalidArg).unwrap_or_default();
    // clap prints `--timeout <DURATION>`; the documents write `--timeout DURATION`.
    let plain_argument = argument.replace(['<', '>'], "");
    let sentence = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return Exit::Help(error.render().to_string()),
        ErrorKind::MissingRequiredArgument => match subcommand {
            Some(Subcommand::Fence) => format!(
                "no file; write {}, such as zklock fence --token \"$ZKLOCK_TOKEN\" /var/lib/sync/fence ./apply",
                Subcommand::Fence.usage()
            ),
            Some(subcommand) => {
                format!("no lock; write {}, such as zklock {} /jobs/backup", subcommand.usage(), subcommand.name())
            }
            None => "no lock; write zklock LOCK COMMAND [ARG]..., such as zklock /jobs/backup ./backup.sh".to_owned(),
        },
        ErrorKind::UnknownArgument => {
            let instead = match (context(ContextKind::SuggestedArg), subcommand) {
                (Some(similar), _) => format!("did you mean {similar}?"),
                (None, Some(subcommand)) if argument.starts_with('-') => {
                    format!("zklock {} --help lists the options", subcommand.name())
                }
                (None, Some(subcommand)) => format!("write {}", subcommand.usage()),
                (None, None) => "zklock --help lists the options; those of the command go after it".to_owned(),
            };
            let what = if argument.starts_with('-') { "unknown option" } else { "one too many:" };
            format!("{what} {}; {instead}", quoted(OsStr::new(&argument)))
        }
        ErrorKind::InvalidValue => format!("no value after {}; write {plain_argument}", first_word(&argument)),
        ErrorKind::TooManyValues => {
            let option = first_word(&argument);
            format!("{option} takes no value; write {option} alone")
        }
        _ => {
            let text = error.render().to_string();
            let line = text.lines().next().unwrap_or_default();
            let line = line.strip_prefix("error: ").unwrap_or(line);
            let name = subcommand.map(|subcommand| format!("{} ", subcommand.name())).unwrap_or_default();
            format!("{line}; zklock {name}--help says what to write")
        }
    };
    Exit::Usage(UsageError(without_controls(&sentence)))
}

fn first_word(text: &str) -> &str {
    text.split(' ').next().unwrap_or(text)
}

/// Text that came from outside, for a message: in quotes, on one line, cut when it is long.
pub(super) fn quoted(text: &OsStr) -> String {
    format!("'{}'", shown(text))
}

/// The same without quotes.
fn shown(text: &OsStr) -> String {
    const LONGEST: usize = 100;
    let text = text.to_string_lossy();
    let mut shown: String = text.chars().take(LONGEST).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    without_controls(&shown)
}

fn without_controls(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { plain.extend(c.escape_default()) } else { plain.push(c) }
    }
    plain
}
