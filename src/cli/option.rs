//! What is known of an option. [`super::options`] has all of them.

use std::ffi::OsString;

use clap::builder::FalseyValueParser;
use clap::{Arg, ArgAction, ValueHint, value_parser};

/// An option, but for what its value means. To say that is up to the code that reads it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opt {
    /// Its name, which is also its key in configuration files.
    pub(super) long: &'static str,
    short: Option<char>,
    other_short: Option<char>,
    other: Option<&'static str>,
    takes: Takes,
    /// The variable that stands in for it.
    pub(super) variable: Option<&'static str>,
    /// The value without option, variable and file.
    pub(super) default: Option<&'static str>,
    /// What a configuration file may say in its place.
    pub(super) key: Option<KeyKind>,
    /// The other option of which the last one counts.
    rival: Option<&'static str>,
    heading: &'static str,
    help: &'static str,
    more: &'static str,
    is_rare: bool,
    is_hidden: bool,
    hint: ValueHint,
}

#[derive(Clone, Copy, Debug)]
enum Takes {
    Nothing,
    /// Nothing, and it counts how often it is there.
    Repetition,
    Value(&'static str),
    /// One each time.
    Values(&'static str),
}

/// What the value of a key in a configuration file is.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeyKind {
    /// A text that this accepts.
    Text(fn(&str) -> Result<(), String>),
    /// A duration that this accepts.
    Duration(fn(&str) -> Result<(), String>),
    /// `true` or `false`.
    Switch,
    /// A file.
    Path,
}

impl Opt {
    /// An option without a value. `heading`: its group in the help.
    pub(super) const fn switch(long: &'static str, heading: &'static str, help: &'static str) -> Self {
        Self {
            long,
            short: None,
            other_short: None,
            other: None,
            takes: Takes::Nothing,
            variable: None,
            default: None,
            key: None,
            rival: None,
            heading,
            help,
            more: "",
            is_rare: false,
            is_hidden: false,
            hint: ValueHint::Other,
        }
    }

    pub(super) const fn valued(
        long: &'static str,
        value: &'static str,
        heading: &'static str,
        help: &'static str,
    ) -> Self {
        Self { takes: Takes::Value(value), ..Self::switch(long, heading, help) }
    }

    pub(super) const fn short(self, short: char) -> Self {
        Self { short: Some(short), ..self }
    }

    pub(super) const fn other_short(self, short: char) -> Self {
        Self { other_short: Some(short), ..self }
    }

    pub(super) const fn other(self, long: &'static str) -> Self {
        Self { other: Some(long), ..self }
    }

    pub(super) const fn repeated(self) -> Self {
        let takes = match self.takes {
            Takes::Nothing | Takes::Repetition => Takes::Repetition,
            Takes::Value(name) | Takes::Values(name) => Takes::Values(name),
        };
        Self { takes, ..self }
    }

    pub(super) const fn variable(self, name: &'static str) -> Self {
        Self { variable: Some(name), ..self }
    }

    pub(super) const fn default(self, value: &'static str) -> Self {
        Self { default: Some(value), ..self }
    }

    pub(super) const fn key(self, kind: KeyKind) -> Self {
        Self { key: Some(kind), ..self }
    }

    pub(super) const fn rival(self, long: &'static str) -> Self {
        Self { rival: Some(long), ..self }
    }

    pub(super) const fn more(self, more: &'static str) -> Self {
        Self { more, ..self }
    }

    /// What it means in a subcommand where it means something else.
    pub(super) const fn says(self, heading: &'static str, help: &'static str) -> Self {
        Self { heading, help, ..self }
    }

    /// Shown by `--help` and not by `-h`.
    pub(super) const fn rare(self) -> Self {
        Self { is_rare: true, ..self }
    }

    pub(super) const fn hidden(self) -> Self {
        Self { is_hidden: true, ..self }
    }

    pub(super) const fn hint(self, hint: ValueHint) -> Self {
        Self { hint, ..self }
    }

    /// The name by which clap knows it. COMMAND has the name of one as well.
    pub(super) fn id(&self) -> &'static str {
        if self.long == "command" { "shell_command" } else { self.long }
    }

    pub(super) const fn is_switch(&self) -> bool {
        matches!(self.takes, Takes::Nothing)
    }

    /// Its definition for clap.
    pub(super) fn arg(&self, has_help: bool) -> Arg {
        let arg = Arg::new(self.id())
            .long(self.long)
            .short(self.short)
            .visible_short_alias(self.other_short)
            .visible_alias(self.other);
        let arg = self.rival.into_iter().fold(arg, Arg::overrides_with);
        let arg = match self.takes {
            Takes::Nothing => arg.action(ArgAction::SetTrue).value_parser(FalseyValueParser::new()),
            Takes::Repetition => arg.action(ArgAction::Count),
            Takes::Value(name) | Takes::Values(name) => {
                let is_repeated = matches!(self.takes, Takes::Values(_));
                arg.action(if is_repeated { ArgAction::Append } else { ArgAction::Set })
                    .value_name(name)
                    .value_parser(value_parser!(OsString))
                    .allow_negative_numbers(true)
                    .allow_hyphen_values(self.hint == ValueHint::CommandString)
                    .value_hint(self.hint)
            }
        };
        if has_help { self.explained(arg) } else { arg }
    }

    fn explained(&self, arg: Arg) -> Arg {
        let arg = arg.help(self.help).hide(self.is_hidden).hide_short_help(self.is_rare).help_heading(self.heading);
        let arg = self.variable.into_iter().fold(arg, |arg, name| arg.env(name).hide_env_values(true));
        let arg = self.default.into_iter().fold(arg, Arg::default_value);
        if self.more.is_empty() { arg } else { arg.long_help(format!("{}\n\n{}", self.help, self.more)) }
    }
}
