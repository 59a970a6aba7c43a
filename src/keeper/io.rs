//! What a keeper needs from outside.
//!
//! [`super::process`] has the real thing. The simulator of the tests has another, with a clock of its own,
//! where everything that can go wrong does go wrong, thousands of times.

use std::time::Duration;

use crate::rules::card::Card;
use crate::rules::instant::Instant;
use crate::rules::lease::Span;
use crate::rules::loans::HolderNode;
use crate::rules::message::{Order, Report};
use crate::rules::offer::Barrier;
use crate::zookeeper::session::{Failure, Session};

/// Time, the servers, the supervisor and the command, seen from a keeper.
pub trait KeeperIo {
    type Session: Session;

    /// Now, on the clock that counts sleep.
    fn now(&self) -> Instant;

    /// Wall-clock time in milliseconds since the Unix epoch.
    fn wall_millis(&self) -> u64;

    /// A number that no other process draws.
    fn random(&self) -> u64;

    fn sleep(&self, time: Duration) -> impl Future<Output = ()>;

    /// Opens a session, however long it takes; `unreachable` is told the reason each time that all servers
    /// have been tried in vain. Returns a failure only where trying again would fail as well.
    fn open(
        &self,
        timeout: Duration,
        unreachable: impl FnMut(String),
    ) -> impl Future<Output = Result<Self::Session, Failure>>;

    /// Resumes a session whose connection was lost, however long that takes. [`Failure::SessionOver`] means that the servers
    /// no longer have the session.
    ///
    /// The servers may grant another timeout than before. They count with a shorter one at once, whatever comes of this
    /// connection: `shortened` is told the timeout, and when the server was asked.
    ///
    /// The server may lag behind the one before: [`Session::sync`] comes before anything else.
    fn resume(
        &self,
        timeout: Duration,
        identity: &<Self::Session as Session>::Identity,
        unreachable: impl FnMut(String),
        shortened: impl FnMut(Duration, Instant),
    ) -> impl Future<Output = Result<Self::Session, Failure>>;

    /// Shows the supervisor and the guard the lease, even if they are suspended now.
    fn write_lease(&self, span: Span);

    /// Shows the supervisor that the servers have just answered something.
    fn show_answered(&self, now: Instant);

    /// Reports, and waits for room if there is none: a supervisor that is suspended reads nothing.
    fn report(&self, report: &Report) -> impl Future<Output = ()>;

    /// Reports what is of no interest once it is old. Drops the report if there is no room, and returns whether there was.
    fn report_if_room(&self, report: &Report) -> bool;

    /// Waits for the supervisor's next order. `None`: the supervisor has gone.
    fn order(&self) -> impl Future<Output = Option<Order>>;

    /// The lock is lost for sure: the guard is to kill the command at once.
    fn revoke_lease(&self);

    /// Takes back the lease that is shown, or the sign that it is revoked: the run queues again, and no gate was opened.
    fn forget_lease(&self);

    /// Waits until the guard has reaped the command and all that was below it. Never ends if the guard dies first, or cannot
    /// tell.
    fn emptied(&self) -> impl Future<Output = ()>;

    /// Waits until no guard is left, and none can come. Returns whether, by what the guard has shown, nothing is left of the
    /// command that must not run without the lock.
    fn guard_gone(&self) -> impl Future<Output = bool>;

    /// When the command began, and its status (waitpid(2)), if it has ended and zklock had not stopped it.
    fn own_end(&self) -> Option<(Instant, i32)>;

    /// The supervisor has gone: no command may start any more. Returns false if the command may have started already.
    fn recall(&self) -> bool;

    /// Why we must not wait for a contender, if it is a run above us.
    fn barrier(&self, holder: &HolderNode<'_>) -> Option<Barrier>;

    /// What others may know of us. The first call takes a while.
    fn card(&self) -> &Card;
}
