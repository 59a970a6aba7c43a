//! Takes a lock when it is our turn, and holds once we have all.

use std::future::pending;
use std::rc::Rc;

use super::Keeper;
use super::io::KeeperIo;
use super::place::{Claim, Place, Step, StepEnd};
use crate::rules::card::Card;
use crate::rules::lease::Terms;
use crate::rules::lock_path::LockPath;
use crate::rules::message::{Grant, GrantedLock, Progress, Remark, Report};
use crate::system::futures::or;
use crate::zookeeper::session::Session;

impl<O: KeeperIo> Keeper<'_, O> {
    /// Waits until we have the lock of this claim. If it is the last lock, reports that we hold all of them, and holds.
    pub(super) async fn wait_and_hold(&self, session: &O::Session, claim: &Claim) -> Result<(), StepEnd> {
        let nodes = self.place.borrow().nodes();
        let has_waited = self.wait_turn(session, &nodes, claim).await?;
        let won = self.place.borrow().claims();
        if won.len() < self.locks.len() {
            self.io.report_if_room(&Report::Queue(Progress::Turn));
            self.place.replace(Place { won, step: Step::Nowhere });
            return Ok(());
        }
        assert_eq!(won.len(), self.locks.len(), "each lock is taken once");
        self.judge_last_run(session).await?;
        let has_waited = self.succeed_holder(session, &won).await? || has_waited;
        let from = self.fresh_lease(session, &nodes).await?;
        self.told.borrow_mut().held = true;
        let grant = Box::new(self.grant(session, &won));
        let timeout = session.timeout();
        self.io.report(&Report::Queue(Progress::Held { grant, timeout, from })).await;
        // The first beat publishes that we hold. If no contender was before us, this beat has time, so that a short command
        // on a free lock costs no further transaction. Otherwise a contender behind us may have to know.
        let card = Card { held_since: Some(self.io.wall_millis()), ..self.io.card().clone() };
        self.beats.unpublished.replace(Some((card, self.io.now())));
        if has_waited {
            self.beats.urged.set(true);
        }
        self.place.replace(Place { won: won.clone(), step: Step::Holding });
        or(self.look_beside(session, &won), self.keep_beating(session, &nodes)).await
    }

    /// Looks once, when a beat is due, for a contender that came after our last list and may run beside us. Reports such a
    /// contender. Never ends.
    async fn look_beside(&self, session: &O::Session, won: &[Rc<Claim>]) -> Result<(), StepEnd> {
        self.io.sleep(Terms::beat_of(session.timeout())).await;
        for claim in won {
            let Ok(children) = self.list(session, &claim.lock).await else { continue };
            let suitable = self.suitable(session, &claim.lock, children, claim.name()).await;
            if let Err(StepEnd::Final(Report::Refused(refusal))) = suitable {
                self.io.report_if_room(&Report::Remark(Remark::Beside(refusal)));
            }
        }
        pending().await
    }

    /// What the supervisor is told of the locks, in the order in which the user named them.
    fn grant(&self, session: &O::Session, won: &[Rc<Claim>]) -> Grant {
        let named = |lock: &LockPath| won.iter().find(|claim| claim.lock == *lock);
        let granted = |claim: &Rc<Claim>| GrantedLock {
            lock: claim.lock.to_string(),
            node: claim.nodes[0].clone(),
            token: claim.token,
        };
        let first = named(&self.plan.request.lock).expect("the locks that were taken are those of the plan");
        let and = self.plan.request.and.iter().filter_map(named).map(granted).collect();
        Grant { first: granted(first), and, session: session.id() }
    }
}
