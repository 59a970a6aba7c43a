//! The table of options: a row is all that is known of one, and its help. A form ([`super::forms`]) says which a
//! subcommand has, and [`super::values`] where the value of one comes from.

use clap::ValueHint;

use super::environment;
use super::meaning::{connect_timeout, protection, session_timeout};
use super::option::{KeyKind, Opt};
use crate::zookeeper::net::address::ConnectString;

pub(super) const ZOOKEEPER: Opt = Opt {
    short: Some('z'),
    default: Some("localhost:2181"),
    variable: Some("ZKLOCK_ZOOKEEPER"),
    key: Some(KeyKind::Text(|text| text.parse::<ConnectString>().map(drop))),
    more: "The default port is 2181. Write IPv6 addresses in brackets, and the chroot once, at the end; it must exist.",
    value: Some("HOST:PORT,...[/CHROOT]"),
    ..Opt::new("zookeeper", "ZooKeeper", "ZooKeeper servers, separated by commas, and an optional chroot")
};

pub(super) const CONNECT_TIMEOUT: Opt = Opt {
    default: Some("15s"),
    key: Some(KeyKind::Duration(|text| connect_timeout(text).map(drop))),
    value: Some("DURATION"),
    ..Opt::new("connect-timeout", "ZooKeeper", "Give up when no server has answered for this long at the start")
};

pub(super) const CONFIG: Opt = Opt {
    variable: Some("ZKLOCK_CONFIG"),
    is_rare: true,
    hint: ValueHint::FilePath,
    more: "Without it, ~/.config/zklock.toml and /etc/zklock.toml are read if they exist. They are in TOML, and the keys are \
     names of options: zookeeper = \"zk1,zk2\". An option wins over its variable, that over the user's file, and that \
     over the system's.",
    value: Some("FILE"),
    ..Opt::new("config", "ZooKeeper", "Take settings from this file and from no other; /dev/null is none")
};

pub(super) const TLS: Opt = Opt {
    variable: Some("ZKLOCK_TLS"),
    key: Some(KeyKind::Switch),
    more: "TLS 1.2 and 1.3 are spoken. Name the servers' secureClientPort in --zookeeper. A server's certificate must be \
     signed by a CA that is trusted, and be for the name or the address by which --zookeeper calls the server. The \
     other options of TLS imply this one.",
    ..Opt::new("tls", "TLS", "Encrypt with TLS; see --tls-ca, --tls-cert and --tls-key")
};

pub(super) const TLS_CA: Opt = Opt {
    variable: Some("ZKLOCK_TLS_CA"),
    key: Some(KeyKind::Path),
    is_rare: true,
    hint: ValueHint::FilePath,
    more: "One or several certificates, in PEM. As with the other files: it is read again for each new connection if it has \
     changed.",
    value: Some("FILE"),
    ..Opt::new(
        "tls-ca",
        "TLS",
        "Trust the CAs whose certificates are in this file [default: those that the system trusts]",
    )
};

pub(super) const TLS_CERT: Opt = Opt {
    variable: Some("ZKLOCK_TLS_CERT"),
    key: Some(KeyKind::Path),
    is_rare: true,
    hint: ValueHint::FilePath,
    more: "In PEM, followed by the certificates of intermediate CAs if there are any.",
    value: Some("FILE"),
    ..Opt::new("tls-cert", "TLS", "Show this certificate to servers that ask for one")
};

pub(super) const TLS_KEY: Opt = Opt {
    variable: Some("ZKLOCK_TLS_KEY"),
    key: Some(KeyKind::Path),
    is_rare: true,
    hint: ValueHint::FilePath,
    more: "In PEM (PKCS#8, SEC1 or PKCS#1), and not encrypted.",
    value: Some("FILE"),
    ..Opt::new("tls-key", "TLS", "Private key of --tls-cert [default: in the same file]")
};

pub(super) const TLS_NO_VERIFY_HOSTNAME: Opt = Opt {
    variable: Some("ZKLOCK_TLS_NO_VERIFY_HOSTNAME"),
    key: Some(KeyKind::Switch),
    is_rare: true,
    more: "Any server with a certificate of a trusted CA can then pass for a ZooKeeper server.",
    ..Opt::new("tls-no-verify-hostname", "TLS", "Accept a certificate that is for another name")
};

pub(super) const AUTH: Opt = Opt {
    variable: Some("ZKLOCK_AUTH"),
    is_rare: true,
    more: "sasl:USER:PASSWORD logs in by SASL (DIGEST-MD5), and gssapi:zookeeper by Kerberos, if that is built in. \
     --auth-file and the variable hide the password. COMMAND gets the variable as well.",
    value: Some("SCHEME:CREDENTIAL"),
    ..Opt::new("auth", "Login", "Log in, as in digest:USER:PASSWORD; every user can see it with ps")
};

pub(super) const AUTH_FILE: Opt = Opt {
    key: Some(KeyKind::Path),
    hint: ValueHint::FilePath,
    more: "Empty lines and those that begin with # are skipped. The file is read once, at the start. If it is a pipe, its end \
     is waited for, and no timeout counts before that. /dev/null is no login, in place of that of a configuration file.",
    value: Some("FILE"),
    ..Opt::new("auth-file", "Login", "Log in with what is in this file, one SCHEME:CREDENTIAL a line")
};

pub(super) const ACL: Opt = Opt {
    key: Some(KeyKind::Text(|text| protection(text).map(drop))),
    more: "open: anyone may do everything with them; this is the default without a login. creator: only this login. read, the \
     default with a login: others may read them, and may queue below a lock that is created, so that several users can \
     share it. The certificate of --tls-cert is a login for this option, but not for its default.",
    value: Some("WHO"),
    ..Opt::new("acl", "Login", "Who else may use the nodes that are created: open, creator, read")
};

pub(super) const SESSION_TIMEOUT: Opt = Opt {
    default: Some("30s"),
    variable: Some("ZKLOCK_SESSION_TIMEOUT"),
    key: Some(KeyKind::Duration(|text| session_timeout(text).map(drop))),
    more: "The servers may grant another one, and then that one counts. With a long timeout the command survives longer \
     outages of ZooKeeper; with a short one the next holder starts sooner after this machine has died.",
    value: Some("DURATION"),
    ..Opt::new("session-timeout", "ZooKeeper", "Session timeout to ask for")
};

pub(super) const EXCLUSIVE: Opt = Opt {
    short: Some('x'),
    other_short: Some('e'),
    ..Opt::new("exclusive", "Lock", "Take the lock for one holder (the default)")
};

pub(super) const SHARED: Opt = Opt {
    short: Some('s'),
    more: "First come, first served: readers behind a waiting writer wait.",
    ..Opt::new("shared", "Lock", "Take a read lock: readers hold together, a writer (--exclusive) alone")
};

pub(super) const PERMITS: Opt = Opt {
    short: Some('p'),
    more: "Every run that takes permits of a lock must give the same N.",
    value: Some("N"),
    ..Opt::new("permits", "Lock", "Take one of N permits: at most N hold at a time")
};

pub(super) const AND: Opt = Opt {
    is_repeated: true,
    more: "Runs that take several locks with --and do not deadlock with each other, in whatever order they name them. Mode, \
     dialect and --timeout apply to all locks. When one lock is lost, all are.",
    value: Some("LOCK"),
    ..Opt::new("and", "Lock", "Also take this lock: all or none; can be repeated")
};

pub(super) const DIALECT: Opt = Opt {
    more: "Programs that use the lock through another library wait for zklock only if they know its node names; zklock knows \
     theirs. Use curator for Curator's InterProcessMutex, ZooKeeper's WriteLock, go-zookeeper and others whose nodes \
     end in \"-lock-\" and a number; curator-rw for Curator's InterProcessReadWriteLock; kazoo for kazoo. Name several, \
     separated by commas, where several kinds of program share the lock. Without this option zklock uses curator, and \
     refuses (78) a lock that kazoo uses.\n\nWith single, the lock is one ephemeral node, LOCK/lock, as some programs have it: the one that creates it holds. \
     There is no queue, so the order is not that of arrival, and each release wakes all waiters. No other dialect can \
     be added, nor --shared or --permits.",
    value: Some("NAME[,NAME...]"),
    ..Opt::new("dialect", "Lock", "Whose node names to use: curator, curator-rw, kazoo; or single")
};

pub(super) const NONBLOCK: Opt = Opt {
    short: Some('n'),
    other: Some("nb"),
    more: "It wins over --timeout when both are given, as with flock(1).",
    ..Opt::new("nonblock", "Lock", "Give up at once when the lock is not free")
};

pub(super) const TIMEOUT: Opt = Opt {
    short: Some('w'),
    other: Some("wait"),
    variable: Some("ZKLOCK_TIMEOUT"),
    more: "The time counts from the start and covers everything: connecting, queueing, reconnecting, queueing anew. 0 means \
     --nonblock.",
    value: Some("DURATION"),
    ..Opt::new("timeout", "Lock", "Give up after this long; without it, wait for ever")
};

pub(super) const CONFLICT_EXIT_CODE: Opt = Opt {
    short: Some('E'),
    default: Some("75"),
    value: Some("STATUS"),
    ..Opt::new("conflict-exit-code", "Lock", "Exit status when another contender has the lock, 0 to 255")
};

pub(super) const DESCRIBE: Opt = Opt {
    more: "One line of at most 200 characters; anything else is refused.",
    value: Some("TEXT"),
    ..Opt::new("describe", "Lock", "A text that others see while the lock is held or waited for")
};

pub(super) const SIGNAL: Opt = Opt {
    default: Some("TERM"),
    more: "By name or by number: TERM, SIGINT, RTMIN+1, 15.",
    value: Some("SIGNAL"),
    ..Opt::new("signal", "Command", "Signal that stops the command when the lock is lost, or after --max-run")
};

pub(super) const KILL_AFTER: Opt = Opt {
    short: Some('k'),
    more: "It must fit into the session timeout; a longer one is refused. The default is shortened where it does not fit. 0 \
     sends SIGKILL at once.",
    value: Some("DURATION"),
    ..Opt::new("kill-after", "Command", "Time from the stop signal to SIGKILL [default: 5s, or less]")
};

pub(super) const QUIET: Opt = Opt {
    short: Some('q'),
    rival: Some("verbose"),
    ..Opt::new("quiet", "Messages", "Be silent while waiting and when the lock is not free; errors are still printed")
};

pub(super) const VERBOSE: Opt = Opt {
    short: Some('v'),
    more: "The variable ZKLOCK_LOG selects more precisely, in the filter syntax of env_logger: ZKLOCK_LOG=debug, \
     ZKLOCK_LOG=zklock=trace.",
    rival: Some("quiet"),
    is_repeated: true,
    ..Opt::new(
        "verbose",
        "Messages",
        "Say what zklock does; -vv also why, and -vvv also how much goes over the network",
    )
};

pub(super) const ONCE_PER: Opt = Opt {
    more: "So the same crontab on several hosts runs a job once each time: choose a time that is shorter than from one run to \
     the next, such as 50m for a job of each hour. It counts on ZooKeeper's clock, from the start of the last run under \
     this lock that ended with status 0 to the moment at which this run queued; so hosts that have waited through a run \
     skip theirs. After a run that failed or was stopped, the next in the queue runs. For exclusive locks.",
    value: Some("DURATION"),
    ..Opt::new(
        "once-per",
        "Lock",
        "Skip the command, with status 0, if the last successful run began less than this ago",
    )
};

pub(super) const PUBLISH_COMMAND: Opt = Opt {
    more: "Without it they see only the command's name, because arguments may hold secrets.",
    ..Opt::new("publish-command", "Lock", "Show others the command's arguments as well")
};

pub(super) const COMMAND: Opt = Opt {
    short: Some('c'),
    hint: ValueHint::CommandString,
    is_repeated: true,
    value: Some("SHELL COMMAND"),
    ..Opt::new("command", "Command", "Run this through $SHELL -c (or /bin/sh -c) instead of COMMAND")
};

pub(super) const MAX_RUN: Opt = Opt {
    more: "Everything that the command has started is stopped with it. The time counts from the start of the command, also \
     while it is suspended (Ctrl-Z). 0 means no limit.",
    value: Some("DURATION"),
    ..Opt::new("max-run", "Command", "Stop the command when it has run for this long, and exit with 124")
};

pub(super) const WAIT_DESCENDANTS: Opt = Opt {
    more: "This includes daemons. The exit status is the command's own.",
    ..Opt::new(
        "wait-descendants",
        "Command",
        "Hold the lock until every descendant of the command has ended, not just the command",
    )
};

pub(super) const ON_LOST: Opt = Opt {
    hint: ValueHint::CommandString,
    more: "It runs without the lock, and zklock waits for it. The exit status stays 76.",
    value: Some("SHELL COMMAND"),
    ..Opt::new(
        "on-lost",
        "Command",
        "Run this through $SHELL -c when the lock was lost and the command has been stopped",
    )
};

pub(super) const WHILE: Opt = Opt {
    more: "The process also gets the stop signal, and what descends from it may use the lock.",
    value: Some("PID"),
    ..Opt::new("while", "Hold", "Hold until this process ends, whatever standard input is")
};

pub(super) const NO_SIGNAL: Opt = Opt::new("no-signal", "Hold", "Send no signal to the caller when the lock is lost");

pub(super) const TOKEN: Opt = Opt {
    variable: Some(environment::TOKEN),
    more: "ssh and docker do not pass on the variable, so it is best to give it here.",
    value: Some("N"),
    ..Opt::new("token", "Fence", "The fencing token, as the command of the lock's holder finds it in ZKLOCK_TOKEN")
};

pub(super) const FENCE_KILL_AFTER: Opt = Opt {
    short: Some('k'),
    default: Some("5s"),
    more: "0 sends SIGKILL at once.",
    value: Some("DURATION"),
    ..Opt::new("kill-after", "Fence", "Time from the stop signal, SIGTERM, to SIGKILL when a later holder comes")
};

pub(super) const STATUS_JSON: Opt = Opt::new("json", "Output", "Print JSON, as docs/status.schema.json describes it");

pub(super) const WATCH: Opt = Opt {
    more: "On a terminal the picture is redrawn; elsewhere it is printed anew, with --json as one object a line. Lost \
     connections are restored.",
    ..Opt::new("watch", "Output", "Print again whenever something changes, until interrupted")
};

pub(super) const LIST_JSON: Opt = Opt::new("json", "Output", "Print JSON, as docs/list.schema.json describes it");

pub(super) const COMPLETE: Opt = Opt {
    is_hidden: true,
    value: Some("PREFIX"),
    ..Opt::new("complete", "", "Print the paths that may follow what begins like this, for the completions of shells")
};

pub(super) const NODE: Opt = Opt {
    more: "Without it, the holder that is there now is shown, and zklock asks. So it must be given where there is no \
     terminal: the holder may have changed since it was looked at.",
    value: Some("NAME"),
    ..Opt::new("node", "Break", "The contender's node, by its name or its path, as `zklock status --json` shows it")
};

pub(super) const FORCE: Opt =
    Opt::new("force", "Break", "Delete the contender's node; the next one may start before this one has stopped");

pub(super) const BREAK_TIMEOUT: Opt = Opt {
    short: Some('w'),
    default: Some("10s"),
    value: Some("DURATION"),
    ..Opt::new("timeout", "Break", "How long to wait until the contender has gone")
};

pub(super) const CHECK_JSON: Opt = Opt::new("json", "Output", "Print JSON, as docs/check.schema.json describes it");

pub(super) const HOLD_SIGNAL: Opt =
    Opt { heading: "Hold", help: "Signal that the caller gets when the lock is lost", ..SIGNAL };

pub(super) const HOLD_KILL_AFTER: Opt = Opt {
    heading: "Hold",
    help: "Time from that signal to the end of the lock [default: 5s, or less]",
    more: "It must fit into the session timeout; a longer one is refused.",
    ..KILL_AFTER
};

pub(super) const FENCE_QUIET: Opt = Opt { help: "Be silent while waiting; errors are still printed", ..QUIET };

pub(super) const STATUS_QUIET: Opt =
    Opt { help: "Print nothing; exit with 0 if one of the locks is held, else 1", ..QUIET };

pub(super) const LIST_QUIET: Opt = Opt { help: "Show no progress; the list and errors are still printed", ..QUIET };

pub(super) const BREAK_QUIET: Opt =
    Opt { help: "Say nothing of a contender that is not there or does not go", ..QUIET };

pub(super) const CHECK_QUIET: Opt = Opt { help: "Print nothing; the exit status tells", ..QUIET };

pub(super) const CHECK_CONNECT_TIMEOUT: Opt =
    Opt { help: "How long each server has to answer everything", ..CONNECT_TIMEOUT };

/// How to reach the servers.
pub(super) const CONNECTING: &[Opt] =
    &[ZOOKEEPER, CONNECT_TIMEOUT, CONFIG, TLS, TLS_CA, TLS_CERT, TLS_KEY, TLS_NO_VERIFY_HOSTNAME, AUTH, AUTH_FILE];

/// How to take a lock.
pub(super) const TAKING: &[Opt] =
    &[ACL, SESSION_TIMEOUT, EXCLUSIVE, SHARED, PERMITS, AND, DIALECT, NONBLOCK, TIMEOUT, CONFLICT_EXIT_CODE, DESCRIBE];

/// What a configuration file may say: what belongs to a machine or a user.
pub(super) const KEYS: &[Opt] = &[
    ZOOKEEPER,
    CONNECT_TIMEOUT,
    SESSION_TIMEOUT,
    TLS,
    TLS_CA,
    TLS_CERT,
    TLS_KEY,
    TLS_NO_VERIFY_HOSTNAME,
    AUTH_FILE,
    ACL,
];
