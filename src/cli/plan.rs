//! What a run is to do.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::origin::Setting;
use crate::rules::lender::Offer;
use crate::rules::lock_path::LockPath;
use crate::rules::mode::Mode;
use crate::rules::queue::Dialect;
use crate::rules::settings::Settings;
use crate::zookeeper::login::Login;
use crate::zookeeper::net::address::ConnectString;
use crate::zookeeper::net::tls::Tls;

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
    pub request: LockRequest,
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
    Fence(CommandLine, FencePlan),
}

/// What to hold a lock for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The process with whose end the lock ends. `None`: standard input says when.
    pub lasts_while: Option<i32>,
    /// Whether that process, or the one that has started us, gets the stop signal when the lock is lost.
    pub signals_caller: bool,
}

/// What stands in the place of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencePlan {
    /// Where the highest token is kept. It has the name of a file at its end.
    pub file: PathBuf,
    pub token: u64,
    /// Time from the stop signal to SIGKILL.
    pub kill_after: Duration,
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

    pub fn fence(&self) -> Option<&FencePlan> {
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
pub struct LockRequest {
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

impl LockRequest {
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
