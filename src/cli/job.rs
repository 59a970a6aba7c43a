//! The main job: take a lock, run a command, release the lock.

use std::ffi::OsString;

use clap::{CommandFactory as _, Parser, ValueHint};

use super::groups::{Asked, Connecting, Messages};
use crate::environment;

const USAGE: &str = "zklock [OPTIONS] LOCK [OPTIONS] [--] COMMAND [ARG]...
       zklock [OPTIONS] LOCK -c 'SHELL COMMAND'
       zklock status [OPTIONS] LOCK...
       zklock list [OPTIONS] [ROOT]
       zklock break [OPTIONS] LOCK
       zklock check [OPTIONS] [LOCK]
       zklock fence [OPTIONS] FILE [--] COMMAND [ARG]...";

const AFTER_HELP: &str = "\
--help says more, with examples and exit statuses; see also zklock(1).
zklock status --help and so on describe the subcommands.";

const AFTER_LONG_HELP: &str = "\
Subcommands, each with a --help of its own; the subcommand is the first argument:
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

  From cron on every host; skip the run while another host does it:
    /usr/local/bin/zklock -q -n -E 0 /jobs/report -- /usr/local/bin/report

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
   77  ZooKeeper denied access: an ACL forbids it, or the login failed
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

    /// Which session to ask for.
    #[command(flatten)]
    pub asked: Asked,

    /// Take the lock for one holder (the default)
    #[arg(short = 'x', long, visible_short_alias = 'e', help_heading = "Lock")]
    pub exclusive: bool,

    /// Take a read lock: readers hold together, a writer (--exclusive) alone
    ///
    /// First come, first served: readers behind a waiting writer wait.
    #[arg(short = 's', long, help_heading = "Lock")]
    pub shared: bool,

    /// Take one of N permits: at most N hold at a time
    ///
    /// Every run that takes permits of a lock must give the same N.
    #[arg(short = 'p', long, value_name = "N", allow_negative_numbers = true, value_hint = ValueHint::Other, help_heading = "Lock")]
    pub permits: Option<OsString>,

    /// Also take this lock: all or none; can be repeated
    ///
    /// Runs that take several locks with --and do not deadlock with each other, in whatever order
    /// they name them. Mode, dialect and --timeout apply to all locks. When one lock is lost, all
    /// are.
    #[arg(long, value_name = "LOCK", value_hint = ValueHint::Other, help_heading = "Lock")]
    pub and: Vec<OsString>,

    /// Whose node names to use: curator, curator-rw, kazoo
    ///
    /// Programs that use the lock through another library wait for zklock only if they know its node
    /// names; zklock knows theirs. Use curator for Curator's InterProcessMutex, ZooKeeper's WriteLock,
    /// go-zookeeper and others whose nodes end in "-lock-" and a number; curator-rw for Curator's
    /// InterProcessReadWriteLock; kazoo for kazoo. Name several, separated by commas, where several
    /// kinds of program share the lock. Without this option zklock uses curator, and refuses (78) a
    /// lock that kazoo uses.
    #[arg(long, value_name = "NAME[,NAME...]", value_hint = ValueHint::Other, help_heading = "Lock")]
    pub dialect: Option<OsString>,

    /// Give up at once when the lock is not free
    ///
    /// It wins over --timeout when both are given, as with flock(1).
    #[arg(short = 'n', long, visible_alias = "nb", help_heading = "Lock")]
    pub nonblock: bool,

    /// Give up after this long; without it, wait for ever
    ///
    /// The time counts from the start and covers everything: connecting, queueing, reconnecting,
    /// queueing anew. 0 means --nonblock.
    #[arg(
        short = 'w',
        long,
        visible_alias = "wait",
        value_name = "DURATION",
        env = environment::TIMEOUT,
        hide_env_values = true,
        allow_negative_numbers = true,
        value_hint = ValueHint::Other,
        help_heading = "Lock"
    )]
    pub timeout: Option<OsString>,

    /// Exit status when another contender has the lock, 0 to 255
    #[arg(
        short = 'E',
        long,
        value_name = "STATUS",
        default_value = "75",
        allow_negative_numbers = true,
        value_hint = ValueHint::Other,
        help_heading = "Lock"
    )]
    pub conflict_exit_code: OsString,

    /// A text that others see while the lock is held or waited for
    #[arg(long, value_name = "TEXT", value_hint = ValueHint::Other, help_heading = "Lock")]
    pub describe: Option<OsString>,

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
        allow_hyphen_values = true,
        value_hint = ValueHint::CommandString,
        help_heading = "Command"
    )]
    pub shell_command: Option<OsString>,

    /// Signal that stops the command when the lock is lost, or after --max-run
    ///
    /// By name or by number: TERM, SIGINT, RTMIN+1, 15.
    #[arg(long, value_name = "SIGNAL", default_value = "TERM", value_hint = ValueHint::Other, help_heading = "Command")]
    pub signal: OsString,

    /// Time from the stop signal to SIGKILL [default: 5s, or less]
    ///
    /// It must fit into the session timeout; a longer one is refused. The default is shortened where
    /// it does not fit. 0 sends SIGKILL at once.
    #[arg(
        short = 'k',
        long,
        value_name = "DURATION",
        allow_negative_numbers = true,
        value_hint = ValueHint::Other,
        help_heading = "Command"
    )]
    pub kill_after: Option<OsString>,

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
        assert_eq!(cli.conflict_exit_code.to_str(), Some(CONFLICT_EXIT_CODE.to_string().as_str()));
        assert_eq!(cli.signal.to_str().map(str::parse), Some(Ok(Signal::TERM)));
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
