//! What the user may be told. The sentences are in [`crate::cli::sentences`].

use std::time::Duration;

use super::last_run::LastRun;
use super::lease::{NoRoom, Terms};
use super::message::{Grant, Loss, QueueView, Refusal, Remark, Revoker};
use super::signal::Signal;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// No server can be reached, for this reason; the keeper goes on trying.
    Connecting(String),
    /// Another session timeout than was asked for.
    Granted(Duration),
    /// There is a connection again, after [`Notice::Connecting`] in the queue.
    Reconnected,
    /// ZooKeeper answers again, after [`Notice::Silent`].
    Back,
    /// ZooKeeper has confirmed nothing until half-way between the time of the next beat and the stop signal.
    Silent {
        /// For how long it has answered nothing at all.
        silence: Duration,
        /// For how long it has not confirmed the lock.
        age: Duration,
        /// How long until the command is stopped.
        remaining: Duration,
    },
    /// By these terms a silence shorter than a third of the session timeout can stop the command.
    Impatient(Terms),
    Remark(Remark),
    /// The command is not run, because the last successful run was recent.
    Skipped(LastRun),
    Waiting(QueueView),
    /// A holder that has vanished keeps us from starting: that holder, and until when.
    Delayed(QueueView),
    /// The place in the queue was lost; at the tail again.
    Requeued {
        loss: Loss,
        /// How long that waits, at least.
        pause: Duration,
    },
    Starting {
        grant: Grant,
        /// How long the run has waited, if others were before us.
        waited: Option<Duration>,
    },
    /// Given up, because the caller of `zklock hold` has gone.
    CallerGone,
    /// Given up with `-n` or after `--timeout`.
    TimedOut(Blocker),
    Unreachable(String),
    /// `--kill-after` does not fit.
    NoRoom {
        no_room: NoRoom,
        /// The session timeout that the server granted.
        granted: Duration,
    },
    Refused(Refusal),
    /// The time of `--max-run`, which is this, is over.
    MaxRun(Duration),
    Lost(LostWhy),
    /// Someone has asked us to give up the lock, or the place in the queue.
    Revoked {
        by: Revoker,
        /// Whether there is a command to stop.
        stops: bool,
    },
    /// An outer run whose lock was to be used is gone, or has lost the lock, before the command could be started.
    LenderGone,
    /// The lease was over before the command could be started.
    TooLate,
    /// The reason to stop the command, which has been told, came before the command could be started.
    NotBegun,
    /// The release was not confirmed; the lock frees itself `within` this time.
    NotReleased {
        within: Duration,
        /// The command was successful, which may not be recorded.
        after_success: bool,
    },
    GuardDied {
        had_ended: bool,
    },
    /// This process of the command may not be killed: it is another user's, or confined.
    Denied(i32),
    /// The command has left processes behind, which go on without the lock.
    LeftBehind {
        number: usize,
        /// We are the init of a PID namespace: they do not go on, but end with us (pid_namespaces(7)).
        end_with_us: bool,
    },
    KeeperDied,
}

/// What kept us waiting until the end of our patience.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// The contenders before us.
    Queue(QueueView),
    /// No server answered, for this reason if one is known.
    Servers(Option<String>),
    /// The servers had answered, but at the end their answer was late or missing.
    Late,
    /// No contender was left at the end, but the keeper learnt that too late.
    Freed,
    /// The lease of a run above us is too short to start a command under.
    Lender,
}

/// How the loss of a held lock was learnt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LostWhy {
    /// ZooKeeper said so; the next holder may run already.
    Told(Loss),
    /// ZooKeeper has not confirmed it in time.
    Silence {
        /// For how long it has answered nothing at all.
        silence: Duration,
        /// For how long it has not confirmed the lock.
        age: Duration,
    },
    /// ZooKeeper refuses what it takes to keep the lock.
    Refused(Refusal),
    KeeperGone,
    /// What stands in for a command, in `zklock hold`, died of this signal.
    Killed(Signal),
}
