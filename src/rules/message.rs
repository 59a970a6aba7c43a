//! What the keeper and the supervisor say to each other.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::instant::Instant;
use super::last_run::LastRun;
use super::mode::Mode;
use super::offer::Barrier;
use super::outcome::Outcome;
use super::queue::{Dialect, Recipe};

/// What the keeper tells the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    Connection(Connectivity),
    Queue(Progress),
    /// The session, or our node in the queue, is lost. After this pause another session begins, at the tail of the queue.
    Requeued {
        loss: Loss,
        pause: Duration,
    },
    /// The lock is lost that was, or was about to be, reported as held.
    Lost(Loss),
    Refused(Refusal),
    /// We have been asked to give up the lock, or the place in the queue. A lock that we hold is still held.
    Revoked(Revoker),
    Remark(Remark),
    /// The contender node is gone and the session is closed.
    Released {
        /// Whether a contender of which we had told was before us up to the end.
        was_busy: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Revoker {
    /// A user, such as `ops@db3`, printable; `None` if it is not known which.
    User(Option<String>),
    /// Of `zklock fence`: a later holder, who has this token.
    LaterHolder(u64),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Connectivity {
    /// No server has answered yet, for this reason; the keeper goes on trying.
    Unreachable(String),
    /// The session has a connection: the first one, or a new one after the last was lost.
    /// The server has granted this session timeout, which may be another each time.
    Connected(Duration),
    /// A new connection has this timeout, which is shorter than the one before: the lease that is shown may end sooner. No
    /// beat over it has been answered yet.
    Shortened(Duration),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Progress {
    /// The lock was ours, and the last successful run was recent. We have left the queue.
    Skipped(LastRun),
    /// Our contender node is in the queue and others are before it.
    Waiting(QueueView),
    /// No contender keeps us from this lock any more, but we do not hold yet: there is a further lock to
    /// take, or no recent beat.
    Turn,
    Held {
        grant: Box<Grant>,
        /// The session timeout with which the lease counts, and from when.
        timeout: Duration,
        from: Instant,
    },
}

/// What a user is to know and the run takes no notice of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Remark {
    /// The lock has a child that is not a contender. No contender waits for such a child.
    Foreign {
        lock: String,
        /// The child's name, printable.
        child: String,
    },
    /// No contender keeps us from the lock, but for this long no beat has been answered in time to rely on it.
    TooSlow(Duration),
    /// A contender that came after us would have kept us from queueing, and may run beside us.
    Beside(Refusal),
    /// This record of the last successful run makes no sense.
    Misrecorded(String),
    /// This record of the last holder makes no sense.
    NoHolder(String),
    /// A clean end could not be recorded, for this reason, so the next run waits out the delay.
    Unreleased(String),
    /// A successful run could not be recorded, for this reason; `None`: the lock was lost before that.
    Unrecorded(Option<String>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueView {
    pub lock: String,
    /// Our place, counted from 1, and how many contenders there are. `None`: there is no queue, as in the dialect `single`.
    pub place: Option<(usize, usize)>,
    /// The first holder, printable: `db3 (ops, pid 4242, backup.sh)`, or its node's name.
    pub holder: String,
    /// Since when it has held the lock, if it says that it does: in milliseconds on our clock (CLOCK_BOOTTIME), which is
    /// negative if that was before this machine was started.
    pub held_since: Option<i64>,
    /// The holder has vanished, and the lock is free from then on (`--lock-delay`).
    pub free_at: Option<Instant>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedLock {
    pub lock: String,
    /// Full path of the contender node.
    pub node: String,
    /// The fencing token: the node's czxid.
    pub token: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub first: GrantedLock,
    /// The others, in the order in which they were named.
    pub and: Vec<GrantedLock>,
    /// The session to which the first one's node belongs: that of a run above us if the lock is lent to us.
    pub session: i64,
}

impl Grant {
    /// In the order in which they were named.
    pub fn all(&self) -> impl Iterator<Item = &GrantedLock> {
        std::iter::once(&self.first).chain(&self.and)
    }
}

/// Why a lock, or a place in the queue, is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Loss {
    NodeDeleted,
    /// The contender node is missing, but the lease was over when we learnt that. We were suspended, or the machine
    /// was, so the node may have gone with the session.
    StoodStill,
    /// No beat was answered before the end of the lease, and the command was killed.
    LeaseOver,
    /// The zklock above us whose lock we use has gone.
    LenderGone,
    /// The session has expired, an operator has ended it, or the servers have lost their data.
    SessionOver,
}

/// Why it makes no sense to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// An ACL forbids what was tried on this node.
    Denied(String),
    /// The ACL of a node does not give us this permission.
    Lacks {
        node: String,
        right: Right,
    },
    NotLetIn(String),
    NoChroot,
    ClickHouseKeeper(String),
    Unfit {
        lock: String,
        why: Unfit,
    },
    /// The servers, the nodes or this machine have to be changed first. The sentence says why, and how.
    Unusable(String),
    /// Any other answer that the server would repeat if asked again.
    Server(String),
    /// Of `zklock fence`: a later holder has been here.
    LaterHolder {
        file: String,
        /// Its token.
        seen: u64,
        ours: u64,
    },
    /// A file that the user has named cannot be used. The sentence says why.
    File(String),
    /// Of `zklock fence`: the operating system refuses something.
    System(String),
}

/// Why a lock cannot be used as asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unfit {
    /// The sequence numbers are used up, or nearly so.
    Exhausted,
    /// A contender ignores our node, because it does not read names such as ours.
    Blind {
        /// The contender's name, printable.
        contender: String,
        /// The names that it does not ignore.
        reads: Dialect,
    },
    /// A contender before us counts with this other number of permits.
    OtherPermits(NonZeroU32),
    /// The path is used by another recipe, whose users would not wait for us.
    OtherRecipe(Recipe),
    /// A zklock above us holds it in this mode, which does not include the one asked for.
    Upgrade(Mode),
    /// It is held by a run that we descend from, or may descend from, and we cannot borrow it.
    OutOfReach(Barrier),
    /// A zklock above us holds it, and that run does not hold this other one, which is wanted with it.
    PartlyLent(String),
    /// It is held by a zklock above us, and `--once-per` was given to us.
    OncePerLent,
}

impl Refusal {
    /// How a run ends that it is the end of.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Denied(_) | Self::Lacks { .. } | Self::NotLetIn(_) => Outcome::Denied,
            Self::NoChroot | Self::ClickHouseKeeper(_) | Self::Unfit { .. } | Self::Unusable(_) => Outcome::Unusable,
            Self::LaterHolder { .. } => Outcome::Lost,
            Self::File(_) => Outcome::Usage,
            Self::Server(_) | Self::System(_) => Outcome::Internal,
        }
    }
}

/// What the supervisor tells the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Delete the contender node, close the session, say so, and go.
    Release,
    /// The lock was lost, and no gate has been opened for a command: queue again with another session.
    QueueAgain,
}

/// What a lock needs of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Right {
    /// To list its children.
    Read,
    Create,
    /// To change its data.
    Write,
}

impl Right {
    /// What it is for, before the name of the node.
    pub const fn phrase(self) -> &'static str {
        match self {
            Self::Read => "listing the children of",
            Self::Create => "creating children of",
            Self::Write => "writing",
        }
    }

    /// As ACLs are written.
    pub const fn letter(self) -> char {
        match self {
            Self::Read => 'r',
            Self::Create => 'c',
            Self::Write => 'w',
        }
    }
}
