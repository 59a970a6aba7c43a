//! Descriptors that a fork must not keep.

use std::os::fd::RawFd;

/// Closes all descriptors but these. For a fork that uses no value which has one of the others.
pub fn close_all_but(keep: &mut [RawFd]) {
    keep.sort_unstable();
    let mut from = 0;
    for &mut number in keep {
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
    let last = to - 1;
    #[expect(unsafe_code, reason = "the descriptors belong to values that this fork never uses")]
    // SAFETY: the calls touch no memory, and no value of this process uses the descriptors again.
    unsafe {
        if libc::syscall(libc::SYS_close_range, from, last, 0) == 0 {
            return;
        }
        // Before Linux 5.9, or in a sandbox that does not know it.
        let limit = libc::sysconf(libc::_SC_OPEN_MAX).clamp(0, 65_536);
        for number in from..=last.min(RawFd::try_from(limit).unwrap_or(1024)) {
            libc::close(number);
        }
    }
}
