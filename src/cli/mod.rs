//! Flags, environment and configuration files become a [`Plan`], or that of a subcommand: validated, with every default
//! filled in.
//!
//! Owns the meaning of what users write, and every sentence that refuses it. It looks at the arguments only, and at
//! what its [`Surroundings`] show: no host name, no clock, and no file by itself.

mod access;
mod config;
pub mod environment;
mod fence;
mod forms;
mod hold;
mod login;
mod operation;
mod option;
mod options;
mod origin;
mod refusal;
pub mod sentences;
mod taking;
pub mod this_process;
mod tls;
mod values;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use self::access::connect_timeout;
use self::forms::JOB;
use self::options::{
    COMMAND, KILL_AFTER, MAX_RUN, ON_LOST, ONCE_PER, PUBLISH_COMMAND, SESSION_TIMEOUT, SIGNAL, WAIT_DESCENDANTS,
};
use self::origin::of_files;
use self::refusal::{comes_first, quoted, refused_job, with_hint};
use self::taking::Taking;
use self::values::Values;
use crate::rules::duration;
use crate::rules::lease::Terms;
use crate::rules::lender::Offer;
use crate::rules::mode::Mode;
use crate::rules::queue::Dialect;
use crate::rules::settings::Settings;
use crate::rules::signal::{Signal, UnknownSignal};
use crate::zookeeper::login::Login;

use crate::rules::lock_path::LockPath;
use crate::zookeeper::net::address::ConnectString;
use crate::zookeeper::net::tls::Tls;
pub use access::{Access, Messages};
pub use config::{SYSTEMS, Surroundings, Unread, keys};
pub use fence::Fence;
pub use forms::{Subcommand, command};
pub use hold::Hold;
pub use operation::{Break, Check, Complete, List, Operation, Status, Subject};
pub use origin::{Origin, Place, Setting, unfit};
pub use refusal::{Exit, UsageError};

/// What a run is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The servers, and the chroot that the lock paths are relative to.
    pub servers: ConnectString,
    /// The user has named the servers, by option, variable or file.
    pub servers_given: bool,
    /// How connections are encrypted. `None`: they are not.
    pub tls: Option<Tls>,
    pub login: Login,
    /// Where the paths of files come from, for messages.
    pub files: Vec<Setting>,
    pub request: Request,
    pub settings: Settings,
    /// `--conflict-exit-code`: exit status of giving up because the lock is not free.
    pub conflict_exit_code: u8,
    pub work: Work,
    pub on_lost: Option<CommandLine>,
    pub published: Published,
    pub verbosity: Verbosity,
    /// A filter in env_logger's syntax; where given, it replaces the log level that `verbosity` implies.
    pub log_filter: Option<String>,
}

/// What to do under a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    Command(CommandLine),
    /// `zklock hold`: nothing, but for another process.
    Hold(Hold),
    /// `zklock fence`: run this, with a file in place of a lock. There are no servers then.
    Fence(CommandLine, Fence),
}

impl Plan {
    pub fn command(&self) -> Option<&CommandLine> {
        match &self.work {
            Work::Command(line) | Work::Fence(line, _) => Some(line),
            Work::Hold(_) => None,
        }
    }

    /// The same, to note where its program is.
    pub fn command_mut(&mut self) -> Option<&mut CommandLine> {
        match &mut self.work {
            Work::Command(line) | Work::Fence(line, _) => Some(line),
            Work::Hold(_) => None,
        }
    }

    pub fn hold(&self) -> Option<&Hold> {
        match &self.work {
            Work::Command(_) | Work::Fence(..) => None,
            Work::Hold(hold) => Some(hold),
        }
    }

    pub fn fence(&self) -> Option<&Fence> {
        match &self.work {
            Work::Command(_) | Work::Hold(_) => None,
            Work::Fence(_, fence) => Some(fence),
        }
    }
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
    pub lock: LockPath,
    /// The locks to take together with it; none twice.
    pub and: Vec<LockPath>,
    pub mode: Mode,
    /// Which libraries' node names to use; none twice, never empty.
    pub dialects: Vec<Dialect>,
    /// The user has named the dialects; see [`crate::rules::queue::Queue::blind_to`].
    pub dialects_given: bool,
    /// `--once-per`: how long after the last successful run has begun the next one may ask. Above zero.
    pub once_per: Option<Duration>,
    /// The contender nodes that are held by processes above us, as the environment claims.
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
    /// Where the program was found before the wait for the lock. By its turn it may have moved.
    pub found: Option<PathBuf>,
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Run a command under a lock or behind a fence, or hold a lock for another process.
    Job(Box<Plan>),
    /// Any other subcommand.
    Operation(Box<Operation>),
}

/// The task for these arguments, the program's own name first, and the variables and files that `surroundings` has. The
/// first argument decides whether it is a subcommand.
pub fn task(args: impl IntoIterator<Item = OsString>, surroundings: &impl Surroundings) -> Result<Task, Exit> {
    let mut args: Vec<_> = args.into_iter().collect();
    if args.get(1).is_some_and(|first| first == "help") {
        args = asking_for_help(args)?;
    }
    match args.get(1).and_then(|first| first.to_str()).and_then(Subcommand::of_name) {
        Some(subcommand) => operation::read(subcommand, &args, surroundings),
        None => job(args, surroundings).map(|plan| Task::Job(Box::new(plan))),
    }
}

/// `zklock help SUBCOMMAND` asks for what `zklock SUBCOMMAND --help` does.
fn asking_for_help(mut args: Vec<OsString>) -> Result<Vec<OsString>, UsageError> {
    let is_subcommand = |word: &OsString| word.to_str().and_then(Subcommand::of_name).is_some();
    if args.len() > 3 || !args[2..].iter().all(is_subcommand) {
        let names = Subcommand::ALL.map(Subcommand::name).join(", ");
        return Err(UsageError(format!("help takes the name of one subcommand at most: {names}")));
    }
    args.remove(1);
    args.push("--help".into());
    Ok(args)
}

/// The plan of the main job for these arguments, the program's own name first, and the variables and files that
/// `surroundings` has. An option wins over its variable, and that over the files; an empty variable counts as unset.
pub fn job(args: impl IntoIterator<Item = OsString>, surroundings: &impl Surroundings) -> Result<Plan, Exit> {
    let args: Vec<_> = args.into_iter().collect();
    let values = Values::read(&JOB, &args, surroundings).map_err(|error| refused_job(error, &args))?;
    let values = values.with_config()?;
    let Access { servers, servers_given, connect_timeout, tls, mut login, settings: origins } = Access::read(&values)?;
    login::protect(&mut login, &origins, &values)?;
    let taking = Taking::read(&values)?;
    let once_per = values.get(&ONCE_PER, once_per)?;
    if once_per.is_some() && taking.mode != Mode::Exclusive {
        return Err(UsageError(
            "--once-per is for an exclusive lock alone: runs that hold together would all run".to_owned(),
        )
        .into());
    }
    let (session_timeout, _) = values.required(&SESSION_TIMEOUT, session_timeout)?;
    let (stop_signal, kill_after) = stopping(&values, session_timeout)?;
    let settings = Settings {
        patience: taking.patience,
        connect_timeout,
        session_timeout,
        kill_after,
        stop_signal,
        // 0 is no limit, as with timeout(1).
        max_run: values.get(&MAX_RUN, duration::parse)?.filter(|limit| !limit.is_zero()),
        wait_descendants: values.is_on(&WAIT_DESCENDANTS),
    };
    // Only after the options: if the value of one was forgotten, it has taken the lock as its value, and that is
    // the mistake to name.
    let lock = values.word("lock");
    if let Some(subcommand) = lock.to_str().and_then(Subcommand::of_name) {
        return Err(comes_first(subcommand).into());
    }
    let lock = lock_path("LOCK", &lock, &servers).map_err(|error| with_hint(error, &args, &lock))?;
    let messages = Messages::read(&values)?;
    let shell = || surroundings.variable("SHELL");
    Ok(Plan {
        settings,
        conflict_exit_code: taking.conflict_exit_code,
        work: Work::Command(command_line(&lock, values.words("command"), values.words(COMMAND.id()), shell())?),
        on_lost: values.given(&ON_LOST).map(|script| shell_line(shell(), script.text)),
        published: Published { description: taking.description.clone(), arguments: values.is_on(&PUBLISH_COMMAND) },
        verbosity: messages.verbosity,
        log_filter: messages.log_filter,
        request: Request { once_per, ..taking.request(lock, &servers, surroundings)? },
        servers,
        servers_given,
        tls,
        login,
        files: of_files(origins),
    })
}

fn lock_path(what: &str, written: &OsStr, servers: &ConnectString) -> Result<LockPath, UsageError> {
    match written.to_str() {
        Some(text) => LockPath::parse(text, &servers.chroot),
        None => Err("is not UTF-8; write it in UTF-8".to_owned()),
    }
    .map_err(|why| UsageError(format!("{what} {} {why}", quoted(written))))
}

fn once_per(text: &str) -> Result<Duration, String> {
    // What ZooKeeper's clock counts in.
    const SHORTEST: Duration = Duration::from_millis(1);
    let period = duration::parse(text)?;
    if period < SHORTEST {
        return Err("no run would be skipped; write a longer time, or leave the option out".to_owned());
    }
    Ok(period)
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

fn stopping(
    values: &Values<'_, impl Surroundings>,
    session_timeout: Duration,
) -> Result<(Signal, Option<Duration>), UsageError> {
    let kill_after = values.get(&KILL_AFTER, |text| kill_after(text, session_timeout))?;
    let signal = values.required(&SIGNAL, |text| text.parse().map_err(|unknown: UnknownSignal| unknown.to_string()))?;
    Ok((signal.0, kill_after))
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

fn command_line(
    lock: &LockPath,
    mut words: impl Iterator<Item = OsString>,
    mut scripts: impl Iterator<Item = OsString>,
    shell: Option<OsString>,
) -> Result<CommandLine, UsageError> {
    let (program, script) = (words.next(), scripts.next());
    if let (Some(script), Some(next)) = (&script, scripts.next()) {
        return Err(UsageError(format!(
            "-c {} and -c {} exclude each other; write all that is to run in one argument",
            quoted(script),
            quoted(&next)
        )));
    }
    match (program, script) {
        (Some(program), None) => Ok(CommandLine { program, args: words.collect(), found: None }),
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
    CommandLine { program, args: vec!["-c".into(), script], found: None }
}

#[cfg(test)]
mod tests;
