//! What was said of each option: on the command line, or else by its variable, or else in a configuration file.

use std::ffi::OsString;

use clap::ArgMatches;
use clap::error::ErrorKind;
use clap::parser::ValueSource;

use super::config::{Config, Surroundings};
use super::forms::Form;
use super::option::{Opt, Texts};
use super::options::CONFIG;
use super::origin::{Given, Origin};

/// The arguments, the environment and the configuration files.
pub(super) struct Values<'a> {
    matches: ArgMatches,
    pub(super) surroundings: &'a dyn Surroundings,
    pub(super) config: Config,
}

impl<'a> Values<'a> {
    /// Reads the arguments, which begin with the name of the program. No configuration file is read yet.
    pub(super) fn read(
        form: &Form,
        args: &[OsString],
        surroundings: &'a dyn Surroundings,
    ) -> Result<Self, clap::Error> {
        let matches = match form.command(Texts::None).try_get_matches_from(args) {
            Err(error) if error.kind() == ErrorKind::DisplayHelp => {
                let is_long = args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--help");
                form.command(if is_long { Texts::All } else { Texts::Summary }).try_get_matches_from(args)
            }
            matches => matches,
        };
        Ok(Self { matches: matches?, surroundings, config: Config::default() })
    }

    pub(super) fn with_config(self) -> Result<Self, String> {
        let named = self.given(&CONFIG);
        Ok(Self { config: Config::read(named, self.surroundings)?, ..self })
    }

    /// The value that counts, and where it comes from. An empty variable counts as unset. A switch that is written has the
    /// value `1`.
    pub(super) fn given(&self, option: &Opt) -> Option<Given> {
        let text =
            |option: &Opt| if option.is_switch() { Some("1".into()) } else { self.words(option.id()).next_back() };
        let written = Some(option).filter(|option| self.is_written(option)).and_then(text);
        let written = written.map(|text| Given::new(option, Origin::Option(option.long), text));
        let variable =
            || Some(Given::new(option, Origin::Variable(option.variable?), self.variable(option.variable?)?));
        let default = || Some(Given::new(option, Origin::Default, option.default?));
        written.or_else(variable).or_else(|| self.config.get(option.long).cloned()).or_else(default)
    }

    pub(super) fn get<T>(
        &self,
        option: &Opt,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        self.given(option).map(|given| given.read(parse)).transpose()
    }

    /// The same for an option that has a default. Also returns where the value comes from.
    pub(super) fn required<T>(
        &self,
        option: &Opt,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<(T, Given), String> {
        let given = self.given(option).ok_or_else(|| format!("--{} has no value", option.long))?;
        Ok((given.read(parse)?, given))
    }

    /// A switch that has a variable or a key.
    pub(super) fn flag(&self, option: &Opt) -> Result<Option<(bool, Given)>, String> {
        self.given(option).map(|given| Ok((given.read(yes_or_no)?, given))).transpose()
    }

    /// Whether an option is on the command line, and no rival behind it.
    pub(super) fn is_written(&self, option: &Opt) -> bool {
        // A form may lack it, and a run then takes its variable all the same.
        let is_known = self.matches.try_contains_id(option.id()).is_ok();
        is_known && self.matches.value_source(option.id()) == Some(ValueSource::CommandLine)
    }

    pub(super) fn count(&self, option: &Opt) -> u8 {
        self.matches.get_count(option.id())
    }

    /// The values of an operand, or of an option that may be repeated.
    pub(super) fn words(&self, id: &str) -> impl DoubleEndedIterator<Item = OsString> {
        self.matches.get_many::<OsString>(id).into_iter().flatten().cloned()
    }

    pub(super) fn word(&self, id: &str) -> OsString {
        self.words(id).next().unwrap_or_default()
    }

    pub(super) fn variable(&self, name: &str) -> Option<OsString> {
        self.surroundings.variable(name).filter(|text| !text.is_empty())
    }
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err("write 1 or 0".to_owned()),
    }
}
