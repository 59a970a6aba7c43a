//! What keeper and guard inherit from the supervisor. By it they know of each other, whatever becomes of the supervisor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::fcntl::OFlag;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::pipe2;

use super::lending::{Lender, Lending};
use super::page::{LeaseView, Page};
use crate::rules::lease::Span;

/// The supervisor makes it before it forks the keeper and the guard. A run that borrows its locks has a lender in place of a
/// keeper.
#[derive(Debug)]
pub struct Inheritance {
    pub page: Page,
    /// The lease that the guard enforces: our own, or that of the lender.
    pub lease: LeaseView,
    pub lender: Option<Lender>,
    /// Readable once no guard is left, and none can come.
    guards_gone: OwnedFd,
    /// The other end of that pipe. The supervisor closes it when the gate is opened: from then on only the guard has it.
    guard_alive: Option<OwnedFd>,
    /// Wakes the guard when the keeper has revoked the lease, or has made it shorter.
    guard_wake: EventFd,
    /// What other runs borrow our locks by.
    pub lending: Lending,
}

#[derive(Debug)]
pub struct KeeperInheritance<'a> {
    pub page: Page,
    /// Readable once no guard is left, and none can come.
    pub guards_gone: BorrowedFd<'a>,
    guard_wake: &'a EventFd,
    /// With `zklock hold`: what other runs borrow our locks by. They may live on when the guard has gone.
    pub lending: Option<&'a Lending>,
}

impl Inheritance {
    /// Fails if there is no memory or no descriptor left.
    pub fn new(lender: Option<Lender>) -> io::Result<Self> {
        let (guards_gone, guard_alive) = pipe2(OFlag::O_CLOEXEC)?;
        let guard_wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let (page, file) = Page::new()?;
        Ok(Self {
            page,
            lease: lender.as_ref().map_or(page.lease(), |lender| lender.lease),
            lender,
            guards_gone,
            guard_alive: Some(guard_alive),
            guard_wake,
            lending: Lending::new(file)?,
        })
    }

    pub fn has_lost_lender(&self) -> bool {
        self.lender.as_ref().is_some_and(Lender::is_lost)
    }

    /// The descriptors for another guard. `None` once a guard has been asked to open its gate: no other is made after that.
    pub fn of_guard(&self) -> Option<[BorrowedFd<'_>; 3]> {
        Some([self.guards_gone.as_fd(), self.guard_alive.as_ref()?.as_fd(), self.guard_wake.as_fd()])
    }

    /// No guard will be made any more.
    pub fn close_guard_alive(&mut self) {
        self.guard_alive = None;
    }

    /// To be called in the process of the keeper. `is_hold`: the run is a `zklock hold`.
    pub fn of_keeper(&self, is_hold: bool) -> KeeperInheritance<'_> {
        let Self { page, guards_gone, guard_wake, lending, .. } = self;
        if is_hold {
            lending.close_door();
        }
        KeeperInheritance {
            page: *page,
            guards_gone: guards_gone.as_fd(),
            guard_wake,
            lending: is_hold.then_some(lending),
        }
    }

    pub fn descriptors_of_keeper(&self, is_hold: bool) -> Vec<RawFd> {
        let mut descriptors = vec![self.guards_gone.as_raw_fd(), self.guard_wake.as_fd().as_raw_fd()];
        if is_hold {
            descriptors.extend(self.lending.descriptors());
        }
        descriptors
    }
}

impl KeeperInheritance<'_> {
    /// Shows a lease. If it ends sooner than the one before, this wakes our guard, which may sleep until the old end. The
    /// guards of borrowers cannot be woken: our guard kills what is below them, but not below `zklock hold`, whose borrowers
    /// lose the lock.
    pub fn write_lease(&self, span: Span) {
        let is_shorter = span.ends_at < self.page.lease().limits().ends_at;
        self.page.write_lease(span);
        if is_shorter {
            self.wake_guard();
            self.lending.into_iter().for_each(Lending::call_in);
        }
    }

    fn wake_guard(&self) {
        // The write fails only if the guard has not read an earlier one.
        let _ = self.guard_wake.write(1);
    }

    /// The lock is lost for sure: the guard is to kill the command now.
    pub fn revoke(&self) {
        self.page.revoke();
        self.wake_guard();
        self.lending.into_iter().for_each(Lending::call_in);
    }
}
