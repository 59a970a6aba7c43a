//! The clock that counts sleep, and a timer on it; the time of day.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::{ClockId as Clock, clock_gettime};

use crate::rules::instant::Instant;

pub fn now() -> Instant {
    // clock_gettime(2) fails only for a clock that the kernel does not have; this one came with
    // Linux 2.6.39. To go on without it would mean a lock without a lease.
    let now = clock_gettime(Clock::CLOCK_BOOTTIME).expect("Linux has CLOCK_BOOTTIME");
    Instant::from_boot(Duration::from(now))
}

/// Wall-clock time in milliseconds since the Unix epoch, for people to read on other machines.
pub fn wall_millis() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// A timerfd on `CLOCK_BOOTTIME`: it fires at once when the machine wakes from a sleep that went
/// past the deadline, where the timeout of poll(2) would first wait out the rest of its time.
#[derive(Debug)]
pub struct Alarm {
    timer: TimerFd,
    armed: Cell<Option<Instant>>,
}

impl Alarm {
    /// An alarm that is not set. Fails if the process has no descriptor left.
    pub fn new() -> nix::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        Ok(Self { timer: TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?, armed: Cell::new(None) })
    }

    /// Makes the descriptor readable from `deadline` on; with `None`, never.
    pub fn set(&self, deadline: Option<Instant>) -> nix::Result<()> {
        if self.armed.replace(deadline) == deadline {
            return Ok(());
        }
        match deadline {
            // A zero value would disarm the timer (timerfd_settime(2)).
            Some(at) => {
                let at = TimeSpec::from_duration(at.since_boot().max(Duration::from_nanos(1)));
                self.timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)
            }
            None => self.timer.unset(),
        }
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}
