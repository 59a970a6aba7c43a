//! A process that is held as a debugger holds one, also at a system call, so that a test can act at that very moment.

use std::collections::BTreeSet;
use std::fs;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::poll;

/// Counts the system calls of a process and of those that it forks, from now on, each in the place of `counts` that `phase`
/// names at the time. Returns when all have ended. A process that calls execve(2) is not counted from there on, but for the
/// first.
pub(crate) fn count_calls<const N: usize>(first: Pid, phase: &AtomicUsize) -> [usize; N] {
    let options = libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEEXEC;
    // They go on when this is dropped.
    let first = Traced::seize(first, options).expect("ptrace(2)");
    let mut counts = [0; N];
    let mut has_begun = false;
    let mut in_call = BTreeSet::new();
    // Those of other threads are not ours (wait(2)).
    while let Ok(status) = waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)) {
        let (pid, request, signal) = match status {
            WaitStatus::PtraceSyscall(pid) => {
                if !in_call.remove(&pid) {
                    in_call.insert(pid);
                    counts[phase.load(SeqCst)] += usize::from(has_begun);
                }
                (pid, libc::PTRACE_SYSCALL, 0)
            }
            WaitStatus::PtraceEvent(pid, _, libc::PTRACE_EVENT_EXEC) if std::mem::replace(&mut has_begun, true) => {
                (pid, libc::PTRACE_DETACH, 0)
            }
            // A child at its begin. One that is stopped by a signal must go on to listen.
            WaitStatus::PtraceEvent(pid, signal, libc::PTRACE_EVENT_STOP) if signal != Signal::SIGTRAP => {
                (pid, libc::PTRACE_LISTEN, 0)
            }
            WaitStatus::PtraceEvent(pid, ..) => (pid, libc::PTRACE_SYSCALL, 0),
            WaitStatus::Stopped(pid, signal) => (pid, libc::PTRACE_SYSCALL, signal as libc::c_int),
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) | WaitStatus::Continued(_) | WaitStatus::StillAlive => {
                continue;
            }
        };
        // One that has just been killed is waited for like any other.
        let _ = ManuallyDrop::new(Traced(pid)).ptrace(request, signal);
    }
    drop(first);
    counts
}

/// A process that is held: no SIGCONT continues it. It goes on when this is dropped. The debugger is the thread that has
/// made this.
#[derive(Debug)]
pub(crate) struct Traced(Pid);

impl Traced {
    /// Holds a process.
    #[track_caller]
    pub(crate) fn hold(pid: Pid) -> Self {
        let traced = Self(pid);
        traced.ptrace(libc::PTRACE_ATTACH, 0).expect("ptrace(2)");
        traced.wait();
        traced
    }

    /// Has a process as a debugger has it that takes no notice of what happens to it: it goes on until it is stopped, or
    /// exits, and stays like that. `options` are those of ptrace(2). Fails where that is not allowed.
    pub(crate) fn seize(pid: Pid, options: libc::c_int) -> nix::Result<Self> {
        let traced = Self(pid);
        traced.ptrace(libc::PTRACE_SEIZE, options).map(|()| traced)
    }

    /// Lets it go on, and holds it again as it is about to make a system call like this for the `count`th time.
    /// `is_it` gets the number of the call, and its arguments behind that. To be called once.
    #[track_caller]
    pub(crate) fn until_call(&self, count: usize, is_it: impl Fn(&[u64]) -> bool) {
        let (mut left, mut begins, mut signal) = (count, false, 0);
        while left > 0 {
            self.ptrace(libc::PTRACE_SYSCALL, signal).expect("ptrace(2)");
            signal = match self.wait() {
                // At the beginning and at the end of each call.
                Signal::SIGTRAP => 0,
                other => other as libc::c_int,
            };
            begins ^= signal == 0;
            if signal == 0 && begins && is_it(&self.call()) {
                left -= 1;
            }
        }
    }

    /// The system call that it makes (proc_pid_syscall(5)).
    #[track_caller]
    fn call(&self) -> Vec<u64> {
        let line = fs::read_to_string(format!("/proc/{}/syscall", self.0)).expect("a system call");
        let number = |word: &str| match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => word.parse().ok(),
        };
        line.split_whitespace().map_while(number).collect()
    }

    /// Waits until it is held. Nobody else may wait for this process before that: its parent would take this for its end.
    #[track_caller]
    fn wait(&self) -> Signal {
        poll::until("it is held", || match waitpid(self.0, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL)) {
            Ok(WaitStatus::StillAlive) => None,
            Ok(WaitStatus::Stopped(_, signal)) => Some(signal),
            other => panic!("{other:?}"),
        })
    }

    #[expect(unsafe_code, reason = "the crate nix is used without ptrace(2)")]
    fn ptrace(&self, request: libc::c_uint, data: libc::c_int) -> nix::Result<()> {
        let data = ptr::without_provenance_mut::<libc::c_void>(usize::try_from(data).expect("no negative number"));
        // SAFETY: these requests touch no memory of ours; what looks like a pointer is a number.
        let result = unsafe { libc::ptrace(request, self.0.as_raw(), ptr::null_mut::<libc::c_void>(), data) };
        nix::errno::Errno::result(result).map(drop)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if self.ptrace(libc::PTRACE_DETACH, 0).is_err() {
            // It has been killed. Its parent hears of that only when this thread has.
            let _ = waitpid(self.0, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL));
        }
    }
}
