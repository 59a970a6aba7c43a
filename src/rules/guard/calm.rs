//! When a guard reaps no orphans, so that it is not late to kill.

use std::time::Duration;

use super::super::instant::Instant;

/// Among processes that fork and exit all the time, a call that reaps one can take a guard with a real-time priority as
/// long as this (sched_rt_period_us in sched(7)): in the kernel it waits for a process that has its processor only when
/// that period ends (shrink_dcache_parent in the kernel's source). So for this time before SIGKILL is due it reaps none
/// there, or for half of the time by which the lease was extended last, if that is less.
const AT_MOST: Duration = Duration::from_secs(1);

/// Processes fork and exit all the time if so many orphans are reaped within this time.
const MANY: u32 = 16;
const WITHIN: Duration = Duration::from_millis(100);

/// Counts orphans, and watches how near the moment for SIGKILL is.
#[derive(Debug)]
pub(super) struct Calm {
    /// Whether the guard has a real-time priority, and children that live. Any other one would just have more zombies to
    /// meet when it kills.
    is_possible: bool,
    orphans: u32,
    counted_from: Instant,
    /// The moment for SIGKILL, and from when on it is near.
    kill_at: Instant,
    near: Instant,
    /// Whether many orphans were reaped when it was near.
    has_begun: bool,
}

// Inlined, because only the pages of its callers are locked in memory.
impl Calm {
    pub(super) fn new(goes_first: bool, now: Instant) -> Self {
        Self { is_possible: goes_first, orphans: 0, counted_from: now, kill_at: now, near: now, has_begun: false }
    }

    /// No child lives any more, so none ever will.
    #[inline(always)]
    pub(super) fn end(&mut self) {
        self.is_possible = false;
    }

    /// An orphan has been reaped.
    #[inline(always)]
    pub(super) fn count(&mut self, now: Instant) {
        if now > self.counted_from + WITHIN {
            (self.orphans, self.counted_from) = (0, now);
        }
        self.orphans = self.orphans.saturating_add(1);
    }

    /// Whether to reap no orphan for now.
    #[inline(always)]
    pub(super) fn holds(&mut self, now: Instant, kill_at: Instant) -> bool {
        if self.kill_at != kill_at {
            let left = kill_at.saturating_since(now);
            (self.kill_at, self.near, self.has_begun) = (kill_at, now + left - AT_MOST.min(left / 2), false);
        }
        let is_near = self.near <= now && now < kill_at;
        self.has_begun |= is_near && self.orphans >= MANY && now <= self.counted_from + 2 * WITHIN;
        self.is_possible && is_near && self.has_begun
    }
}
