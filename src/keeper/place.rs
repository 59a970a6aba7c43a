//! How far a keeper has come, and what stops a step.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::rc::Rc;
use std::time::Duration;

use crate::rules::child_name::ChildName;
use crate::rules::instant::Instant;
use crate::rules::lock_path::LockPath;
use crate::rules::message::{Loss, Refusal, Report, Right, Unfit};
use crate::rules::queue::{Contender, ContenderId, Queue};
use crate::zookeeper::session::Failure;

/// How far a keeper has come. It takes the locks one after the other, in the order of their paths, so that no
/// two keepers wait for each other.
#[derive(Clone, Default)]
pub(super) struct Place {
    /// The locks that we have already, in the order of their paths.
    pub(super) won: Vec<Rc<Claim>>,
    /// How far we are with the next lock.
    pub(super) step: Step,
}

#[derive(Clone, Default)]
pub(super) enum Step {
    /// We have no contender in its queue.
    #[default]
    Nowhere,
    /// A contender with this id may have been created: the reply was lost.
    Uncertain(ContenderId),
    Queued(Rc<Claim>),
    /// There is no next lock: the supervisor has been told that we hold them all.
    Holding,
}

impl Place {
    /// Our claims: those to the locks that we won, then that to the lock that we queue for.
    pub(super) fn claims(&self) -> Vec<Rc<Claim>> {
        let queued = match &self.step {
            Step::Queued(claim) => Some(claim),
            Step::Nowhere | Step::Uncertain(_) | Step::Holding => None,
        };
        self.won.iter().chain(queued).cloned().collect()
    }

    /// The full paths of all our nodes.
    pub(super) fn nodes(&self) -> Vec<String> {
        self.claims().iter().flat_map(|claim| claim.nodes.clone()).collect()
    }

    /// The full paths of all our nodes, each with the transaction that has created the node.
    pub(super) fn stamped_nodes(&self) -> Vec<(String, i64)> {
        let stamped = |claim: Rc<Claim>| {
            let nodes = claim.nodes.clone();
            nodes.into_iter().map(move |node| (node, claim.token))
        };
        self.claims().into_iter().flat_map(stamped).collect()
    }

    /// Our nodes in the order in which they are deleted: those of the last lock first.
    pub(super) fn last_nodes_first(&self) -> Vec<String> {
        self.claims().iter().rev().flat_map(|claim| claim.nodes.clone()).collect()
    }

    pub(super) fn is_nowhere(&self) -> bool {
        self.won.is_empty() && matches!(self.step, Step::Nowhere)
    }
}

/// Our contender in the queue of a lock.
pub(super) struct Claim {
    pub(super) lock: LockPath,
    /// The full paths of the contender's nodes: one for each dialect, lowest first.
    pub(super) nodes: Vec<String>,
    /// The fencing token: the transaction that has created the nodes.
    pub(super) token: i64,
    /// What ZooKeeper's clock showed, and when: at the creation of the nodes, or a little later.
    pub(super) servers_clock: (i64, Instant),
    /// The children of the lock, if they were listed together with the creation.
    pub(super) listed: Cell<Option<Vec<ChildName>>>,
    /// The contender before us that was the last to say that it holds. We have listed the queue after that, and a second list
    /// would not show more, however often the contender says so.
    pub(super) holder: RefCell<Option<ChildName>>,
}

impl Claim {
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(|node| &node[self.lock.as_str().len() + 1..])
    }

    /// Whether this contender is one of the claim's nodes.
    pub(super) fn is(&self, contender: &Contender) -> bool {
        self.names().any(|name| contender.name == name)
    }

    /// The id in the names of the claim's nodes.
    pub(super) fn id(&self) -> Option<ContenderId> {
        Contender::parse(&ChildName::parse(self.name())?)?.id
    }

    /// The name that decides our standing. No other contender can come between it and the other names.
    pub(super) fn name(&self) -> &str {
        self.names().next().unwrap_or_default()
    }

    /// What our clock showed when ZooKeeper's showed `millis`, in milliseconds; negative if that was before this machine was
    /// started.
    pub(super) fn on_our_clock(&self, millis: i64) -> i64 {
        let (then, at) = self.servers_clock;
        i64::try_from(at.since_boot().as_millis()).unwrap_or(i64::MAX).saturating_sub(then.saturating_sub(millis))
    }

    /// The same as an instant: that of the start of this machine, if it was before that.
    pub(super) fn instant(&self, millis: i64) -> Instant {
        Instant::from_boot(Duration::from_millis(u64::try_from(self.on_our_clock(millis)).unwrap_or(0)))
    }
}

/// Why a step was not completed.
pub(super) enum StepEnd {
    /// Our contender no longer exists.
    Gone(Loss),
    /// Our server does not show this node of ours.
    Unseen(String),
    /// There is nothing more to do in this session.
    Final(Report),
    /// This connection is of no more use.
    Reconnect,
}

impl StepEnd {
    /// What follows when a request about `path`, which is a lock or a node of a claim, fails for good.
    pub(super) fn because(failure: Failure, path: impl Display) -> Self {
        match failure {
            // The lock's node cannot go before ours does.
            Failure::NoNode => Self::Gone(Loss::NodeDeleted),
            failure => Self::Final(refuse(failure, path)),
        }
    }

    /// What follows when a lock cannot be used as asked.
    pub(super) fn unfit(lock: impl Display, why: Unfit) -> Self {
        Self::Final(Report::Refused(Refusal::Unfit { lock: lock.to_string(), why }))
    }
}

/// The end of a step that needed this permission on `path`.
pub(super) fn lacking(failure: Failure, path: impl Display, right: Right) -> StepEnd {
    match failure {
        Failure::Denied => StepEnd::Final(Report::Refused(Refusal::Lacks { node: path.to_string(), right })),
        failure => StepEnd::because(failure, path),
    }
}

/// What the supervisor is told of a failure that no further attempt will mend.
pub(super) fn refuse(failure: Failure, path: impl Display) -> Report {
    match failure {
        Failure::SessionOver => Report::Lost(Loss::SessionOver),
        Failure::Denied => Report::Refused(Refusal::Denied(path.to_string())),
        Failure::ClickHouseKeeper(server) => Report::Refused(Refusal::ClickHouseKeeper(server)),
        Failure::NotLetIn(why) => Report::Refused(Refusal::NotLetIn(why)),
        Failure::NoLibrary(why) => Report::Refused(Refusal::Unusable(why)),
        Failure::Unusable(why) => Report::Refused(Refusal::Unusable(format!("{path}: {why}"))),
        failure => Report::Refused(Refusal::Server(format!("{path}: {failure}"))),
    }
}

pub(super) fn queue_of(lock: &LockPath, children: Vec<ChildName>) -> Result<Queue, StepEnd> {
    Queue::from_children(children).map_err(|_| StepEnd::unfit(lock, Unfit::Exhausted))
}
