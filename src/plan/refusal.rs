//! Why there is no plan: help that was asked for, or one line about what is wrong.

use std::ffi::OsStr;
use std::fmt;

use clap::error::{ContextKind, ContextValue, ErrorKind};

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

/// One line for what clap refuses, instead of its page.
pub(super) fn refused_by_clap(error: clap::Error) -> Exit {
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
        ErrorKind::MissingRequiredArgument => "no lock; write zklock LOCK COMMAND [ARG]..., such as \
                                               zklock /jobs/backup ./backup.sh"
            .to_owned(),
        ErrorKind::UnknownArgument => {
            let instead = match context(ContextKind::SuggestedArg) {
                Some(similar) => format!("did you mean {similar}?"),
                None => "zklock --help lists the options; those of the command go after it".to_owned(),
            };
            format!("unknown option {}; {instead}", quoted(OsStr::new(&argument)))
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
            format!("{line}; zklock --help says what to write")
        }
    };
    Exit::Usage(UsageError(without_controls(&sentence)))
}

fn first_word(text: &str) -> &str {
    text.split(' ').next().unwrap_or(text)
}

/// Text that came from outside, for a message: in quotes, on one line, cut when it is long.
pub(super) fn quoted(text: &OsStr) -> String {
    const LONGEST: usize = 100;
    let text = text.to_string_lossy();
    let mut shown: String = text.chars().take(LONGEST).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("'{}'", without_controls(&shown))
}

fn without_controls(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { plain.extend(c.escape_default()) } else { plain.push(c) }
    }
    plain
}
