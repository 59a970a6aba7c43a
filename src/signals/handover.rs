//! Signals that come to a thread which is not ours. A library of LD_PRELOAD may have started one before `main`. It does
//! not block what we queue, so the kernel gives it the signals for this process.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use libc::{c_int, c_void, siginfo_t};
use nix::errno::Errno;
use nix::unistd::{getpid, gettid};

/// Whether this process has another thread than the main one (proc_pid_task(5)).
pub(super) fn is_needed() -> bool {
    // A directory has a link for itself, one in its parent, and one for each directory in it.
    fs::metadata("/proc/self/task").is_ok_and(|task| task.nlink() > 3)
}

/// Has these signals handed over to the main thread, which blocks and queues them.
pub(super) fn install(numbers: impl Iterator<Item = i32>) {
    for number in numbers {
        #[expect(unsafe_code, reason = "nix's sigaction knows no real-time signals")]
        // SAFETY: zeroes are a valid sigaction with an empty mask; the function has the type that SA_SIGINFO asks for,
        // and makes only calls that are safe in a handler (signal-safety(7)).
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = hand_over as *const () as usize;
            // The stack of a thread of Go is too small for a handler.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
            libc::sigaction(number, &raw const action, std::ptr::null_mut());
        }
    }
}

/// The `si_code` of a signal that is handed over: those that are not negative are the kernel's own, as is that of tgkill(2).
pub(super) const fn code(original: c_int) -> c_int {
    match original {
        1.. => -original,
        0 | libc::SI_TKILL => libc::SI_QUEUE,
        ..0 => original,
    }
}

extern "C" fn hand_over(number: c_int, info: *mut siginfo_t, _: *mut c_void) {
    let (error, process) = (Errno::last_raw(), getpid());
    #[expect(unsafe_code, reason = "calls that nix does not have, and what the kernel has passed to a handler")]
    // SAFETY: `info` is valid and ours until this returns; SIG_DFL is no handler function.
    unsafe {
        if gettid() == process {
            // No longer blocked: in a fork, or because it is to stop or to end this process. So it does that, as soon as
            // this returns.
            libc::signal(number, libc::SIG_DFL);
            libc::raise(number);
        } else {
            (*info).si_code = code((*info).si_code);
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, process, number, info);
        }
    }
    Errno::set_raw(error);
}
