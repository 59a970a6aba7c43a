//! Times on the clock of the commands' log.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use super::poll;

/// How late a loaded machine may be with something that is due at a set time. Less than the margins of the
/// lease, so a lease without them would be noticed.
const LATE: Duration = Duration::from_secs(1);

/// A time by CLOCK_BOOTTIME, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(pub(super) u64);

impl Moment {
    pub(crate) fn now() -> Self {
        let now = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).expect("the clock can be read"));
        Self(now.as_nanos().try_into().expect("a machine is not up for centuries"))
    }

    pub(crate) fn after(self, time: Duration) -> Self {
        Self(self.0 + u64::try_from(time.as_nanos()).expect("a short time"))
    }

    /// How long after `earlier` this was; zero when it was before.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Waits until this moment has passed. For delays, and for deadlines on a server's clock, which no test
    /// can read.
    #[track_caller]
    pub(crate) fn wait_past(self) {
        poll::until("the time comes", || (Self::now() > self).then_some(()));
    }

    /// Panics unless this was at most `limit` after `earlier`.
    #[track_caller]
    pub(crate) fn expect_within(self, limit: Duration, earlier: Self, what: &str) {
        let took = self.since(earlier);
        assert!(took <= limit + LATE, "{what}: after {took:?}, not {limit:?}");
    }
}
