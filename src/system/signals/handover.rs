//! Signals that come to a thread which is not ours. A library of LD_PRELOAD may have started one before `main`. It does
//! not block what we queue, so the kernel gives it the signals for this process.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;

use libc::{c_int, c_void, siginfo_t};
use nix::errno::Errno;
use nix::unistd::{getpid, gettid};

use super::{SI_KERNEL, action, exchange};
use crate::rules::signal::Signal;

/// The `si_code` of a signal of the kernel's that was handed over. A process may send none with the kernel's own.
pub(super) const KERNELS: c_int = -SI_KERNEL;

/// Whether this process has another thread than the main one (proc_pid_task(5)).
pub(super) fn is_needed() -> bool {
    static IS_NEEDED: OnceLock<bool> = OnceLock::new();
    // A directory has a link for itself, one in its parent, and one for each directory in it.
    *IS_NEEDED.get_or_init(|| fs::metadata("/proc/self/task").is_ok_and(|task| task.nlink() > 3))
}

/// Has this signal handed over to the main thread, which blocks and queues it.
pub(super) fn install(signal: Signal) {
    let mut action = action(hand_over as *const () as usize);
    // The stack of a thread of Go is too small for a handler.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    exchange(signal, Some(&action));
}

extern "C" fn hand_over(number: c_int, info: *mut siginfo_t, _: *mut c_void) {
    let (error, process) = (Errno::last_raw(), getpid());
    #[expect(unsafe_code, reason = "calls that nix does not have, and what the kernel has passed to a handler")]
    // SAFETY: `info` is valid and ours until this returns; SIG_DFL is no handler function.
    unsafe {
        if gettid() == process {
            // No longer blocked: in a fork, or because it is to suspend or to end this process. So it does that, as
            // soon as this returns.
            libc::signal(number, libc::SIG_DFL);
            libc::raise(number);
        } else {
            (*info).si_code = if (*info).si_code == SI_KERNEL { KERNELS } else { libc::SI_QUEUE };
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, process, number, info);
        }
    }
    Errno::set_raw(error);
}
