//! Which process it is, also after its pid has been given to another one.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A process of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    pub pid: u32,
    /// When it started, in clock ticks since boot (proc_pid_stat(5)).
    pub started: u64,
}

impl fmt::Display for ProcessIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pid, self.started)
    }
}
