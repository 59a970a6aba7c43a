//! What a guard decides: when to kill, and when to look again.

use std::time::Duration;

use super::instant::Instant;

/// SIGKILL goes out again: first after this pause, then after pauses that grow up to the other one.
const KILL_AGAIN: Duration = Duration::from_millis(10);
const KILL_AGAIN_AT_MOST: Duration = Duration::from_secs(1);

/// A guard looks at a lease no more often than this.
const SHORTEST_LOOK: Duration = Duration::from_millis(10);

/// How far a guard has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    is_open: bool,
    /// The command is being killed; the pause before it is killed again.
    killing: Option<Duration>,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
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
        /// When to kill again.
        again_at: Instant,
        /// While the lease lasts: when the kernel is to kill the guard, unless it moves this by then.
        deadline: Option<Instant>,
    },
}

impl Watch {
    /// The gate is opened: from here on the lease counts.
    pub fn open(&mut self) {
        self.is_open = true;
    }

    /// Whether the gate was opened.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// The command is to be killed, whatever the lease.
    pub fn kill(&mut self) {
        self.killing.get_or_insert(KILL_AGAIN);
    }

    /// What to do at `now`. `kill_at` and `ends_at`: when the lease demands SIGKILL, and when it ends; both lie in the
    /// past where there is no lease. The guard looks half-way to the end of the lease, so that it moves its deadline in
    /// time even if it is scheduled late.
    pub fn judge(&mut self, now: Instant, kill_at: Instant, ends_at: Instant) -> Verdict {
        if self.killing.is_none() {
            if !self.is_open {
                return Verdict::Idle;
            }
            if now < kill_at {
                let half = (ends_at.saturating_since(now) / 2).max(SHORTEST_LOOK);
                return Verdict::Watch { look_at: kill_at.min(now + half), deadline: ends_at };
            }
        }
        let lease_over = self.killing.is_none();
        let pause = self.killing.unwrap_or(KILL_AGAIN);
        self.killing = Some((pause * 2).min(KILL_AGAIN_AT_MOST));
        let deadline = (now < kill_at).then_some(ends_at);
        Verdict::Kill { lease_over, again_at: now + pause, deadline }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_boot(Duration::from_millis(millis))
    }

    #[test]
    fn a_lease_is_watched_until_it_demands_the_kill() {
        let mut watch = Watch::default();
        assert_eq!(watch.judge(at(0), at(900), at(1000)), Verdict::Idle);
        watch.open();
        let verdict = |look| Verdict::Watch { look_at: at(look), deadline: at(1000) };
        assert_eq!(watch.judge(at(0), at(900), at(1000)), verdict(500));
        assert_eq!(watch.judge(at(880), at(900), at(1000)), verdict(900));
        let kill = |lease_over, again, deadline: Option<u64>| Verdict::Kill {
            lease_over,
            again_at: at(again),
            deadline: deadline.map(at),
        };
        assert_eq!(watch.judge(at(900), at(900), at(1000)), kill(true, 910, None));
        // An extension that comes too late saves the guard, which has not done yet, and not the command.
        assert_eq!(watch.judge(at(910), at(1900), at(2000)), kill(false, 930, Some(2000)));
    }

    #[test]
    fn a_guard_is_told_to_kill_whatever_the_lease() {
        let mut watch = Watch::default();
        watch.open();
        watch.kill();
        let kill = Verdict::Kill { lease_over: false, again_at: at(10), deadline: Some(at(1000)) };
        assert_eq!(watch.judge(at(0), at(900), at(1000)), kill);
    }
}
