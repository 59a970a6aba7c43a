//! `zklock fence`: run a command where the work is done, unless a later holder has been there.

use std::ffi::OsString;

use clap::{CommandFactory as _, Parser, ValueHint};

use super::groups::Messages;
use crate::environment;

/// `--kill-after` when it is not given.
pub const DEFAULT_KILL_AFTER: &str = "5s";

/// The command line in short.
pub(super) const USAGE: &str = "zklock fence [OPTIONS] FILE [--] COMMAND [ARG]...";

const AFTER_LONG_HELP: &str = "\
It belongs on the machine that a command under a lock works on: at the other end of an ssh, in a
container. It needs no ZooKeeper. FILE keeps the highest fencing token that has been there, and
FILE.lock says which command runs. A command with a lower token is refused, or stopped when one
with a higher token comes; one with the same token is waited for. So a holder that has lost its
lock does no more harm there, whatever it has left behind.

zklock fence ends when the command and all that it has started have ended.

Example:
  zklock /jobs/sync -c '
    ssh db2 zklock fence --token \"$ZKLOCK_TOKEN\" /var/lib/sync/fence ./apply'

Exit status:
  The command's own; when a signal killed the command, zklock dies of the same signal.
   64  the arguments make no sense, there is no token, or FILE is something else
   70  FILE or FILE.lock cannot be read or written, or another internal error
   76  a later holder has been here, or has come and the command has been stopped
  126  the command cannot be executed
  127  the command was not found
  zklock is killed by the signal that interrupts it while it waits.";

/// The command line as it was written.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "zklock fence",
    about = "Run a command unless a later holder of the lock has been here",
    override_usage = USAGE,
    after_long_help = AFTER_LONG_HELP,
    max_term_width = 100,
    args_override_self = true,
)]
pub struct Cli {
    /// The file that keeps the highest token; it is made where there is none
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: OsString,

    /// The command to run, and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,

    /// The fencing token, as the command of the lock's holder finds it in ZKLOCK_TOKEN
    ///
    /// ssh and docker do not pass on the variable, so it is best to give it here.
    #[arg(
        long,
        value_name = "N",
        env = environment::TOKEN,
        hide_env_values = true,
        allow_negative_numbers = true,
        value_hint = ValueHint::Other,
        help_heading = "Fence"
    )]
    pub token: Option<OsString>,

    /// Time from the stop signal, SIGTERM, to SIGKILL when a later holder comes
    ///
    /// 0 sends SIGKILL at once.
    #[arg(
        short = 'k',
        long,
        value_name = "DURATION",
        default_value = DEFAULT_KILL_AFTER,
        allow_negative_numbers = true,
        value_hint = ValueHint::Other,
        help_heading = "Fence"
    )]
    pub kill_after: OsString,

    /// How much to say.
    #[command(flatten)]
    pub messages: Messages,
}

/// The definition that parsing, help, man page and completions share.
pub fn command() -> clap::Command {
    Cli::command().mut_arg("quiet", |quiet| quiet.help("Be silent while waiting; errors are still printed"))
}
