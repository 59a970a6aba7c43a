//! When a connection needs a ping, and when its silence is a loss.

use std::time::Duration;

use crate::rules::instant::Instant;

/// The pace of one connection.
///
/// If pings go out in time, a connection is given up when nothing has come for the limit of silence. If our process or
/// the machine stood still, the ping goes out late, and the server gets the usual time to answer it. So a process that
/// wakes up asks before it gives up the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The longest silence.
    silence: Duration,
    /// How long nothing is sent before a ping is.
    idle: Duration,
}

impl Pace {
    /// The pace of a connection that is given up after this silence.
    pub fn new(silence: Duration) -> Self {
        Self { silence, idle: silence * 3 / 8 }
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
        (last_received + self.silence).max(asked + (self.silence - self.idle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(8);

    fn at(seconds: u64) -> Instant {
        Instant::from_boot(Duration::from_secs(1000 + seconds))
    }

    #[test]
    fn an_idle_connection_is_lost_when_the_silence_is_over() {
        let pace = Pace::new(SILENCE);
        assert_eq!(pace.ping_at(at(0)), at(3));
        assert_eq!(pace.lost_at(at(0), at(3)), at(8));
    }

    #[test]
    fn a_busy_connection_is_lost_as_soon() {
        assert_eq!(Pace::new(SILENCE).lost_at(at(0), at(1)), at(8));
    }

    #[test]
    fn after_a_pause_of_ours_the_server_has_time_to_answer() {
        assert_eq!(Pace::new(SILENCE).lost_at(at(0), at(100)), at(105));
    }
}
