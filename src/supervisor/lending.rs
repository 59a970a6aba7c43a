//! Locks that several zklocks use together because one is a descendant of another: we may lend ours to
//! zklocks below us, and borrow those of zklocks above us.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::Context as _;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::prctl;


/// How often to look whether a zklock still means to use our locks, at first and after a while. It may
/// find that it cannot use them, and queue behind us instead.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const LOOK_AGAIN_AT_LEAST: Duration = Duration::from_secs(1);

/// Our part in lending and in borrowing. The name of this process says what it is; see
/// [`crate::command::lends`].
pub(super) struct Lending {
    /// The name that this process came with.
    name: CString,
    /// Whether we may use locks of a zklock above us.
    borrows: bool,
    /// One descriptor for each zklock that still uses our locks after the command has ended; it becomes
    /// readable when that zklock ends.
    borrowers: Vec<OwnedFd>,
    /// How long to wait before looking for them again although none has ended.
    look_again: Duration,
}

impl Lending {
    pub(super) fn new() -> anyhow::Result<Self> {
        let name = prctl::get_name().context("cannot read the process's name")?;
        Ok(Self { name, borrows: false, borrowers: vec![], look_again: LOOK_AGAIN })
    }

    /// From now on we may use locks of a zklock above us.
    pub(super) fn borrow(&mut self) {
        self.borrows = true;
    }

    /// We use no lock of a zklock above us, and will use none.
    pub(super) fn be_independent(&mut self) {
        self.borrows = false;
    }

    pub(super) fn leave(&mut self) -> bool {
        false
    }

    pub(super) fn has_ended(&mut self) -> bool {
        true
    }

    /// What to wait for until one of them has ended, and for how long.
    pub(super) fn waits(&self) -> (impl Iterator<Item = PollFd<'_>>, PollTimeout) {
        let ends = self.borrowers.iter().map(|pidfd| PollFd::new(pidfd.as_fd(), PollFlags::POLLIN));
        (ends, PollTimeout::try_from(self.look_again).unwrap_or(PollTimeout::ZERO))
    }

    /// None has ended in that time: do not look so often.
    pub(super) fn be_patient(&mut self) {
        self.look_again = (self.look_again * 2).min(LOOK_AGAIN_AT_LEAST);
    }
}
