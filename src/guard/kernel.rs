//! What the kernel does for us when all our processes are dead or stopped: a timer that ends a guard with the lease,
//! and a signal to the command when the guard or the supervisor dies. And what a process does to depend on nothing
//! else.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::utsname::uname;

use crate::rules::instant::Instant;
use crate::shared::{Part, Shared};

/// A timer that sends SIGKILL to this process when the lease is over (timer_create(2)), and counts sleep. That ends a
/// stopped process as well, and one in a frozen cgroup of version 2, but not in one of version 1. The death of a guard
/// kills the command.
pub(super) struct DeadlineTimer(libc::timer_t);

impl DeadlineTimer {
    /// A timer that is not set.
    pub(super) fn new() -> nix::Result<Self> {
        #[expect(unsafe_code, reason = "nix's timer cannot be set without a clock's wrapper type")]
        // SAFETY: zeroes are a valid sigevent; both pointers are valid for the call.
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_SIGNAL;
            event.sigev_signo = libc::SIGKILL;
            let mut timer = std::mem::zeroed();
            Errno::result(libc::timer_create(libc::CLOCK_BOOTTIME, &raw mut event, &raw mut timer))?;
            Ok(Self(timer))
        }
    }

    /// SIGKILL comes at `deadline`, and at once if that has passed.
    pub(super) fn set(&self, deadline: Instant) -> nix::Result<()> {
        let since_boot = deadline.since_boot();
        let value = libc::timespec {
            tv_sec: libc::time_t::try_from(since_boot.as_secs()).unwrap_or(libc::time_t::MAX),
            // Zero for both would disarm the timer.
            tv_nsec: libc::c_long::from(since_boot.subsec_nanos()).max(1),
        };
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let time = libc::itimerspec { it_interval: zero, it_value: value };
        #[expect(unsafe_code, reason = "timer_settime(2) takes a raw timer")]
        // SAFETY: the timer exists until it is dropped; `time` is valid, and the old value is not asked for.
        let result = unsafe { libc::timer_settime(self.0, libc::TIMER_ABSTIME, &raw const time, std::ptr::null_mut()) };
        Errno::result(result).map(drop)
    }
}

impl Drop for DeadlineTimer {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "timer_delete(2) takes a raw timer")]
        // SAFETY: the timer was made by `new` and is deleted once.
        unsafe {
            libc::timer_delete(self.0);
        }
    }
}

/// Takes note of a part that this system has not got. Fails if it is only short of something now.
pub(super) fn noted<T>(shared: Shared, part: Part, result: nix::Result<T>) -> nix::Result<Option<T>> {
    match result {
        Ok(made) => Ok(Some(made)),
        Err(error) if is_shortage(error) => Err(error),
        Err(_) => {
            shared.set_refused(part);
            Ok(None)
        }
    }
}

/// Whether a system call may succeed later: memory, descriptors or queued signals (RLIMIT_SIGPENDING) are used up.
pub(super) fn is_shortage(error: Errno) -> bool {
    matches!(error, Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE)
}

pub(super) fn errno(error: io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

/// fcntl(2), which the crate `libc` does not have.
const F_SETSIG: i32 = 10;

/// The read end of a pipe. When the last write end is closed, because the process that has it dies in whatever way,
/// the kernel sends SIGKILL to the command (F_SETSIG, F_SETOWN and O_ASYNC of fcntl(2)). It holds a reference to the
/// process or the group, so no recycled number can be hit.
pub(super) struct Fuse<'a>(BorrowedFd<'a>);

impl<'a> Fuse<'a> {
    pub(super) fn new(read_end: BorrowedFd<'a>) -> Self {
        Self(read_end)
    }

    /// `target`: a process, or a group if it is negative.
    pub(super) fn lay(&self, target: i32) -> nix::Result<()> {
        self.control(libc::F_SETOWN, target)?;
        self.control(F_SETSIG, libc::SIGKILL)?;
        self.control(libc::F_SETFL, libc::O_ASYNC)
    }

    pub(super) fn remove(&self) {
        // It was laid, so it can be removed; and if not, there is nothing to be done.
        let _ = self.control(libc::F_SETFL, 0);
    }

    fn control(&self, command: i32, argument: i32) -> nix::Result<()> {
        #[expect(unsafe_code, reason = "nix's fcntl knows neither F_SETSIG nor F_SETOWN")]
        // SAFETY: the descriptor is open, and these commands take a number.
        let result = unsafe { libc::fcntl(self.0.as_raw_fd(), command, argument) };
        Errno::result(result).map(drop)
    }
}

/// Whether a [`Fuse`] can be laid on a pipe that other processes have opened for reading as well. Before Linux 5.6 the end
/// of any of them signals all readers, as the end of the last writer does (`pipe_release` in fs/pipe.c).
pub(super) fn tells_ends_apart() -> bool {
    uname().is_ok_and(|system| version(&system.release().to_string_lossy()) >= (5, 6))
}

/// The first two numbers of a kernel's release; zeroes if there are none.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|char: char| !char.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// The processes on which locks that we borrow hang. It is readable once one of them has died.
pub(super) struct Lenders(Epoll);

impl Lenders {
    /// Those that have the write ends of these pipes, if there are any.
    pub(super) fn watch<'a>(pipes: impl Iterator<Item = BorrowedFd<'a>>) -> nix::Result<Option<Self>> {
        let mut pipes = pipes.peekable();
        if pipes.peek().is_none() {
            return Ok(None);
        }
        let watch = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        // A hang-up is told without being asked for (epoll_ctl(2)).
        pipes.try_for_each(|pipe| watch.add(pipe, EpollEvent::new(EpollFlags::empty(), 0)))?;
        Ok(Some(Self(watch)))
    }

    /// Whether one of them has died.
    #[inline(never)]
    pub(super) fn has_lost_one(&self) -> bool {
        let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|count| count > 0)
    }
}

impl AsFd for Lenders {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

/// The highest real-time priority but one (sched(7)).
const FIRST: i32 = 98;

/// Puts this process before all others that share its processor, as far as that is allowed (CAP_SYS_NICE,
/// RLIMIT_RTPRIO): among hundreds of busy processes of a command, a guard that waits for its turn comes too late to kill
/// those that no fuse reaches. The command may have a real-time priority as well, and what the kernel sets aside for
/// processes without one would not be the guard's then: so it asks for the highest but that of the kernel's own threads,
/// and if that is refused, for the highest that the limit allows, but not for less than it was started with. It sleeps but
/// for that. It has none where the kernel kills what has one and works for too long (RLIMIT_RTTIME): to kill thousands of
/// processes takes long. The command has that limit as well then.
pub(super) fn go_first() {
    let is_timed = getrlimit(Resource::RLIMIT_RTTIME).is_ok_and(|(_, hard)| hard != RLIM_INFINITY);
    let before = priority();
    if is_timed && setrlimit(Resource::RLIMIT_RTTIME, RLIM_INFINITY, RLIM_INFINITY).is_err() {
        if before > 0 {
            schedule(libc::SCHED_OTHER, 0);
        }
        return;
    }
    let allowed = getrlimit(Resource::RLIMIT_RTPRIO).map_or(0, |(soft, _)| soft);
    for priority in [FIRST, i32::try_from(allowed).unwrap_or(FIRST)] {
        if priority <= before || schedule(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, priority) {
            return;
        }
    }
}

/// The real-time priority of this process, 0 for none.
pub(super) fn priority() -> i32 {
    #[expect(unsafe_code, reason = "nix has no sched_getparam(2), and that of musl does nothing")]
    // SAFETY: zeroes are a valid sched_param, and the pointer to it is valid for the call.
    unsafe {
        let mut param: libc::sched_param = std::mem::zeroed();
        libc::syscall(libc::SYS_sched_getparam, 0, &raw mut param);
        param.sched_priority
    }
}

/// Gives this process a policy and a priority. Returns whether that is allowed.
fn schedule(policy: i32, priority: i32) -> bool {
    #[expect(unsafe_code, reason = "nix has no sched_setscheduler(2), and that of musl does nothing")]
    // SAFETY: zeroes are a valid sched_param, and the pointer to it is valid for the call.
    unsafe {
        let mut param: libc::sched_param = std::mem::zeroed();
        param.sched_priority = priority;
        libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const param) == 0
    }
}

/// Locks in memory what the guard uses, as far as the limit allows (RLIMIT_MEMLOCK): a disk that does not answer must not
/// stop it. That is every page that it has used by now, or comes to use; and at once the stack, the shared page, and the
/// pages of these functions and of those of the C library that they call.
pub(super) fn lock_in_memory(shared: Shared, functions: &[*const ()]) {
    // Without MCL_ONFAULT it would copy every page that this fork could write to.
    #[expect(unsafe_code, reason = "nix does not know MCL_ONFAULT")]
    // SAFETY: mlockall(2) changes no contents.
    unsafe {
        libc::mlockall(libc::MCL_CURRENT | libc::MCL_ONFAULT);
    }
    const PAGE: usize = 4096;
    let here = 0u8;
    let stack = std::ptr::from_ref(&here) as usize;
    let (page, length) = shared.extent();
    let code = |function: *const ()| (function as usize, PAGE);
    let used = [
        (page, length),
        // The frames below this one, and those that further calls will use.
        (stack.saturating_sub(6 * PAGE), 8 * PAGE),
        code(libc::poll as *const ()),
        code(libc::waitpid as *const ()),
        code(libc::kill as *const ()),
        code(libc::getpgid as *const ()),
        code(libc::getsid as *const ()),
        code(libc::recv as *const ()),
        code(libc::write as *const ()),
        code(libc::read as *const ()),
        code(libc::pread64 as *const ()),
        code(libc::openat as *const ()),
        code(libc::close as *const ()),
        code(libc::syscall as *const ()),
        code(libc::timer_settime as *const ()),
        code(libc::timerfd_settime as *const ()),
        code(libc::clock_gettime as *const ()),
        code(libc::__errno_location as *const ()),
    ];
    for (address, length) in used.into_iter().chain(functions.iter().map(|function| code(*function))) {
        #[expect(unsafe_code, reason = "mlock(2) takes an address")]
        // SAFETY: mlock(2) changes no contents; for addresses that are not mapped it fails.
        unsafe {
            libc::mlock(address as *const libc::c_void, length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_kernels() {
        assert!(
            version("6.1.0-37-amd64") >= (5, 6) && version("5.10.0-34-cloud") >= (5, 6) && version("5.6.0") >= (5, 6)
        );
        assert!(version("5.4.0-216-generic") < (5, 6) && version("4.18.0-553.el8") < (5, 6) && version("?") < (5, 6));
    }
}
