//! `zklock hold`: take a lock without a command, for a script or a service.

use std::ffi::OsString;

use clap::{CommandFactory as _, Parser, ValueHint};

use super::groups::{Asked, Connecting, Messages, Protecting, Stopping, Taking};

/// The command line in short.
pub(super) const USAGE: &str = "zklock hold [OPTIONS] LOCK";

const AFTER_LONG_HELP: &str = "\
It takes the lock, prints ZKLOCK_TOKEN and the like as lines for a shell, closes standard output,
and holds until it is told to stop: until standard input is closed, if that is a pipe, a socket or
a terminal; or by SIGTERM or SIGHUP. It does not go to the background, so $(zklock hold ...) would
wait for ever.

When the lock is lost, it sends the stop signal to the process that has started it, and ends with
76. Nothing stops a script that does not end at that signal: run the work as a command of zklock
where it must not run without the lock.

Examples:
  From here to the end of a bash script:
    ZKLOCK_TOKEN=    # an outer zklock, or an earlier hold, may have set it
    coproc ZK { exec zklock hold /deploy; }
    hold=$!
    set -a; source /dev/fd/\"${ZK[0]}\"; set +a
    [ -n \"$ZKLOCK_TOKEN\" ] || { wait $hold; exit; }
  To release the lock before the script ends:
    exec {ZK[1]}>&-; wait $hold

  In any shell:
    ZKLOCK_TOKEN=
    dir=$(mktemp -d); mkfifo \"$dir/lock\"
    zklock hold --while $$ /deploy >\"$dir/lock\" & hold=$!
    set -a; . \"$dir/lock\"; set +a; rm -r \"$dir\"
    [ -n \"$ZKLOCK_TOKEN\" ] || { wait $hold; exit; }
  To release the lock before the script ends:
    kill $hold; wait $hold

Exit status:
    0  it was told to stop
   64  the arguments make no sense, or do not fit what the servers grant
   69  no ZooKeeper server answered in time
   70  internal error
   75  another contender had the lock (--conflict-exit-code changes it), or the caller has gone
       while it waited
   76  the lock was lost
   77  ZooKeeper denied access: an ACL forbids it, or the login failed
   78  the lock cannot be used as asked, or the chroot does not exist
  zklock is killed by the signal that interrupts it while it waits.";

/// The command line as it was written.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "zklock hold",
    about = "Take a lock, and hold it until told to stop",
    override_usage = USAGE,
    after_long_help = AFTER_LONG_HELP,
    max_term_width = 100,
    args_override_self = true,
)]
pub struct Cli {
    /// Absolute path of the lock's node, such as /jobs/backup
    #[arg(value_name = "LOCK", value_hint = ValueHint::Other)]
    pub lock: OsString,

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

    /// Hold until this process ends, whatever standard input is
    ///
    /// The process also gets the stop signal, and what descends from it may use the lock.
    #[arg(
        long = "while",
        value_name = "PID",
        allow_negative_numbers = true,
        value_hint = ValueHint::Other,
        help_heading = "Hold"
    )]
    pub lasts_while: Option<OsString>,

    /// Send no signal to the caller when the lock is lost
    #[arg(long, help_heading = "Hold")]
    pub no_signal: bool,

    /// How the caller is stopped.
    #[command(flatten)]
    pub stopping: Stopping,

    /// How much to say.
    #[command(flatten)]
    pub messages: Messages,
}

/// The definition that parsing, help, man page and completions share.
pub fn command() -> clap::Command {
    Cli::command()
        .mut_arg("signal", |signal| {
            signal
                .help("Signal that the caller gets when the lock is lost")
                .long_help(
                    "Signal that the caller gets when the lock is lost\n\nBy name or by number: TERM, SIGINT, RTMIN+1, 15.",
                )
                .help_heading("Hold")
        })
        .mut_arg("kill_after", |kill_after| {
            kill_after
                .help("Time from that signal to the end of the lock [default: 5s, or less]")
                .long_help(
                    "Time from that signal to the end of the lock [default: 5s, or less]\n\nIt must fit into the \
                     session timeout; a longer one is refused.",
                )
                .help_heading("Hold")
        })
}
