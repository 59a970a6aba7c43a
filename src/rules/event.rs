//! What can happen in a run, and what is to be done about it.

use super::guard::Targets;
use super::instant::Instant;
use super::message::{Grant, Report};
use super::notice::Notice;
use super::outcome::Outcome;
use super::signal::Signal;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Keeper(Report),
    KeeperGone,
    /// A run above us has the locks and lends them to us, with its lease. So there is no keeper.
    Lent(Box<Grant>),
    Signal {
        signal: Signal,
        /// The terminal sent it to our process group, and the command is in that group: it has got the signal
        /// as well.
        shared: bool,
    },
    Command(CommandEvent),
    /// The process that `zklock hold` holds the lock for has gone.
    CallerGone,
    /// The deadline that the machine has named has come.
    Timer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandEvent {
    /// It could not be started, and nothing is left of the attempt. This may be known only after a while,
    /// because execve(2) can take long.
    StartFailed(Unstarted),
    /// It ended and has been reaped.
    Ended(CommandEnd),
    /// It ended and has been reaped. Runs that use our locks go on.
    EndedLending(CommandEnd),
    /// It is suspended, by this signal (Ctrl-Z).
    Suspended(Signal),
    /// It has gone, and so have those of its descendants that the machine waits for ([`Awaited`]).
    TreeGone,
    /// The guard has killed it because the lease is over, or was revoked.
    LeaseOver,
    /// The guard has died although something of it was left.
    GuardGone,
}

/// Which processes must be gone before the machine is told [`CommandEvent::TreeGone`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The command and all its descendants.
    Everyone,
    /// The zklocks among them that use our locks.
    Borrowers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unstarted {
    NotFound,
    CannotExecute,
    /// No process could be made for it.
    NoProcess,
    /// It would have started too late: too little of the lease was left, or the keeper had revoked the lease,
    /// or the keeper had gone.
    TooLate,
    /// It had not passed the gate when this signal ended the run.
    Interrupted(Signal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandEnd {
    Exited(u8),
    Signaled(Signal),
}

impl CommandEnd {
    /// How the run ends with it, if nothing else has happened.
    pub fn outcome(self) -> Outcome {
        match self {
            Self::Exited(status) => Outcome::Exited(status),
            Self::Signaled(signal) => Outcome::Signaled(signal),
        }
    }
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Spawn {
        grant: Grant,
        /// From here on it is too late to start it.
        until: Instant,
    },
    /// If the command has not passed the gate, take it back: nothing of it runs. Report
    /// [`CommandEvent::StartFailed`] with this after the effects that follow, without [`Effect::Signal`], [`Effect::Stop`]
    /// and [`Effect::Kill`] among them.
    Recall(Unstarted),
    /// Pass a signal on: to the command's process group ([`Targets::Group`]), or to those that a signal of the terminal has not
    /// reached ([`Targets::Strayed`]); once the command has ended, to its descendants.
    Signal {
        signal: Signal,
        whom: Targets,
    },
    /// Ask the command and all its descendants to stop.
    Stop(Signal),
    /// SIGKILL the command and all its descendants; report [`CommandEvent::TreeGone`].
    Kill,
    /// Tell the keeper to queue again with another session. No gate has been opened.
    QueueAgain,
    /// Tell the keeper to delete the node and close the session.
    Release,
    /// Suspend us by this signal, as the shell that watches us expects when the command is suspended.
    SuspendSelf(Signal),
    /// End the keeper at once: it has had its time.
    EndKeeper,
    Say(Notice),
    Finish(Outcome),
}
