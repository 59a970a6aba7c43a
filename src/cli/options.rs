//! The table of options: a row is all that is known of one, and its help. A form ([`super::forms`]) says which a
//! subcommand has, and [`super::values`] where the value of one comes from.

use clap::ValueHint;

use super::meaning::{connect_timeout, protection, session_timeout};
use super::option::{KeyKind, Opt};

use crate::cli::environment;
use crate::zookeeper::net::address::ConnectString;

pub(super) const ZOOKEEPER: Opt = Opt::valued(
    "zookeeper",
    "HOST:PORT,...[/CHROOT]",
    "ZooKeeper",
    "ZooKeeper servers, separated by commas, and an optional chroot",
)
.short('z')
.default("localhost:2181")
.variable("ZKLOCK_ZOOKEEPER")
.key(KeyKind::Text(|text| text.parse::<ConnectString>().map(drop)))
.more("The default port is 2181. Write IPv6 addresses in brackets, and the chroot once, at the end; it must exist.");

pub(super) const CONNECT_TIMEOUT: Opt = Opt::valued(
    "connect-timeout",
    "DURATION",
    "ZooKeeper",
    "Give up when no server has answered for this long at the start",
)
.default("15s")
.key(KeyKind::Duration(|text| connect_timeout(text).map(drop)));

pub(super) const CONFIG: Opt = Opt::valued(
    "config",
    "FILE",
    "ZooKeeper",
    "Take settings from this file and from no other; /dev/null is none",
)
.variable("ZKLOCK_CONFIG")
.rare()
.hint(ValueHint::FilePath)
.more(
    "Without it, ~/.config/zklock.toml and /etc/zklock.toml are read if they exist. They are in TOML, and the keys are \
     names of options: zookeeper = \"zk1,zk2\". An option wins over its variable, that over the user's file, and that \
     over the system's.",
);

pub(super) const TLS: Opt = Opt::switch("tls", "TLS", "Encrypt with TLS; see --tls-ca, --tls-cert and --tls-key")
    .variable("ZKLOCK_TLS")
    .key(KeyKind::Switch)
    .more(
        "TLS 1.2 and 1.3 are spoken. Name the servers' secureClientPort in --zookeeper. A server's certificate must be \
     signed by a CA that is trusted, and be for the name or the address by which --zookeeper calls the server. The \
     other options of TLS imply this one.",
    );

pub(super) const TLS_CA: Opt = Opt::valued(
    "tls-ca",
    "FILE",
    "TLS",
    "Trust the CAs whose certificates are in this file [default: those that the system trusts]",
)
.variable("ZKLOCK_TLS_CA")
.key(KeyKind::Path)
.rare()
.hint(ValueHint::FilePath)
.more(
    "One or several certificates, in PEM. As with the other files: it is read again for each new connection if it has \
     changed.",
);

pub(super) const TLS_CERT: Opt =
    Opt::valued("tls-cert", "FILE", "TLS", "Show this certificate to servers that ask for one")
        .variable("ZKLOCK_TLS_CERT")
        .key(KeyKind::Path)
        .rare()
        .hint(ValueHint::FilePath)
        .more("In PEM, followed by the certificates of intermediate CAs if there are any.");

pub(super) const TLS_KEY: Opt =
    Opt::valued("tls-key", "FILE", "TLS", "Private key of --tls-cert [default: in the same file]")
        .variable("ZKLOCK_TLS_KEY")
        .key(KeyKind::Path)
        .rare()
        .hint(ValueHint::FilePath)
        .more("In PEM (PKCS#8, SEC1 or PKCS#1), and not encrypted.");

pub(super) const TLS_NO_VERIFY_HOSTNAME: Opt =
    Opt::switch("tls-no-verify-hostname", "TLS", "Accept a certificate that is for another name")
        .variable("ZKLOCK_TLS_NO_VERIFY_HOSTNAME")
        .key(KeyKind::Switch)
        .rare()
        .more("Any server with a certificate of a trusted CA can then pass for a ZooKeeper server.");

pub(super) const AUTH: Opt = Opt::valued(
    "auth",
    "SCHEME:CREDENTIAL",
    "Login",
    "Log in, as in digest:USER:PASSWORD; every user can see it with ps",
)
.variable("ZKLOCK_AUTH")
.rare()
.more(
    "sasl:USER:PASSWORD logs in by SASL (DIGEST-MD5), and gssapi:zookeeper by Kerberos, if that is built in. \
     --auth-file and the variable hide the password. COMMAND gets the variable as well.",
);

pub(super) const AUTH_FILE: Opt = Opt::valued(
    "auth-file",
    "FILE",
    "Login",
    "Log in with what is in this file, one SCHEME:CREDENTIAL a line",
)
.key(KeyKind::Path)
.hint(ValueHint::FilePath)
.more("Empty lines and those that begin with # are skipped. The file is read once, at the start. If it is a pipe, its end \
     is waited for, and no timeout counts before that. /dev/null is no login, in place of that of a configuration file.");

pub(super) const ACL: Opt = Opt::valued(
    "acl",
    "WHO",
    "Login",
    "Who else may use the nodes that are created: open, creator, read",
)
.key(KeyKind::Text(|text| protection(text).map(drop)))
.more("open: anyone may do everything with them; this is the default without a login. creator: only this login. read, the \
     default with a login: others may read them, and may queue below a lock that is created, so that several users can \
     share it. The certificate of --tls-cert is a login for this option, but not for its default.");

pub(super) const SESSION_TIMEOUT: Opt = Opt::valued(
    "session-timeout",
    "DURATION",
    "ZooKeeper",
    "Session timeout to ask for",
)
.default("30s")
.variable("ZKLOCK_SESSION_TIMEOUT")
.key(KeyKind::Duration(|text| session_timeout(text).map(drop)))
.more(
    "The servers may grant another one, and then that one counts. With a long timeout the command survives longer \
     outages of ZooKeeper; with a short one the next holder starts sooner after this machine has died.",
);

pub(super) const EXCLUSIVE: Opt =
    Opt::switch("exclusive", "Lock", "Take the lock for one holder (the default)").short('x').other_short('e');

pub(super) const SHARED: Opt =
    Opt::switch("shared", "Lock", "Take a read lock: readers hold together, a writer (--exclusive) alone")
        .short('s')
        .more("First come, first served: readers behind a waiting writer wait.");

pub(super) const PERMITS: Opt = Opt::valued("permits", "N", "Lock", "Take one of N permits: at most N hold at a time")
    .short('p')
    .more("Every run that takes permits of a lock must give the same N.");

pub(super) const AND: Opt = Opt::valued(
    "and",
    "LOCK",
    "Lock",
    "Also take this lock: all or none; can be repeated",
)
.repeated()
.more("Runs that take several locks with --and do not deadlock with each other, in whatever order they name them. Mode, \
     dialect and --timeout apply to all locks. When one lock is lost, all are.");

pub(super) const DIALECT: Opt = Opt::valued(
    "dialect",
    "NAME[,NAME...]",
    "Lock",
    "Whose node names to use: curator, curator-rw, kazoo; or single",
)
.more("Programs that use the lock through another library wait for zklock only if they know its node names; zklock knows \
     theirs. Use curator for Curator's InterProcessMutex, ZooKeeper's WriteLock, go-zookeeper and others whose nodes \
     end in \"-lock-\" and a number; curator-rw for Curator's InterProcessReadWriteLock; kazoo for kazoo. Name several, \
     separated by commas, where several kinds of program share the lock. Without this option zklock uses curator, and \
     refuses (78) a lock that kazoo uses.\n\nWith single, the lock is one ephemeral node, LOCK/lock, as some programs have it: the one that creates it holds. \
     There is no queue, so the order is not that of arrival, and each release wakes all waiters. No other dialect can \
     be added, nor --shared or --permits.");

pub(super) const NONBLOCK: Opt = Opt::switch("nonblock", "Lock", "Give up at once when the lock is not free")
    .short('n')
    .other("nb")
    .more("It wins over --timeout when both are given, as with flock(1).");

pub(super) const TIMEOUT: Opt = Opt::valued(
    "timeout",
    "DURATION",
    "Lock",
    "Give up after this long; without it, wait for ever",
)
.short('w')
.other("wait")
.variable("ZKLOCK_TIMEOUT")
.more(
    "The time counts from the start and covers everything: connecting, queueing, reconnecting, queueing anew. 0 means \
     --nonblock.",
);

pub(super) const CONFLICT_EXIT_CODE: Opt =
    Opt::valued("conflict-exit-code", "STATUS", "Lock", "Exit status when another contender has the lock, 0 to 255")
        .short('E')
        .default("75");

pub(super) const DESCRIBE: Opt =
    Opt::valued("describe", "TEXT", "Lock", "A text that others see while the lock is held or waited for")
        .more("One line of at most 200 characters; anything else is refused.");

pub(super) const SIGNAL: Opt = Opt::valued(
    "signal",
    "SIGNAL",
    "Command",
    "Signal that stops the command when the lock is lost, or after --max-run",
)
.default("TERM")
.more("By name or by number: TERM, SIGINT, RTMIN+1, 15.");

pub(super) const KILL_AFTER: Opt = Opt::valued(
    "kill-after",
    "DURATION",
    "Command",
    "Time from the stop signal to SIGKILL [default: 5s, or less]",
)
.short('k')
.more(
    "It must fit into the session timeout; a longer one is refused. The default is shortened where it does not fit. 0 \
     sends SIGKILL at once.",
);

pub(super) const QUIET: Opt =
    Opt::switch("quiet", "Messages", "Be silent while waiting and when the lock is not free; errors are still printed")
        .short('q')
        .rival("verbose");

pub(super) const VERBOSE: Opt = Opt::switch(
    "verbose",
    "Messages",
    "Say what zklock does; -vv also why, and -vvv also how much goes over the network",
)
.short('v')
.more(
    "The variable ZKLOCK_LOG selects more precisely, in the filter syntax of env_logger: ZKLOCK_LOG=debug, \
     ZKLOCK_LOG=zklock=trace.",
)
.rival("quiet")
.repeated();

pub(super) const ONCE_PER: Opt = Opt::valued(
    "once-per",
    "DURATION",
    "Lock",
    "Skip the command, with status 0, if the last successful run began less than this ago",
)
.more("So the same crontab on several hosts runs a job once each time: choose a time that is shorter than from one run to \
     the next, such as 50m for a job of each hour. It counts on ZooKeeper's clock, from the start of the last run under \
     this lock that ended with status 0 to the moment at which this run queued; so hosts that have waited through a run \
     skip theirs. After a run that failed or was stopped, the next in the queue runs. For exclusive locks.");

pub(super) const PUBLISH_COMMAND: Opt =
    Opt::switch("publish-command", "Lock", "Show others the command's arguments as well")
        .more("Without it they see only the command's name, because arguments may hold secrets.");

pub(super) const COMMAND: Opt =
    Opt::valued("command", "SHELL COMMAND", "Command", "Run this through $SHELL -c (or /bin/sh -c) instead of COMMAND")
        .short('c')
        .hint(ValueHint::CommandString)
        .repeated();

pub(super) const MAX_RUN: Opt = Opt::valued(
    "max-run",
    "DURATION",
    "Command",
    "Stop the command when it has run for this long, and exit with 124",
)
.more(
    "Everything that the command has started is stopped with it. The time counts from the start of the command, also \
     while it is suspended (Ctrl-Z). 0 means no limit.",
);

pub(super) const WAIT_DESCENDANTS: Opt = Opt::switch(
    "wait-descendants",
    "Command",
    "Hold the lock until every descendant of the command has ended, not just the command",
)
.more("This includes daemons. The exit status is the command's own.");

pub(super) const ON_LOST: Opt = Opt::valued(
    "on-lost",
    "SHELL COMMAND",
    "Command",
    "Run this through $SHELL -c when the lock was lost and the command has been stopped",
)
.hint(ValueHint::CommandString)
.more("It runs without the lock, and zklock waits for it. The exit status stays 76.");

pub(super) const WHILE: Opt =
    Opt::valued("while", "PID", "Hold", "Hold until this process ends, whatever standard input is")
        .more("The process also gets the stop signal, and what descends from it may use the lock.");

pub(super) const NO_SIGNAL: Opt =
    Opt::switch("no-signal", "Hold", "Send no signal to the caller when the lock is lost");

pub(super) const TOKEN: Opt = Opt::valued(
    "token",
    "N",
    "Fence",
    "The fencing token, as the command of the lock's holder finds it in ZKLOCK_TOKEN",
)
.variable(environment::TOKEN)
.more("ssh and docker do not pass on the variable, so it is best to give it here.");

pub(super) const FENCE_KILL_AFTER: Opt = Opt::valued(
    "kill-after",
    "DURATION",
    "Fence",
    "Time from the stop signal, SIGTERM, to SIGKILL when a later holder comes",
)
.short('k')
.default("5s")
.more("0 sends SIGKILL at once.");

pub(super) const STATUS_JSON: Opt =
    Opt::switch("json", "Output", "Print JSON, as docs/status.schema.json describes it");

pub(super) const WATCH: Opt =
    Opt::switch("watch", "Output", "Print again whenever something changes, until interrupted").more(
        "On a terminal the picture is redrawn; elsewhere it is printed anew, with --json as one object a line. Lost \
     connections are restored.",
    );

pub(super) const LIST_JSON: Opt = Opt::switch("json", "Output", "Print JSON, as docs/list.schema.json describes it");

pub(super) const COMPLETE: Opt = Opt::valued(
    "complete",
    "PREFIX",
    "",
    "Print the paths that may follow what begins like this, for the completions of shells",
)
.hidden();

pub(super) const NODE: Opt = Opt::valued(
    "node",
    "NAME",
    "Break",
    "The contender's node, by its name or its path, as `zklock status --json` shows it",
)
.more(
    "Without it, the holder that is there now is shown, and zklock asks. So it must be given where there is no \
     terminal: the holder may have changed since it was looked at.",
);

pub(super) const FORCE: Opt =
    Opt::switch("force", "Break", "Delete the contender's node; the next one may start before this one has stopped");

pub(super) const BREAK_TIMEOUT: Opt =
    Opt::valued("timeout", "DURATION", "Break", "How long to wait until the contender has gone")
        .short('w')
        .default("10s");

pub(super) const CHECK_JSON: Opt = Opt::switch("json", "Output", "Print JSON, as docs/check.schema.json describes it");

pub(super) const HOLD_SIGNAL: Opt = SIGNAL.says("Hold", "Signal that the caller gets when the lock is lost");

pub(super) const HOLD_KILL_AFTER: Opt = KILL_AFTER
    .says("Hold", "Time from that signal to the end of the lock [default: 5s, or less]")
    .more("It must fit into the session timeout; a longer one is refused.");

pub(super) const FENCE_QUIET: Opt = QUIET.says("Messages", "Be silent while waiting; errors are still printed");

pub(super) const STATUS_QUIET: Opt =
    QUIET.says("Messages", "Print nothing; exit with 0 if one of the locks is held, else 1");

pub(super) const LIST_QUIET: Opt = QUIET.says("Messages", "Show no progress; the list and errors are still printed");

pub(super) const BREAK_QUIET: Opt =
    QUIET.says("Messages", "Say nothing of a contender that is not there or does not go");

pub(super) const CHECK_QUIET: Opt = QUIET.says("Messages", "Print nothing; the exit status tells");

pub(super) const CHECK_CONNECT_TIMEOUT: Opt =
    CONNECT_TIMEOUT.says("ZooKeeper", "How long each server has to answer everything");

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
