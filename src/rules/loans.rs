//! What a nested run borrows from the runs above it, and when it must not wait for one of them.

use serde::{Deserialize, Serialize};

use super::card::Card;
use super::lock_path::LockPath;
use super::message::{Grant, GrantedLock, Unfit};
use super::mode::Mode;
use super::offer::{Barrier, Offer};
use super::process_identity::ProcessIdentity;

/// What a run lends. It stands in the run's page for as long as the command lasts, as JSON that all 1.x understand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lent {
    pub servers: Vec<String>,
    /// The session to which all the nodes belong.
    pub session: i64,
    pub mode: Mode,
    /// Locks and nodes, by paths with the chroot in front.
    pub locks: Vec<GrantedLock>,
}

/// What a run wants of the runs above it.
#[derive(Debug)]
pub struct Demand<'p> {
    /// HOST:PORT of each server, in alphabetical order, none twice.
    pub servers: Vec<String>,
    pub chroot: &'p str,
    /// In the order in which the user has named them.
    pub locks: Vec<&'p LockPath>,
    pub mode: Mode,
    pub is_once_per: bool,
}

#[derive(Debug)]
pub enum Loans<L> {
    /// They lend nothing that is wanted.
    Nothing(Vec<Seen>),
    /// This run lends all that is wanted.
    All { grant: Grant, lender: L },
    /// This lock is lent, but cannot be used as wanted.
    Unfit { lock: String, why: Unfit },
}

/// An offer, and the session of the run that makes it, or why nothing can be borrowed from that run.
pub type Seen = (Offer, Result<i64, Unlent>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlent {
    /// The run has ended, or its command has ended and it is about to release its locks; or it is not above us.
    Over,
    Barred(Barrier),
}

/// Other processes. [`crate::between::lending`] has the real ones, and the simulator of the tests others.
pub trait Processes {
    /// What must be open for as long as the locks of a run may be used. The run knows of us until it is dropped.
    type Lender;

    /// Looks at what a run lends. If the run ends its lending later than this, it knows of us.
    fn open(&self, offer: Offer) -> Result<(Lent, Self::Lender), Unlent>;

    /// Whether this process lives, and is the process `pid` or above it; `None` if that cannot be found out.
    fn is_above(&self, root: ProcessIdentity, pid: u32) -> Option<bool>;
}

impl Demand<'_> {
    /// What a run with this grant lends.
    pub fn lent(&self, grant: &Grant) -> Lent {
        let locks = grant.all().map(|GrantedLock { lock, node, token }| GrantedLock {
            lock: self.full(lock),
            node: self.full(node),
            token: *token,
        });
        Lent { servers: self.servers.clone(), session: grant.session, mode: self.mode, locks: locks.collect() }
    }

    /// A path as clients without a chroot know it.
    fn full(&self, path: &str) -> String {
        format!("{}{path}", self.chroot)
    }

    /// What the run of this supervisor borrows. `offers`: what the environment claims, the outermost run first.
    pub fn borrow<P: Processes>(&self, offers: &[Offer], supervisor: u32, processes: &P) -> Loans<P::Lender> {
        let mut seen = vec![];
        for offer in offers {
            let opened = match processes.is_above(offer.root, supervisor) {
                Some(true) => processes.open(*offer),
                Some(false) => Err(Unlent::Over),
                None => Err(Unlent::Barred(Barrier::Foreign)),
            };
            match opened {
                Ok((lent, lender)) if self.wants_of(&lent) => return self.take(&lent, lender),
                opened => seen.push((*offer, opened.map(|(lent, _)| lent.session))),
            }
        }
        Loans::Nothing(seen)
    }

    fn wants_of(&self, lent: &Lent) -> bool {
        lent.servers == self.servers && self.locks.iter().any(|lock| self.find(lock, lent).is_some())
    }

    fn find(&self, lock: &LockPath, lent: &Lent) -> Option<GrantedLock> {
        let full = self.full(lock.as_str());
        let granted = lent.locks.iter().find(|granted| granted.lock == full)?;
        let node = granted.node.strip_prefix(self.chroot)?.to_owned();
        Some(GrantedLock { lock: lock.to_string(), node, token: granted.token })
    }

    /// `lent`: something of it is wanted.
    fn take<L>(&self, lent: &Lent, lender: L) -> Loans<L> {
        let mut granted = self.locks.iter().filter_map(|lock| self.find(lock, lent));
        let first = granted.next().expect("it lends something that is wanted");
        let missing = self.locks.iter().find(|lock| self.find(lock, lent).is_none());
        let why = if !includes(lent.mode, self.mode) {
            Unfit::Upgrade(lent.mode)
        } else if let Some(missing) = missing {
            Unfit::PartlyLent(missing.to_string())
        } else if self.is_once_per {
            // The lender asked for it when it began, and may go on for days.
            Unfit::OncePerLent
        } else {
            let grant = Grant { first, and: granted.collect(), session: lent.session };
            return Loans::All { grant, lender };
        };
        Loans::Unfit { lock: first.lock, why }
    }
}

/// Whether a lock that is held in one way may be used in another at the same time.
fn includes(held: Mode, wanted: Mode) -> bool {
    held == Mode::Exclusive || wanted == Mode::Shared || held == wanted
}

/// A contender that keeps us waiting, as its node shows it.
#[derive(Debug)]
pub struct HolderNode<'h> {
    pub card: &'h Card,
    /// The session to which the node belongs.
    pub owner: i64,
    /// Our environment says that a run above us holds by this node.
    pub is_named: bool,
}

/// Why the run of this supervisor must not wait for a holder: it is, or may be, a run above. `own`: our card. `seen`: what
/// has come of the offers.
///
/// Anybody can copy a card into a node of his own. Such a copy can refuse a nested run, and never start one. Host names say
/// nothing, because containers share them or have one each.
pub fn barrier(
    holder: &HolderNode<'_>,
    own: &Card,
    supervisor: u32,
    seen: &[Seen],
    processes: &impl Processes,
) -> Option<Barrier> {
    let card = holder.card;
    let lender = ProcessIdentity { pid: card.pid?, started: card.started? };
    if own.boot_id.is_some() && card.boot_id != own.boot_id {
        return None;
    }
    // Where the time of the start cannot be compared, a run above us would pass for a stranger.
    let counts_otherwise = card.time_ns.zip(own.time_ns).is_some_and(|(theirs, ours)| theirs != ours);
    if own.boot_id.is_none() || card.pid_ns != own.pid_ns || counts_otherwise {
        return holder.is_named.then_some(Barrier::Foreign);
    }
    // A node of our own earlier session, which a server may still show (ZOOKEEPER-5010), or a copy of our card.
    if lender.pid == supervisor {
        return None;
    }
    match seen.iter().find(|(offer, _)| offer.lender == lender) {
        Some((_, Ok(session))) => (*session == holder.owner).then_some(Barrier::Servers),
        Some((_, Err(Unlent::Over))) => None,
        Some((_, Err(Unlent::Barred(barrier)))) => Some(*barrier),
        None => match processes.is_above(lender, supervisor) {
            Some(is_above) => is_above.then_some(Barrier::NoOffer),
            None => holder.is_named.then_some(Barrier::Foreign),
        },
    }
}

#[cfg(test)]
mod tests;
