//! Locks that a zklock above us holds, and that we use together with it.

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use super::{Mine, Owner, Stop, sorted};
use crate::cli::ENV_HELD;
use crate::keeper::world::World;
use crate::keeper::{Keeper, refuse};
use crate::rules::card::Card;
use crate::rules::message::{Loss, Progress, Refusal, Report};
use crate::rules::mode::Mode;
use crate::rules::queue::{Contender, Standing};
use crate::session::{Failure, Session};

/// How often to look whether a zklock above us lives. Less than the shortest session timeout.
const LENDER_WATCH: Duration = Duration::from_millis(50);

impl<W: World> Keeper<'_, W> {
    /// Finds out which of the locks the zklocks above us hold already: those we use together with
    /// them. To wait for them would be to wait for ourselves.
    pub(super) async fn look_up(&self, session: &W::Session) -> Result<(), Stop> {
        let mut lent = vec![];
        if !self.plan.request.held.is_empty() {
            // A server that lags might not know of the nodes yet.
            let caught_up = self.catch_up(session).await;
            caught_up.map_err(|failure| Stop::because(failure, self.plan.request.lock.as_str()))?;
            for lock in &self.locks {
                lent.extend(self.lent_by_ancestor(session, lock.as_str()).await?.map(Rc::new));
            }
            if lent.is_empty() {
                self.world.borrows_no_more();
                self.world.report(&Report::Queue(Progress::Independent)).await;
            }
        }
        self.lent.replace(lent);
        self.looked_up.set(true);
        Ok(())
    }

    /// The contender of a zklock that we descend from, if it holds this lock. The environment says
    /// so, but an environment can be copied and kept: the servers must say so too, and the node must
    /// name a process above us that has not begun to release it.
    async fn lent_by_ancestor(&self, session: &W::Session, lock: &str) -> Result<Option<Mine>, Stop> {
        let definite = |failure| Stop::Final(refuse(failure, lock));
        let children = match self.insist(|| session.children(lock)).await {
            Err(Failure::NoNode) => return Ok(None),
            children => children.map_err(definite)?,
        };
        let queue = sorted(lock, children)?;
        let held = |(contender, standing): &(&Contender, Standing<'_>)| {
            matches!(standing, Standing::Holds { .. }) && self.plan.request.held.contains(&contender.name)
        };
        for (contender, _) in queue.standings().filter(held) {
            let path = format!("{lock}/{}", contender.name);
            let (data, stat) = match self.insist(|| session.read(&path)).await {
                Err(Failure::NoNode) => continue,
                read => read.map_err(definite)?,
            };
            let card = Card::from_bytes(&data);
            let is_above = |pid: &u32| card.host == self.world.card().host && self.world.is_above(*pid);
            let Some(pid) = card.pid.filter(is_above) else {
                log::warn!("{path} is in {ENV_HELD}, but no zklock that this one descends from holds it; queueing");
                continue;
            };
            if !self.world.lends(pid) {
                continue;
            }
            if !includes(contender.mode, self.plan.request.mode) {
                let (lock, held) = (lock.to_owned(), contender.mode);
                return Err(Stop::Final(Report::Refused(Refusal::Upgrade { lock, held })));
            }
            log::info!("{path} is held by process {pid} above this one; using it");
            return Ok(Some(Mine {
                lock: lock.to_owned(),
                paths: vec![path],
                token: stat.czxid,
                owner: Owner::Ancestor { pid, session: stat.owner },
                children: Cell::new(None),
            }));
        }
        Ok(None)
    }

    /// Waits until a zklock above us has gone whose lock we use. It never goes before us; if it is
    /// killed, and its keeper with it, nobody else is left who would end us, and its node lasts no
    /// longer than its session.
    pub(super) async fn until_lender_dies(&self) -> Result<(), Stop> {
        let lenders: Vec<u32> = self.lent.borrow().iter().filter_map(|lent| lent.lender()).collect();
        while lenders.iter().all(|pid| self.world.is_above(*pid)) {
            match lenders.is_empty() {
                true => pending().await,
                false => self.world.sleep(LENDER_WATCH).await,
            }
        }
        Err(Stop::Gone(Loss::LenderGone))
    }
}

/// Whether a lock that is held in one way may be used in another at the same time.
fn includes(held: Mode, wanted: Mode) -> bool {
    held == Mode::Exclusive || wanted == Mode::Shared || held == wanted
}
