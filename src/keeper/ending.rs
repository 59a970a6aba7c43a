//! How a keeper's work in one session ends, and what is left to do then.

use std::cell::Cell;
use std::future::pending;
use std::pin::{Pin, pin};
use std::rc::Rc;

use super::io::KeeperIo;
use super::{Keeper, PAUSE};
use crate::rules::instant::Instant;
use crate::rules::last_run::Success;
use crate::rules::message::{Loss, Order, Report};
use crate::system::futures::{or, zip};
use crate::zookeeper::session::{Failure, Session};

/// Why the work in a session ends.
pub(super) enum KeeperEnd {
    /// Nothing is left of the command.
    Emptied,
    /// The supervisor wants the lock released.
    Released,
    /// The supervisor has gone.
    Orphaned,
    /// Supervisor and guard have gone, and what is left of the command may run for another moment. No process can say when it
    /// has ended.
    Abandoned,
    /// There is nothing more to keep.
    Over(Report),
    /// The session is lost, and the run has no command: it queues again with another session.
    QueuesAgain(Loss),
}

impl<O: KeeperIo> Keeper<'_, O> {
    /// Keeps one session. Returns whether another one is to follow.
    pub(super) async fn keep(self) -> bool {
        let mut life = Box::pin(async { KeeperEnd::Over(self.without_blame(self.live().await)) });
        let mut emptied = pin!(async {
            self.io.emptied().await;
            KeeperEnd::Emptied
        });
        let end = or(self.follow_orders(None), or(emptied.as_mut(), life.as_mut())).await;
        let ended = self.io.now();
        let is_over = matches!(end, KeeperEnd::Over(_));
        let end = self.settle(end, ended, life.as_mut(), emptied.as_mut()).await;
        if let KeeperEnd::Abandoned = end {
            log::info!("leaving the lock to its session timeout: the guard died before the command had ended");
            return false;
        }
        // Once the supervisor has gone, no process can say whether the command was stopped.
        let has_result = !is_over && !matches!(end, KeeperEnd::Orphaned);
        let success = self.success(ended).filter(|_| has_result);
        let queues_again = matches!(end, KeeperEnd::QueuesAgain(_));
        // The end is clean if the command has exited, or will never pass the gate.
        let is_clean = || self.has_exited() || self.io.recall();
        if !has_result || queues_again || !self.releases.borrow().is_empty() && !is_clean() {
            self.releases.take();
        }
        let leaves = !is_over || matches!(end, KeeperEnd::QueuesAgain(_) | KeeperEnd::Over(Report::Queue(_)));
        if leaves && success.is_none() && self.releases.borrow().is_empty() {
            self.request_deletion();
        }
        // This drops the watches as well: the session can be closed only when none is left.
        drop(life);
        // Past the session timeout there is nothing left to release.
        let enough = async {
            self.io.sleep(self.session.timeout.get()).await;
            None
        };
        let released = or(self.release(success), enough).await;
        match &end {
            KeeperEnd::QueuesAgain(_) => return true,
            KeeperEnd::Emptied | KeeperEnd::Over(_) => {
                if let KeeperEnd::Over(skipped @ Report::Queue(_)) = &end {
                    self.io.report(skipped).await;
                }
                // The supervisor expects no answer before it has asked.
                self.follow_orders(None).await;
            }
            KeeperEnd::Released | KeeperEnd::Orphaned | KeeperEnd::Abandoned => {}
        }
        if let Some(report) = released {
            self.io.report_if_room(&report);
        }
        false
    }

    /// Reports the end, and waits until nothing is left of the command, or no process is left that ends it. Returns how the
    /// work ends after that.
    async fn settle(
        &self,
        end: KeeperEnd,
        ended: Instant,
        mut life: Pin<&mut impl Future<Output = KeeperEnd>>,
        mut emptied: Pin<&mut impl Future<Output = KeeperEnd>>,
    ) -> KeeperEnd {
        let is_held = self.told.borrow().held;
        match end {
            // The lock is kept until the guard has ended the command.
            KeeperEnd::Orphaned if is_held => {
                let going_on = async {
                    life.as_mut().await;
                    pending().await
                };
                or(self.until_guard_gone(), going_on).await
            }
            // The supervisor will order the release, but the next holder need not wait for the order.
            KeeperEnd::Emptied => self.last_word(life.as_mut()).await.unwrap_or(end),
            KeeperEnd::Over(Report::Lost(loss)) if !is_held => self.prepare_next(loss).await,
            // A skipped command is reported after the release: the lock is not kept for a supervisor that is suspended.
            KeeperEnd::Over(Report::Queue(_)) => end,
            KeeperEnd::Over(ref report) => {
                let lost = if let Report::Lost(loss) = report { Some(*loss) } else { None };
                if lost.is_some() {
                    self.report_unrecorded(self.success(ended));
                    // The report comes first, so that the supervisor learns why the command is killed. But the lease does
                    // not wait for a supervisor that is suspended.
                    zip(self.io.report(report), async { self.io.revoke_lease() }).await;
                    log::info!("the lock is lost: {report:?}");
                } else {
                    self.io.report(report).await;
                }
                // Before the lock is reported as held there is no command. A supervisor that is suspended may never
                // send the order to release.
                if !is_held {
                    return end;
                }
                // Once nothing is left of the command, the other locks do not wait for the order.
                match or(self.follow_orders(lost), emptied.as_mut()).await {
                    KeeperEnd::Orphaned => self.until_guard_gone().await,
                    KeeperEnd::QueuesAgain(loss) => self.prepare_next(loss).await,
                    end => end,
                }
            }
            // Without a supervisor that knows of a lock there is no command, even if a guard is left.
            KeeperEnd::Released | KeeperEnd::Orphaned | KeeperEnd::Abandoned | KeeperEnd::QueuesAgain(_) => end,
        }
    }

    /// Takes the next order, or notes that the supervisor has gone. `lost`: the loss that was reported, if there was one. The
    /// supervisor orders to queue again only after such a report, and only if it has opened no gate.
    pub(super) async fn follow_orders(&self, lost: Option<Loss>) -> KeeperEnd {
        match (self.io.order().await, lost) {
            (Some(Order::QueueAgain), Some(loss)) => KeeperEnd::QueuesAgain(loss),
            (Some(Order::QueueAgain), None) => unreachable!("the supervisor was told of no loss"),
            (Some(Order::Release), _) => KeeperEnd::Released,
            (None, _) => KeeperEnd::Orphaned,
        }
    }

    /// The supervisor has gone: waits until the guard has ended the command. If the command has not passed its gate, nothing
    /// is waited for: what waits there, and the guard, may be suspended for good.
    async fn until_guard_gone(&self) -> KeeperEnd {
        let nothing_left = self.io.recall() || self.io.guard_gone().await;
        if nothing_left { KeeperEnd::Orphaned } else { KeeperEnd::Abandoned }
    }

    /// Deletes our contender nodes, if there is a connection. The requests leave together with the one that
    /// closes the session, so their replies are not waited for. Closing deletes the nodes as well; but servers have
    /// kept the nodes of closed sessions (ZOOKEEPER-4541).
    fn request_deletion(&self) {
        // A single node may have been deleted by others, and be another's by now.
        let Some(session) = self.session.connection.borrow().clone().filter(|_| !self.is_single()) else { return };
        for node in self.place.borrow().last_nodes_first() {
            drop(session.delete(&node));
        }
    }

    /// Closes the session, with which our contender nodes go as well. Records before that how the run has ended. Returns
    /// what is known of the end of the session for sure.
    async fn release(&self, success: Option<Success>) -> Option<Report> {
        let Some(identity) = self.session.identity.take() else { return Some(Report::Released { was_busy: false }) };
        let success = Cell::new(success);
        loop {
            let closing = async {
                let session = match self.session.connection.take().and_then(Rc::into_inner) {
                    Some(session) => session,
                    None => self.io.resume(self.session.timeout.get(), &identity, drop, |_, _| {}).await?,
                };
                if success.get().is_some() || !self.releases.borrow().is_empty() {
                    self.conclude(&session, success.get()).await?;
                    success.take();
                    self.releases.take();
                }
                // The requests leave together, and are answered in their order.
                let is_busy = self.ask_if_busy(&session);
                session.close().await?;
                Ok(or(is_busy, async { false }).await)
            };
            match closing.await {
                Ok(was_busy) => return Some(Report::Released { was_busy }),
                // Whether a contender was still before us is no longer known.
                Err(Failure::SessionOver) => {
                    self.report_unrecorded(success.get());
                    return Some(Report::Lost(Loss::SessionOver));
                }
                Err(Failure::Unknown(why)) => log::info!("not released yet: {why}"),
                Err(_) => return None,
            }
            self.io.sleep(PAUSE).await;
        }
    }
}
