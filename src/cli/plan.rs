//! The plan of a run, and its parts.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::access::{Access, Verbosity};
use crate::rules::loans::Demand;
use crate::rules::lock_path::LockPath;
use crate::rules::mode::Mode;
use crate::rules::offer::Offer;
use crate::rules::queue::Dialect;
use crate::rules::settings::Settings;
use crate::zookeeper::net::address::HostPort;

/// What a run is to do: a command under a lock, `zklock hold`, or `zklock fence`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub access: Access,
    pub verbosity: Verbosity,
    pub request: LockRequest,
    pub settings: Settings,
    /// `--conflict-exit-code`: exit status of giving up because the lock is not free.
    pub conflict_exit_code: u8,
    /// What to run. `None`: nothing, but `hold` the lock for another process.
    pub command: Option<CommandLine>,
    pub hold: Option<Hold>,
    /// A file stands in the place of the lock. There are no servers then.
    pub fence: Option<FencePlan>,
    /// `--describe`: a text for others: one line, not empty.
    pub description: Option<String>,
    /// `--publish-command`: others may see the command's arguments.
    pub publishes_arguments: bool,
}

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
    pub kill_after: Duration,
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
    /// `--lock-delay`: how long the next run waits if this one does not end cleanly, and this one if the last one did not. Zero
    /// for runs that neither record themselves nor wait.
    pub lock_delay: Duration,
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

impl Plan {
    /// What it wants of the runs above it.
    pub fn demand(&self) -> Demand<'_> {
        let mut servers: Vec<_> = self.access.servers.hosts.iter().map(HostPort::to_string).collect();
        servers.sort_unstable();
        servers.dedup();
        let LockRequest { mode, once_per, .. } = &self.request;
        let locks = self.request.locks().collect();
        Demand { servers, chroot: &self.access.servers.chroot, locks, mode: *mode, is_once_per: once_per.is_some() }
    }
}

/// The program and its arguments, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine {
    /// A path, or a name to look up in `PATH`.
    pub program: OsString,
    pub args: Vec<OsString>,
    /// Where the program was found before the wait for the lock. By its turn it may have moved.
    pub found: Option<PathBuf>,
}
