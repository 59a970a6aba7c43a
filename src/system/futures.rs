//! Several futures as one.
//!
//! None of these keeps a waker: whoever runs them polls all of them each time (`crate::system::reactor`).

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

pin_project! {
    /// Both are in it once. In an `async fn` each argument has its place twice: as it came, and where it is pinned. The
    /// keeper's future, with one in another five times, was 109 kB, and to zero and move it a fifth of its start.
    struct Or<A, B> {
        #[pin]
        first: A,
        #[pin]
        second: B,
    }
}

impl<T, A: Future<Output = T>, B: Future<Output = T>> Future for Or<A, B> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let both = self.project();
        match both.first.poll(context) {
            Poll::Pending => both.second.poll(context),
            ready => ready,
        }
    }
}

/// The output of the one that completes first. The first one is polled first.
pub fn or<T>(first: impl Future<Output = T>, second: impl Future<Output = T>) -> impl Future<Output = T> {
    Or { first, second }
}

pin_project! {
    struct Zip<A: Future, B: Future> {
        #[pin]
        first: A,
        #[pin]
        second: B,
        left: Option<A::Output>,
        right: Option<B::Output>,
    }
}

impl<A: Future, B: Future> Future for Zip<A, B> {
    type Output = (A::Output, B::Output);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let both = self.project();
        if both.left.is_none()
            && let Poll::Ready(output) = both.first.poll(context)
        {
            *both.left = Some(output);
        }
        if both.right.is_none()
            && let Poll::Ready(output) = both.second.poll(context)
        {
            *both.right = Some(output);
        }
        match (both.left.take(), both.right.take()) {
            (Some(left), Some(right)) => Poll::Ready((left, right)),
            (left, right) => {
                (*both.left, *both.right) = (left, right);
                Poll::Pending
            }
        }
    }
}

/// The outputs of both. The first one is polled first.
pub fn zip<A: Future, B: Future>(first: A, second: B) -> impl Future<Output = (A::Output, B::Output)> {
    Zip { first, second, left: None, right: None }
}

/// Completes once this is so. Whatever makes it so happens in the same task, or wakes it.
pub async fn until(is_so: impl Fn() -> bool) {
    poll_fn(|_| if is_so() { Poll::Ready(()) } else { Poll::Pending }).await;
}

/// The outputs of all, in their order.
pub async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    poll_fn(|context| {
        for (future, output) in futures.iter_mut().filter(|(_, output)| output.is_none()) {
            if let Poll::Ready(ready) = future.as_mut().poll(context) {
                *output = Some(ready);
            }
        }
        match futures.iter().all(|(_, output)| output.is_some()) {
            true => Poll::Ready(futures.iter_mut().filter_map(|(_, output)| output.take()).collect()),
            false => Poll::Pending,
        }
    })
    .await
}

/// The number and the output of the one that completes first. Those before it are polled first.
pub async fn first_of<F: Future>(futures: impl Iterator<Item = F>) -> (usize, F::Output) {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    poll_fn(|context| {
        for (number, future) in futures.iter_mut().enumerate() {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready((number, output));
            }
        }
        Poll::Pending
    })
    .await
}
