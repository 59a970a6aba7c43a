//! The children of the supervisor that have ended or were stopped.

use nix::errno::Errno;
use nix::unistd::Pid;

use crate::guard::program::end_of;
use crate::rules::event::CommandEnd;
use crate::rules::signal::Signal;

/// A change of state of a child, as waitpid(2) tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaped {
    Ended(Pid, CommandEnd),
    Stopped(Pid, Signal),
}

/// The next child that changed its state, if any. It reaps orphans that have come to us as well: as their
/// subreaper, only we can.
pub(super) fn reap() -> Option<Reaped> {
    loop {
        let mut status = 0;
        #[expect(unsafe_code, reason = "nix's waitpid loses a child that a real-time signal killed")]
        // SAFETY: waitpid(2) writes to `status` and nothing else.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
        if pid == 0 {
            return None;
        }
        if pid < 0 {
            match Errno::last() {
                Errno::EINTR => continue,
                Errno::ECHILD => return None,
                error => {
                    log::error!("cannot wait for children: {error}");
                    return None;
                }
            }
        }
        let pid = Pid::from_raw(pid);
        if libc::WIFSTOPPED(status) {
            return Some(Reaped::Stopped(pid, Signal::new(libc::WSTOPSIG(status)).unwrap_or(Signal::STOP)));
        }
        return Some(Reaped::Ended(pid, end_of(status)));
    }
}
