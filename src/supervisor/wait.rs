//! What the loop sleeps for.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use anyhow::Context as _;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Supervisor;
use super::caller::Caller;
use super::turn::Turns;
use crate::rules::event::Awaited;
use crate::system::clock;

impl Supervisor<'_> {
    /// Sleeps until a signal, a report, the deadline, a sign of the guard or a text that has no writer comes. A turn reads
    /// all of these without blocking. It leaves out the guard, whose news this notes, if the guard was silent. Returns
    /// whether there is such a text.
    pub(super) fn wait(&mut self, turns: &Turns) -> anyhow::Result<bool> {
        if self.keeper.has_news() {
            self.guard_has_news = true;
            return Ok(true);
        }
        self.manager.extend_start_timeout(clock::now());
        let look_again = self.caller.as_ref().and_then(Caller::look_again).map(|pause| clock::now() + pause);
        let others = self.manager.ask_at.into_iter().chain(look_again);
        self.alarm.set(turns.deadline().into_iter().chain(others).min()).context("cannot set the timer")?;
        let awaits_borrowers = match turns.awaits() {
            Some(Awaited::Borrowers) => true,
            Some(Awaited::Everyone) => self.caller.is_some() && self.job.has_gone(),
            None => false,
        };
        let always = [self.signals.as_fd(), self.child_signals.as_fd(), self.alarm.as_fd()];
        let read = always.into_iter().chain(self.keeper.link.as_ref().map(AsFd::as_fd)).chain(self.job.awaited());
        let read = read.chain(self.writer.awaited()).map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let borrowers = self.keeper.inherited.lending.awaited().filter(|_| awaits_borrowers);
        let borrowers = borrowers.map(|borrowers| PollFd::new(borrowers, PollFlags::empty()));
        let caller = self.caller.as_ref().filter(|_| !self.caller_is_told).and_then(Caller::awaited);
        let mut fds: Vec<_> = read.chain(borrowers).chain(caller).collect();
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("cannot wait for events"),
        }
        let is_ready = |wanted: BorrowedFd<'_>| {
            let polled = fds.iter().find(|fd| fd.as_fd().as_raw_fd() == wanted.as_raw_fd());
            polled.is_some_and(|fd| fd.any() != Some(false))
        };
        let (guard_has_news, has_text) =
            (self.job.awaited().any(is_ready), self.writer.awaited().is_some_and(is_ready));
        self.guard_has_news = guard_has_news;
        Ok(has_text)
    }
}
