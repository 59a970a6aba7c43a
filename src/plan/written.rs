//! What every command reads alike: where the servers are, how long to try, how much to say.

use std::ffi::OsString;
use std::time::Duration;

use clap::ArgMatches;
use clap::parser::ValueSource;
use log::LevelFilter;

use super::config::{Config, Surroundings};
use super::login;
use super::origin::{Given, Origin, Setting};
use super::tls::{self, Tls};
use super::{ConnectString, UsageError, Verbosity, session_timeout};
use crate::cli::{self, groups};
use crate::duration;
use crate::environment;
use crate::rules::login::Login;

/// How to reach the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The servers, and the chroot that all paths are relative to.
    pub servers: ConnectString,
    /// The user has named the servers, by option, variable or file.
    pub servers_given: bool,
    pub connect_timeout: Duration,
    /// How connections are encrypted. `None`: they are not.
    pub tls: Option<Tls>,
    pub login: Login,
    /// Where all of this comes from, and the configuration files that were read.
    pub settings: Vec<Setting>,
}

/// How much to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Messages {
    pub verbosity: Verbosity,
    /// A filter in env_logger's syntax; where given, it replaces the log level that `verbosity` implies.
    pub log_filter: Option<String>,
}

/// The arguments as clap has matched them, the environment, and the configuration files.
///
/// clap has read the variables of this process, for the help text. Here, only what `surroundings` knows counts.
pub(super) struct Written<'a, S> {
    pub(super) matches: &'a ArgMatches,
    pub(super) surroundings: &'a S,
    config: Config,
}

impl<'a, S: Surroundings> Written<'a, S> {
    /// For a command that connects: reads the configuration files.
    pub(super) fn with_config(matches: &'a ArgMatches, surroundings: &'a S) -> Result<Self, UsageError> {
        let written = Self::without_config(matches, surroundings);
        let named = matches.get_one::<OsString>("config").cloned();
        let named = written.option("config", "--config", environment::CONFIG, named);
        Ok(Self { config: Config::read(named, surroundings)?, ..written })
    }

    /// For a command that does not connect.
    pub(super) fn without_config(matches: &'a ArgMatches, surroundings: &'a S) -> Self {
        Self { matches, surroundings, config: Config::default() }
    }

    /// The value of an option that is `written`, or else of its variable, or else of its key in a configuration file.
    pub(super) fn option(
        &self,
        id: &str,
        option: &'static str,
        variable: impl Into<Option<&'static str>>,
        written: Option<OsString>,
    ) -> Option<Given> {
        let written = written.filter(|_| self.is_written(id));
        written
            .map(|text| Given::new(option, text))
            .or_else(|| self.variable(variable.into()?))
            .or_else(|| self.config.get(option.trim_start_matches('-')).cloned())
    }

    /// Whether an option is on the command line.
    pub(super) fn is_written(&self, id: &str) -> bool {
        self.matches.value_source(id) == Some(ValueSource::CommandLine)
    }

    /// A flag, or else its variable, or else its key in a configuration file.
    pub(super) fn flag(
        &self,
        id: &str,
        option: &'static str,
        variable: &'static str,
    ) -> Result<Option<Flag>, UsageError> {
        let written = self.is_written(id).then(|| "1".into());
        let given = self.option(id, option, variable, written);
        given.map(|given| Ok(Flag { is_on: given.read(yes_or_no)?, origin: given.origin })).transpose()
    }

    /// A variable; an empty one counts as unset.
    fn variable(&self, name: &'static str) -> Option<Given> {
        let text = self.surroundings.variable(name).filter(|text| !text.is_empty())?;
        Some(Given { origin: Origin::Variable(name), key: "", text })
    }

    pub(super) fn access(&self, written: groups::Connecting) -> Result<Access, UsageError> {
        let mut settings: Vec<_> = self.config.files().collect();
        let given = self.option("zookeeper", "--zookeeper", environment::ZOOKEEPER, Some(written.zookeeper));
        let servers_given = given.is_some();
        let given = given.unwrap_or_else(|| Given::default("--zookeeper", cli::DEFAULT_ZOOKEEPER));
        let servers = given.read(str::parse::<ConnectString>)?;
        settings.push(given.setting("zookeeper", servers.to_string()));
        let given = self
            .option("connect_timeout", "--connect-timeout", None, Some(written.connect_timeout))
            .unwrap_or_else(|| Given::default("--connect-timeout", cli::DEFAULT_CONNECT_TIMEOUT));
        let connect_timeout = given.read(connect_timeout)?;
        settings.push(given.setting("connect-timeout", duration::show(connect_timeout)));
        Ok(Access {
            tls: tls::read(self, written.tls, &servers, &mut settings)?,
            login: login::read(self, written.login, &mut settings)?,
            servers_given,
            servers,
            connect_timeout,
            settings,
        })
    }

    pub(super) fn session_timeout(&self, written: groups::Asked) -> Result<(Duration, Setting), UsageError> {
        let text = Some(written.session_timeout);
        let given = self
            .option("session_timeout", "--session-timeout", environment::SESSION_TIMEOUT, text)
            .unwrap_or_else(|| Given::default("--session-timeout", cli::DEFAULT_SESSION_TIMEOUT));
        let timeout = given.read(session_timeout)?;
        Ok((timeout, given.setting("session-timeout", duration::show(timeout))))
    }

    pub(super) fn messages(&self, written: groups::Messages) -> Result<Messages, UsageError> {
        Ok(Messages {
            verbosity: match (written.quiet, written.verbose) {
                (true, _) => Verbosity::Quiet,
                (false, 0) => Verbosity::Normal,
                (false, times) => Verbosity::Verbose(times),
            },
            log_filter: self.variable(environment::LOG).map(|given| given.read(log_filter)).transpose()?,
        })
    }
}

#[derive(Clone, Debug)]
pub(super) struct Flag {
    pub(super) is_on: bool,
    pub(super) origin: Origin,
}

/// The package whose modules log.
const LOGGING: &str = "zklock";

/// env_filter would take a misspelt level for the name of a module.
fn log_filter(text: &str) -> Result<String, String> {
    let is_module = |path: &str| path.split("::").next() == Some(LOGGING);
    let is_known = |part: &str| part.contains('=') || part.parse::<LevelFilter>().is_ok() || is_module(part);
    // After a slash comes a text to look for in messages.
    let levels = text.split('/').next().unwrap_or(text);
    let are_known = levels.split(',').map(str::trim).filter(|part| !part.is_empty()).all(is_known);
    match env_filter::Builder::new().try_parse(text) {
        Ok(_) if are_known => Ok(text.to_owned()),
        _ => Err("write levels, for all or for modules, such as debug or warn,zklock::session=debug".to_owned()),
    }
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err("write 1 or 0".to_owned()),
    }
}

pub(super) fn connect_timeout(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        Duration::ZERO => Err("no server can answer in no time; write a longer one, such as 15s".to_owned()),
        timeout => Ok(timeout),
    }
}
