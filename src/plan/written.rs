//! What every command reads alike: where the servers are, how long to try, how much to say.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgMatches;
use clap::parser::ValueSource;
use log::LevelFilter;

use super::login;
use super::refusal::quoted;
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
    /// The user has named the servers, by option or variable.
    pub servers_given: bool,
    /// `--connect-timeout`
    pub connect_timeout: Duration,
    /// How connections are encrypted. `None`: they are not.
    pub tls: Option<Tls>,
    /// Who we are to the servers.
    pub login: Login,
}

/// How much to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Messages {
    /// By the flags.
    pub verbosity: Verbosity,
    /// A filter in env_logger's syntax; where given, it replaces the log level that `verbosity` implies.
    pub log_filter: Option<String>,
}

/// The arguments as clap has matched them, and the environment.
///
/// clap has read the variables of this process, for the help text. Here, only what `environment` knows counts.
pub(super) struct Written<'a, E> {
    pub(super) matches: &'a ArgMatches,
    pub(super) environment: E,
}

impl<E: Fn(&str) -> Option<OsString>> Written<'_, E> {
    /// The value of an option that is `written`, or else of its variable.
    pub(super) fn option(
        &self,
        id: &str,
        origin: &'static str,
        name: &'static str,
        written: Option<OsString>,
    ) -> Option<Given> {
        let written = written.filter(|_| self.is_written(id));
        written.map(|text| Given { origin, text }).or_else(|| self.variable(name))
    }

    /// Whether an option is on the command line.
    pub(super) fn is_written(&self, id: &str) -> bool {
        self.matches.value_source(id) == Some(ValueSource::CommandLine)
    }

    /// A flag, or else its variable.
    pub(super) fn flag(&self, id: &str, name: &'static str) -> Result<Option<Flag>, UsageError> {
        if self.is_written(id) {
            return Ok(Some(Flag { is_on: true, is_option: true }));
        }
        let is_on = self.variable(name).map(|given| given.read(yes_or_no)).transpose()?;
        Ok(is_on.map(|is_on| Flag { is_on, is_option: false }))
    }

    /// A variable; an empty one counts as unset.
    fn variable(&self, name: &'static str) -> Option<Given> {
        let text = (self.environment)(name).filter(|text| !text.is_empty())?;
        Some(Given { origin: name, text })
    }

    pub(super) fn access(&self, written: groups::Connecting) -> Result<Access, UsageError> {
        let servers = self.option("zookeeper", "--zookeeper", environment::ZOOKEEPER, Some(written.zookeeper));
        let servers_given = servers.is_some();
        let servers = servers
            .unwrap_or_else(|| Given::new("--zookeeper", cli::DEFAULT_ZOOKEEPER))
            .read(str::parse::<ConnectString>)?;
        Ok(Access {
            tls: tls::read(self, written.tls, &servers)?,
            login: login::read(self, written.login)?,
            servers_given,
            servers,
            connect_timeout: Given::new("--connect-timeout", written.connect_timeout).read(connect_timeout)?,
        })
    }

    pub(super) fn session_timeout(&self, written: groups::Asked) -> Result<Duration, UsageError> {
        let text = Some(written.session_timeout);
        self.option("session_timeout", "--session-timeout", environment::SESSION_TIMEOUT, text)
            .unwrap_or_else(|| Given::new("--session-timeout", cli::DEFAULT_SESSION_TIMEOUT))
            .read(session_timeout)
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

/// What was said of a flag.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag {
    pub(super) is_on: bool,
    /// By an option, not by a variable.
    pub(super) is_option: bool,
}

/// A value, and the option or variable to name when it makes no sense.
pub(super) struct Given {
    origin: &'static str,
    text: OsString,
}

impl Given {
    pub(super) fn new(origin: &'static str, text: impl Into<OsString>) -> Self {
        Self { origin, text: text.into() }
    }

    /// It was written on the command line.
    pub(super) fn is_option(&self) -> bool {
        self.origin.starts_with('-')
    }

    /// The path of a file.
    pub(super) fn path(&self) -> Result<PathBuf, UsageError> {
        if self.text.is_empty() {
            return Err(UsageError(format!("{} '': write the path of a file", self.origin)));
        }
        Ok(PathBuf::from(&self.text))
    }

    pub(super) fn read<T>(&self, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<T, UsageError> {
        self.text
            .to_str()
            .ok_or_else(|| "not UTF-8; write it in UTF-8".to_owned())
            .and_then(parse)
            .map_err(|why| UsageError(format!("{} {}: {why}", self.origin, quoted(&self.text))))
    }
}

/// The package whose modules log.
const LOGGING: &str = "zklock";

/// env_logger itself would only warn of a filter that it cannot read, and ignore it. It would take a misspelt
/// level for the name of a module.
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

fn connect_timeout(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        Duration::ZERO => Err("no server can answer in no time; write a longer one, such as 15s".to_owned()),
        timeout => Ok(timeout),
    }
}
