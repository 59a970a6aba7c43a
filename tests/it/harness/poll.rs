//! Waiting for a condition, bounded. Nothing here or in the tests sleeps for time to pass.

use std::fmt::Display;
use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for something that is expected to happen. Far longer than it ever takes on a loaded machine,
/// so that running into it means that the thing does not happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How often a condition is looked at: at first, and at least. Many tests wait at the same time, and a look may read all of
/// /proc.
const FIRST_STEP: Duration = Duration::from_millis(2);
const LAST_STEP: Duration = Duration::from_millis(10);

/// Looks every few milliseconds until `probe` gives a value. Panics with `what` after [`PATIENCE`].
#[track_caller]
pub(crate) fn until<T>(what: impl Display, probe: impl FnMut() -> Option<T>) -> T {
    match within(PATIENCE, probe) {
        Some(value) => value,
        None => panic!("waited {PATIENCE:?} in vain: {what}"),
    }
}

/// Looks every few milliseconds until `probe` gives a value, for at most `limit`. Looks at least once.
pub(crate) fn within<T>(limit: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    let mut step = FIRST_STEP;
    loop {
        if let Some(value) = probe() {
            return Some(value);
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(step);
        step = (step * 5 / 4).min(LAST_STEP);
    }
}
