//! A holder that is a run above us, and waits for our end.

use super::Keeper;
use super::io::KeeperIo;
use super::place::StepEnd;
use crate::cli::environment;
use crate::rules::card::Card;
use crate::rules::loans::HolderNode;
use crate::rules::lock_path::LockPath;
use crate::rules::message::Unfit;

impl<O: KeeperIo> Keeper<'_, O> {
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
