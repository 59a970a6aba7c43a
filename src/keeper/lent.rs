//! Locks that a zklock above us holds, and that we use together with it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::Keeper;
use super::io::KeeperIo;
use super::place::{Claim, LentBy, StepEnd};
use crate::cli::environment::{self, HELD};
use crate::rules::card::Card;
use crate::rules::lock_path::LockPath;
use crate::rules::message::{Report, Unfit};
use crate::rules::mode::Mode;
use crate::rules::offer::Loan;
use crate::rules::queue::{Contender, SINGLE};
use crate::zookeeper::session::{Failure, Session};

impl<O: KeeperIo> Keeper<'_, O> {
    /// Finds out which of the locks are held by zklocks above us. We use those locks together with their
    /// holders, because waiting for the holders would be waiting for ourselves.
    pub(super) async fn find_lent(&self, session: &O::Session) -> Result<(), StepEnd> {
        let mut lent = vec![];
        let request = &self.plan.request;
        if !request.held.is_empty() {
            // A server that lags might not know the nodes yet.
            self.catch_up(session).await.map_err(|failure| StepEnd::because(failure, &request.lock))?;
            for lock in &self.locks {
                lent.extend(self.lent_by_ancestor(session, lock).await?.map(Rc::new));
            }
            // It asked when the run above it did, and that run may go on for days.
            if request.once_per.is_some() && lent.iter().any(|claim| claim.lock == request.lock) {
                return Err(StepEnd::unfit(&request.lock, Unfit::OncePerLent));
            }
            let mut lenders: Vec<_> = lent.iter().filter_map(|claim| claim.lender).map(|lender| lender.run).collect();
            lenders.dedup();
            self.io.keep_loans(&lenders);
            self.io.report(&Report::Borrows(lenders)).await;
        }
        self.lent.replace(Some(lent));
        Ok(())
    }

    /// What is lent to us; nothing before we have looked for it.
    pub(super) fn lent(&self) -> Vec<Rc<Claim>> {
        self.lent.borrow().clone().unwrap_or_default()
    }

    /// The contender of a zklock that we descend from, if it holds this lock. The environment says so, but an
    /// environment can be copied and kept. So the servers must have the node, and it must name a run above us from which
    /// the supervisor has borrowed.
    async fn lent_by_ancestor(&self, session: &O::Session, lock: &LockPath) -> Result<Option<Claim>, StepEnd> {
        let children = match self.insist(|| self.list(session, lock)).await {
            Err(Failure::NoNode) => return Ok(None),
            children => children.map_err(|failure| StepEnd::because(failure, lock))?,
        };
        // What a run lends it holds, whatever our server shows before that (ZOOKEEPER-5010). Names and cards can be copied:
        // they only lead to the node, of which the session tells whose it is.
        let named = |contender: &Contender| environment::is_held(&lock.child(&contender.name), &self.plan.request.held);
        for contender in children.iter().filter_map(Contender::parse).filter(named) {
            let node = lock.child(&contender.name);
            let (data, stat) = match self.insist(|| session.read(&node)).await {
                Err(Failure::NoNode) => continue,
                read => read.map_err(|failure| StepEnd::because(failure, lock))?,
            };
            let run = match self.io.loan(&Card::from_bytes(&data), stat.owner) {
                Loan::Lent(run) => run,
                Loan::Over => continue,
                // All nodes of the dialect `single` have this name: the environment may mean that of another ensemble.
                Loan::Stranger if contender.name == SINGLE => continue,
                Loan::Stranger => {
                    log::warn!("{node} is in {HELD}, but no zklock that this one descends from holds it; queueing");
                    continue;
                }
                Loan::OutOfReach(barrier) => return Err(StepEnd::unfit(lock, Unfit::OutOfReach(barrier))),
            };
            if !includes(contender.mode, self.plan.request.mode) {
                return Err(StepEnd::unfit(lock, Unfit::Upgrade(contender.mode)));
            }
            log::info!("{node} is held by process {} above this one; using it", run.pid);
            let servers_clock = (stat.created, self.io.now());
            return Ok(Some(Claim {
                lock: lock.clone(),
                nodes: vec![node],
                token: stat.czxid,
                lender: Some(LentBy { run, session: stat.owner }),
                servers_clock,
                listed: Cell::default(),
                heeded: RefCell::default(),
            }));
        }
        Ok(None)
    }
}

/// Whether a lock that is held in one way may be used in another at the same time.
fn includes(held: Mode, wanted: Mode) -> bool {
    held == Mode::Exclusive || wanted == Mode::Shared || held == wanted
}
