//! The children of the supervisor that have ended.

use nix::errno::Errno;
use nix::unistd::Pid;

use crate::guard::program::end_of;
use crate::rules::event::CommandEnd;

/// The next child that has ended, if any. It reaps orphans that have come to us as well: as their
/// subreaper, only we can.
pub(super) fn reap() -> Option<(Pid, CommandEnd)> {
    loop {
        let mut status = 0;
        #[expect(unsafe_code, reason = "nix's waitpid loses a child that a real-time signal killed")]
        // SAFETY: waitpid(2) writes to `status` and nothing else.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
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
        return Some((Pid::from_raw(pid), end_of(status)));
    }
}
