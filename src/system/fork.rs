//! How processes are made: keepers, look-ups and the writer by [`fork`]; guards and commands, which need more care, by
//! [`fork_bare`].

use std::ffi::CStr;
use std::io;
use std::iter;
use std::os::fd::RawFd;

use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{ForkResult, Pid, getpid, getppid};

use super::{proc, signals};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// The kernel kills it when the process that made it dies.
    Parents,
    /// Until it ends.
    Own,
}

/// Makes a process that calls `body`, and exits when that returns. It has a name for people, which also keeps
/// `pkill zklock` from it. It blocks all signals, and of all descriptors it has those to `keep` alone.
pub fn fork(name: &CStr, life: Life, keep: &[RawFd], body: impl FnOnce()) -> io::Result<Pid> {
    let parent = getpid();
    match fork_bare()? {
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

/// fork(2).
pub fn fork_bare() -> nix::Result<ForkResult> {
    #[expect(unsafe_code, reason = "the child runs our own code")]
    // SAFETY: no code of ours starts a thread. A library of LD_PRELOAD may have started one, which the child does not
    // have. Then what that thread held locked stays locked in the child; the C library keeps its own locks, such as that of
    // malloc(3), usable across fork(2), and of the other library the child calls nothing.
    unsafe {
        nix::unistd::fork()
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
    let begins = iter::once(0).chain(keep.iter().map(|number| number + 1));
    let mut between = begins.zip(keep.iter().copied().chain([RawFd::MAX])).filter(|(begin, end)| begin < end);
    #[expect(unsafe_code, reason = "the descriptors belong to values that this process never uses")]
    // SAFETY: the calls touch no memory, and no value of this process uses the descriptors again.
    unsafe {
        if between.all(|(begin, end)| libc::syscall(libc::SYS_close_range, begin, end - 1, 0) == 0) {
            return;
        }
        // Before Linux 5.9, or in a sandbox that does not know the call.
        let open = proc::numbers("self/fd").unwrap_or_else(|_| (0..65_536).collect());
        for number in open.into_iter().filter(|number| !keep.contains(number)) {
            libc::close(number);
        }
    }
}
