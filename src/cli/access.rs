//! What every command that connects reads alike: where the servers are, how long to try, how much to say.

use std::time::Duration;

use log::LevelFilter;

use super::config::Surroundings;
use super::options::{CONNECT_TIMEOUT, QUIET, VERBOSE, ZOOKEEPER};
use super::origin::{Given, Origin, Setting};
use super::tls;
use super::values::Values;
use super::{UsageError, Verbosity, login};
use crate::cli::environment;
use crate::rules::duration;
use crate::zookeeper::login::Login;
use crate::zookeeper::net::address::ConnectString;
use crate::zookeeper::net::tls::Tls;

/// How to reach the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The servers, and the chroot that all paths are relative to.
    pub servers: ConnectString,
    /// The user has named the servers, by option, variable or file.
    pub servers_given: bool,
    /// `--connect-timeout`
    pub connect_timeout: Duration,
    /// How connections are encrypted. `None`: they are not.
    pub tls: Option<Tls>,
    /// Who we are to the servers.
    pub login: Login,
    /// Where all of this comes from, and the configuration files that were read.
    pub settings: Vec<Setting>,
}

/// How much to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Messages {
    /// By the flags.
    pub verbosity: Verbosity,
    /// A filter in env_logger's syntax; where given, it replaces the log level that `verbosity` implies.
    pub log_filter: Option<String>,
}

impl Access {
    pub(super) fn read(values: &Values<'_, impl Surroundings>) -> Result<Self, UsageError> {
        let mut settings: Vec<_> = values.config.files().collect();
        let (servers, given) = values.required(&ZOOKEEPER, str::parse::<ConnectString>)?;
        let servers_given = given.origin != Origin::Default;
        settings.push(given.setting(servers.to_string()));
        let (connect_timeout, given) = values.required(&CONNECT_TIMEOUT, connect_timeout)?;
        settings.push(given.setting(duration::show(connect_timeout)));
        Ok(Self {
            tls: tls::read(values, &servers, &mut settings)?,
            login: login::read(values, &mut settings)?,
            servers_given,
            servers,
            connect_timeout,
            settings,
        })
    }
}

impl Messages {
    pub(super) fn read(values: &Values<'_, impl Surroundings>) -> Result<Self, UsageError> {
        let log_filter = values.variable(environment::LOG).map(|text| Given {
            origin: Origin::Variable(environment::LOG),
            name: "",
            text,
        });
        Ok(Self {
            verbosity: match (values.is_on(&QUIET), values.count(&VERBOSE)) {
                (true, _) => Verbosity::Quiet,
                (false, 0) => Verbosity::Normal,
                (false, times) => Verbosity::Verbose(times),
            },
            log_filter: log_filter.map(|given| given.read(log_filter_of)).transpose()?,
        })
    }
}

/// The package whose modules log.
const LOGGING: &str = "zklock";

/// env_filter would take a misspelt level for the name of a module.
fn log_filter_of(text: &str) -> Result<String, String> {
    let is_module = |path: &str| path.split("::").next() == Some(LOGGING);
    let is_known = |part: &str| part.contains('=') || part.parse::<LevelFilter>().is_ok() || is_module(part);
    // After a slash comes a text to look for in messages.
    let levels = text.split('/').next().unwrap_or(text);
    let are_known = levels.split(',').map(str::trim).filter(|part| !part.is_empty()).all(is_known);
    match env_filter::Builder::new().try_parse(text) {
        Ok(_) if are_known => Ok(text.to_owned()),
        _ => {
            Err("write levels, for all or for modules, such as debug or warn,zklock::zookeeper::session=debug"
                .to_owned())
        }
    }
}

pub(super) fn connect_timeout(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        Duration::ZERO => Err("no server can answer in no time; write a longer one, such as 15s".to_owned()),
        timeout => Ok(timeout),
    }
}
