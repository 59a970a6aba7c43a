//! What every command that connects reads alike: where the servers are, how long to try, how much to say.

use std::time::Duration;

use super::login;
use super::options::{CONNECT_TIMEOUT, QUIET, VERBOSE, ZOOKEEPER};
use super::origin::{Origin, Setting};
use super::tls;
use super::values::Values;
use crate::rules::duration;
use crate::zookeeper::login::Login;
use crate::zookeeper::net::address::ConnectString;
use crate::zookeeper::net::tls::Tls;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The servers, and the chroot that all paths are relative to.
    pub servers: ConnectString,
    /// The user has named the servers, by option, variable or file.
    pub servers_given: bool,
    /// `--connect-timeout`. Of `zklock check` it may be zero: then it does not wait for a server.
    pub connect_timeout: Duration,
    /// How connections are encrypted. `None`: they are not.
    pub tls: Option<Tls>,
    pub login: Login,
    /// Where all of this comes from, and the configuration files that were read.
    pub origins: Vec<Setting>,
}

/// How much to say on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    /// Errors; nothing while waiting, nothing about a lock that is not free.
    Quiet,
    /// What a user needs to know.
    Normal,
    /// More, by the number of `-v`: with 1, what zklock does; with 2, why; with 3, what comes and goes over the network.
    Verbose(u8),
}

impl Access {
    /// `connect_timeout`: what that option may be.
    pub(super) fn read(
        values: &Values<'_>,
        connect_timeout: impl FnOnce(&str) -> Result<Duration, String>,
    ) -> Result<Self, String> {
        let mut origins = values.config.files.clone();
        let (servers, given) = values.required(&ZOOKEEPER, str::parse::<ConnectString>)?;
        let servers_given = given.origin != Origin::Default;
        origins.push(given.setting(servers.to_string()));
        let (connect_timeout, given) = values.required(&CONNECT_TIMEOUT, connect_timeout)?;
        origins.push(given.setting(duration::show(connect_timeout)));
        Ok(Self {
            tls: tls::read(values, &servers, &mut origins)?,
            login: login::read(values, &mut origins)?,
            servers_given,
            servers,
            connect_timeout,
            origins,
        })
    }
}

impl Verbosity {
    pub(super) fn read(values: &Values<'_>) -> Self {
        match (values.is_written(&QUIET), values.count(&VERBOSE)) {
            (true, _) => Self::Quiet,
            (false, 0) => Self::Normal,
            (false, times) => Self::Verbose(times),
        }
    }
}
