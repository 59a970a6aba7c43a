//! Options that several commands share.

use std::ffi::OsString;
use std::fmt;

use clap::builder::{FalseyValueParser, OsStringValueParser, TypedValueParser as _};
use clap::{ArgAction, Args, ValueHint};

use super::{DEFAULT_CONNECT_TIMEOUT, DEFAULT_SESSION_TIMEOUT, DEFAULT_ZOOKEEPER};
use crate::environment;

/// How to reach the servers.
#[derive(Clone, Debug, Args)]
pub struct Connecting {
    /// ZooKeeper servers, separated by commas, and an optional chroot
    ///
    /// The default port is 2181. Write IPv6 addresses in brackets, and the chroot once, at the end; it
    /// must exist.
    #[arg(
        short = 'z',
        long,
        value_name = "HOST:PORT,...[/CHROOT]",
        env = environment::ZOOKEEPER,
        hide_env_values = true,
        default_value = DEFAULT_ZOOKEEPER,
        value_hint = ValueHint::Other,
        help_heading = "ZooKeeper"
    )]
    pub zookeeper: OsString,

    /// Give up when no server has answered for this long at the start
    #[arg(
        long,
        value_name = "DURATION",
        default_value = DEFAULT_CONNECT_TIMEOUT,
        allow_negative_numbers = true,
        value_hint = ValueHint::Other,
        help_heading = "ZooKeeper"
    )]
    pub connect_timeout: OsString,

    /// Take settings from this file and from no other; /dev/null is none
    ///
    /// Without it, ~/.config/zklock.toml and /etc/zklock.toml are read if they exist. They are in TOML,
    /// and the keys are names of options: zookeeper = "zk1,zk2". An option wins over its variable, that
    /// over the user's file, and that over the system's.
    #[arg(
        long,
        value_name = "FILE",
        env = environment::CONFIG,
        hide_env_values = true,
        value_hint = ValueHint::FilePath,
        hide_short_help = true,
        help_heading = "ZooKeeper"
    )]
    pub config: Option<OsString>,

    /// How connections are encrypted.
    #[command(flatten)]
    pub tls: Tls,

    /// Who we are to the servers.
    #[command(flatten)]
    pub login: Login,
}

/// How connections are encrypted. Each of these options asks for TLS.
#[derive(Clone, Debug, Args)]
pub struct Tls {
    /// Encrypt with TLS; see --tls-ca, --tls-cert and --tls-key
    ///
    /// TLS 1.2 and 1.3 are spoken. Name the servers' secureClientPort in --zookeeper. A server's certificate must be signed by a CA
    /// that is trusted, and be for the name or the address by which --zookeeper calls the server. The
    /// other options of TLS imply this one.
    #[arg(
        long,
        env = environment::TLS,
        hide_env_values = true,
        value_parser = FalseyValueParser::new(),
        help_heading = "TLS"
    )]
    pub tls: bool,

    /// Trust the CAs whose certificates are in this file [default: those that the system trusts]
    ///
    /// One or several certificates, in PEM. As with the other files: it is read again for each new
    /// connection if it has changed.
    #[arg(
        long,
        value_name = "FILE",
        env = environment::TLS_CA,
        hide_env_values = true,
        value_hint = ValueHint::FilePath,
        hide_short_help = true,
        help_heading = "TLS"
    )]
    pub tls_ca: Option<OsString>,

    /// Show this certificate to servers that ask for one
    ///
    /// In PEM, followed by the certificates of intermediate CAs if there are any.
    #[arg(
        long,
        value_name = "FILE",
        env = environment::TLS_CERT,
        hide_env_values = true,
        value_hint = ValueHint::FilePath,
        hide_short_help = true,
        help_heading = "TLS"
    )]
    pub tls_cert: Option<OsString>,

    /// Private key of --tls-cert [default: in the same file]
    ///
    /// In PEM (PKCS#8, SEC1 or PKCS#1), and not encrypted.
    #[arg(
        long,
        value_name = "FILE",
        env = environment::TLS_KEY,
        hide_env_values = true,
        value_hint = ValueHint::FilePath,
        hide_short_help = true,
        help_heading = "TLS"
    )]
    pub tls_key: Option<OsString>,

    /// Accept a certificate that is for another name
    ///
    /// Any server with a certificate of a trusted CA can then pass for a ZooKeeper server.
    #[arg(
        long,
        env = environment::TLS_NO_VERIFY_HOSTNAME,
        hide_env_values = true,
        value_parser = FalseyValueParser::new(),
        hide_short_help = true,
        help_heading = "TLS"
    )]
    pub tls_no_verify_hostname: bool,
}

/// Who we are to the servers.
#[derive(Clone, Debug, Args)]
pub struct Login {
    /// Log in, as in digest:USER:PASSWORD; every user can see it with ps
    ///
    /// sasl:USER:PASSWORD logs in by SASL (DIGEST-MD5), and gssapi:zookeeper by Kerberos, if that is built
    /// in. --auth-file and the variable hide the password. COMMAND gets the variable as well.
    #[arg(
        long,
        value_name = "SCHEME:CREDENTIAL",
        env = environment::AUTH,
        hide_env_values = true,
        value_parser = OsStringValueParser::new().map(Secret),
        hide_short_help = true,
        value_hint = ValueHint::Other,
        help_heading = "Login"
    )]
    pub auth: Option<Secret>,

    /// Log in with what is in this file, one SCHEME:CREDENTIAL a line
    ///
    /// Empty lines and those that begin with # are skipped. The file is read once, at the start. If it is a
    /// pipe, its end is waited for, and no timeout counts before that. /dev/null is no login, in place of
    /// that of a configuration file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Login")]
    pub auth_file: Option<OsString>,
}

/// A value that is shown nowhere.
#[derive(Clone)]
pub struct Secret(pub OsString);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a secret")
    }
}

/// Who may do what with the nodes that are created.
#[derive(Clone, Debug, Args)]
pub struct Protecting {
    /// Who else may use the nodes that are created: open, creator, read
    ///
    /// open: anyone may do everything with them; this is the default without a login. creator: only this
    /// login. read, the default with a login: others may read them, and may queue below a lock that is
    /// created, so that several users can share it. The certificate of --tls-cert is a login for this
    /// option, but not for its default.
    #[arg(
        long,
        value_name = "WHO",
        value_hint = ValueHint::Other,
        help_heading = "Login"
    )]
    pub acl: Option<OsString>,
}

/// Which session to ask for.
#[derive(Clone, Debug, Args)]
pub struct Asked {
    /// Session timeout to ask for
    ///
    /// The servers may grant another one, and then that one counts. With a long timeout the command
    /// survives longer outages of ZooKeeper; with a short one the next holder starts sooner after
    /// this machine has died.
    #[arg(
        long,
        value_name = "DURATION",
        env = environment::SESSION_TIMEOUT,
        hide_env_values = true,
        default_value = DEFAULT_SESSION_TIMEOUT,
        allow_negative_numbers = true,
        value_hint = ValueHint::Other,
        help_heading = "ZooKeeper"
    )]
    pub session_timeout: OsString,
}

/// How to take a lock.
#[derive(Clone, Debug, Args)]
pub struct Taking {
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

    /// Whose node names to use: curator, curator-rw, kazoo; or single
    ///
    /// Programs that use the lock through another library wait for zklock only if they know its node
    /// names; zklock knows theirs. Use curator for Curator's InterProcessMutex, ZooKeeper's WriteLock,
    /// go-zookeeper and others whose nodes end in "-lock-" and a number; curator-rw for Curator's
    /// InterProcessReadWriteLock; kazoo for kazoo. Name several, separated by commas, where several
    /// kinds of program share the lock. Without this option zklock uses curator, and refuses (78) a
    /// lock that kazoo uses.
    ///
    /// With single, the lock is one ephemeral node, LOCK/lock, as some programs have it: the one that
    /// creates it holds. There is no queue, so the order is not that of arrival, and each release wakes
    /// all waiters. No other dialect can be added, nor --shared or --permits.
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
    ///
    /// One line of at most 200 characters; anything else is refused.
    #[arg(long, value_name = "TEXT", value_hint = ValueHint::Other, help_heading = "Lock")]
    pub describe: Option<OsString>,
}

/// How what runs under a lock is stopped.
#[derive(Clone, Debug, Args)]
pub struct Stopping {
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
}

/// How much to say.
#[derive(Clone, Copy, Debug, Args)]
pub struct Messages {
    /// Be silent while waiting and when the lock is not free; errors are still printed
    #[arg(short = 'q', long, overrides_with = "verbose", help_heading = "Messages")]
    pub quiet: bool,

    /// Say what zklock does; -vv also why, and -vvv also how much goes over the network
    ///
    /// The variable ZKLOCK_LOG selects more precisely, in the filter syntax of env_logger:
    /// ZKLOCK_LOG=debug, ZKLOCK_LOG=zklock=trace.
    #[arg(short = 'v', long, action = ArgAction::Count, overrides_with = "quiet", help_heading = "Messages")]
    pub verbose: u8,
}
