//! The table of options: a row is all that is known of one, and its help. A form ([`super::forms`]) says which a
//! subcommand has, and [`super::values`] where the value of one comes from.

use clap::ValueHint;

use super::environment;
use super::meaning::{connect_timeout, lock_delay, protection, session_timeout};
use super::option::{KeyKind, Opt};
use crate::zookeeper::net::address::ConnectString;

pub(super) const ZOOKEEPER: Opt = Opt {
    short: Some('z'),
    default: Some("localhost:2181"),
    variable: Some("ZKLOCK_ZOOKEEPER"),
    key: Some(KeyKind::Text(|text| text.parse::<ConnectString>().map(drop))),
    more: "The default port is 2181. Write IPv6 addresses in brackets. The chroot comes once, at the end, and must exist.",
    value: Some("SERVERS"),
    ..Opt::access("zookeeper", "Connection", "HOST:PORT,...[/CHROOT], or localhost:2181")
};

pub(super) const CONNECT_TIMEOUT: Opt = Opt {
    is_rare: true,
    default: Some("15s"),
    key: Some(KeyKind::Duration(|text| connect_timeout(text).map(drop))),
    value: Some("DURATION"),
    ..Opt::access("connect-timeout", "Connection", "Give up if no server answers within this time at the start")
};

pub(super) const CONFIG: Opt = Opt {
    variable: Some("ZKLOCK_CONFIG"),
    is_rare: true,
    hint: ValueHint::FilePath,
    more: "By default zklock reads ~/.config/zklock.toml and /etc/zklock.toml if they exist. The keys are names of options: \
     zookeeper = \"zk1,zk2\". Precedence: option, then variable, then the user's file, then the system's file.",
    value: Some("FILE"),
    ..Opt::access("config", "Connection", "Read this configuration file and no other; /dev/null stands for no file")
};

pub(super) const TLS: Opt = Opt {
    is_rare: true,
    variable: Some("ZKLOCK_TLS"),
    key: Some(KeyKind::Switch),
    more: "Name the servers' secureClientPort in --zookeeper. A trusted CA must have signed the server's certificate, and the \
     certificate must be for the name or the address in --zookeeper. The other TLS options imply this option.",
    ..Opt::access("tls", "TLS", "Encrypt the connection with TLS 1.2 or 1.3")
};

pub(super) const TLS_CA: Opt = Opt {
    variable: Some("ZKLOCK_TLS_CA"),
    key: Some(KeyKind::Path),
    is_rare: true,
    hint: ValueHint::FilePath,
    more: "The file has one or several certificates in PEM. zklock reads a changed file again before the next connection, also \
     those of --tls-cert and --tls-key.",
    value: Some("FILE"),
    ..Opt::access("tls-ca", "TLS", "Trust the CAs whose certificates are in this file [default: the CAs of the system]")
};

pub(super) const TLS_CERT: Opt = Opt {
    variable: Some("ZKLOCK_TLS_CERT"),
    key: Some(KeyKind::Path),
    is_rare: true,
    hint: ValueHint::FilePath,
    more: "The file is in PEM. The certificates of intermediate CAs follow that of the client.",
    value: Some("FILE"),
    ..Opt::access("tls-cert", "TLS", "Show this certificate to servers that ask for a certificate")
};

pub(super) const TLS_KEY: Opt = Opt {
    variable: Some("ZKLOCK_TLS_KEY"),
    key: Some(KeyKind::Path),
    is_rare: true,
    hint: ValueHint::FilePath,
    more: "The file is in PEM (PKCS#8, SEC1 or PKCS#1), and is not encrypted.",
    value: Some("FILE"),
    ..Opt::access("tls-key", "TLS", "Private key of --tls-cert [default: in the same file]")
};

pub(super) const TLS_NO_VERIFY_HOSTNAME: Opt = Opt {
    variable: Some("ZKLOCK_TLS_NO_VERIFY_HOSTNAME"),
    key: Some(KeyKind::Switch),
    is_rare: true,
    more: "Any server with a certificate of a trusted CA can then pretend to be a ZooKeeper server.",
    ..Opt::access("tls-no-verify-hostname", "TLS", "Accept a certificate for another name")
};

pub(super) const AUTH: Opt = Opt {
    variable: Some("ZKLOCK_AUTH"),
    is_rare: true,
    more: "sasl:USER:PASSWORD logs in by SASL (DIGEST-MD5), and gssapi:zookeeper by Kerberos. --auth-file and \
     the variable hide the password. COMMAND gets the variable as well.",
    value: Some("SCHEME:CREDENTIAL"),
    ..Opt::access("auth", "Login", "Log in, as in digest:USER:PASSWORD; every user can see it with ps")
};

pub(super) const AUTH_FILE: Opt = Opt {
    is_rare: true,
    key: Some(KeyKind::Path),
    hint: ValueHint::FilePath,
    more: "zklock skips empty lines and lines that begin with #. It reads the file once, at the start, or a pipe to its end, while the \
     timeouts count. Use /dev/null to ignore the auth-file of a configuration file.",
    value: Some("FILE"),
    ..Opt::access("auth-file", "Login", "Log in with this file, one SCHEME:CREDENTIAL a line")
};

pub(super) const ACL: Opt = Opt {
    is_rare: true,
    key: Some(KeyKind::Text(|text| protection(text).map(drop))),
    more: "open: anyone may read, change and delete them; this is the default without a login. creator: only this login \
     may use them. read: others may read them, and may queue below a lock that zklock creates; this is the default with a \
     login. With this option, a certificate of --tls-cert counts as a login; without it, a certificate alone leaves the \
     nodes open.",
    value: Some("WHO"),
    ..Opt::access("acl", "Login", "Who else may use the nodes that zklock creates: open, creator, read")
};

pub(super) const SESSION_TIMEOUT: Opt = Opt {
    is_rare: true,
    default: Some("30s"),
    variable: Some("ZKLOCK_SESSION_TIMEOUT"),
    key: Some(KeyKind::Duration(|text| session_timeout(text).map(drop))),
    more: "The servers may grant another timeout, which then counts. With a long timeout the command survives longer outages of \
     ZooKeeper; with a short one the next holder starts sooner after this host has died.",
    value: Some("DURATION"),
    ..Opt::access("session-timeout", "Connection", "Session timeout to ask for")
};

pub(super) const EXCLUSIVE: Opt = Opt {
    is_rare: true,
    short: Some('x'),
    other_short: Some('e'),
    ..Opt::new("exclusive", "Lock", "Take the lock for one holder (the default)")
};

pub(super) const SHARED: Opt = Opt {
    short: Some('s'),
    more: "Readers hold together; a writer (--exclusive) holds alone. Readers behind a waiting writer wait.",
    ..Opt::new("shared", "Lock", "Take a read lock")
};

pub(super) const PERMITS: Opt = Opt {
    short: Some('p'),
    more: "At most N hold at a time, and every run that takes permits of a lock must give the same N.",
    value: Some("N"),
    ..Opt::new("permits", "Lock", "Take one of N permits")
};

pub(super) const AND: Opt = Opt {
    is_rare: true,
    is_repeated: true,
    more: "Runs with --and do not deadlock with each other, whatever the order of their locks. Mode, dialect and --timeout apply \
     to all locks. A loss of one lock counts as a loss of all.",
    value: Some("LOCK"),
    ..Opt::new("and", "Lock", "Also take this lock: all or none; can be repeated")
};

pub(super) const DIALECT: Opt = Opt {
    is_rare: true,
    more: "Programs of another library wait for zklock only if they know the names of its nodes; zklock always knows theirs. Use \
     curator for Curator's InterProcessMutex, ZooKeeper's WriteLock, go-zookeeper and others whose nodes end in \"-lock-\" and a \
     number; curator-rw for Curator's InterProcessReadWriteLock; kazoo for kazoo. Separate several by commas. Without \
     this option zklock uses curator, and refuses (78) a lock that kazoo uses.\n\nWith single, the lock is one ephemeral node, LOCK/lock. There is no queue: waiters hold in any order, and each \
     release wakes all of them. single excludes other dialects, --shared and --permits.",
    value: Some("NAME[,NAME...]"),
    ..Opt::new("dialect", "Lock", "Node names to use: curator, curator-rw, kazoo; or single")
};

pub(super) const NONBLOCK: Opt = Opt {
    short: Some('n'),
    other: Some("nb"),
    more: "It wins over --timeout, as with flock(1).",
    ..Opt::new("nonblock", "Lock", "Give up at once if the lock is not free (75)")
};

pub(super) const TIMEOUT: Opt = Opt {
    short: Some('w'),
    other: Some("wait"),
    variable: Some("ZKLOCK_TIMEOUT"),
    more: "The time counts from the start and covers everything: connecting, queueing, reconnecting, queueing anew. 0 means \
     --nonblock. If no server answers at the end, the status is 69.",
    value: Some("DURATION"),
    ..Opt::new("timeout", "Lock", "Give up after this time (75); else wait forever")
};

pub(super) const LOCK_DELAY: Opt = Opt {
    is_rare: true,
    variable: Some("ZKLOCK_LOCK_DELAY"),
    key: Some(KeyKind::Duration(|text| lock_delay(text).map(drop))),
    more: "This is for work that zklock cannot kill, as behind ssh. An end is clean if no signal kills the command, and it \
     exits before a loss, a time limit or a stop by a signal to zklock. After any other end, the next run with this option \
     waits out the longer of both delays. Give it to all runs of a lock, because a run without it neither waits nor delays \
     others. Readers wait, but delay nobody. It is at most 1h.",
    value: Some("DURATION"),
    ..Opt::new("lock-delay", "Lock", "Wait this long after a holder that did not end cleanly")
};

pub(super) const CONFLICT_EXIT_CODE: Opt = Opt {
    more: "N is 0 to 255.",
    short: Some('E'),
    default: Some("75"),
    value: Some("N"),
    ..Opt::new("conflict-exit-code", "Lock", "Exit with N instead of 75")
};

pub(super) const DESCRIBE: Opt = Opt {
    is_rare: true,
    more: "It is one line of at most 200 characters.",
    value: Some("TEXT"),
    ..Opt::new("describe", "Lock", "Text to show in zklock status")
};

pub(super) const SIGNAL: Opt = Opt {
    is_rare: true,
    default: Some("TERM"),
    more: "A name or a number: TERM, SIGINT, RTMIN+1, 15.",
    value: Some("SIGNAL"),
    ..Opt::new("signal", "Command", "Stop signal: after a loss, --max-run or zklock break")
};

pub(super) const KILL_AFTER: Opt = Opt {
    is_rare: true,
    short: Some('k'),
    more: "It must fit into the session timeout: zklock refuses a longer time (64), and shortens the default. 0 sends SIGKILL at \
     once.",
    value: Some("DURATION"),
    ..Opt::new("kill-after", "Command", "Time from the stop signal to SIGKILL [default: 5s, or less]")
};

pub(super) const QUIET: Opt = Opt {
    short: Some('q'),
    rival: Some("verbose"),
    ..Opt::new("quiet", "Messages", "Say nothing about the wait; print errors only")
};

pub(super) const VERBOSE: Opt = Opt {
    is_rare: true,
    short: Some('v'),
    rival: Some("quiet"),
    is_repeated: true,
    ..Opt::new("verbose", "Messages", "Say what zklock does; -vv also why, -vvv also the traffic")
};

pub(super) const ONCE_PER: Opt = Opt {
    more: "This runs a job once per period on hosts with the same crontab. Use half of the shortest gap: 30m for an hourly job. \
     The period counts on ZooKeeper's clock, from the start of the last run with status 0 to the time when this run queued. \
     A skipped run exits with 0. If a run failed, was stopped, or got one of the signals HUP, INT, QUIT, TERM, ALRM and \
     XCPU, the next one in the queue runs its command. The lock must be exclusive.",
    value: Some("DURATION"),
    ..Opt::new("once-per", "Lock", "Skip if a successful run began in this time")
};

pub(super) const PUBLISH_COMMAND: Opt = Opt {
    is_rare: true,
    more: "By default others see only the command's name, because arguments may hold secrets.",
    ..Opt::new("publish-command", "Lock", "Show the command's arguments in zklock status")
};

pub(super) const COMMAND: Opt = Opt {
    more: "The shell is $SHELL, or /bin/sh.",
    short: Some('c'),
    hint: ValueHint::CommandString,
    takes_hyphen: true,
    is_repeated: true,
    value: Some("CMD"),
    ..Opt::new("command", "Command", "Run CMD with a shell")
};

pub(super) const MAX_RUN: Opt = Opt {
    more: "zklock also stops everything that the command has started. The time counts from the start of the command, also while \
     the command is suspended (Ctrl-Z). 0 means no limit.",
    value: Some("DURATION"),
    ..Opt::new("max-run", "Command", "Stop the command after this time (124)")
};

pub(super) const WAIT_DESCENDANTS: Opt = Opt {
    is_rare: true,
    more: "Daemons count as well. The exit status is still the command's own.",
    ..Opt::new("wait-descendants", "Command", "Hold the lock until all descendants end")
};

pub(super) const WHILE: Opt = Opt {
    more: "The process also gets the stop signal, and what descends from it may use the lock.",
    value: Some("PID"),
    ..Opt::new("while", "Hold", "Hold until this process ends, whatever standard input is")
};

pub(super) const NO_SIGNAL: Opt = Opt::new("no-signal", "Hold", "Send no signal to the caller when the lock is lost");

pub(super) const TOKEN: Opt = Opt {
    variable: Some(environment::TOKEN),
    more: "The command of the lock's holder finds it in the variable ZKLOCK_TOKEN. ssh and docker do not pass on the variable, \
     so it is best to give it here.",
    value: Some("N"),
    ..Opt::new("token", "Fence", "Fencing token of the lock's holder")
};

pub(super) const FENCE_KILL_AFTER: Opt = Opt {
    short: Some('k'),
    default: Some("5s"),
    more: "It applies when a later holder stops this command. 0 sends SIGKILL at once.",
    value: Some("DURATION"),
    ..Opt::new("kill-after", "Fence", "Time from the stop signal, SIGTERM, to SIGKILL")
};

pub(super) const STATUS_JSON: Opt = Opt::new("json", "Output", "Print JSON, as docs/status.schema.json describes it");

pub(super) const WATCH: Opt = Opt {
    more: "On a terminal zklock redraws the picture; elsewhere it prints a new one, with --json as one object a line. It \
     reconnects if it loses the connection.",
    ..Opt::new("watch", "Output", "Print again whenever something changes, until interrupted")
};

pub(super) const LIST_JSON: Opt = Opt::new("json", "Output", "Print JSON, as docs/list.schema.json describes it");

pub(super) const COMPLETE: Opt = Opt {
    is_hidden: true,
    value: Some("PREFIX"),
    ..Opt::new("complete", "", "Print the paths that may follow what begins like this, for the completions of shells")
};

pub(super) const NODE: Opt = Opt {
    more: "`zklock status --json` shows both. Without this option, zklock shows the present holder and asks. It is \
     required without a terminal, because the holder may have changed meanwhile, and if several contenders hold the lock.",
    value: Some("NAME"),
    ..Opt::new("node", "Break", "The contender's node, by its name or its path")
};

pub(super) const FORCE: Opt = Opt {
    more: "The next contender may then start before this one has stopped.",
    ..Opt::new("force", "Break", "Delete its node, even if its command still runs")
};

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

pub(super) const BREAK_QUIET: Opt = Opt { help: "Say nothing about a contender that is missing or stays", ..QUIET };

pub(super) const CHECK_QUIET: Opt = Opt { help: "Print nothing; the exit status tells", ..QUIET };

pub(super) const CHECK_CONNECT_TIMEOUT: Opt = Opt {
    heading: "Check",
    is_of_connection: false,
    help: "How long to wait until a server answers; 0 tries once, for health checks",
    ..CONNECT_TIMEOUT
};

pub(super) const CONNECTING: &[Opt] =
    &[ZOOKEEPER, CONNECT_TIMEOUT, CONFIG, TLS, TLS_CA, TLS_CERT, TLS_KEY, TLS_NO_VERIFY_HOSTNAME, AUTH, AUTH_FILE];

pub(super) const TAKING: &[Opt] =
    &[NONBLOCK, TIMEOUT, LOCK_DELAY, CONFLICT_EXIT_CODE, EXCLUSIVE, SHARED, PERMITS, AND, DIALECT, DESCRIBE];

pub(super) const RUNNING: &[Opt] = &[ONCE_PER, PUBLISH_COMMAND, COMMAND, MAX_RUN, KILL_AFTER, SIGNAL, WAIT_DESCENDANTS];

/// How to ask for a session, and who may use its nodes.
pub(super) const SESSION: &[Opt] = &[SESSION_TIMEOUT, ACL];

/// What a configuration file may say: what belongs to a machine or a user.
pub(super) fn file_options() -> impl Iterator<Item = &'static Opt> {
    CONNECTING.iter().chain(SESSION).chain(TAKING).filter(|option| option.key.is_some())
}
