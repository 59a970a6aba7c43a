//! What a guard needs from outside.

use super::{GuardRequest, Stage, Targets};
use crate::rules::instant::Instant;
use crate::rules::lease::Limits;
use crate::rules::signal::Signal;

/// What a guard hears from its supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Request(GuardRequest),
    /// Nothing more for now.
    Nothing,
    Gone,
}

/// What waitpid(2) tells a guard of its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardReaped {
    /// The command has ended with this status.
    Ended(i32),
    /// The command was suspended by the signal with this number.
    Suspended(i32),
    Other,
    /// No further child has changed.
    NoMore,
    NoneLeft,
}

/// What a guard has seen of its children while it has killed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Children {
    /// How many there are, those included that have ended and have not been reaped.
    pub number: usize,
    pub have_ended: bool,
}

/// What a guard shows the supervisor and the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    Stage(Stage),
    /// The command has ended with this status of waitpid(2).
    Ended(i32),
    /// The command was suspended by the signal with this number.
    Suspended(i32),
    /// It kills the command because the lease is over, or was revoked, or a lender is lost.
    LeaseOver,
}

/// What a guard needs from outside. `guard::process` has the real thing, and the simulator of the tests another.
pub trait GuardIo {
    /// Now, on the clock that counts sleep.
    fn now(&self) -> Instant;

    /// When the lease demands SIGKILL, and when it ends.
    fn limits(&self) -> Limits;

    /// Whether the run that lends to us has died, or has lost its locks.
    fn has_lost_lender(&self) -> bool;

    /// Undoes the fuses: the death of the guard, or of the supervisor, kills nothing any more.
    fn disarm(&mut self);

    /// Whether nothing has stopped the command.
    fn ended_by_itself(&self) -> bool;

    /// Has the kernel continue the guard at `continue_at`, if it is suspended, and kill it at `kill_at`, unless they
    /// are moved.
    fn set_timers(&mut self, continue_at: Instant, kill_at: Instant);

    fn reap(&mut self) -> GuardReaped;

    /// Has the guard share its processor with other processes, as any process does. Otherwise it goes before them.
    fn share_processor(&mut self, shares: bool);

    fn hear(&mut self) -> Heard;

    /// Shows something for as long as the run lasts.
    fn show(&mut self, sign: Sign);

    /// Wakes the supervisor: something new is shown. Waits for nothing, not even for memory.
    fn wake_supervisor(&mut self);

    /// Lets the process that waits at the gate become the command.
    fn open_gate(&mut self);

    /// Has the process that waits at the gate exit, if it still waits.
    fn close_gate(&mut self);

    fn signal(&mut self, signal: Signal, whom: Targets);

    /// SIGKILL to the command, to all children, and to those of their process groups that are the command's.
    fn kill_children(&mut self) -> Children;

    /// SIGKILL to all that can be found below the children. A child that cannot die keeps its own children from becoming
    /// the guard's.
    fn kill_below(&mut self);
}
