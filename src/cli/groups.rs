//! Options that several commands share.

use std::ffi::OsString;

use clap::{ArgAction, Args, ValueHint};

use super::{DEFAULT_CONNECT_TIMEOUT, DEFAULT_SESSION_TIMEOUT, DEFAULT_ZOOKEEPER};
use crate::environment;

/// How to reach the servers.
#[derive(Clone, Debug, Args)]
pub struct Connecting {
    /// ZooKeeper servers, separated by commas, and an optional chroot
    ///
    /// The default port is 2181. Write IPv6 addresses in brackets, and the chroot once, at the end; it
    /// must exist.
    #[arg(
        short = 'z',
        long,
        value_name = "HOST:PORT,...[/CHROOT]",
        env = environment::ZOOKEEPER,
        hide_env_values = true,
        default_value = DEFAULT_ZOOKEEPER,
        value_hint = ValueHint::Other,
        help_heading = "ZooKeeper"
    )]
    pub zookeeper: OsString,

    /// Give up when no server has answered for this long at the start
    #[arg(
        long,
        value_name = "DURATION",
        default_value = DEFAULT_CONNECT_TIMEOUT,
        allow_negative_numbers = true,
        value_hint = ValueHint::Other,
        help_heading = "ZooKeeper"
    )]
    pub connect_timeout: OsString,
}

/// Which session to ask for.
#[derive(Clone, Debug, Args)]
pub struct Asked {
    /// Session timeout to ask for
    ///
    /// The servers may grant another one, and then that one counts. With a long timeout the command
    /// survives longer outages of ZooKeeper; with a short one the next holder starts sooner after
    /// this machine has died.
    #[arg(
        long,
        value_name = "DURATION",
        env = environment::SESSION_TIMEOUT,
        hide_env_values = true,
        default_value = DEFAULT_SESSION_TIMEOUT,
        allow_negative_numbers = true,
        value_hint = ValueHint::Other,
        help_heading = "ZooKeeper"
    )]
    pub session_timeout: OsString,
}

/// How much to say.
#[derive(Clone, Copy, Debug, Args)]
pub struct Messages {
    /// Be silent while waiting and when the lock is not free; errors are still printed
    #[arg(short = 'q', long, overrides_with = "verbose", help_heading = "Messages")]
    pub quiet: bool,

    /// Say more; given twice, it also shows the ZooKeeper client's messages
    ///
    /// The variable ZKLOCK_LOG selects more precisely, in the filter syntax of env_logger:
    /// ZKLOCK_LOG=debug, ZKLOCK_LOG=zklock=trace.
    #[arg(short = 'v', long, action = ArgAction::Count, overrides_with = "quiet", help_heading = "Messages")]
    pub verbose: u8,
}
