//! What is known of an option. [`super::options`] has all of them.

use std::ffi::OsString;

use clap::builder::FalseyValueParser;
use clap::{Arg, ArgAction, ValueHint, value_parser};

/// An option, but for what its value means. To say that is up to the code that reads it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opt {
    /// Its name, which is also its key in configuration files.
    pub(super) long: &'static str,
    pub(super) short: Option<char>,
    pub(super) other_short: Option<char>,
    pub(super) other: Option<&'static str>,
    /// What stands for its value, unless it is a switch.
    pub(super) value: Option<&'static str>,
    /// It may be there several times: each value counts, or how often a switch is there.
    pub(super) is_repeated: bool,
    /// Its value may begin with a hyphen.
    pub(super) takes_hyphen: bool,
    /// It says how to reach the servers. Subcommands leave its help to that of zklock itself.
    pub(super) is_of_connection: bool,
    pub(super) variable: Option<&'static str>,
    /// The value without option, variable and file.
    pub(super) default: Option<&'static str>,
    /// What a configuration file may say in its place.
    pub(super) key: Option<KeyKind>,
    /// The other option of which the last one counts.
    pub(super) rival: Option<&'static str>,
    pub(super) heading: &'static str,
    pub(super) help: &'static str,
    pub(super) more: &'static str,
    pub(super) is_rare: bool,
    pub(super) is_hidden: bool,
    pub(super) hint: ValueHint,
}

/// What the value of a key in a configuration file is.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeyKind {
    /// A text that this accepts.
    Text(fn(&str) -> Result<(), String>),
    /// A duration that this accepts.
    Duration(fn(&str) -> Result<(), String>),
    Switch,
    Path,
}

/// How much of its help a definition has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Texts {
    /// None: the definition only reads a command line, in half the time.
    None,
    /// What `-h` shows: for each option that is often needed, one line.
    Summary,
    /// What `--help`, man pages and completions need.
    All,
}

impl Opt {
    /// A switch with nothing special. `heading`: its group in the help.
    pub(super) const fn new(long: &'static str, heading: &'static str, help: &'static str) -> Self {
        Self {
            long,
            short: None,
            other_short: None,
            other: None,
            value: None,
            is_repeated: false,
            takes_hyphen: false,
            is_of_connection: false,
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

    /// A switch that says how to reach the servers.
    pub(super) const fn access(long: &'static str, heading: &'static str, help: &'static str) -> Self {
        Self { is_of_connection: true, ..Self::new(long, heading, help) }
    }

    /// The name by which clap knows it. COMMAND has the name of one as well.
    pub(super) fn id(&self) -> &'static str {
        if self.long == "command" { "shell_command" } else { self.long }
    }

    pub(super) const fn is_switch(&self) -> bool {
        self.value.is_none() && !self.is_repeated
    }

    pub(super) fn arg(&self, texts: Texts) -> Arg {
        let arg = Arg::new(self.id()).long(self.long).short(self.short);
        let arg = match texts {
            Texts::Summary => arg.short_alias(self.other_short).alias(self.other),
            _ => arg.visible_short_alias(self.other_short).visible_alias(self.other),
        };
        let arg = self.rival.into_iter().fold(arg, Arg::overrides_with);
        let arg = match self.value {
            None if self.is_repeated => arg.action(ArgAction::Count),
            None => arg.action(ArgAction::SetTrue).value_parser(FalseyValueParser::new()),
            Some(name) => arg
                .action(if self.is_repeated { ArgAction::Append } else { ArgAction::Set })
                .value_name(name)
                .value_parser(value_parser!(OsString))
                .allow_negative_numbers(true)
                .allow_hyphen_values(self.takes_hyphen)
                .value_hint(self.hint),
        };
        if texts == Texts::None { arg } else { self.explained(arg, texts) }
    }

    fn explained(&self, arg: Arg, texts: Texts) -> Arg {
        let arg = arg.help(self.help).hide(self.is_hidden).help_heading(self.heading);
        if texts == Texts::Summary {
            return arg;
        }
        let arg = self.variable.into_iter().fold(arg, |arg, name| arg.env(name).hide_env_values(true));
        let arg = self.default.into_iter().fold(arg, Arg::default_value);
        if self.more.is_empty() { arg } else { arg.long_help(format!("{}\n\n{}", self.help, self.more)) }
    }
}
