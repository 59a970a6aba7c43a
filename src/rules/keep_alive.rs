//! When a connection needs a ping, and when its silence is a loss.

use std::time::Duration;

use super::instant::Instant;

/// How long a connection may be silent on which a lease hangs. It leaves time for a second server within the lease.
pub fn silence_limit(timeout: Duration) -> Duration {
    timeout / 6
}

/// When one connection sends a ping, and when it is given up.
///
/// If pings go out in time, a connection is given up when nothing has come for the limit of silence. If our process or
/// the machine stood still, the ping goes out late, and the server gets the usual time to answer it. So a process that
/// wakes up asks before it gives up the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// How long nothing is sent before a ping is.
    idle: Duration,
    /// How long a request may go unanswered.
    patience: Duration,
}

impl KeepAlive {
    /// For a holder or the next in line, which live by their leases: silence lasts for [`silence_limit`] at most.
    pub fn brisk(timeout: Duration) -> Self {
        let idle = timeout / 16;
        Self { idle, patience: silence_limit(timeout) - idle }
    }

    /// For a waiter further back, which only keeps its session, as other clients do: this spares the servers four pings of
    /// five.
    pub fn calm(timeout: Duration) -> Self {
        Self { idle: timeout / 3, ..Self::brisk(timeout) }
    }

    /// When a ping is due on a connection over which the last request was sent at `last_sent`.
    pub fn ping_at(self, last_sent: Instant) -> Instant {
        last_sent + self.idle
    }

    /// When a connection is lost, if the last byte came at `last_received` and the oldest unanswered request was made
    /// at `asked`.
    ///
    /// Bytes count, not replies: a long reply may take a while.
    pub fn lost_at(self, last_received: Instant, asked: Instant) -> Instant {
        (last_received + self.idle + self.patience).max(asked + self.patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(48);

    fn at(seconds: u64) -> Instant {
        Instant::from_boot(Duration::from_secs(1000 + seconds))
    }

    #[test]
    fn an_idle_connection_is_lost_when_the_silence_is_over() {
        let keep_alive = KeepAlive::brisk(TIMEOUT);
        assert_eq!(keep_alive.ping_at(at(0)), at(3));
        assert_eq!(keep_alive.lost_at(at(0), at(3)), at(8));
        let keep_alive = KeepAlive::calm(TIMEOUT);
        assert_eq!(keep_alive.ping_at(at(0)), at(16));
        assert_eq!(keep_alive.lost_at(at(0), at(16)), at(21));
    }

    #[test]
    fn a_busy_connection_is_lost_as_soon() {
        assert_eq!(KeepAlive::brisk(TIMEOUT).lost_at(at(0), at(1)), at(8));
    }

    #[test]
    fn after_a_pause_of_ours_the_server_has_time_to_answer() {
        assert_eq!(KeepAlive::brisk(TIMEOUT).lost_at(at(0), at(100)), at(105));
    }
}
