//! Standard output, which may take nothing for a long time: a pipe to a pager, a terminal that is paused. A signal ends
//! the program all the same, so it must not sleep in write(2).

use std::io::{IsTerminal as _, stdout};

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::unistd::write;

use super::EarlyEnd;
use crate::rules::text::Legible;
use crate::system::reactor::Reactor;

/// What poll(2) promises room for in a pipe (pipe(7)); terminals take less than that at once, but do not sleep over it.
const PIECE: usize = 1024;

#[derive(Debug)]
pub(super) struct Output<'r> {
    reactor: &'r Reactor,
    pub(super) is_terminal: bool,
}

impl<'r> Output<'r> {
    pub(super) fn new(reactor: &'r Reactor) -> Self {
        Self { reactor, is_terminal: stdout().is_terminal() }
    }

    pub(super) async fn print(&self, text: &Legible) -> Result<(), EarlyEnd> {
        let mut rest = text.as_str().as_bytes();
        while !rest.is_empty() {
            self.reactor.ready(stdout(), PollFlags::POLLOUT).await;
            match write(stdout(), &rest[..rest.len().min(PIECE)]) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                Err(error) => return Err(EarlyEnd::Output(error)),
            }
        }
        Ok(())
    }

    /// Waits until nothing reads it any more.
    pub(super) async fn closed(&self) {
        // poll(2) reports an error or the end even if nothing is asked for.
        self.reactor.ready(stdout(), PollFlags::empty()).await;
    }
}
