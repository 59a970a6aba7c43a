//! The main job and the subcommands: their operands, their options, and what their help says besides.
//!
//! A subcommand is the first argument or it is none: a lock begins with a slash, and so is never taken for one, while
//! everything behind a lock belongs to the command that is run.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command, ValueHint, value_parser};

use super::option::Opt;
use super::options::*;

/// A subcommand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subcommand {
    Hold,
    Status,
    List,
    Break,
    Check,
    Fence,
}

impl Subcommand {
    /// All of them, in the order of the documents.
    pub const ALL: [Self; 6] = [Self::Hold, Self::Status, Self::List, Self::Break, Self::Check, Self::Fence];

    /// The one of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|subcommand| subcommand.name() == name)
    }

    /// The first argument.
    pub fn name(self) -> &'static str {
        self.form().name.rsplit(' ').next().unwrap_or_default()
    }

    /// The whole command line in short.
    pub const fn usage(self) -> &'static str {
        self.form().usage
    }

    /// Its definition, with its help.
    pub fn command(self) -> Command {
        self.form().command(true)
    }

    pub(super) const fn form(self) -> &'static Form {
        match self {
            Self::Hold => &HOLD,
            Self::Status => &STATUS,
            Self::List => &LIST,
            Self::Break => &BREAK,
            Self::Check => &CHECK,
            Self::Fence => &FENCE,
        }
    }
}

/// The definition of the main job, with its help.
pub fn command() -> Command {
    JOB.command(true)
}

/// What a command line consists of.
#[derive(Debug)]
pub(super) struct Form {
    name: &'static str,
    about: &'static str,
    usage: &'static str,
    after_help: &'static str,
    after_long_help: &'static str,
    operands: fn() -> Vec<Arg>,
    options: &'static [&'static [Opt]],
}

/// What is no option. Shells are told not to complete it by themselves.
fn operand(id: &'static str, name: &'static str, help: &'static str) -> Arg {
    Arg::new(id).value_name(name).value_parser(value_parser!(OsString)).value_hint(ValueHint::Other).help(help)
}

const LOCK: &str = "Absolute path of the lock's node, such as /jobs/backup";

/// The command that is run, which is everything that follows.
fn command_operand() -> Arg {
    let operand = operand("command", "COMMAND", COMMAND_HELP).value_hint(ValueHint::CommandWithArguments);
    operand.num_args(1..).action(ArgAction::Append).trailing_var_arg(true)
}

const COMMAND_HELP: &str = "The command to run, and its arguments";

impl Form {
    /// Whether there is an option of this name.
    pub(super) fn has(&self, long: &str) -> bool {
        self.options.iter().copied().flatten().any(|option| option.long == long)
    }

    /// The definition for clap. A command line that asks for no help is read without the texts, which takes half the time.
    pub(super) fn command(&self, has_help: bool) -> Command {
        let options = self.options.iter().copied().flatten();
        let command = Command::new(self.name)
            .args((self.operands)())
            .args(options.map(|option| option.arg(has_help)))
            .args_override_self(true);
        let command = if self.name == JOB.name { command.version(env!("CARGO_PKG_VERSION")) } else { command };
        if !has_help {
            return command;
        }
        let command = command.about(self.about).override_usage(self.usage).max_term_width(100);
        let command = if self.after_help.is_empty() { command } else { command.after_help(self.after_help) };
        command.after_long_help(self.after_long_help)
    }
}

pub(super) const JOB: Form = Form {
    name: "zklock",
    about: "Take a ZooKeeper lock, run a command while it is held, release it",
    usage: "zklock [OPTIONS] LOCK [OPTIONS] [--] COMMAND [ARG]...
       zklock [OPTIONS] LOCK -c 'SHELL COMMAND'
       zklock hold [OPTIONS] LOCK
       zklock status [OPTIONS] LOCK...
       zklock list [OPTIONS] [ROOT]
       zklock break [OPTIONS] LOCK
       zklock check [OPTIONS] [LOCK]
       zklock fence [OPTIONS] FILE [--] COMMAND [ARG]...",
    after_help: "\
--help says more, with examples and exit statuses; see also zklock(1).
zklock help status and so on describe the subcommands.",
    after_long_help: "\
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

See zklock(1) for the rest: signals, environment, loss of the lock.",
    operands: || {
        let lock = "Missing parents are created. If --zookeeper has a chroot, the path is relative to it.";
        let command =
            "It is executed directly, without a shell. Everything after COMMAND belongs to it, options included.";
        vec![
            operand("lock", "LOCK", LOCK).required(true).long_help(format!("{LOCK}\n\n{lock}")),
            command_operand().long_help(format!("{COMMAND_HELP}\n\n{command}")),
        ]
    },
    options: &[
        CONNECTING,
        TAKING,
        &[ONCE_PER, PUBLISH_COMMAND, COMMAND, SIGNAL, KILL_AFTER, MAX_RUN, WAIT_DESCENDANTS, ON_LOST],
        &[QUIET, VERBOSE],
    ],
};

const HOLD: Form = Form {
    name: "zklock hold",
    about: "Take a lock, and hold it until told to stop",
    usage: "zklock hold [OPTIONS] LOCK",
    after_help: "",
    after_long_help: "\
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
  zklock is killed by the signal that interrupts it while it waits.",
    operands: || vec![operand("lock", "LOCK", LOCK).required(true)],
    options: &[CONNECTING, TAKING, &[WHILE, NO_SIGNAL, HOLD_SIGNAL, HOLD_KILL_AFTER], &[QUIET, VERBOSE]],
};

const STATUS: Form = Form {
    name: "zklock status",
    about: "Show the holders and the waiters of locks",
    usage: "zklock status [OPTIONS] LOCK...",
    after_help: "",
    after_long_help: "\
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
   78  the chroot does not exist",
    operands: || {
        let locks = operand("locks", "LOCK", "Absolute path of a lock's node");
        vec![locks.required(true).num_args(1..).action(ArgAction::Append)]
    },
    options: &[&[STATUS_JSON, WATCH], CONNECTING, &[STATUS_QUIET, VERBOSE]],
};

const LIST: Form = Form {
    name: "zklock list",
    about: "List the locks that are in use",
    usage: "zklock list [OPTIONS] [ROOT]",
    after_help: "",
    after_long_help: "\
A node is a lock while it has a contender. On a terminal the locks are drawn as a tree; elsewhere
there is one line for each, with tabs between its path, the number of holders, the number of
waiters, and the first holder. Nothing is written to ZooKeeper.

Exit status:
    0  done, even if there is no lock, or no ROOT
   64  the arguments make no sense
   69  no ZooKeeper server answered in time
   70  internal error
   77  ZooKeeper denied access to a part, which is named on standard error
   78  the chroot does not exist",
    operands: || {
        let root = operand("root", "ROOT", "Absolute path of the node at and below which to look for locks");
        vec![root.default_value("/")]
    },
    options: &[&[LIST_JSON, COMPLETE], CONNECTING, &[LIST_QUIET, VERBOSE]],
};

const BREAK: Form = Form {
    name: "zklock break",
    about: "Ask a contender to give up a lock",
    usage: "zklock break [OPTIONS] LOCK",
    after_help: "",
    after_long_help: "\
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
   78  the contender cannot be asked, or the chroot does not exist",
    operands: || vec![operand("lock", "LOCK", "Absolute path of the lock's node").required(true)],
    options: &[&[NODE, FORCE, BREAK_TIMEOUT], CONNECTING, &[BREAK_QUIET, VERBOSE]],
};

const CHECK: Form = Form {
    name: "zklock check",
    about: "Say whether the servers are fit for what zklock promises",
    usage: "zklock check [OPTIONS] [LOCK]",
    after_help: "",
    after_long_help: "\
Every address of every server is asked: what it is, which session timeouts it grants, how fast it
answers. Then come what is to be mended, and what a command lives through on these servers. Nothing
is created; with LOCK, the servers are asked whether it would be permitted. All sessions are closed.

Examples:
  Before the first lock, and after a change of the servers:
    zklock check -z zk1,zk2,zk3 /jobs/backup

  For monitoring:
    zklock check -q -z zk1,zk2,zk3 || alert

Exit status:
    0  all is well
    1  something is to be mended
   64  the arguments make no sense
   69  no ZooKeeper server answered in time
   70  internal error
   77  an ACL forbids what LOCK needs, or the servers want another certificate
   78  the chroot does not exist",
    operands: || {
        let help = "Absolute path of a lock's node: may it be read, and children created below it?";
        vec![operand("lock", "LOCK", help)]
    },
    options: &[
        &[CHECK_JSON, ZOOKEEPER, CHECK_CONNECT_TIMEOUT],
        CONNECTING.split_at(2).1,
        &[SESSION_TIMEOUT, CHECK_QUIET, VERBOSE],
    ],
};

const FENCE: Form = Form {
    name: "zklock fence",
    about: "Run a command unless a later holder of the lock has been here",
    usage: "zklock fence [OPTIONS] FILE [--] COMMAND [ARG]...",
    after_help: "",
    after_long_help: "\
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
  zklock is killed by the signal that interrupts it while it waits.",
    operands: || {
        let file = operand("file", "FILE", "The file that keeps the highest token; it is made where there is none");
        vec![file.required(true).value_hint(ValueHint::FilePath), command_operand()]
    },
    options: &[&[TOKEN, FENCE_KILL_AFTER, FENCE_QUIET, VERBOSE]],
};
