//! What the kernel does when all processes of zklock are dead or suspended: timers continue a guard when it is to kill,
//! and end the guard with the lease; a signal kills the command when the guard or the supervisor dies. And what a guard
//! does to depend on no other process: it has a priority, and its memory stays in memory.

use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

use crate::rules::instant::Instant;
use crate::rules::signal::Signal;
use crate::system::signals;

/// A timer that sends a signal to this process (timer_create(2)), and counts sleep. SIGKILL ends a suspended process as
/// well, and one in a frozen cgroup of version 2, but not in one of version 1. SIGCONT continues what was suspended by
/// a signal alone.
pub(super) struct Timer {
    timer: libc::timer_t,
    time: Option<Instant>,
}

impl Timer {
    /// A timer that is not set. It lasts as long as the process.
    pub(super) fn new(signal: Signal) -> nix::Result<Self> {
        #[expect(unsafe_code, reason = "nix's timer cannot be set without a clock's wrapper type")]
        // SAFETY: zeroes are a valid sigevent; both pointers are valid for the call.
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_SIGNAL;
            event.sigev_signo = signal.number();
            let mut timer = std::mem::zeroed();
            Errno::result(libc::timer_create(libc::CLOCK_BOOTTIME, &raw mut event, &raw mut timer))?;
            Ok(Self { timer, time: None })
        }
    }

    /// The signal comes at `time`, and at once if that has passed.
    pub(super) fn set(&mut self, time: Instant) {
        if self.time.replace(time) == Some(time) {
            return;
        }
        let since_boot = time.since_boot();
        let value = libc::timespec {
            tv_sec: libc::time_t::try_from(since_boot.as_secs()).unwrap_or(libc::time_t::MAX),
            // Zero for both would disarm the timer.
            tv_nsec: libc::c_long::from(since_boot.subsec_nanos()).max(1),
        };
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let time = libc::itimerspec { it_interval: zero, it_value: value };
        #[expect(unsafe_code, reason = "timer_settime(2) takes a raw timer")]
        // SAFETY: the timer exists; `time` is valid, and the old value is not asked for. So the call cannot fail.
        unsafe {
            libc::timer_settime(self.timer, libc::TIMER_ABSTIME, &raw const time, std::ptr::null_mut());
        }
    }
}

/// The read end of a pipe. When the last write end is closed, because the process that has it dies in whatever way,
/// the kernel sends SIGKILL to the command (F_SETSIG, F_SETOWN and O_ASYNC of fcntl(2)). It holds a reference to the
/// process or the group, so no recycled number can be hit.
pub(super) struct Fuse<'a>(BorrowedFd<'a>);

impl<'a> Fuse<'a> {
    /// `target`: a process, or a group if it is negative.
    pub(super) fn lay(read_end: BorrowedFd<'a>, target: i32) -> nix::Result<Self> {
        signals::signal_at_news(read_end, target, Signal::KILL)?;
        Ok(Self(read_end))
    }

    pub(super) fn remove(&self) {
        signals::no_signal_at_news(self.0);
    }
}

/// The highest real-time priority but one, for the kernel's own threads have that (sched(7)).
const FIRST: i32 = 98;

/// Puts this process before all others that share its processor, if that is allowed (CAP_SYS_NICE, RLIMIT_RTPRIO): among
/// hundreds of busy processes of a command, a guard that waits for its turn comes too late to kill those that no fuse
/// reaches. Otherwise a guard sleeps. Returns whether the priority was allowed.
pub(super) fn go_first() -> bool {
    schedule(libc::SCHED_FIFO, FIRST)
}

/// Lets others use this processor as well, after [`go_first`].
pub(super) fn share_processor() {
    schedule(libc::SCHED_OTHER, 0);
}

fn schedule(policy: libc::c_int, priority: libc::c_int) -> bool {
    #[expect(unsafe_code, reason = "nix has no sched_setscheduler(2), and that of musl does nothing")]
    // SAFETY: zeroes are a valid sched_param, and the pointer to it is valid for the call.
    unsafe {
        let mut param: libc::sched_param = std::mem::zeroed();
        param.sched_priority = priority;
        libc::syscall(libc::SYS_sched_setscheduler, 0, policy | libc::SCHED_RESET_ON_FORK, &raw const param) == 0
    }
}

/// How much of the stack a guard uses at most: that of a walk of the processes below it.
const STACK: usize = 32 * 1024;

/// Locks in memory what the guard uses, as far as the limit allows (RLIMIT_MEMLOCK): a disk that does not answer must not
/// stop it. That is every page that it has used by now, or comes to use; and at least the stack and the shared pages, of which
/// these are the addresses and the lengths.
pub(super) fn lock_in_memory(shared: [(usize, usize); 2]) {
    let stack = touch_stack();
    #[expect(unsafe_code, reason = "nix does not know MCL_ONFAULT")]
    // SAFETY: the calls change no contents; for addresses that are not mapped they fail.
    unsafe {
        // Without MCL_ONFAULT it would copy every page that this fork could write to.
        if libc::mlockall(libc::MCL_CURRENT | libc::MCL_ONFAULT) != 0 {
            for (start, length) in shared.into_iter().chain([(stack, STACK)]) {
                libc::mlock(start as *const libc::c_void, length);
            }
        }
    }
}

/// Writes to the stack that later calls will use: what a fork has written to is its own from then on. Returns where it begins.
#[inline(never)]
fn touch_stack() -> usize {
    let mut stack = [0u8; STACK];
    for page in stack.chunks_mut(4096) {
        page[0] = 1;
    }
    std::hint::black_box(&mut stack).as_ptr() as usize
}

/// The same descriptor under a number that is higher than that of `other`.
pub(super) fn above(fd: OwnedFd, other: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    if fd.as_raw_fd() > other.as_raw_fd() {
        return Ok(fd);
    }
    let raised = fcntl(&fd, FcntlArg::F_DUPFD_CLOEXEC(other.as_raw_fd() + 1))?;
    #[expect(unsafe_code, reason = "fcntl(2) returns a number")]
    // SAFETY: F_DUPFD_CLOEXEC has just made this descriptor, so it is owned here alone.
    Ok(unsafe { OwnedFd::from_raw_fd(raised) })
}
