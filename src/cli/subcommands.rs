//! The subcommands: their operands, their options, and what their help says.
//!
//! A subcommand is the first argument or it is none: a lock begins with a slash, and so is never taken for one, while
//! everything behind a lock belongs to the command that is run.

use clap::{ArgAction, Command, ValueHint};

use super::forms::{Form, LOCK, command_operand, operand};
use super::option::Texts;
use super::options::*;

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

    pub fn command(self) -> Command {
        self.form().command(Texts::All)
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

const HOLD: Form = Form {
    name: "zklock hold",
    about: "Hold a lock for a script or a service, without a command",
    usage: "zklock hold [OPTIONS] LOCK",
    description: "\
zklock hold takes the lock, prints ZKLOCK_TOKEN and the other variables as lines
for a shell, and closes standard output. It holds until standard input is
closed, if that is a pipe, a socket or a terminal, or until SIGTERM or SIGHUP.
It stays in the foreground: $(zklock hold ...) would wait indefinitely.

After a loss of the lock, it sends the stop signal to the process that started
it, and exits with 76. A shell then ends without the program that it waits for.
So run each step by zklock with the same lock, as below: the step uses the lock
that is held, and is dead before the next holder starts.

Examples:
  From here to the end of a bash script:
    ZKLOCK_TOKEN=    # an outer zklock, or an earlier hold, may have set it
    coproc ZK { exec zklock hold /deploy; }
    hold=$!
    set -a; source /dev/fd/\"${ZK[0]}\"; set +a
    [ -n \"$ZKLOCK_TOKEN\" ] || { wait $hold; exit; }
    zklock /deploy -- ./deploy.sh
  To release the lock before the script ends:
    exec {ZK[1]}>&-; wait $hold

  In any shell like sh:
    ZKLOCK_TOKEN=
    dir=$(mktemp -d); mkfifo \"$dir/lock\"
    exec zklock hold --while $$ /deploy >\"$dir/lock\" & hold=$!
    set -a; . \"$dir/lock\"; set +a; rm -r \"$dir\"
    [ -n \"$ZKLOCK_TOKEN\" ] || { wait $hold; exit; }
    zklock /deploy -- ./deploy.sh
  To release the lock before the script ends:
    kill $hold; wait $hold",
    after_long_help: "\
Exit status:
    0  it was told to stop
   64  usage error, or an option does not fit what the servers grant
   69  no ZooKeeper server answered in time
   70  internal error
   75  the lock was not free, or not in time (--conflict-exit-code changes it),
       or the caller ended during the wait
   76  the lock was lost, or zklock break ended this run
   77  ZooKeeper denied access: an ACL, the login or the certificate
   78  the lock cannot be used as asked; the message says why
  zklock is killed by the signal that interrupts it while it waits.",
    operands: || vec![operand("lock", "LOCK", LOCK).required(true)],
    options: &[&[WHILE, NO_SIGNAL, HOLD_SIGNAL, HOLD_KILL_AFTER], TAKING, CONNECTING, SESSION, &[QUIET, VERBOSE]],
};

const STATUS: Form = Form {
    name: "zklock status",
    about: "Show the holders and the waiters of locks",
    usage: "zklock status [OPTIONS] LOCK...",
    description: "\
One line for each contender, in the order of the queue: its place, whether it
holds, its mode, since when it holds or queues, its session, and its host, user,
process and command. The times are those of ZooKeeper's clock. A further line
shows the last successful run with --once-per.

Examples:
  Which deployment runs, and which is next?
    zklock status /deploy

  In a script: is the lock held?
    zklock status -q /deploy && echo busy

  The host of the first holder:
    zklock status --json /jobs/backup |
        jq -r 'first(.locks[0].contenders[] | select(.holds)).host'",
    after_long_help: "\
Exit status:
    0  done; with -q, one of the locks is held
    1  with -q, none of the locks is held
   64  usage error
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
    description: "\
A node is a lock while it has a contender. zklock list prints one line for each
lock, on a terminal in columns. Elsewhere there are tabs between its path, the
number of holders, the number of waiters, and the first holder. It writes
nothing to ZooKeeper.",
    after_long_help: "\
Exit status:
    0  done, even if there is no lock, or no ROOT
   64  usage error
   69  no ZooKeeper server answered in time
   70  internal error
   77  ZooKeeper denied access to a part, which is named on standard error
   78  the chroot does not exist, or there are more nodes than a list takes",
    operands: || {
        let root = operand("root", "ROOT", "Absolute path: look for locks there and below it");
        vec![root.default_value("/")]
    },
    options: &[&[LIST_JSON, COMPLETE], CONNECTING, &[LIST_QUIET, VERBOSE]],
};

const BREAK: Form = Form {
    name: "zklock break",
    about: "Ask a holder to stop, and to release the lock",
    usage: "zklock break [OPTIONS] LOCK",
    description: "\
A zklock that is asked stops its command, releases the lock, and exits with 76.
Then the next contender starts. Curator's revocable locks can be asked as well;
other clients cannot. --force deletes the contender's node: the next contender
may then start before this one has stopped.

Examples:
  On a terminal: show who holds the lock, and ask before ending it:
    zklock break /jobs/backup

  In a script: end the holder that was seen, and no other holder:
    zklock status --json /jobs/backup |
        jq -er 'first(.locks[0].contenders[] | select(.holds)).node'
    zklock break --node NODE /jobs/backup",
    after_long_help: "\
Exit status:
    0  the contender has gone
    1  the answer to the question was no
   64  usage error, or there is no terminal and no --node
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
    about: "Check that the servers meet zklock's requirements",
    usage: "zklock check [OPTIONS] [LOCK]",
    description: "\
zklock check asks every address of every server for its role, its version, its
session timeouts and its speed. It then says what to fix, and which outage a
command survives. It creates nothing. With LOCK, it asks the servers whether the
login may use that path.

Examples:
  Before the first lock, and after a change of the servers:
    zklock check -z zk1,zk2,zk3 /jobs/backup

  For monitoring:
    zklock check -q -z zk1,zk2,zk3 || alert",
    after_long_help: "\
Exit status:
    0  everything is fine
    1  something needs fixing
   64  usage error
   69  no ZooKeeper server answered in time
   70  internal error
   77  an ACL forbids what LOCK needs, or no server accepts this client
   78  the chroot does not exist, or a server is ClickHouse Keeper",
    operands: || {
        let help = "Absolute path of a lock's node: may this login use it?";
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
    about: "Refuse the work of an earlier holder on another host",
    usage: "zklock fence [OPTIONS] FILE [--] COMMAND [ARG]...",
    description: "\
zklock fence runs on the host that a command under a lock works on: at the
other end of an ssh, or in a container. It needs no ZooKeeper. FILE keeps the
highest fencing token that came; FILE.lock says which command runs. zklock fence
refuses a command with a lower token, and stops a running command before it
starts one with a higher token. Commands with the same token take turns.

It ends when the command and everything it has started have ended.

Example:
  zklock /jobs/sync -c '
    ssh db2 zklock fence --token \"$ZKLOCK_TOKEN\" /var/lib/sync/fence ./apply'",
    after_long_help: "\
Exit status:
  The command's own; when a signal killed the command, zklock dies of the same signal.
   64  usage error, there is no token, or FILE is something else
   70  FILE or FILE.lock cannot be read or written, or another internal error
   76  a later holder was here, or came and the command was stopped
  126  the command cannot be executed
  127  the command was not found
  zklock is killed by the signal that interrupts it while it waits.",
    operands: || {
        let file = operand("file", "FILE", "File that keeps the highest token; created if it is missing");
        vec![file.required(true).value_hint(ValueHint::FilePath), command_operand()]
    },
    options: &[&[TOKEN, FENCE_KILL_AFTER, FENCE_QUIET, VERBOSE]],
};
