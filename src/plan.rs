//! Flags and environment become a [`Plan`], or that of a subcommand: validated, with every default filled in.
//!
//! Owns the meaning of what users write, and every sentence that refuses it. It looks at the arguments and
//! the environment only: no file, no host name, no clock.

mod connect;
mod fence;
mod operation;
mod refusal;
mod written;
mod znode;

use std::ffi::{OsStr, OsString};
use std::num::NonZeroU32;
use std::time::Duration;

use clap::FromArgMatches;

use self::refusal::{misplaced_subcommand, quoted, refused_by_clap, refused_job};
use self::written::{Given, Written};
use crate::cli::{self, Subcommand, job};
use crate::duration;
use crate::environment;
use crate::rules::lease::Terms;
use crate::rules::lender::Offer;
use crate::rules::mode::Mode;
use crate::rules::queue::Dialect;
use crate::rules::settings::{Patience, Settings};
use crate::rules::signal::UnknownSignal;

pub use connect::{ConnectString, HostPort};
pub use fence::FencePlan;
pub use operation::{Break, Check, List, Operation, Status, Subject};
pub use refusal::{Exit, UsageError};
pub use written::{Access, Messages};
pub use znode::LockPath;

/// What a run is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The servers, and the chroot that the lock paths are relative to.
    pub servers: ConnectString,
    /// The user has named the servers, by option or variable.
    pub servers_given: bool,
    /// Which locks to take, and how.
    pub request: Request,
    /// How the run is to go.
    pub settings: Settings,
    /// `--conflict-exit-code`: exit status of giving up because the lock is not free.
    pub conflict_exit_code: u8,
    /// What to run.
    pub command: CommandLine,
    /// What to run when the lock was lost.
    pub on_lost: Option<CommandLine>,
    /// What others may see of it.
    pub published: Published,
    /// How much to say.
    pub verbosity: Verbosity,
    /// A filter in env_logger's syntax; where given, it replaces the log level that `verbosity` implies.
    pub log_filter: Option<String>,
}

/// What others may see of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// A text for them: one line, not empty.
    pub description: Option<String>,
    /// Whether they may see the command's arguments.
    pub arguments: bool,
}

/// Which locks to take, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The lock's node.
    pub lock: LockPath,
    /// The locks to take together with it; none twice.
    pub and: Vec<LockPath>,
    /// Who else may hold at the same time.
    pub mode: Mode,
    /// Which libraries' node names to use; none twice, never empty.
    pub dialects: Vec<Dialect>,
    /// The user has named the dialects; see [`crate::rules::queue::Queue::blind_to`].
    pub dialects_given: bool,
    /// Names of contender nodes that are held by processes above us, as the environment claims.
    pub held: Vec<String>,
    /// How to borrow from these processes, as the environment claims.
    pub offers: Vec<Offer>,
}

impl Request {
    /// All locks to take, in the order in which they were named.
    pub fn locks(&self) -> impl Iterator<Item = &LockPath> {
        std::iter::once(&self.lock).chain(&self.and)
    }
}

/// The program and its arguments, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine {
    /// A path, or a name to look up in `PATH`.
    pub program: OsString,
    /// The arguments after the program's name.
    pub args: Vec<OsString>,
}

/// How much to say on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    /// Errors; nothing while waiting, nothing about a lock that is not free.
    Quiet,
    /// What a user needs to know.
    Normal,
    /// More, by the number of `-v`: with 1, what zklock does; with 2, why; with 3, what comes and goes over the network.
    Verbose(u8),
}

/// What zklock is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Run a command under a lock.
    Job(Box<Plan>),
    /// Run a command behind a fence.
    Fence(Box<FencePlan>),
    /// Any other subcommand.
    Operation(Operation),
}

/// The task for these arguments, the program's own name first, and the environment of this process.
pub fn from_args(args: impl IntoIterator<Item = OsString>) -> Result<Task, Exit> {
    task(args, |name| std::env::var_os(name))
}

/// The task for these arguments, the program's own name first, and the variables that `environment` knows. The first
/// argument decides whether it is a subcommand.
pub fn task(
    args: impl IntoIterator<Item = OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Task, Exit> {
    let args: Vec<_> = args.into_iter().collect();
    match args.get(1).and_then(|first| first.to_str()).and_then(Subcommand::of_name) {
        Some(subcommand) => operation::read(subcommand, &args, environment),
        None => from_args_and_environment(args, environment).map(|plan| Task::Job(Box::new(plan))),
    }
}

/// The plan of the main job for these arguments, the program's own name first, and the variables that
/// `environment` knows. An option wins over its variable; an empty variable counts as unset.
pub fn from_args_and_environment(
    args: impl IntoIterator<Item = OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Plan, Exit> {
    let args: Vec<_> = args.into_iter().collect();
    let matches = cli::command().try_get_matches_from(&args).map_err(|error| refused_job(error, &args))?;
    let cli = job::Cli::from_arg_matches(&matches).map_err(|error| refused_by_clap(error, None))?;
    let written = Written { matches: &matches, environment: &environment };
    let Access { servers, servers_given, connect_timeout } = written.access(cli.connecting)?;
    let mode = mode(cli.exclusive, cli.shared, cli.permits)?;
    let dialects = cli.dialect.map(|text| Given::new("--dialect", text).read(dialects)).transpose()?;
    if let (Some(_), Some(dialects)) = (mode.permits(), &dialects)
        && *dialects != [Dialect::Curator]
    {
        return Err(
            UsageError("--permits works in the dialect curator alone; leave out one of the two".to_owned()).into()
        );
    }
    let timeout = written.option("timeout", "--timeout", environment::TIMEOUT, cli.timeout);
    let patience = patience(cli.nonblock, timeout)?;
    let conflict_exit_code = Given::new("--conflict-exit-code", cli.conflict_exit_code).read(exit_status)?;
    let session_timeout = written.session_timeout(cli.asked)?;
    let kill_after = match cli.kill_after {
        Some(text) => Some(Given::new("--kill-after", text).read(|text| kill_after(text, session_timeout))?),
        None => None,
    };
    let description = match cli.describe {
        Some(text) => Given::new("--describe", text).read(description)?,
        None => None,
    };
    let settings = Settings {
        patience,
        connect_timeout,
        session_timeout,
        kill_after,
        stop_signal: Given::new("--signal", cli.signal)
            .read(|text| text.parse().map_err(|unknown: UnknownSignal| unknown.to_string()))?,
        max_run: match cli.max_run {
            // 0 is no limit, as with timeout(1).
            Some(text) => Some(Given::new("--max-run", text).read(duration::parse)?).filter(|limit| !limit.is_zero()),
            None => None,
        },
        wait_descendants: cli.wait_descendants,
    };
    // Only after the options: if the value of one was forgotten, it has taken the lock as its value, and that is
    // the mistake to name.
    if let Some(misplaced) = misplaced_subcommand(&matches) {
        return Err(misplaced.into());
    }
    let lock = lock_path("LOCK", &cli.lock, &servers)?;
    let messages = written.messages(cli.messages)?;
    Ok(Plan {
        settings,
        conflict_exit_code,
        command: command_line(&lock, cli.command, cli.shell_command, environment("SHELL"))?,
        on_lost: cli.on_lost.map(|script| shell_line(environment("SHELL"), script)),
        published: Published { description, arguments: cli.publish_command },
        verbosity: messages.verbosity,
        log_filter: messages.log_filter,
        request: Request {
            and: also(&lock, &cli.and, &servers)?,
            lock,
            mode,
            dialects_given: dialects.is_some(),
            dialects: dialects.unwrap_or_else(|| vec![Dialect::Curator]),
            held: environment(environment::HELD).map(|text| environment::names_held(&text)).unwrap_or_default(),
            offers: environment(environment::LENDER).map(|text| environment::offers(&text)).unwrap_or_default(),
        },
        servers,
        servers_given,
    })
}

fn lock_path(what: &str, written: &OsStr, servers: &ConnectString) -> Result<LockPath, UsageError> {
    match written.to_str() {
        Some(text) => LockPath::parse(text, &servers.chroot),
        None => Err("is not UTF-8; write it in UTF-8".to_owned()),
    }
    .map_err(|why| UsageError(format!("{what} {} {why}", quoted(written))))
}

/// The further locks. A lock that is named twice is taken once.
fn also(lock: &LockPath, written: &[OsString], servers: &ConnectString) -> Result<Vec<LockPath>, UsageError> {
    // A report between our own processes carries all of them, each with the name of a node.
    const LONGEST: usize = 16 * 1024;
    const NODE: usize = 100;
    let mut also: Vec<LockPath> = vec![];
    for text in written {
        let path = lock_path("--and", text, servers)?;
        if path != *lock && !also.contains(&path) {
            also.push(path);
        }
    }
    if also.iter().map(|path| path.as_str().len() + NODE).sum::<usize>() > LONGEST {
        return Err(UsageError(format!("--and: too many locks ({}); take fewer together", also.len())));
    }
    Ok(also)
}

fn mode(exclusive: bool, shared: bool, permits: Option<OsString>) -> Result<Mode, UsageError> {
    let permits = permits.map(|text| Given::new("--permits", text).read(number_of_permits)).transpose()?;
    match (exclusive, shared, permits) {
        (_, false, None) => Ok(Mode::Exclusive),
        (false, true, None) => Ok(Mode::Shared),
        (false, false, Some(permits)) => Ok(Mode::Permits(permits)),
        _ => Err(UsageError("--exclusive, --shared and --permits exclude each other; write one of them".to_owned())),
    }
}

fn number_of_permits(text: &str) -> Result<NonZeroU32, String> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let permits = if digits { text.parse().ok() } else { None };
    permits.ok_or_else(|| format!("write a number from 1 to {}", u32::MAX))
}

fn dialects(text: &str) -> Result<Vec<Dialect>, String> {
    let mut dialects = vec![];
    for name in text.split(',') {
        let dialect = Dialect::ALL.into_iter().find(|dialect| dialect.name() == name.trim());
        let dialect = dialect.ok_or("write one or several of curator, curator-rw, kazoo, separated by commas")?;
        if !dialects.contains(&dialect) {
            dialects.push(dialect);
        }
    }
    Ok(dialects)
}

fn patience(nonblock: bool, timeout: Option<Given>) -> Result<Patience, UsageError> {
    let timeout = timeout.map(|given| given.read(duration::parse)).transpose()?;
    Ok(match timeout {
        // As flock(1) does when it is given both -n and -w.
        _ if nonblock => Patience::NoWait,
        None => Patience::Forever,
        Some(Duration::ZERO) => Patience::NoWait,
        Some(timeout) => Patience::AtMost(timeout),
    })
}

fn exit_status(text: &str) -> Result<u8, String> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let status = if digits { text.parse().ok() } else { None };
    status.ok_or_else(|| "write a number from 0 to 255".to_owned())
}

fn session_timeout(text: &str) -> Result<Duration, String> {
    // No server has a tick as short as this. Below it, rounding errors would make up the lease.
    const SHORTEST: Duration = Duration::from_millis(100);
    let timeout = duration::parse(text)?;
    if timeout < SHORTEST {
        return Err(format!("too short for a lease; write at least {}", duration::show(SHORTEST)));
    }
    // The protocol carries milliseconds in a signed 32-bit integer.
    if i32::try_from(timeout.as_millis()).is_err() {
        return Err("longer than ZooKeeper can express; write at most 24d".to_owned());
    }
    Ok(timeout)
}

fn kill_after(text: &str, session_timeout: Duration) -> Result<Duration, String> {
    let kill_after = duration::parse(text)?;
    match Terms::new(session_timeout, Some(kill_after)) {
        Ok(_) => Ok(kill_after),
        Err(no_room) => Err(format!(
            "a session timeout of {} has room for {} at most; shorten --kill-after or lengthen --session-timeout",
            duration::show(session_timeout),
            duration::show_limit(no_room.longest),
        )),
    }
}

fn description(text: &str) -> Result<Option<String>, String> {
    const LONGEST: usize = 200;
    if let Some(odd) = text.chars().find(|c| c.is_control()) {
        return Err(format!("contains U+{:04X}; write one line of plain text", u32::from(odd)));
    }
    let length = text.chars().count();
    if length > LONGEST {
        return Err(format!("{length} characters long; write at most {LONGEST}"));
    }
    let text = text.trim();
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

fn command_line(
    lock: &LockPath,
    command: Vec<OsString>,
    shell_command: Option<OsString>,
    shell: Option<OsString>,
) -> Result<CommandLine, UsageError> {
    let mut words = command.into_iter();
    match (words.next(), shell_command) {
        (Some(program), None) => Ok(CommandLine { program, args: words.collect() }),
        (None, Some(script)) => Ok(shell_line(shell, script)),
        (Some(program), Some(_)) => Err(UsageError(format!(
            "-c and the command {} exclude each other; write one of them, and all that belongs to -c in one argument",
            quoted(&program)
        ))),
        (None, None) => Err(UsageError(format!(
            "no command; write zklock {lock} COMMAND [ARG]... or zklock {lock} -c 'SHELL COMMAND'"
        ))),
    }
}

/// What runs a script: the user's shell.
fn shell_line(shell: Option<OsString>, script: OsString) -> CommandLine {
    let program = shell.filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into());
    CommandLine { program, args: vec!["-c".into(), script] }
}

#[cfg(test)]
mod tests;
