//! How keepers, look-ups and the writer are made. The guard makes its processes itself: they need more care.

use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;

use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{ForkResult, Pid, getpid, getppid};

use super::signals;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// The kernel kills it when the process that made it dies.
    Parents,
    /// Until it ends.
    Own,
}

/// Makes a process that calls `body`, and exits when that returns. It has a name for people, which also keeps
/// `pkill zklock` from it. It blocks all signals, and of all descriptors it has those to `keep` alone. This process must
/// have one thread only.
pub fn fork(name: &CStr, life: Life, keep: &[RawFd], body: impl FnOnce()) -> io::Result<Pid> {
    let parent = getpid();
    #[expect(unsafe_code, reason = "the process runs our own code")]
    // SAFETY: this process has one thread, so the child may go on as any process may (fork(2)).
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            signals::block_all();
            signals::leave_children_to_the_kernel(false);
            let _ = prctl::set_name(name);
            if life == Life::Parents {
                let _ = prctl::set_pdeathsig(Signal::SIGKILL);
            }
            close_all_but(keep);
            // The parent may have died before the call above: then the kernel sends no signal.
            if life == Life::Own || getppid() == parent {
                body();
            }
            exit_now(0)
        }
    }
}

/// Exits without running what exit(3) runs: in a fork that is not its own, and nothing is left to be written.
pub fn exit_now(status: i32) -> ! {
    #[expect(unsafe_code, reason = "the standard library has exit(3) only")]
    // SAFETY: _exit(2) does not return and touches no memory.
    unsafe {
        libc::_exit(status)
    }
}

/// Closes all descriptors but these, as far as this process uses no value that has one of the others.
pub fn close_all_but(keep: &[RawFd]) {
    let mut keep = keep.to_vec();
    keep.sort_unstable();
    let mut from = 0;
    for number in keep {
        close_between(from, number);
        from = number + 1;
    }
    close_between(from, RawFd::MAX);
}

/// Closes the descriptors from `from` up to, but not including, `to`.
fn close_between(from: RawFd, to: RawFd) {
    if from >= to {
        return;
    }
    #[expect(unsafe_code, reason = "the descriptors belong to values that this process never uses")]
    // SAFETY: the calls touch no memory, and no value of this process uses the descriptors again.
    unsafe {
        if libc::syscall(libc::SYS_close_range, from, to - 1, 0) == 0 {
            return;
        }
        // Before Linux 5.9, or in a sandbox that does not know it.
        let limit = libc::sysconf(libc::_SC_OPEN_MAX).clamp(0, 65_536);
        for number in from..to.min(RawFd::try_from(limit).unwrap_or(1024)) {
            libc::close(number);
        }
    }
}
