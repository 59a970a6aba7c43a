//! What the three processes of a run show one another in memory that they share.
//!
//! The keeper writes the lease. The guard writes what has become of the command. Neither is a message, because a supervisor
//! that is suspended for hours (Ctrl-Z) reads none: its socket would fill up, and on SIGCONT it would judge the lease
//! by the oldest news instead of the newest.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::unistd::Pid;

use crate::rules::guard::{Sign, Stage};
use crate::rules::instant::Instant;
use crate::rules::lease::{Limits, Span, Terms};
use crate::rules::loans::Lent;
use crate::rules::signal::Signal;
use crate::system::memory;

/// Memory that a supervisor shares with its keeper and its guard.
#[derive(Clone, Copy, Debug)]
pub struct Page(&'static Cells);

/// The lease in a page. A nested run has only this of the page of the run that lends to it, where it cannot write.
#[derive(Clone, Copy, Debug)]
pub struct LeaseView(&'static Cells);

/// Instants are in nanoseconds since boot, 0 for never.
///
/// A nested run may be another version than its lender: what stands here down to `revoked` stays where it is in all 1.x.
#[derive(Debug)]
#[repr(C)]
struct Cells {
    /// [`LAYOUT`]
    layout: AtomicU64,
    /// In nanoseconds.
    timeout: AtomicU64,
    from: AtomicU64,
    kill_at: AtomicU64,
    ends_at: AtomicU64,
    answered: AtomicU64,
    /// 0, or not.
    revoked: AtomicU64,
    command: AtomicI32,
    stage: AtomicU32,
    gate: AtomicU32,
    /// A wait status with [`ENDED`].
    ended: AtomicU32,
    suspended_by: AtomicI32,
    lease_over: AtomicBool,
    denied: AtomicI32,
    spoiled: AtomicBool,
    began: AtomicU64,
    released: AtomicBool,
}

/// The layout of the cells. A nested run does not understand a page with another number.
const LAYOUT: u64 = 1;

/// Where in the file of a page the text about what is lent begins. The text ends with the file.
const TEXT: u64 = 4096;

/// The command's process may still pass the gate, or has passed it, or may not pass it any more.
const GATED: u32 = 0;
const PASSED: u32 = 1;
const RECALLED: u32 = 2;

/// A command that has ended. No wait status has this bit.
const ENDED: u32 = 1 << 31;

const STAGES: [Stage; 5] = [Stage::Gated, Stage::Open, Stage::Killing, Stage::Empty, Stage::Left];

impl Page {
    /// Cells that are shared with every process forked from now on, and the file by which nested runs find them. Fails if
    /// there is no memory for one page.
    pub fn new() -> io::Result<(Self, File)> {
        let file = memory::file(c"lease")?;
        file.set_len(TEXT)?;
        // A process that has mapped the file would die of SIGBUS if somebody made the file shorter.
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL))?;
        let page = Self::map(&file, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)?;
        page.0.layout.store(LAYOUT, SeqCst);
        Ok((page, file))
    }

    /// Writes what is lent behind the cells, once.
    pub fn publish(file: &File, lent: &Lent) -> io::Result<()> {
        file.write_all_at(&serde_json::to_vec(lent)?, TEXT)
    }

    /// The lease of a run above, and what that run lends. `None`: another version has made its page.
    pub fn open(file: &File) -> io::Result<Option<(LeaseView, Lent)>> {
        let is_sealed = fcntl(file, FcntlArg::F_GET_SEALS).is_ok_and(|seals| seals & libc::F_SEAL_SHRINK != 0);
        if !is_sealed || file.metadata()?.len() <= TEXT {
            return Ok(None);
        }
        let page = Self::map(file, ProtFlags::PROT_READ)?;
        if page.0.layout.load(SeqCst) != LAYOUT {
            return Ok(None);
        }
        let mut text = vec![];
        (&*file).seek(SeekFrom::Start(TEXT))?;
        (&*file).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text).ok().map(|lent| (page.lease(), lent)))
    }

    /// Maps the beginning of a file that is sealed, and longer than the cells.
    fn map(file: &File, access: ProtFlags) -> io::Result<Self> {
        let length = NonZeroUsize::new(size_of::<Cells>()).expect("cells have a size");
        #[expect(unsafe_code, reason = "shared memory comes from mmap(2)")]
        // SAFETY: a new mapping is page-aligned, as large as the cells, which are valid whatever their bits are, and never
        // unmapped.
        let cells = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, file, 0)?.cast::<Cells>().as_ref() };
        Ok(Self(cells))
    }

    pub fn lease(self) -> LeaseView {
        LeaseView(self.0)
    }

    /// The keeper shows a lease, which may end sooner than the one before.
    pub fn write_lease(self, span: Span) {
        self.0.kill_at.store(nanos(span.kill_at), SeqCst);
        self.0.ends_at.store(nanos(span.ends_at), SeqCst);
        self.0.timeout.store(u64::try_from(span.timeout.as_nanos()).unwrap_or(u64::MAX), SeqCst);
        self.0.from.store(nanos(span.from), SeqCst);
    }

    /// The keeper: there is no lease any more.
    pub fn revoke(self) {
        self.0.revoked.store(1, SeqCst);
    }

    /// The keeper, before another session: there is no lease yet, and none is revoked.
    pub fn forget_lease(self) {
        assert_ne!(self.0.gate.load(SeqCst), PASSED, "a command does not get the lease of another session");
        for cell in [&self.0.from, &self.0.kill_at, &self.0.ends_at] {
            cell.store(0, SeqCst);
        }
        self.0.revoked.store(0, SeqCst);
    }

    /// The supervisor: the keeper is to release the lock, and the message that says so cannot be sent.
    pub fn release(self) {
        self.0.released.store(true, SeqCst);
    }

    /// Whether the keeper is to release the lock, once it sees that the supervisor's end of the socket is closed.
    pub fn is_released(self) -> bool {
        self.0.released.load(SeqCst)
    }

    /// The keeper: the servers answered at `now`, a beat or anything else.
    pub fn write_answered_at(self, now: Instant) {
        self.0.answered.store(nanos(now), SeqCst);
    }

    /// The supervisor, before it makes another guard: there is no command.
    pub fn reset(self) {
        assert_eq!(self.ended(), None, "a guard whose command has ended is not replaced");
        self.0.command.store(0, SeqCst);
        self.0.stage.store(Stage::Gated as u32, SeqCst);
        self.0.gate.store(GATED, SeqCst);
    }

    /// The command's process passes the gate, unless it was recalled before.
    pub fn pass(self, now: Instant) -> bool {
        let passes = self.0.gate.compare_exchange(GATED, PASSED, SeqCst, SeqCst).is_ok();
        if passes {
            self.0.began.store(nanos(now), SeqCst);
        }
        passes
    }

    /// The supervisor, before it stops the command or lets it be stopped: the command is not successful, however it ends.
    pub fn spoil(self) {
        self.0.spoiled.store(true, SeqCst);
    }

    pub fn is_spoiled(self) -> bool {
        self.0.spoiled.load(SeqCst)
    }

    /// When the command began, and its status (waitpid(2)), if it has ended and zklock had not stopped it.
    pub fn own_end(self) -> Option<(Instant, i32)> {
        let was_stopped = self.is_spoiled() || self.is_lease_over() || self.lease().is_revoked();
        instant(self.0.began.load(SeqCst)).zip(self.ended()).filter(|_| !was_stopped)
    }

    /// The supervisor, or after its death the keeper: the command's process may not pass the gate any more. Returns false if
    /// the process has passed the gate.
    pub fn recall(self) -> bool {
        self.0.gate.compare_exchange(GATED, RECALLED, SeqCst, SeqCst).unwrap_or_else(|now| now) != PASSED
    }

    /// The guard: this process will be the command.
    pub fn set_command(self, pid: Pid) {
        self.0.command.store(pid.as_raw(), SeqCst);
    }

    /// The process that is, or will be, the command, if it could be made.
    pub fn command(self) -> Option<Pid> {
        Some(self.0.command.load(SeqCst)).filter(|pid| *pid != 0).map(Pid::from_raw)
    }

    /// The guard shows what has happened.
    pub fn show(self, sign: Sign) {
        match sign {
            Sign::Stage(stage) => self.0.stage.store(stage as u32, SeqCst),
            Sign::Ended(status) => self.0.ended.store(status.cast_unsigned() | ENDED, SeqCst),
            Sign::Suspended(signal) => self.0.suspended_by.store(signal, SeqCst),
            Sign::LeaseOver => self.0.lease_over.store(true, SeqCst),
        }
    }

    pub fn stage(self) -> Stage {
        let stage = self.0.stage.load(SeqCst);
        STAGES.into_iter().find(|known| *known as u32 == stage).unwrap_or(Stage::Gated)
    }

    /// The status of the command (waitpid(2)), if it has ended and the guard has reaped it.
    pub fn ended(self) -> Option<i32> {
        let status = self.0.ended.load(SeqCst);
        (status & ENDED != 0).then(|| (status & !ENDED).cast_signed())
    }

    /// The signal that has suspended the command since the last call.
    pub fn take_suspended(self) -> Option<Signal> {
        Signal::new(self.0.suspended_by.swap(0, SeqCst))
    }

    /// The guard: the system does not let it kill this process. Returns whether the process is the first of that kind.
    pub fn deny(self, process: i32) -> bool {
        self.0.denied.compare_exchange(0, process, SeqCst, SeqCst).is_ok()
    }

    /// A process that the guard may not kill.
    pub fn denied(self) -> Option<i32> {
        Some(self.0.denied.load(SeqCst)).filter(|process| *process != 0)
    }

    /// Whether the guard has killed the command because the lease was over.
    pub fn is_lease_over(self) -> bool {
        self.0.lease_over.load(SeqCst)
    }
}

impl LeaseView {
    /// The page that it is in, to be locked in memory: its address and its length.
    pub fn extent(self) -> (usize, usize) {
        (std::ptr::from_ref(self.0) as usize, size_of::<Cells>())
    }

    pub fn is_revoked(self) -> bool {
        self.0.revoked.load(SeqCst) != 0
    }

    /// The lease, if there is one. `None` as well while the keeper is about to write another one.
    pub fn span(self) -> Option<Span> {
        let from = instant(self.0.from.load(SeqCst))?;
        let span = Terms::span(Duration::from_nanos(self.0.timeout.load(SeqCst)), from);
        Some(span).filter(|span| self.limits() == Limits { kill_at: span.kill_at, ends_at: span.ends_at })
    }

    /// When the lease demands SIGKILL, and when it ends.
    pub fn limits(self) -> Limits {
        let is_revoked = self.is_revoked();
        let limit = |cell: &AtomicU64| {
            let nanos = if is_revoked { 0 } else { cell.load(SeqCst) };
            Instant::from_boot(Duration::from_nanos(nanos))
        };
        Limits { kill_at: limit(&self.0.kill_at), ends_at: limit(&self.0.ends_at) }
    }

    /// When the servers last answered, if they have.
    pub fn answered_at(self) -> Option<Instant> {
        instant(self.0.answered.load(SeqCst))
    }
}

fn nanos(instant: Instant) -> u64 {
    u64::try_from(instant.since_boot().as_nanos()).unwrap_or(u64::MAX)
}

fn instant(nanos: u64) -> Option<Instant> {
    (nanos > 0).then(|| Instant::from_boot(Duration::from_nanos(nanos)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::lease::Terms;

    #[test]
    fn the_lease_is_shared_until_it_is_revoked() {
        let (page, file) = Page::new().unwrap();
        let lease = Page::map(&file, ProtFlags::PROT_READ).unwrap().lease();
        assert_eq!((lease.span(), lease.is_revoked()), (None, false));
        let from = Instant::from_boot(Duration::from_millis(1234));
        let span = Terms::span(Duration::from_secs(10), from);
        page.write_lease(span);
        assert_eq!((lease.span(), lease.answered_at()), (Some(span), None));
        assert_eq!(lease.limits(), Limits { kill_at: span.kill_at, ends_at: span.ends_at });
        let now = Instant::from_boot(Duration::from_millis(1240));
        page.write_answered_at(now);
        assert_eq!((lease.span(), lease.answered_at()), (Some(span), Some(now)));
        page.revoke();
        assert_eq!((lease.span(), lease.is_revoked()), (None, true));
        assert!(lease.limits().kill_at < from);
        page.forget_lease();
        assert_eq!((lease.span(), lease.is_revoked()), (None, false));
        let earlier = Terms::span(Duration::from_secs(4), from - Duration::from_millis(1));
        page.write_lease(earlier);
        assert_eq!(lease.span(), Some(earlier));
    }

    #[test]
    #[should_panic(expected = "the lease of another session")]
    fn a_command_that_runs_gets_no_lease_of_another_session() {
        let (shared, _) = Page::new().unwrap();
        assert!(shared.pass(Instant::from_boot(Duration::from_secs(1))));
        shared.forget_lease();
    }

    /// Nested runs of all 1.x find the lease there, and reckon its end in this way.
    #[test]
    fn the_layout_of_a_lease() {
        let (page, file) = Page::new().unwrap();
        let span = Terms::span(Duration::from_secs(10), Instant::from_boot(Duration::from_millis(1234)));
        page.write_lease(span);
        page.write_answered_at(span.from);
        page.revoke();
        let mut cells = [[0; 8]; 7];
        file.read_exact_at(cells.as_flattened_mut(), 0).unwrap();
        let millis = [10_000, 1234, 7974, 8224, 1234].map(|millis| millis * 1_000_000);
        assert_eq!(cells.map(u64::from_ne_bytes), *[&[1][..], &millis, &[1]].concat());
    }

    #[test]
    fn a_command_passes_the_gate_or_is_recalled() {
        let (shared, _) = Page::new().unwrap();
        let now = Instant::from_boot(Duration::from_secs(1));
        assert!(shared.pass(now) && !shared.recall());
        shared.reset();
        assert!(shared.recall() && !shared.pass(now));
    }

    #[test]
    fn a_command_ends_by_itself_if_it_was_not_stopped() {
        let now = Instant::from_boot(Duration::from_secs(1));
        let ended = |status| {
            let (shared, _) = Page::new().unwrap();
            assert!(shared.pass(now));
            assert_eq!(shared.own_end(), None);
            shared.show(Sign::Ended(status));
            shared
        };
        for status in [0, 1 << 8, 15] {
            assert_eq!(ended(status).own_end(), Some((now, status)));
        }
        for stop in [Page::spoil, Page::revoke, |shared: Page| shared.show(Sign::LeaseOver)] {
            let shared = ended(0);
            stop(shared);
            assert_eq!(shared.own_end(), None);
        }
    }

    #[test]
    fn the_first_process_that_may_not_be_killed_is_named() {
        let (shared, _) = Page::new().unwrap();
        assert_eq!(shared.denied(), None);
        assert!(shared.deny(7) && !shared.deny(8));
        assert_eq!(shared.denied(), Some(7));
    }

    #[test]
    fn a_guard_says_what_has_become_of_the_command() {
        let (shared, _) = Page::new().unwrap();
        assert_eq!((shared.stage(), shared.command(), shared.ended()), (Stage::Gated, None, None));
        for stage in STAGES {
            shared.show(Sign::Stage(stage));
            assert_eq!(shared.stage(), stage);
        }
        shared.show(Sign::Ended(0));
        assert_eq!(shared.ended(), Some(0));
        shared.show(Sign::Ended(3 << 8));
        assert_eq!(shared.ended(), Some(3 << 8));
        shared.show(Sign::Suspended(20));
        assert_eq!((shared.take_suspended(), shared.take_suspended()), (Some(Signal::TSTP), None));
    }
}
