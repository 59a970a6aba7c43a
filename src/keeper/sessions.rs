//! The sessions of a run, one after the other. A run that loses its session before it has the lock queues again with another
//! session, at the tail. Once the supervisor has been told that the lock is held, a loss is final, unless the supervisor
//! orders to queue again: it does so only if it has opened no gate.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

use super::ending::KeeperEnd;
use super::io::KeeperIo;
use super::{Keeper, Told};
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
    /// With `--once-per`: when this run asked for the lock. The loss of a place in the queue does not change it.
    pub(super) asked: Cell<Option<Asked>>,
    /// With `--lock-delay`: the tokens of the records that this run has written. A session that is lost before a command was
    /// started delays the next one of the same run by nothing.
    pub(super) recorded: RefCell<Vec<i64>>,
    /// When this run first saw the records of holders: by their paths and versions.
    pub(super) seen_records: RefCell<HashMap<(String, i32), Instant>>,
    /// How many sessions in a row have ended before they had a place in the queue.
    without_place: Cell<u32>,
    /// How long to wait before the next session is opened.
    pub(super) pause: Cell<Duration>,
}

/// How long to pause before another session. `without_place`: how many sessions in a row, with this timeout, have got no place
/// in the queue. Without the pause, servers that end each session at once would open a hundred of them a second.
fn pause_after(without_place: u32, timeout: Duration) -> Duration {
    let Some(doublings) = without_place.checked_sub(2) else { return Duration::ZERO };
    timeout.saturating_mul(2u32.saturating_pow(doublings)).min(timeout.max(LONGEST_PAUSE))
}

/// Lives as the keeper of a run until there is nothing left to keep.
pub async fn keep<O: KeeperIo>(plan: &Plan, refresh: Option<Duration>, io: O) {
    let run = RunState {
        started: io.now(),
        asked: Cell::default(),
        recorded: RefCell::default(),
        seen_records: RefCell::default(),
        without_place: Cell::default(),
        pause: Cell::default(),
    };
    while Keeper::new(plan, refresh, &run, &io).keep().await {}
}

impl<O: KeeperIo> Keeper<'_, O> {
    /// This session is lost, and another one is to follow.
    pub(super) async fn prepare_next(&self, loss: Loss) -> KeeperEnd {
        let has_waited = self.told.borrow_mut().waits.take().is_some();
        let is_told = |told: &Told| told.held || told.delayed_until.is_some();
        let had_place = has_waited || is_told(&self.told.borrow());
        self.run.without_place.set(if had_place { 0 } else { self.run.without_place.get() + 1 });
        let pause = pause_after(self.run.without_place.get(), self.session.timeout.get());
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

    #[test]
    fn where_no_session_gets_a_place_the_pause_grows() {
        const TIMEOUT: Duration = Duration::from_secs(30);
        let pauses: Vec<_> = (0..8).map(|sessions| pause_after(sessions, TIMEOUT)).collect();
        assert_eq!(pauses, [0, 0, 1, 2, 4, 8, 10, 10].map(|times| TIMEOUT * times));
        assert_eq!(TIMEOUT * 10, LONGEST_PAUSE);
        assert_eq!(pause_after(u32::MAX, LONGEST_PAUSE * 2), LONGEST_PAUSE * 2);
    }
}
