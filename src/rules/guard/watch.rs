//! When a guard kills, and when it looks again.

use std::time::Duration;

use super::super::instant::Instant;

/// SIGKILL goes out again: first after this pause, then after pauses that grow up to the other one.
pub(super) const KILL_AGAIN: Duration = Duration::from_millis(10);
pub(super) const KILL_AGAIN_AT_MOST: Duration = Duration::from_secs(1);

/// A guard looks again after this part of what is left of the lease. So what it knows of the lease is never much older than
/// the last beat, and whatever pause a command survives, its guard survives.
const LOOKS: u32 = 8;

/// A guard looks at a lease no more often than this.
const SHORTEST_LOOK: Duration = Duration::from_millis(10);

/// What a guard decides: when to kill, and when to look again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watch {
    is_open: bool,
    killing: Option<Killing>,
}

/// The command is being killed.
#[derive(Clone, Copy, Debug)]
struct Killing {
    /// When SIGKILL goes out again to all that can be found; `None` before the first time.
    again_at: Option<Instant>,
    /// The pause that comes after that.
    pause: Duration,
}

impl Killing {
    const BEGIN: Self = Self { again_at: None, pause: KILL_AGAIN };
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// There is no command yet.
    Idle,
    /// The lease lasts.
    Watch {
        /// When to look again.
        look_at: Instant,
        /// When the kernel is to kill the guard, unless it moves this by then.
        deadline: Instant,
    },
    /// Kill all that is left.
    Kill {
        /// The reason is that the lease is over, and this is the first time that it is.
        lease_over: bool,
        /// What has been killed before should have ended by now.
        again: bool,
        /// When to look again.
        wake_at: Instant,
        /// While the lease lasts: when the kernel is to kill the guard, unless it moves this by then.
        deadline: Option<Instant>,
    },
}

impl Watch {
    /// The gate is to be opened: from here on the lease counts. Returns false if the gate was opened already, or was
    /// closed for good.
    pub(super) fn open(&mut self) -> bool {
        self.killing.is_none() && !std::mem::replace(&mut self.is_open, true)
    }

    /// Whether the gate was opened.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether the command is being killed.
    pub(super) fn is_killing(&self) -> bool {
        self.killing.is_some()
    }

    /// The command is to be killed, whatever the lease.
    pub(super) fn kill(&mut self) {
        self.killing.get_or_insert(Killing::BEGIN);
    }

    /// What to do at `now`. `kill_at` and `ends_at`: when the lease demands SIGKILL, and when it ends; both lie in the
    /// past where there is no lease. The guard looks long before the end of the lease, so that it moves its deadline in time
    /// even if it is scheduled late.
    pub(super) fn judge(&mut self, now: Instant, kill_at: Instant, ends_at: Instant) -> Verdict {
        if self.killing.is_none() {
            if !self.is_open {
                return Verdict::Idle;
            }
            if now < kill_at {
                return Verdict::Watch { look_at: kill_at.min(next_look(now, ends_at)), deadline: ends_at };
            }
        }
        let lease_over = self.killing.is_none();
        let Killing { again_at, pause } = self.killing.unwrap_or(Killing::BEGIN);
        let again = again_at.is_some_and(|again_at| again_at <= now);
        let again_at = again_at.filter(|_| !again).unwrap_or_else(|| {
            self.killing = Some(Killing { again_at: Some(now + pause), pause: (pause * 2).min(KILL_AGAIN_AT_MOST) });
            now + pause
        });
        let deadline = (now < kill_at).then_some(ends_at);
        let wake_at = deadline.map_or(again_at, |_| again_at.min(next_look(now, ends_at)));
        Verdict::Kill { lease_over, again, wake_at, deadline }
    }
}

/// When to look at the lease again, so that the deadline is moved in time.
fn next_look(now: Instant, ends_at: Instant) -> Instant {
    now + (ends_at.saturating_since(now) / LOOKS).max(SHORTEST_LOOK)
}
