//! Kills the command when the supervisor cannot: it is stopped, or has died.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use futures_lite::future::or;

use super::outside::Outside;
use super::{Keeper, LONGEST_PAUSE, PAUSE};
use crate::rules::lease::Terms;
use crate::rules::message::{Left, Loss, Report};

/// How long a process may take to execute a program, during which it does not show its environment.
const DOUBT: Duration = Duration::from_secs(1);

impl<O: Outside> Keeper<'_, O> {
    /// Kills the command and waits until nothing is left of it. Returns whether anything was. `report` tells the
    /// supervisor why as soon as something was found: if the supervisor is continued before the wait is over, it
    /// must not think that the command ended by itself.
    pub(super) async fn end_command(&self, report: Option<&Report>) -> bool {
        let Some(remains) = self.command.get() else { return false };
        let mut pause = Duration::from_millis(2);
        let mut found = false;
        let mut doubt_ends = None;
        loop {
            match self.outside.kill(remains) {
                Left::Nobody => return found,
                Left::Unknown => {
                    let now = self.outside.now();
                    // execve(2) hides the environment for less than `DOUBT`; a process that goes on hiding it
                    // does so for another reason.
                    if now >= *doubt_ends.get_or_insert(now + DOUBT) {
                        return found;
                    }
                }
                Left::Somebody => {
                    if let Some(report) = report.filter(|_| !found) {
                        self.outside.report_if_room(report);
                    }
                    (found, doubt_ends) = (true, None);
                }
            }
            self.outside.sleep(pause).await;
            // There may be processes that we are not allowed to kill: look less and less often.
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Kills the command at the end of the lease. The supervisor has done so by then unless it is stopped. In
    /// that case the command may be stopped with it (Ctrl-Z), and must not go on when both are continued.
    pub(super) async fn guard<T>(&self) -> T {
        loop {
            let now = self.outside.now();
            let timeout = self.session.timeout.get();
            let end = self.beats.lease_from.get().map_or(now, |from| Terms::end_of(timeout, from));
            let lost = Report::Lost(Loss::LeaseOver);
            if now >= end && self.end_command(Some(&lost)).await {
                // Once more: a supervisor that has been suspended for long leaves no room for reports.
                self.outside.report(&lost).await;
            }
            // Timers stand still while the machine sleeps.
            let due = self.outside.sleep(end.saturating_since(now).clamp(PAUSE, LONGEST_PAUSE));
            let timeout = self.session.timeout.get();
            // A shorter timeout may have ended the lease already. No waker is needed: the timeout is changed
            // within the same task.
            let changed =
                poll_fn(|_| if self.session.timeout.get() == timeout { Poll::Pending } else { Poll::Ready(()) });
            or(due, changed).await;
        }
    }
}
