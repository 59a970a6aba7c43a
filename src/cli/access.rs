//! What every command that connects reads alike: where the servers are, how long to try, how much to say.

use std::time::Duration;

use super::config::Surroundings;
use super::login;
use super::meaning::{connect_timeout, log_filter_of};
use super::options::{CONNECT_TIMEOUT, QUIET, VERBOSE, ZOOKEEPER};
use super::origin::{Given, Origin, Setting};
use super::plan::Verbosity;
use super::refusal::UsageError;
use super::tls;
use super::values::Values;
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
