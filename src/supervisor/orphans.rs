//! The processes that come to the supervisor when its guard dies (PR_SET_CHILD_SUBREAPER). The supervisor then kills them as
//! the guard would.

use std::io;

use nix::sys::prctl;
use nix::unistd::Pid;

use crate::guard::tree::{self, StartGroup, Tree};

/// How many times in a row to look for children to kill, because processes may fork faster than one look finds them.
const CHASES: u32 = 10;

pub(super) struct Orphans {
    pub(super) tree: Tree,
    /// The children that are not the command's.
    strangers: Vec<i32>,
}

impl Orphans {
    /// An error of the kind `Other` says what this system has not got.
    pub(super) fn adopt() -> io::Result<Self> {
        // A system that refuses this to the supervisor refuses it to the guard as well.
        prctl::set_child_subreaper(true).map_err(|error| {
            io::Error::other(format!("the system refuses the adoption of orphans (PR_SET_CHILD_SUBREAPER): {error}"))
        })?;
        tree::check_proc()?;
        Ok(Self { tree: Tree::open()?, strangers: vec![] })
    }

    /// None of the children that there are now belongs to the command.
    pub(super) fn disown_all(&mut self) -> io::Result<()> {
        self.strangers.clear();
        self.tree.each_child(|child| self.strangers.push(child))
    }

    /// This child does not belong to the command.
    pub(super) fn disown(&mut self, child: Pid) {
        self.strangers.push(child.as_raw());
    }

    /// This child was reaped. From now on its number may be that of a process of the command.
    pub(super) fn reaped(&mut self, child: Pid) {
        self.strangers.retain(|stranger| *stranger != child.as_raw());
    }

    /// Whether a child matches. If the children cannot be listed, one may.
    pub(super) fn may_have(&self, matches: impl Fn(i32) -> bool) -> bool {
        let mut has = false;
        let listed = self.tree.each_child(|child| has |= matches(child));
        has || listed.is_err()
    }

    pub(super) fn is_stranger(&self, child: i32) -> bool {
        self.strangers.contains(&child)
    }

    /// `command`: the process that leads the command's process group, if there is such a group.
    pub(super) fn kill(&self, command: Option<Pid>) {
        let origin = StartGroup::ours(command);
        let is_stranger = |child| self.is_stranger(child);
        self.tree.kill_children(origin, is_stranger);
        self.tree.kill_below(is_stranger);
        for _ in 0..CHASES {
            self.tree.kill_children(origin, is_stranger);
        }
    }

    pub(super) fn count(&self) -> usize {
        self.tree.count(|child| self.is_stranger(child))
    }
}
