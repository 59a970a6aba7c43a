//! Looks at many nodes in one go: several requests are under way at a time.

use std::collections::VecDeque;
use std::pin::Pin;

/// Enough to fill the line, and few enough that a server is not busy with us alone.
const IN_FLIGHT: usize = 256;

/// Requests whose replies have not come yet, each with what was asked about.
pub(super) struct Window<T, F>(VecDeque<(T, Pin<Box<F>>)>);

impl<T, F: Future> Window<T, F> {
    pub(super) fn new() -> Self {
        Self(VecDeque::new())
    }

    /// Asks while there is room, and waits for the next reply. Replies come in the order of the requests. `ask` makes a
    /// request and sends it at once, as [`crate::zookeeper::session::Session`] does. `None`: all have been answered.
    pub(super) async fn next(&mut self, mut ask: impl FnMut() -> Option<(T, F)>) -> Option<(T, F::Output)> {
        while self.0.len() < IN_FLIGHT
            && let Some((subject, reply)) = ask()
        {
            self.0.push_back((subject, Box::pin(reply)));
        }
        let (subject, reply) = self.0.pop_front()?;
        Some((subject, reply.await))
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn many_are_asked_before_the_first_is_awaited() {
        let mut window = Window::new();
        let mut asked = 0;
        let ask = || {
            asked += 1;
            Some((asked, ready(())))
        };
        let first = pin!(window.next(ask)).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!((first, asked), (Poll::Ready(Some((1, ()))), IN_FLIGHT));
    }
}
