//! The durations that tests share. How long a test waits for what should happen is [`PATIENCE`].
//!
//! [`PATIENCE`]: super::poll::PATIENCE

use std::time::Duration;

use super::poll;

/// The session timeout where no session is to expire. On a machine that is slow for seconds, no contender loses the
/// lock; and an expiry cannot pass for a release, because it takes longer than [`SOON`].
pub(crate) const LONG_SESSION: Duration = Duration::from_secs(20);

/// The session timeout where a session has to end by itself, but a pause of three seconds is to disturb nothing.
pub(crate) const BRIEF_SESSION: Duration = Duration::from_secs(10);

/// The session timeout where a lease is to run out. A machine that stalls for two seconds costs no contender the lock.
pub(crate) const SHORT_SESSION: Duration = Duration::from_secs(8);

/// How long a lease lasts from the last answered beat, under [`SHORT_SESSION`].
pub(crate) const LEASE: Duration = Duration::from_millis(5192);

/// How long something that happens at once may take on a loaded machine. Tests use sessions that last longer
/// than this, so that an expiry cannot be mistaken for the thing itself.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(5);

/// How long it may take until a deleted node has gone. A run that gives up waits two seconds at most for the server's
/// answer; a server that stands still for that long deletes the node when it goes on.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// How long a crowd may take, on a machine that does much else.
pub(crate) const CROWD_LIMIT: Duration = Duration::from_secs(180);

/// "Well under 100 ms", see [`expect_once_below`].
pub(crate) const INSTANT: Duration = Duration::from_millis(100);

/// Measures again until something has taken less than `limit`. On a loaded machine, what should be instant may be slow
/// a few times. Panics when it is never fast enough within [`PATIENCE`].
///
/// [`PATIENCE`]: super::poll::PATIENCE
#[track_caller]
pub(crate) fn expect_once_below(limit: Duration, mut measure: impl FnMut() -> Duration) {
    let mut times = vec![];
    let once = poll::within(poll::PATIENCE, || {
        times.push(measure());
        times.last().filter(|time| **time < limit).map(drop)
    });
    assert!(once.is_some(), "never below {limit:?}: {times:?}");
}
