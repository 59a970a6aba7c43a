//! How a run is to go: what the user asked for, as far as the machine needs it.

use std::time::Duration;

use super::signal::Signal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `--timeout` and `--nonblock`: how long to wait for the lock, counted once from the start of the run.
    pub patience: Patience,
    /// `--connect-timeout`: how long to try at the start until a server has answered. Above zero.
    pub connect_timeout: Duration,
    /// `--session-timeout`: what to ask for. Its number of milliseconds fits an `i32`.
    pub session_timeout: Duration,
    /// `--kill-after`: time from the stop signal to SIGKILL; `None` lets [`Terms`] choose. It fits the
    /// session timeout that is asked for; the servers may grant another.
    ///
    /// [`Terms`]: super::lease::Terms
    pub kill_after: Option<Duration>,
    pub stop_signal: Signal,
    /// `--max-run`: how long the command may run. Above zero.
    pub max_run: Option<Duration>,
    /// `--wait-descendants`: hold the lock until every descendant of the command has ended.
    pub wait_descendants: bool,
}

/// How long to wait for a lock that is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    Forever,
    NoWait,
    /// This long, counted from the start of the run. Above zero.
    AtMost(Duration),
}
