//! The sessions of a run, one after the other. A run that loses its session before it has the lock queues again with another
//! session, at the tail. Once the supervisor has been told that the lock is held, a loss is final, unless the supervisor
//! orders to queue again: it does so only if it has opened no gate.

use std::cell::Cell;
use std::time::Duration;

use super::Keeper;
use super::ending::KeeperEnd;
use super::io::KeeperIo;
use crate::cli::Plan;
use crate::rules::instant::Instant;
use crate::rules::last_run::Asked;
use crate::rules::message::{Loss, Report};

/// The longest pause before another session, unless the session timeout is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);

/// What a keeper knows of its run, whatever the session.
pub(super) struct RunState {
    /// When the keeper was started.
    pub(super) started: Instant,
    /// With `--once-per`: when this run asked. A place in the queue that is lost does not change that.
    pub(super) asked: Cell<Option<Asked>>,
    early_ends: Cell<EarlyEnds>,
    /// How long to wait before the next session is opened.
    pub(super) pause: Cell<Duration>,
}

impl RunState {
    /// Before this instant a holder that the servers have forgotten may still be running.
    pub(super) fn start_at(&self) -> Instant {
        self.early_ends.get().start_at
    }
}

/// What follows from sessions that have ended before their time.
#[derive(Clone, Copy, Debug)]
struct EarlyEnds {
    /// No command starts before this instant.
    start_at: Instant,
    /// How long to pause before another session, if this one ends early as well; zero once one has got a place in the queue.
    pause: Duration,
}

impl EarlyEnds {
    /// A session with this timeout is lost. Returns how long to pause before the next one.
    fn add(&mut self, loss: Loss, had_place: bool, timeout: Duration, now: Instant) -> Duration {
        if had_place {
            self.pause = Duration::ZERO;
        }
        if loss != Loss::SessionEnded {
            return Duration::ZERO;
        }
        // The servers may have forgotten a holder that has not learnt of it yet. That holder still relies on its lease,
        // which is shorter than this timeout. In the queue we keep those who come later from starting before.
        self.start_at = self.start_at.max(now + timeout);
        // Where each session ends before it has a place, they are not to be opened a hundred times a second.
        let pause = self.pause;
        self.pause = (pause * 2).clamp(timeout, timeout.max(LONGEST_PAUSE));
        pause
    }
}

/// Lives as the keeper of a run until there is nothing left to keep.
pub async fn keep<O: KeeperIo>(plan: &Plan, refresh: Option<Duration>, io: O) {
    let started = io.now();
    let early_ends = Cell::new(EarlyEnds { start_at: started, pause: Duration::ZERO });
    let run = RunState { started, asked: Cell::default(), early_ends, pause: Cell::default() };
    while Keeper::new(plan, refresh, &run, &io).keep().await {}
}

impl<O: KeeperIo> Keeper<'_, O> {
    /// This session is lost, and another one is to follow.
    pub(super) async fn prepare_next(&self, loss: Loss) -> KeeperEnd {
        let has_waited = self.told.borrow_mut().waits.take().is_some();
        let had_place = has_waited || self.told.borrow().held;
        let mut early_ends = self.run.early_ends.get();
        let pause = early_ends.add(loss, had_place, self.session.timeout.get(), self.io.now());
        self.run.early_ends.set(early_ends);
        // Not all clients whose sessions have ended at the same moment are to come back at the same moment.
        self.run.pause.set(pause + pause * (self.io.random() % 1000) as u32 / 2000);
        self.io.forget_lease();
        self.io.report(&Report::Requeued { loss, pause }).await;
        KeeperEnd::QueuesAgain(loss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);
    const START: Instant = Instant::from_boot(Duration::from_secs(1000));

    /// Only a session that has got no place either is followed by a pause.
    #[test]
    fn where_each_session_ends_early_the_pause_grows() {
        let mut early_ends = EarlyEnds { start_at: START, pause: Duration::ZERO };
        let mut end = |loss, had_place| early_ends.add(loss, had_place, TIMEOUT, START);
        let pauses: Vec<_> = (0..6).map(|_| end(Loss::SessionEnded, false)).collect();
        assert_eq!(pauses, [0, 1, 2, 4, 8, 10].map(|times| TIMEOUT * times));
        assert_eq!(TIMEOUT * 10, LONGEST_PAUSE);
        assert_eq!(end(Loss::SessionExpired, true), Duration::ZERO);
        assert_eq!(end(Loss::SessionEnded, false), Duration::ZERO);
        assert_eq!(end(Loss::SessionEnded, false), TIMEOUT);
    }

    #[test]
    fn a_shorter_timeout_does_not_bring_the_start_forward() {
        let mut early_ends = EarlyEnds { start_at: START, pause: Duration::ZERO };
        for timeout in [TIMEOUT, TIMEOUT / 6] {
            early_ends.add(Loss::SessionEnded, true, timeout, START);
            assert_eq!(early_ends.start_at, START + TIMEOUT);
        }
    }
}
