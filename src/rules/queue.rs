//! The queue of a lock: node names, sequence numbers, which contenders hold, and which nodes to watch.
//!
//! The children of a lock's node are its queue, in the order of the numbers that ZooKeeper
//! appended to their names. Everything here is decided from one list of those names. Several
//! kinds of client queue on one path; each kind's names are understood, so that each counts.

mod clients;
mod names;
mod recipes;

use std::num::NonZeroU32;

pub use names::{Contender, ContenderId, Dialect, SINGLE, is_numbered};
pub use recipes::Recipe;

use super::child_name::ChildName;
use super::mode::Mode;

/// The first sequence number that is refused.
///
/// ZooKeeper counts in a signed 32-bit integer and wraps to negative, after which the order of the
/// numbers is no longer the order of arrival. The last million is left as room, so that contenders
/// that still arrive before everyone has noticed the limit sort correctly.
pub const SEQUENCE_LIMIT: i32 = i32::MAX - 1_000_000;

/// Some contender's sequence number is negative, or at least [`SEQUENCE_LIMIT`]: the order of the list
/// cannot be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted;

/// What a contender may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing<'q> {
    Holds,
    Waits {
        /// Its place in the queue, counted from 1 over all contenders.
        position: usize,
        /// The nodes to watch for their deletion, the nearest first; never empty. As long as all of them
        /// exist the contender cannot become a holder. When one has gone, the list is fetched anew.
        watch: Vec<&'q Contender>,
    },
    Missing,
}

/// The contenders of one lock in order, and the children that are not contenders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    contenders: Vec<Contender>,
    foreign: Vec<ChildName>,
}

impl Queue {
    /// Sorts the names of all children of a lock's node.
    pub fn from_children(names: impl IntoIterator<Item = ChildName>) -> Result<Self, Exhausted> {
        let queue = Self::as_numbered(names);
        if queue.is_exhausted() { Err(Exhausted) } else { Ok(queue) }
    }

    /// A queue to be shown only: its order is that of the numbers, even where that is not the order of arrival.
    pub fn as_numbered(names: impl IntoIterator<Item = ChildName>) -> Self {
        let mut contenders = Vec::new();
        let mut foreign = Vec::new();
        for name in names {
            match Contender::parse(&name) {
                Some(contender) => contenders.push(contender),
                None => foreign.push(name),
            }
        }
        // ZooKeeper never assigns a number twice below one node. A name made by hand may repeat one;
        // then the name decides, so that every client sees the same order.
        contenders.sort_unstable_by(|a, b| (a.sequence, &a.name).cmp(&(b.sequence, &b.name)));
        foreign.sort_unstable();
        Self { contenders, foreign }
    }

    pub fn is_exhausted(&self) -> bool {
        let mut numbered = self.contenders.iter().filter(|contender| contender.reads != Dialect::Single);
        numbered.any(|contender| !(0..SEQUENCE_LIMIT).contains(&contender.sequence))
    }

    /// Whether there is a node with the name [`SINGLE`], which may be a contender.
    pub fn has_single(&self) -> bool {
        self.find(SINGLE).is_some()
    }

    /// The queue without the nodes that are not ephemeral: such a node is no contender but, for example, a lock below this
    /// lock.
    pub fn without(mut self, is_foreign: impl Fn(&ChildName) -> bool) -> Self {
        self.foreign.extend(self.contenders.extract_if(.., |node| is_foreign(&node.name)).map(|node| node.name));
        self.foreign.sort_unstable();
        self
    }

    pub fn contenders(&self) -> &[Contender] {
        &self.contenders
    }

    pub fn comes_before(&self, first: &Contender, name: &str) -> bool {
        let mut both = self.contenders.iter().filter(|contender| [&*first.name, name].contains(&&*contender.name));
        both.next() == Some(first) && both.next().is_some()
    }

    /// How many contenders there are: neighbouring nodes with the same id count as one.
    pub fn size(&self) -> usize {
        self.place(self.contenders.len())
    }

    /// How many contenders the first `nodes` nodes belong to.
    fn place(&self, nodes: usize) -> usize {
        let nodes = &self.contenders[..nodes];
        let same = nodes.windows(2).filter(|pair| pair[0].is_same(&pair[1])).count();
        nodes.len() - same
    }

    /// The names of the other children, for which no contender waits. They are not safe to print.
    pub fn foreign(&self) -> &[ChildName] {
        &self.foreign
    }

    /// The recipe of another library that uses this path, and does not queue with us.
    pub fn other_recipe(&self) -> Option<Recipe> {
        Recipe::of_children(&self.foreign)
    }

    /// `None` when the lock is free: the first in the queue always holds.
    pub fn first_holder(&self) -> Option<&Contender> {
        self.contenders.first()
    }

    pub fn standing(&self, name: &str) -> Standing<'_> {
        self.find(name).map_or(Standing::Missing, |index| self.standing_at(index))
    }

    /// Whether the contender that this node belongs to holds. Of several nodes, the first decides: the others wait for it.
    pub fn holds(&self, node: &Contender) -> bool {
        let first = self.contenders.iter().find(|other| other.is_same(node)).unwrap_or(node);
        matches!(self.standing(&first.name), Standing::Holds)
    }

    /// Every contender with its standing, first come first.
    pub fn standings(&self) -> impl Iterator<Item = (&Contender, Standing<'_>)> {
        // One step each, for the sake of long queues.
        let (mut position, mut exclusive) = (0, None);
        self.contenders.iter().enumerate().map(move |(index, contender)| {
            let previous = index.checked_sub(1).map(|previous| &self.contenders[previous]);
            position += usize::from(!previous.is_some_and(|previous| previous.is_same(contender)));
            let standing = self.judge(index, position, exclusive);
            if contender.mode == Mode::Exclusive {
                exclusive = Some(index);
            }
            (contender, standing)
        })
    }

    /// The number of permits of an earlier contender, if it differs from this one's. The two cannot share
    /// a lock, and the later one has to go. `None` when there is no such contender, or `name` has no
    /// permits or is missing.
    pub fn other_permits(&self, name: &str) -> Option<NonZeroU32> {
        let index = self.find(name)?;
        let ours = self.contenders[index].mode.permits()?;
        self.contenders[..index].iter().filter_map(|other| other.mode.permits()).find(|&theirs| theirs != ours)
    }

    /// A contender that ignores nodes with names of these dialects.
    ///
    /// `given`: the user has named the dialects. With [`Dialect::Curator`] among them, that says that kazoo
    /// clients have been told to read its names (`extra_lock_patterns=["-lock-"]`). The other dialects say no
    /// such thing.
    pub fn blind_to(&self, dialects: &[Dialect], given: bool) -> Option<&Contender> {
        let trusting = given && dialects.contains(&Dialect::Curator);
        self.contenders.iter().find(|other| {
            let trusted = trusting && other.reads == Dialect::Kazoo;
            !trusted && !dialects.contains(&other.reads)
        })
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.contenders.iter().position(|contender| contender.name == name)
    }

    /// The rule. An exclusive contender holds when it is the first. A shared one holds when no exclusive
    /// one is before it. One of N permits holds when, besides that, fewer than N others are before it.
    ///
    /// To find out which nodes to watch, walk back from the contender until those passed are enough to
    /// keep it waiting: one exclusive contender; or any contender, if it is exclusive itself; or as many
    /// as it has permits. Those are watched, and no more.
    ///
    /// - They are enough. While they exist the contender waits, and no contender ever arrives before
    ///   it, so the deletion that makes it a holder is one of theirs, or comes after one of theirs.
    /// - None can be left out: without it, the others would let the contender hold. That is why N
    ///   permits need N watches.
    /// - Taking the nearest keeps the release of an exclusive holder from waking a herd: with N permits, only the
    ///   first N contenders after the holder watch it, and later ones watch each other. The release of one
    ///   permit wakes the N after it at most.
    ///
    /// A name does not show whether its node is ephemeral, as contenders are. One that is not only makes others wait if it is
    /// taken for a contender. So it is enough to look at the nodes that are to be watched, and to leave out those that are
    /// none: what is watched in the end are contenders, of which all of this is true.
    ///
    /// `position`: its place; `exclusive`: the nearest exclusive contender before it.
    fn judge(&self, index: usize, position: usize, exclusive: Option<usize>) -> Standing<'_> {
        let mode = self.contenders[index].mode;
        let nearest = if mode == Mode::Exclusive { index.checked_sub(1) } else { exclusive };
        // Those that hold together with it, if there is room.
        let passed = &self.contenders[nearest.map_or(0, |nearest| nearest + 1)..index];
        if let Some(permits) = mode.permits().map(|permits| permits.get() as usize)
            && passed.len() >= permits
        {
            let watch: Vec<_> = passed.iter().rev().take(permits).collect();
            assert!(!watch.is_empty(), "who waits has somebody to watch");
            return Standing::Waits { position, watch };
        }
        match nearest {
            Some(nearest) => Standing::Waits { position, watch: vec![&self.contenders[nearest]] },
            None => Standing::Holds,
        }
    }

    fn standing_at(&self, index: usize) -> Standing<'_> {
        let exclusive = self.contenders[..index].iter().rposition(|other| other.mode == Mode::Exclusive);
        self.judge(index, self.place(index + 1), exclusive)
    }
}

#[cfg(test)]
mod tests;
