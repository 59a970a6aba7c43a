//! The closed list of how a run can end, and the exit status of each.

use super::signal::Signal;

/// How a run ended. `main` turns it into the process's own end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command ended by itself with this status.
    Exited(u8),
    /// The command died of a signal: we die of the same.
    Signaled(Signal),
    /// A signal came before there was a command. We have tried to delete the contender node, and die of that
    /// signal.
    Interrupted(Signal),
    Usage,
    /// No server answered in time; or the wait was over, and no live session could say that a contender is
    /// before us (`EX_UNAVAILABLE`).
    Unavailable,
    /// zklock or the operating system failed in a way that must not happen, or ZooKeeper refused a request
    /// for a reason that is not listed here.
    Internal,
    /// Another contender had the lock (`-n`), or still had it at the end of `--timeout`, as the servers
    /// confirmed. `--conflict-exit-code` changes the status.
    NotFree,
    Lost,
    /// `--max-run` is over.
    RanOut,
    /// ZooKeeper denied access: an ACL forbids what zklock tried, or the servers want another login or certificate.
    Denied,
    /// The lock is used by clients that would not wait for us, or cannot be used as asked, or the chroot does
    /// not exist, or the servers have to be set up otherwise first.
    Unusable,
    CannotExecute,
    NotFound,
}

/// `--conflict-exit-code` when it is not given: `EX_TEMPFAIL` of sysexits(3).
pub const CONFLICT_EXIT_CODE: u8 = 75;

/// An error of our own, or one of the operating system: `EX_SOFTWARE` of sysexits(3).
pub const INTERNAL: u8 = 70;

/// How to leave the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// exit(3) with this status.
    Exit(u8),
    /// Die of this signal, so that the caller's wait(2) sees what it would have seen without us.
    DieOf(Signal),
}

impl Outcome {
    /// The exit status or signal that the caller of zklock sees.
    pub const fn end(self) -> End {
        match self {
            Self::Exited(status) => End::Exit(status),
            Self::Signaled(signal) | Self::Interrupted(signal) => End::DieOf(signal),
            Self::Usage => End::Exit(64),
            Self::Unavailable => End::Exit(69),
            Self::Internal => End::Exit(INTERNAL),
            Self::NotFree => End::Exit(CONFLICT_EXIT_CODE),
            Self::Lost => End::Exit(76),
            Self::Denied => End::Exit(77),
            Self::Unusable => End::Exit(78),
            Self::RanOut => End::Exit(124),
            Self::CannotExecute => End::Exit(126),
            Self::NotFound => End::Exit(127),
        }
    }
}

/// The EXIT STATUS table of every document: status as users read it, and its meaning.
pub const EXIT_STATUS: &[(&str, &str)] = &[
    ("the command's own", "the command ran; if a signal killed it, zklock dies of the same signal (128+N in a shell)"),
    ("64", "usage error, or an option does not fit what the servers grant"),
    ("69", "no ZooKeeper server answered in time (--connect-timeout, --timeout)"),
    ("70", "internal error"),
    ("75", "the lock was not free, or not in time; --conflict-exit-code changes this"),
    ("76", "the lock was lost, or zklock break ended this run; the command, if it had started, was killed"),
    ("77", "ZooKeeper denied access: an ACL, the login or the certificate"),
    ("78", "the lock cannot be used as asked; the message says why"),
    ("124", "the command ran for longer than --max-run, and zklock stopped it"),
    ("126", "the command was found but cannot be executed"),
    ("127", "the command was not found"),
    ("killed by N", "signal N interrupted the wait for the lock (128+N in a shell)"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fixed_status_is_in_the_table() {
        for outcome in [
            Outcome::Usage,
            Outcome::Unavailable,
            Outcome::Internal,
            Outcome::NotFree,
            Outcome::Lost,
            Outcome::RanOut,
            Outcome::Denied,
            Outcome::Unusable,
            Outcome::CannotExecute,
            Outcome::NotFound,
        ] {
            let End::Exit(status) = outcome.end() else { panic!("{outcome:?} has no status") };
            assert!(
                EXIT_STATUS.iter().any(|(listed, _)| *listed == status.to_string()),
                "{outcome:?}: {status} is not listed"
            );
        }
    }
}
