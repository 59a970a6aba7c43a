//! What the loop sleeps for, and what is worth reading after that.

use std::os::fd::AsFd;

use anyhow::Context as _;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Supervisor;
use super::caller::Caller;
use super::turn::Turns;
use crate::rules::event::Awaited;
use crate::system::clock;

/// Where there may be something to read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ready {
    pub(super) signals: bool,
    pub(super) keeper: bool,
    pub(super) guard: bool,
    pub(super) children: bool,
    pub(super) texts: bool,
}

impl Ready {
    pub(super) const ALL: Self = Self { signals: true, keeper: true, guard: true, children: true, texts: true };
}

impl Supervisor<'_> {
    /// Sleeps until a signal, a report, the deadline or a text that has no writer comes.
    pub(super) fn wait(&mut self, turns: &Turns) -> anyhow::Result<()> {
        if self.keeper.has_news() {
            self.ready = Ready::ALL;
            return Ok(());
        }
        self.manager.extend_start_timeout(clock::now());
        let look_again = self.caller.as_ref().and_then(Caller::look_again).map(|pause| clock::now() + pause);
        let others = self.manager.ask_at().into_iter().chain(look_again);
        let wake_at = turns.deadline().into_iter().chain(others).min();
        self.alarm.set(wake_at).context("cannot set the timer")?;
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.child_signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.alarm.as_fd(), PollFlags::POLLIN),
        ];
        fds.extend(self.keeper.link.as_ref().map(|link| PollFd::new(link.as_fd(), PollFlags::POLLIN)));
        let of_guard = fds.len();
        fds.extend(self.job.awaited().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        let of_others = fds.len();
        let texts = self.writer.awaited().map(|texts| PollFd::new(texts, PollFlags::POLLIN));
        let has_texts = texts.is_some();
        fds.extend(texts);
        let awaits_borrowers = match turns.awaits() {
            Some(Awaited::Borrowers) => true,
            Some(Awaited::Everyone) => self.caller.is_some() && self.job.has_gone(),
            None => false,
        };
        let lent = self.keeper.inherited.lent.awaited().filter(|_| awaits_borrowers);
        fds.extend(lent.map(|lent| PollFd::new(lent, PollFlags::empty())));
        if !self.caller_is_told {
            fds.extend(self.caller.as_ref().and_then(Caller::awaited));
        }
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("cannot wait for events"),
        }
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
        self.ready = Ready {
            signals: is_ready(&fds[0]),
            children: is_ready(&fds[1]) || self.ready.children,
            keeper: fds[3..of_guard].iter().any(is_ready),
            guard: fds[of_guard..of_others].iter().any(is_ready),
            texts: has_texts && is_ready(&fds[of_others]),
        };
        Ok(())
    }
}
