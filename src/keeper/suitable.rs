//! Whether the queue of a lock is one in which we can wait, and which of its nodes are contenders.

use super::Keeper;
use super::io::KeeperIo;
use super::place::StepEnd;
use crate::cli::environment;
use crate::rules::card::Card;
use crate::rules::child_name::ChildName;
use crate::rules::loans::HolderNode;
use crate::rules::lock_path::LockPath;
use crate::rules::message::{Remark, Report, Unfit};
use crate::rules::queue::{Contender, Queue, SINGLE};
use crate::rules::text::printable;
use crate::system::futures::all;
use crate::zookeeper::session::{NodeStat, Session};

impl<O: KeeperIo> Keeper<'_, O> {
    /// Why we cannot wait in this queue, if there is a reason: another library's recipe uses the path, or contenders ignore
    /// our node or count another number of permits.
    fn unsuitable(&self, queue: &Queue, name: &str) -> Option<Unfit> {
        let request = &self.plan.request;
        // The recipe first: as long as it uses the path, advice about contenders would not help.
        if let Some(recipe) = queue.other_recipe() {
            return Some(Unfit::OtherRecipe(recipe));
        }
        if let Some(other) = queue.blind_to(&request.dialects, request.dialects_given) {
            return Some(Unfit::Blind { contender: printable(&other.name), reads: other.reads });
        }
        queue.other_permits(name).map(Unfit::OtherPermits)
    }

    /// The queue of a lock with these children, and those of them that count. Ends the wait in one that is
    /// [unsuitable](Self::unsuitable), whatever its nodes are.
    pub(super) async fn suitable(
        &self,
        session: &O::Session,
        lock: &LockPath,
        mut names: Vec<ChildName>,
        own: &str,
    ) -> Result<(Vec<ChildName>, Queue), StepEnd> {
        loop {
            names = self.without_ignored(lock, names);
            let queue = self.queue(session, lock, names.clone()).await?;
            let Some(why) = self.unsuitable(&queue, own) else {
                if !queue.has_single() {
                    names.retain(|name| *name != SINGLE);
                }
                return Ok((names, queue));
            };
            let look = async |node: &Contender| {
                let read = self.insist(|| session.read(&lock.child(&node.name))).await;
                // A single node is never ignored for good: the next node of this name may be a contender.
                node.name != SINGLE && read.is_ok_and(|(_, stat)| self.note_if_foreign(lock, &node.name, stat))
            };
            if !all(queue.contenders().iter().map(look)).await.contains(&true) {
                return Err(StepEnd::unfit(lock, why));
            }
        }
    }

    /// Reports a child that is no contender, once for each lock. As a rule it is a lock below a lock.
    pub(super) fn report_foreign(&self, lock: &LockPath, name: &str) {
        if self.told.borrow_mut().foreign.insert(lock.clone()) {
            self.io.report_if_room(&Report::Remark(Remark::Foreign { lock: lock.to_string(), child: printable(name) }));
        }
    }

    /// Returns whether this node is no contender, whatever its name. If so, it is ignored from now on.
    pub(super) fn note_if_foreign(&self, lock: &LockPath, name: &str, stat: NodeStat) -> bool {
        let is_foreign = stat.owner == 0;
        if is_foreign {
            self.ignored.borrow_mut().insert(lock.child(name));
            self.report_foreign(lock, name);
        }
        is_foreign
    }

    /// Ends the wait if the holder is a run above us, because that run waits for our end. `holder`: the name of the node that
    /// keeps us waiting. The node has this `card`, and belongs to the session `owner`.
    pub(super) fn expect_no_run_above(
        &self,
        lock: &LockPath,
        holder: &str,
        card: &Card,
        owner: i64,
    ) -> Result<(), StepEnd> {
        let is_named = environment::is_held(&lock.child(holder), &self.plan.request.held);
        let barrier = self.io.barrier(&HolderNode { card, owner, is_named });
        barrier.map_or(Ok(()), |barrier| Err(StepEnd::unfit(lock, Unfit::OutOfReach(barrier))))
    }
}
