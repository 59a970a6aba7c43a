//! The main job: take a lock, run a command, release the lock.

use std::ffi::OsString;

use clap::{ArgAction, CommandFactory as _, Parser, ValueHint};

use super::groups::{Asked, Connecting, Messages, Protecting, Stopping, Taking};

const USAGE: &str = "zklock [OPTIONS] LOCK [OPTIONS] [--] COMMAND [ARG]...
       zklock [OPTIONS] LOCK -c 'SHELL COMMAND'
       zklock hold [OPTIONS] LOCK
       zklock status [OPTIONS] LOCK...
       zklock list [OPTIONS] [ROOT]
       zklock break [OPTIONS] LOCK
       zklock check [OPTIONS] [LOCK]
       zklock fence [OPTIONS] FILE [--] COMMAND [ARG]...";

const AFTER_HELP: &str = "\
--help says more, with examples and exit statuses; see also zklock(1).
zklock help status and so on describe the subcommands.";

const AFTER_LONG_HELP: &str = "\
Subcommands, which zklock help hold and so on describe; the subcommand is the first argument:
  hold    take a lock for a script or a service, without a command
  status  show the holders and the waiters of locks
  list    list the locks that are in use
  break   ask a contender to give up a lock
  check   say whether the servers are fit for what zklock promises
  fence   run a command unless a later holder of the lock has been here

Durations:
  30 and 1.5 are seconds; 500ms, 90s, 5m, 1h30m, 2d have their units.

Examples:
  Back up from one host at a time; the others wait for their turn:
    zklock -z zk1,zk2,zk3 /jobs/backup -- ./backup.sh --full

  From cron on every host, each hour; one of them runs it:
    /usr/bin/zklock -q --once-per 50m /jobs/report -- /usr/local/bin/report

  At most three at a time, from any number of hosts:
    zklock --permits 3 /downloads ./fetch.sh

  Wait five minutes at most, and use a shell:
    zklock -w 5m /deploy -c 'git pull && make install'

Exit status:
  The command's own; when a signal killed the command, zklock dies of the same signal.
   64  the arguments make no sense, or do not fit what the servers grant
   69  no ZooKeeper server answered in time
   70  internal error
   75  another contender had the lock (--conflict-exit-code changes it)
   76  the lock was lost while the command ran; the command has been stopped
   77  ZooKeeper denied access: an ACL forbids it, or the login or certificate is refused
   78  the lock cannot be used as asked, or the chroot does not exist
  124  the command ran for longer than --max-run; it has been stopped
  126  the command cannot be executed
  127  the command was not found
  zklock is killed by the signal that interrupts it while it waits.

See zklock(1) for the rest: signals, environment, loss of the lock.";

/// The command line as it was written.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "zklock",
    version,
    about = "Take a ZooKeeper lock, run a command while it is held, release it",
    override_usage = USAGE,
    after_help = AFTER_HELP,
    after_long_help = AFTER_LONG_HELP,
    max_term_width = 100,
    args_override_self = true,
    next_line_help = false
)]
pub struct Cli {
    /// Absolute path of the lock's node, such as /jobs/backup
    ///
    /// Missing parents are created. If --zookeeper has a chroot, the path is relative to it.
    #[arg(value_name = "LOCK", value_hint = ValueHint::Other)]
    pub lock: OsString,

    /// The command to run, and its arguments
    ///
    /// It is executed directly, without a shell. Everything after COMMAND belongs to it, options
    /// included.
    #[arg(value_name = "COMMAND", trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,

    /// How to reach the servers.
    #[command(flatten)]
    pub connecting: Connecting,

    /// Who may do what with the nodes that are created.
    #[command(flatten)]
    pub protecting: Protecting,

    /// Which session to ask for.
    #[command(flatten)]
    pub asked: Asked,

    /// How to take the lock.
    #[command(flatten)]
    pub taking: Taking,

    /// Skip the command, with status 0, if the last successful run began less than this ago
    ///
    /// So the same crontab on several hosts runs a job once each time: choose a time that is shorter
    /// than from one run to the next, such as 50m for a job of each hour. It counts on ZooKeeper's
    /// clock, from the start of the last run under this lock that ended with status 0 to the moment
    /// at which this run queued; so hosts that have waited through a run skip theirs. After a run
    /// that failed or was stopped, the next in the queue runs. For exclusive locks.
    #[arg(
        long,
        value_name = "DURATION",
        allow_negative_numbers = true,
        value_hint = ValueHint::Other,
        help_heading = "Lock"
    )]
    pub once_per: Option<OsString>,

    /// Show others the command's arguments as well
    ///
    /// Without it they see only the command's name, because arguments may hold secrets.
    #[arg(long, help_heading = "Lock")]
    pub publish_command: bool,

    /// Run this through $SHELL -c (or /bin/sh -c) instead of COMMAND
    #[arg(
        short = 'c',
        long = "command",
        value_name = "SHELL COMMAND",
        action = ArgAction::Append,
        allow_hyphen_values = true,
        value_hint = ValueHint::CommandString,
        help_heading = "Command"
    )]
    pub shell_command: Vec<OsString>,

    /// How the command is stopped.
    #[command(flatten)]
    pub stopping: Stopping,

    /// Stop the command when it has run for this long, and exit with 124
    ///
    /// Everything that the command has started is stopped with it. The time counts from the start of
    /// the command, also while it is suspended (Ctrl-Z). 0 means no limit.
    #[arg(
        long,
        value_name = "DURATION",
        allow_negative_numbers = true,
        value_hint = ValueHint::Other,
        help_heading = "Command"
    )]
    pub max_run: Option<OsString>,

    /// Hold the lock until every descendant of the command has ended, not just the command
    ///
    /// This includes daemons. The exit status is the command's own.
    #[arg(long, help_heading = "Command")]
    pub wait_descendants: bool,

    /// Run this through $SHELL -c when the lock was lost and the command has been stopped
    ///
    /// It runs without the lock, and zklock waits for it. The exit status stays 76.
    #[arg(
        long,
        value_name = "SHELL COMMAND",
        allow_hyphen_values = true,
        value_hint = ValueHint::CommandString,
        help_heading = "Command"
    )]
    pub on_lost: Option<OsString>,

    /// How much to say.
    #[command(flatten)]
    pub messages: Messages,
}

/// The definition that parsing, help, man page and completions share.
pub fn command() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment;
    use crate::rules::outcome::{CONFLICT_EXIT_CODE, EXIT_STATUS};
    use crate::rules::signal::Signal;

    #[test]
    fn the_definition_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn the_long_help_lists_every_exit_status() {
        for (status, _) in EXIT_STATUS.iter().filter(|(status, _)| status.parse::<u8>().is_ok()) {
            let begins_a_line = |line: &str| line.split_whitespace().next() == Some(status);
            assert!(AFTER_LONG_HELP.lines().any(begins_a_line), "{status} is missing");
        }
    }

    #[test]
    fn defaults_are_those_of_the_rules() {
        let cli = Cli::try_parse_from(["zklock", "/l", "true"]).unwrap();
        assert_eq!(cli.taking.conflict_exit_code.to_str(), Some(CONFLICT_EXIT_CODE.to_string().as_str()));
        assert_eq!(cli.stopping.signal.to_str().map(str::parse), Some(Ok(Signal::TERM)));
    }

    #[test]
    fn help_names_every_variable_and_no_value_of_one() {
        let help = command().render_long_help().to_string();
        for name in [environment::ZOOKEEPER, environment::TIMEOUT, environment::SESSION_TIMEOUT] {
            assert!(help.contains(&format!("[env: {name}]")), "{name}");
        }
        assert!(help.contains(environment::LOG));
    }
}
