//! What ties the keeper of a run, or the run that lends to us, and the guard together, whatever becomes of the supervisor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::fcntl::OFlag;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::pipe2;

use super::lending::{Lender, Lending};
use super::page::Page;
use crate::rules::lease::Span;

/// What ties the keeper and the guard of a run together. It is made before the keeper, which inherits its part. A run whose
/// locks are lent has a lender in place of a keeper.
#[derive(Debug)]
pub struct Ties {
    pub page: Page,
    /// What the guards go by.
    pub lease: Page,
    pub lender: Option<Lender>,
    /// Readable once no guard is left, and none can come.
    guards_gone: OwnedFd,
    /// Closed in the supervisor when the gate is opened: from then on only the guard has it.
    guard_alive: Option<OwnedFd>,
    /// Wakes the guard when the keeper has revoked the lease, or has made it shorter.
    guard_wake: EventFd,
    /// What other runs borrow our locks by.
    pub lent: Lending,
}

/// The keeper's part of [`Ties`].
#[derive(Debug)]
pub struct KeeperTies<'a> {
    pub page: Page,
    /// Readable (at its end) once no guard is left, and none can come.
    pub guards_gone: BorrowedFd<'a>,
    guard_wake: &'a EventFd,
    /// With `zklock hold`: what other runs borrow our locks by. The guard is no proof that they have gone.
    pub lent: Option<&'a Lending>,
}

impl Ties {
    /// `lender`: if there is one, the run has no keeper. Fails if there is no memory or no descriptor left.
    pub fn new(lender: Option<Lender>) -> io::Result<Self> {
        let (guards_gone, guard_alive) = pipe2(OFlag::O_CLOEXEC)?;
        let guard_wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let (page, file) = Page::new()?;
        Ok(Self {
            page,
            lease: lender.as_ref().map_or(page, |lender| lender.lease),
            lender,
            guards_gone,
            guard_alive: Some(guard_alive),
            guard_wake,
            lent: Lending::begin(file)?,
        })
    }

    /// Whether the lender has died, or has lost its locks.
    pub fn has_lost_lender(&self) -> bool {
        self.lender.as_ref().is_some_and(Lender::is_lost)
    }

    /// The part of a guard, in its process. `None` where none can be made any more: one has died that had been asked to open
    /// its gate.
    pub fn of_guard(&self) -> Option<[BorrowedFd<'_>; 3]> {
        Some([self.guards_gone.as_fd(), self.guard_alive.as_ref()?.as_fd(), self.guard_wake.as_fd()])
    }

    /// No guard will be made any more.
    pub fn end(&mut self) {
        self.guard_alive = None;
    }

    /// The keeper's part, in the process that is to be the keeper. `is_hold`: no command is run.
    pub fn of_keeper(&self, is_hold: bool) -> KeeperTies<'_> {
        let Self { page, guards_gone, guard_wake, lent, .. } = self;
        if is_hold {
            lent.end();
        }
        KeeperTies { page: *page, guards_gone: guards_gone.as_fd(), guard_wake, lent: is_hold.then_some(lent) }
    }

    pub fn descriptors_of_keeper(&self, is_hold: bool) -> Vec<RawFd> {
        let mut descriptors = vec![self.guards_gone.as_raw_fd(), self.guard_wake.as_fd().as_raw_fd()];
        if is_hold {
            descriptors.extend(self.lent.descriptors());
        }
        descriptors
    }
}

impl KeeperTies<'_> {
    /// The lease is this. A guard that sleeps until the end of a longer one is woken. The guards of other runs cannot be
    /// woken. Below `zklock hold` no guard of ours kills what they guard, so they lose the lock.
    pub fn write_lease(&self, span: Span) {
        let is_shorter = span.ends_at < self.page.limits().ends_at;
        self.page.write_lease(span);
        if is_shorter {
            self.wake_guard();
            self.lent.into_iter().for_each(Lending::call_in);
        }
    }

    fn wake_guard(&self) {
        // It fails only where the guard has not read what was written before.
        let _ = self.guard_wake.write(1);
    }

    /// The lock is lost for sure: the guard is to kill the command now.
    pub fn revoke(&self) {
        self.page.revoke();
        self.wake_guard();
        self.lent.into_iter().for_each(Lending::call_in);
    }
}
