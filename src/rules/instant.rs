//! Points in time on a clock that goes on counting while the machine sleeps.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point on `CLOCK_BOOTTIME`: time since boot, sleep included (clock_gettime(2)).
///
/// `std::time::Instant` is `CLOCK_MONOTONIC` on Linux, which stands still while the machine
/// sleeps; a lease reckoned on it would outlive the session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Instant(Duration);

impl Instant {
    pub const fn from_boot(since_boot: Duration) -> Self {
        Self(since_boot)
    }

    pub const fn since_boot(self) -> Duration {
        self.0
    }

    /// Time from `earlier` to `self`; zero when `earlier` is later.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Saturates: a deadline past the end of time is never reached, which is what is meant.
    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(rhs))
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(rhs))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}s", self.0.as_secs_f64())
    }
}
