//! `zklock list`: the locks below a path.

use std::ffi::OsString;

use clap::{CommandFactory as _, Parser, ValueHint};

use super::groups::{Connecting, Messages};

/// The command line in short.
pub(super) const USAGE: &str = "zklock list [OPTIONS] [ROOT]";

const AFTER_LONG_HELP: &str = "\
A node is a lock while it has a contender. On a terminal the locks are drawn as a tree; elsewhere
there is one line for each, with tabs between its path, the number of holders, the number of
waiters, and the first holder. Nothing is written to ZooKeeper.

Exit status:
    0  done, even if there is no lock, or no ROOT
   64  the arguments make no sense
   69  no ZooKeeper server answered in time
   70  internal error
   77  ZooKeeper denied access to a part, which is named on standard error
   78  the chroot does not exist";

/// The command line as it was written.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "zklock list",
    about = "List the locks that are in use",
    override_usage = USAGE,
    after_long_help = AFTER_LONG_HELP,
    max_term_width = 100,
    args_override_self = true,
)]
pub struct Cli {
    /// Absolute path of the node at and below which to look for locks
    #[arg(value_name = "ROOT", default_value = "/", value_hint = ValueHint::Other)]
    pub root: OsString,

    /// Print JSON, as docs/list.schema.json describes it
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Print the paths that may follow what begins like this, for the completions of shells
    #[arg(long, value_name = "PREFIX", hide = true, value_hint = ValueHint::Other)]
    pub complete: Option<OsString>,

    /// How to reach the servers.
    #[command(flatten)]
    pub connecting: Connecting,

    /// How much to say.
    #[command(flatten)]
    pub messages: Messages,
}

/// The definition that parsing, help, man page and completions share.
pub fn command() -> clap::Command {
    Cli::command().mut_arg("quiet", |quiet| quiet.help("Show no progress; the list and errors are still printed"))
}
