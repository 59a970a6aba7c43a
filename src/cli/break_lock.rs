//! `zklock break`: end a holder, or take a waiter out of the queue.

use std::ffi::OsString;

use clap::{CommandFactory as _, Parser, ValueHint};

use super::groups::{Connecting, Messages};

/// `--timeout` when it is not given.
pub const DEFAULT_TIMEOUT: &str = "10s";

/// The command line in short.
pub(super) const USAGE: &str = "zklock break [OPTIONS] LOCK";

const AFTER_LONG_HELP: &str = "\
A zklock that is asked stops its command, releases the lock, and exits with 76; the next contender
starts after that. So does a revocable lock of Curator. Other clients cannot be asked. With --force
the contender's node is deleted; then the next contender may start before this one has stopped.

Examples:
  On a terminal: show who holds the lock, and ask before ending it:
    zklock break /jobs/backup

  In a script: end the holder that was seen, and never another one:
    node=$(zklock status --json /jobs/backup | jq -r '.locks[0].contenders[0].node')
    zklock break --node \"$node\" /jobs/backup

Exit status:
    0  the contender has gone
    1  the answer to the question was no
   64  the arguments make no sense, or there is no terminal and no --node
   69  no ZooKeeper server answered in time
   70  internal error
   75  no such contender is there any more, or it has not gone in time
   77  ZooKeeper denied access
   78  the contender cannot be asked, or the chroot does not exist";

/// The command line as it was written.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "zklock break",
    about = "Ask a contender to give up a lock",
    override_usage = USAGE,
    after_long_help = AFTER_LONG_HELP,
    max_term_width = 100,
    args_override_self = true,
)]
pub struct Cli {
    /// Absolute path of the lock's node
    #[arg(value_name = "LOCK", value_hint = ValueHint::Other)]
    pub lock: OsString,

    /// The contender's node, by its name or its path, as `zklock status --json` shows it
    ///
    /// Without it, the holder that is there now is shown, and zklock asks. So it must be given where there is no
    /// terminal: the holder may have changed since it was looked at.
    #[arg(long, value_name = "NAME", value_hint = ValueHint::Other, help_heading = "Break")]
    pub node: Option<OsString>,

    /// Delete the contender's node; the next one may start before this one has stopped
    #[arg(long, help_heading = "Break")]
    pub force: bool,

    /// How long to wait until the contender has gone
    #[arg(
        short = 'w',
        long,
        value_name = "DURATION",
        default_value = DEFAULT_TIMEOUT,
        allow_negative_numbers = true,
        value_hint = ValueHint::Other,
        help_heading = "Break"
    )]
    pub timeout: OsString,

    /// How to reach the servers.
    #[command(flatten)]
    pub connecting: Connecting,

    /// How much to say.
    #[command(flatten)]
    pub messages: Messages,
}

/// The definition that parsing, help, man page and completions share.
pub fn command() -> clap::Command {
    Cli::command().mut_arg("quiet", |quiet| quiet.help("Say nothing of a contender that is not there or does not go"))
}
