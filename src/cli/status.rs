//! `zklock status`: the holders and the waiters of locks.

use std::ffi::OsString;

use clap::{CommandFactory as _, Parser, ValueHint};

use super::groups::{Connecting, Messages};

/// The command line in short.
pub(super) const USAGE: &str = "zklock status [OPTIONS] LOCK...";

const AFTER_LONG_HELP: &str = "\
One line for each contender, in the order of the queue: its place, whether it holds the lock, its
mode, since when it holds or queues, its session, and what is known of it. Times are those of
ZooKeeper's clock. What other clients have stored is made safe to print. A further line tells of the
last successful run with --once-per.

Examples:
  Which deployment runs, and which is next?
    zklock status /deploy

  In a script: is the lock held?
    zklock status -q /deploy && echo busy

  The hosts of all holders:
    zklock status --json /jobs/backup | jq -r '.locks[].contenders[] | select(.holds) | .host'

Exit status:
    0  done; with -q, one of the locks is held
    1  with -q, none of the locks is held
   64  the arguments make no sense
   69  no ZooKeeper server answered in time
   70  internal error
   77  ZooKeeper denied access to a lock
   78  the chroot does not exist";

/// The command line as it was written.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "zklock status",
    about = "Show the holders and the waiters of locks",
    override_usage = USAGE,
    after_long_help = AFTER_LONG_HELP,
    max_term_width = 100,
    args_override_self = true,
)]
pub struct Cli {
    /// Absolute path of a lock's node
    #[arg(value_name = "LOCK", required = true, value_hint = ValueHint::Other)]
    pub locks: Vec<OsString>,

    /// Print JSON, as docs/status.schema.json describes it
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Print again whenever something changes, until interrupted
    ///
    /// On a terminal the picture is redrawn; elsewhere it is printed anew, with --json as one object a line. Lost
    /// connections are restored.
    #[arg(long, help_heading = "Output")]
    pub watch: bool,

    /// How to reach the servers.
    #[command(flatten)]
    pub connecting: Connecting,

    /// How much to say.
    #[command(flatten)]
    pub messages: Messages,
}

/// The definition that parsing, help, man page and completions share.
pub fn command() -> clap::Command {
    Cli::command()
        .mut_arg("quiet", |quiet| quiet.help("Print nothing; exit with 0 if one of the locks is held, else 1"))
}
