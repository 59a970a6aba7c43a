//! docs/options.md: the options as they can be read on the web, from the definition that the manual pages are made from.

use std::ffi::OsStr;
use std::fmt::Write as _;

use clap::Arg;
use zklock::cli::{self, Subcommand};

use crate::documents::generated::{Document, shown_options, spellings};

/// How wide a line may be.
const WIDTH: usize = 120;

const INTRODUCTION: &str = "\
# Options

This page has all options of zklock, as `zklock --help` and the manual pages have them. It is made from the same table. An
option wins over its variable, and a variable over the [configuration file](configuration.md). A duration is a number of
seconds or has units, such as `1h30m`.
";

/// The page as it should be.
pub(super) fn wanted() -> Document {
    let mut text = INTRODUCTION.to_owned();
    let main = built(cli::command());
    push(&mut text, "zklock [OPTION]... LOCK [--] COMMAND [ARG]...", shown_options(&main));
    for subcommand in Subcommand::ALL {
        let command = built(subcommand.command());
        let is_same = |arg: &Arg| {
            main.get_arguments().any(|other| other.get_id() == arg.get_id() && other.get_help() == arg.get_help())
        };
        let own: Vec<_> = shown_options(&command).filter(|arg| !is_same(arg)).collect();
        push(&mut text, subcommand.usage(), own.into_iter());
        let shared: Vec<_> =
            shown_options(&command).filter(|arg| is_same(arg)).map(|arg| code(&spellings(arg)[..])).collect();
        text.push('\n');
        push_wrapped(&mut text, "", &format!("As above, for [zklock](#zklock): {}.", shared.join(", ")));
    }
    ("docs/options.md", text)
}

fn built(mut command: clap::Command) -> clap::Command {
    command.build();
    command
}

fn code(names: &[String]) -> String {
    format!("`{}`", names.join("`, `"))
}

/// A section with these options, by the groups of `--help`.
fn push<'a>(text: &mut String, usage: &str, options: impl Iterator<Item = &'a Arg>) {
    let name =
        usage.split([' ']).take_while(|word| !word.starts_with(['[', '<'])).take(2).collect::<Vec<_>>().join(" ");
    let _ = write!(text, "\n## {name}\n\n```text\n{usage}\n```\n");
    let mut groups: Vec<(&str, Vec<&Arg>)> = vec![];
    for arg in options {
        // clap's own options have none.
        let heading = arg.get_help_heading().unwrap_or("Messages");
        match groups.iter_mut().find(|(known, _)| *known == heading) {
            Some((_, args)) => args.push(arg),
            None => groups.push((heading, vec![arg])),
        }
    }
    for (heading, args) in groups {
        let _ = write!(text, "\n### {heading}\n\n");
        args.into_iter().for_each(|arg| push_wrapped(text, "- ", &option(arg)));
    }
}

/// An option with all that its help says of it.
fn option(arg: &Arg) -> String {
    let values = arg.get_value_names().filter(|_| arg.get_action().takes_values()).unwrap_or_default();
    let values: String = values.iter().map(|value| format!(" {value}")).collect();
    let mut names = spellings(arg);
    names.last_mut().expect("a name").push_str(&values);
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let (first, more) = help.split_once("\n\n").unwrap_or((&help, ""));
    let mut text = format!("{}: {}.", code(&names), first.trim_end_matches('.'));
    if !more.is_empty() {
        let _ = write!(text, " {}", more.replace("\n\n", " "));
    }
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if arg.get_action().takes_values() && !defaults.is_empty() {
        let _ = write!(text, " Default: `{}`.", defaults.join(" "));
    }
    if let Some(variable) = arg.get_env().and_then(OsStr::to_str) {
        let _ = write!(text, " Variable: `{variable}`.");
    }
    text
}

/// Adds a paragraph, with this before its first line, in lines that are no wider than they may be.
fn push_wrapped(text: &mut String, lead: &str, paragraph: &str) {
    let mut line = lead.to_owned();
    for word in paragraph.split(' ') {
        let is_first = line.len() == lead.len() && line.trim() == lead.trim();
        if !is_first && line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(text, "{line}");
            line = " ".repeat(lead.len());
            line.push_str(word);
            continue;
        }
        if !is_first {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(text, "{line}");
}
