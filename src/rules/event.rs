//! What can happen in a run, and what is to be done about it.

use std::time::Duration;

use super::instant::Instant;
use super::message::{Grant, Report};
use super::notice::Notice;
use super::outcome::Outcome;
use super::signal::Signal;

/// What can happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The keeper says something.
    Keeper(Report),
    /// The keeper is gone, whatever the reason.
    KeeperGone,
    /// The lease counts from here and with this session timeout: a beat was answered, or a server has granted less.
    Extended {
        /// From when it counts.
        from: Instant,
        /// The session timeout.
        timeout: Duration,
    },
    /// The servers answered something then, a beat or not.
    Answered(Instant),
    /// We got a signal.
    Signal {
        /// Which.
        signal: Signal,
        /// The terminal sent it to our process group, and the command is in that group: it has got the signal
        /// as well.
        shared: bool,
    },
    /// Something happened to the command.
    Command(CommandEvent),
    /// The guard has killed the command because the lease is over, or was revoked.
    LeaseOver,
    /// The guard has died although something of the command was left.
    GuardGone,
    /// The process that `zklock hold` holds the lock for has gone.
    CallerGone,
    /// The command of `--on-lost` has ended, or could not be started, or there is none.
    OnLostEnded,
    /// The time that the machine named has come.
    Timer,
}

/// What can happen to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandEvent {
    /// It could not be started, and nothing is left of the attempt. This may be known only after a while,
    /// because execve(2) can take long.
    StartFailed(Unstarted),
    /// It ended and has been reaped.
    Ended(CommandEnd),
    /// The same, and zklocks that it started go on under our locks.
    EndedLending(CommandEnd),
    /// It, or the command of `--on-lost`, was stopped by this signal (Ctrl-Z).
    Stopped(Signal),
    /// It has gone, and so have those of its descendants that the machine waits for ([`Awaited`]).
    TreeGone,
}

/// Which processes must be gone before the machine is told [`CommandEvent::TreeGone`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The command and all its descendants.
    Everyone,
    /// The zklocks among them that use our locks.
    Borrowers,
}

/// Why the command could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unstarted {
    /// It does not exist.
    NotFound,
    /// It cannot be executed.
    CannotExecute,
    /// No process could be made for it.
    NoProcess,
    /// It would have started too late: too little of the lease was left, or the keeper had revoked the lease,
    /// or the keeper had gone.
    TooLate,
    /// It had not passed the gate when this signal ended the run.
    Interrupted(Signal),
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandEnd {
    /// With this exit status.
    Exited(u8),
    /// Killed by this signal.
    Signaled(Signal),
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Start a keeper that opens its session no sooner than this; an earlier one is of no more use.
    StartKeeper(Instant),
    /// Make a guard and the command's process, unless they exist: it may soon be our turn.
    MakeGuard,
    /// The guard is not needed for now.
    DismissGuard,
    /// Start the command.
    Spawn {
        /// The locks that it runs under.
        grant: Grant,
        /// From here on it is too late to start it.
        until: Instant,
    },
    /// If the command has not passed the gate, take it back: nothing of it runs. Report
    /// [`CommandEvent::StartFailed`] with [`Unstarted::TooLate`] after the effects that follow, without [`Effect::Stop`]
    /// and [`Effect::Kill`] among them.
    Recall,
    /// The same for a signal that ends a wait, with [`Unstarted::Interrupted`]. A command that has passed the gate gets
    /// the signal.
    Interrupt {
        /// Which.
        signal: Signal,
        /// The terminal has sent it to the command as well: if that is in our process group, it has got it already.
        shared: bool,
    },
    /// Pass a signal on to the command's process group, or to its descendants when it has ended.
    Forward(Signal),
    /// Pass a signal of the terminal on to the command, or to its descendants when it has ended, as far as they have not had
    /// it, because they are not in our process group.
    ForwardOutside(Signal),
    /// Ask the command and all its descendants to stop.
    Stop(Signal),
    /// SIGKILL the command and all its descendants; report [`CommandEvent::TreeGone`].
    Kill,
    /// Tell the keeper to delete the node and close the session.
    Release,
    /// Start the command of `--on-lost`; report [`Event::OnLostEnded`].
    StartOnLost,
    /// Pass a signal on to the command of `--on-lost`.
    ForwardToOnLost(Signal),
    /// Stop by this signal, as the shell that watches us expects when the command stops.
    StopSelf(Signal),
    /// End the keeper at once: it has had its time.
    EndKeeper,
    /// Tell the user.
    Say(Notice),
    /// The run is over.
    Finish(Outcome),
}
