//! One thread, one poll(2): what it takes to run an `async fn`.
//!
//! There is one future, and no waker. In each round the future is polled, and whatever in it cannot go on notes what it
//! waits for: a descriptor or an instant. If nothing completes, the process sleeps in poll(2) until one of these
//! comes, and the next round begins. What it waits for is noted anew in each round, so nothing has to be taken back.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::clock::{self, Alarm};
use crate::rules::instant::Instant;

#[derive(Debug)]
pub struct Reactor {
    alarm: Alarm,
    /// What the future waits for in this round.
    descriptors: RefCell<Vec<(RawFd, PollFlags)>>,
    /// What the last poll(2) has said of the descriptors. A descriptor that is ready is reported once: its data is taken.
    known: RefCell<Vec<(RawFd, PollFlags, bool)>>,
    earliest: Cell<Option<Instant>>,
    again: Cell<bool>,
    round: Cell<u64>,
}

impl Reactor {
    /// Fails if the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            alarm: Alarm::new()?,
            descriptors: RefCell::default(),
            known: RefCell::default(),
            earliest: Cell::new(None),
            again: Cell::new(false),
            round: Cell::new(0),
        })
    }

    /// Runs the future to its end. Fails if the kernel has no memory for poll(2).
    pub fn run<T>(&self, future: impl Future<Output = T>) -> io::Result<T> {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        let mut is_awake = false;
        loop {
            self.round.set(self.round.get() + 1);
            self.descriptors.borrow_mut().clear();
            self.earliest.set(None);
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Ok(output);
            }
            if !self.again.take() {
                is_awake = false;
                self.sleep()?;
            } else if std::mem::replace(&mut is_awake, true) {
                // After a second round without a sleep, what poll(2) said is out of date: it is asked again.
                self.known.borrow_mut().clear();
            }
        }
    }

    fn sleep(&self) -> io::Result<()> {
        self.alarm.set(self.earliest.get())?;
        let descriptors = self.descriptors.borrow();
        let waits = descriptors.iter().map(|&(number, events)| {
            #[expect(unsafe_code, reason = "what is noted does not live as long as a borrow would have to")]
            // SAFETY: poll(2) only looks at it. If it was closed after it was noted in this round, or its number is
            // another descriptor's by now, there is a round for nothing, in which it is not noted again.
            PollFd::new(unsafe { BorrowedFd::borrow_raw(number) }, events)
        });
        let mut waits: Vec<_> = waits.chain([PollFd::new(self.alarm.as_fd(), PollFlags::POLLIN)]).collect();
        let polled = poll(&mut waits, PollTimeout::NONE);
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
        let known = descriptors.iter().zip(&waits).map(|(&(number, events), fd)| (number, events, is_ready(fd)));
        self.known.replace(known.filter(|_| polled.is_ok()).collect());
        match polled {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether there is one of these events, an error or the end, at this descriptor.
    fn is_ready(&self, descriptor: BorrowedFd<'_>, events: PollFlags) -> bool {
        let mut known = self.known.borrow_mut();
        let place = known.iter().position(|known| (known.0, known.1) == (descriptor.as_raw_fd(), events));
        // An error is for the next system call on the descriptor to tell.
        let ask = || poll(&mut [PollFd::new(descriptor, events)], PollTimeout::ZERO) != Ok(0);
        match place {
            // Nothing was there when poll(2) was asked last, and that answer counts until the next sleep.
            Some(place) if !known[place].2 => false,
            Some(place) => known.swap_remove(place).2,
            None => ask(),
        }
    }

    /// The number of this round, for what is to be done once in each.
    pub fn round(&self) -> u64 {
        self.round.get()
    }

    /// Something has changed that what was polled before in this round may be waiting for.
    pub fn poll_again(&self) {
        self.again.set(true);
    }

    /// The next round begins no later than there is one of these `events`, or an error, at this descriptor.
    pub fn wake_on(&self, descriptor: BorrowedFd<'_>, events: PollFlags) {
        self.descriptors.borrow_mut().push((descriptor.as_raw_fd(), events));
    }

    /// The next round begins no later than `at`.
    pub fn wake_at(&self, at: Instant) {
        self.earliest.set(Some(self.earliest.get().map_or(at, |earliest| earliest.min(at))));
    }

    /// Completes at `at`, which the time that the machine sleeps brings nearer.
    pub async fn sleep_until(&self, at: Instant) {
        poll_fn(|_| {
            if clock::now() >= at {
                return Poll::Ready(());
            }
            self.wake_at(at);
            Poll::Pending
        })
        .await;
    }

    /// Completes when there is one of these `events`, an error or the end, at this descriptor.
    pub async fn ready(&self, descriptor: impl AsFd, events: PollFlags) {
        poll_fn(|_| {
            if self.is_ready(descriptor.as_fd(), events) {
                return Poll::Ready(());
            }
            self.wake_on(descriptor.as_fd(), events);
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::unistd::{pipe, write};

    use super::*;
    use crate::system::futures::{first_of, or, zip};

    #[test]
    fn sleeps_until_the_earliest_of_several_instants() {
        let reactor = Reactor::new().unwrap();
        let begin = clock::now();
        let after = |millis| reactor.sleep_until(begin + Duration::from_millis(millis));
        let (first, ()) = reactor.run(first_of([after(60_000), after(20), after(40_000)].into_iter())).unwrap();
        assert_eq!(first, 1);
        assert!(clock::now() >= begin + Duration::from_millis(20));
        // One round to note what is waited for, and one when it has come.
        assert_eq!(reactor.round(), 2);
    }

    #[test]
    fn a_descriptor_wakes_it() {
        let reactor = Reactor::new().unwrap();
        let (reader, writer) = pipe().unwrap();
        let say = async {
            reactor.sleep_until(clock::now() + Duration::from_millis(5)).await;
            write(&writer, b"x").unwrap();
        };
        reactor.run(zip(reactor.ready(&reader, PollFlags::POLLIN), say)).unwrap();
        drop(writer);
        // The end counts as well.
        reactor.run(reactor.ready(&reader, PollFlags::POLLIN)).unwrap();
    }

    #[test]
    fn another_round_comes_at_once() {
        let reactor = Reactor::new().unwrap();
        let flag = Cell::new(false);
        let waits = poll_fn(|_| if flag.get() { Poll::Ready("seen") } else { Poll::Pending });
        let sets = poll_fn(|_| {
            if !flag.replace(true) {
                reactor.poll_again();
            }
            Poll::Pending
        });
        assert_eq!(reactor.run(or(waits, sets)).unwrap(), "seen");
    }
}
