//! Beats, and the lease that they extend.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use super::io::KeeperIo;
use super::place::StepEnd;
use super::{Keeper, PAUSE};
use crate::rules::card::Card;
use crate::rules::contacts::Beat;
use crate::rules::instant::Instant;
use crate::rules::lease::{Lease, Terms};
use crate::rules::message::{Loss, Progress, Remark, Report};
use crate::system::futures::{or, until};
use crate::zookeeper::session::{Failure, Session};

impl<O: KeeperIo> Keeper<'_, O> {
    /// Waits for a lease that is long enough to start a command under. Returns the instant from which it
    /// counts.
    pub(super) async fn fresh_lease(&self, session: &O::Session, nodes: &[String]) -> Result<Instant, StepEnd> {
        let terms = Terms::with_default_grace(session.timeout());
        let is_fresh = |from| Lease::new(terms, from).worth_starting(self.io.now());
        // With a single lock, the creation itself says that its nodes exist. With several locks, only a beat that checks all
        // nodes says so.
        let mut checked = self.locks.len() == 1;
        let (begun, mut is_slow) = (self.io.now(), false);
        loop {
            match self.beats.lease_from.get() {
                Some(from) if checked && is_fresh(from) => return Ok(from),
                _ => {
                    self.io.report_if_room(&Report::Queue(Progress::Turn));
                    let before = self.beats.last.get();
                    if self.sync(session).await? {
                        self.beat(session, nodes).await?;
                    }
                    checked |= self.beats.last.get() > before;
                }
            }
            // A first beat after a silence extends the lease by little.
            if !self.beats.lease_from.get().is_some_and(is_fresh) {
                let vain = self.io.now().saturating_since(begun);
                if !is_slow && vain > session.timeout() {
                    is_slow = self.io.report_if_room(&Report::Remark(Remark::TooSlow(vain)));
                }
                self.io.sleep(terms.beat / 4).await;
            }
        }
    }

    /// Beats until a beat fails for good.
    pub(super) async fn keep_beating(&self, session: &O::Session, nodes: &[String]) -> Result<(), StepEnd> {
        let interval = Terms::beat_of(session.timeout());
        let age = |since: Option<Instant>| since.map_or(interval, |since| self.io.now().saturating_since(since));
        // After a silence the lease counts from long before the last beat. More beats extend it sooner, but no more than four
        // in an interval.
        let pause = |since| (interval / 4).saturating_sub(age(since));
        let due = || interval.saturating_sub(age(self.beats.lease_from.get())).max(pause(self.beats.last.get()));
        // How many beats are to be sent, and how many were. If a beat takes long, the next `sync` does not wait for the
        // answer: `sync` and beat in turn would cost twice the delay of servers that are only slow.
        let (ready, done) = (Cell::new(0u64), Cell::new(0u64));
        let syncing = async {
            loop {
                or(until(|| self.beats.urged.take()), self.io.sleep(due())).await;
                let asked = self.io.now();
                if self.sync(session).await? {
                    ready.update(|ready| ready + 1);
                    or(until(|| done.get() == ready.get()), self.io.sleep(pause(Some(asked)))).await;
                }
            }
        };
        let beating = async {
            loop {
                until(|| done.get() < ready.get()).await;
                let covers = ready.get();
                self.beat(session, nodes).await?;
                done.set(covers);
            }
        };
        or(syncing, beating).await
    }

    /// Sends the `sync` by which the next beat extends the lease as far as a beat can. Returns false if the `sync` was not
    /// answered.
    async fn sync(&self, session: &O::Session) -> Result<bool, StepEnd> {
        match self.ask_for_sync(session).await {
            Ok(()) => Ok(true),
            Err(Failure::Unknown(why)) => {
                log::info!("sync not answered: {why}");
                self.io.sleep(PAUSE).await;
                Ok(false)
            }
            Err(failure) => Err(StepEnd::because(failure, &self.plan.request.lock)),
        }
    }

    /// Sends a `sync`, if a beat that comes soon wants it; see [`Contacts`](crate::rules::contacts::Contacts).
    pub(super) async fn ask_for_sync(&self, session: &O::Session) -> Result<(), Failure> {
        let sent = self.io.now();
        let is_wanted = self.beats.contacts.borrow().wants_sync(session.timeout(), sent);
        if is_wanted {
            session.sync(self.plan.request.lock.as_str()).await?;
            self.beats.contacts.borrow_mut().note_synced(sent);
        }
        Ok(())
    }

    pub(super) fn beat_now(&self) -> Beat {
        self.beats.contacts.borrow().beat_sent_at(self.io.now())
    }

    /// Sends one beat. If it is not answered, the lease stays what it was.
    async fn beat(&self, session: &O::Session, nodes: &[String]) -> Result<(), StepEnd> {
        let beat = self.beat_now();
        let publish = self.beats.unpublished.borrow().as_ref().map(|(card, since)| {
            let held_for = u64::try_from(beat.sent.saturating_since(*since).as_millis()).ok();
            Card { held_for, ..card.clone() }.to_bytes()
        });
        match session.beat(nodes, publish.as_deref()).await {
            Ok(()) => {
                self.extend_lease(session, beat);
                self.beats.unpublished.take();
            }
            Err(Failure::Unknown(why)) => {
                log::info!("beat not answered: {why}");
                self.io.sleep(PAUSE).await;
            }
            // We have changed the data, in a beat whose reply was lost, or someone asks us to give up the lock: that request
            // must not be overwritten.
            Err(Failure::Changed) if publish.is_some() => {
                log::info!("the data of {} has been changed, and is left as it is", nodes.join(" "));
                self.beats.unpublished.take();
                self.beats.urged.set(true);
            }
            // A quota, for example. The lock is worth more than the news that it is held.
            Err(failure @ (Failure::Unusable(_) | Failure::Refused(_) | Failure::Denied)) if publish.is_some() => {
                log::warn!("cannot say in {} that it is held: {failure}", nodes.join(" "));
                self.beats.unpublished.take();
            }
            // We may read our own nodes, so this single node is another's.
            Err(Failure::Denied) if self.is_single() => return Err(StepEnd::Gone(Loss::NodeDeleted)),
            Err(failure) => return Err(StepEnd::because(failure, nodes.first().map_or("", String::as_str))),
        }
        Ok(())
    }

    /// Extends the lease, now that a beat was answered, or another transaction that says as much.
    pub(super) fn extend_lease(&self, session: &O::Session, beat: Beat) {
        let now = self.io.now();
        let mut contacts = self.beats.contacts.borrow_mut();
        contacts.add(session.timeout(), session.take_contacts());
        let from = contacts.lease_from(session.timeout(), beat);
        self.io.show_answered(now);
        self.beats.last.set(Some(beat.sent));
        // A new connection knows less of the past than the one before.
        let from = self.beats.lease_from.get().map_or(from, |before| before.max(from));
        assert!(from <= beat.sent, "a lease counts from a beat that was answered, and never from the answer");
        self.beats.lease_from.set(Some(from));
        self.io.write_lease(Terms::span(session.timeout(), from));
    }

    /// The servers count with a shorter session timeout from now on, whether or not they answer another
    /// request.
    pub(super) fn shorten_lease(&self, id: i64, timeout: Duration, asked_at: Instant) {
        let before = self.session.timeout.get();
        let from = self.beats.lease_from.get().map(|from| Terms::shortened(from, before, timeout, asked_at));
        self.beats.lease_from.set(from);
        self.session.timeout.set(timeout);
        if let Some(from) = from {
            self.io.write_lease(Terms::span(timeout, from));
        }
        log::info!("session {id:#018x}, timeout {timeout:?}");
    }

    /// If the lease was over before we looked, a node has usually gone with its session, and nobody has deleted it.
    pub(super) fn without_blame(&self, report: Report) -> Report {
        let is_over = |from| self.io.now() >= Terms::span(self.session.timeout.get(), from).ends_at;
        match report {
            // A waiter further back has no lease.
            Report::Lost(Loss::NodeDeleted)
                if self.told.borrow().held && self.beats.lease_from.get().is_some_and(is_over) =>
            {
                Report::Lost(Loss::StoodStill)
            }
            report => report,
        }
    }

    /// Collects what the session's requests and pings say about the servers. Never ends. To be polled before the beats.
    pub(super) async fn collect_contacts<T>(&self, session: &O::Session) -> T {
        poll_fn(|_| {
            let new = session.take_contacts();
            if let Some(last) = new.last() {
                self.io.show_answered(last.answered);
            }
            self.beats.contacts.borrow_mut().add(session.timeout(), new);
            Poll::Pending
        })
        .await
    }
}
