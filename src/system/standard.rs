//! The three standard descriptors, and /dev/null in their place.

use std::os::fd::{BorrowedFd, OwnedFd};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

/// No file that is opened later is taken for one of these three. Where standard output is closed it is opened for reading: what
/// is written to it must not be lost without a word.
pub fn open_missing() {
    for number in libc::STDIN_FILENO..=libc::STDERR_FILENO {
        let access = if number == libc::STDOUT_FILENO { libc::O_RDONLY } else { libc::O_RDWR };
        #[expect(unsafe_code, reason = "a descriptor may be closed")]
        // SAFETY: the calls take numbers and a constant. open(2) takes the lowest number that is free.
        unsafe {
            if libc::fcntl(number, libc::F_GETFD) < 0 {
                libc::open(c"/dev/null".as_ptr(), access);
            }
        }
    }
}

/// /dev/null, for reading and writing.
pub fn null() -> nix::Result<OwnedFd> {
    open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())
}

/// One of the three standard descriptors, which may be closed.
pub fn standard(number: i32) -> BorrowedFd<'static> {
    #[expect(unsafe_code, reason = "it may be closed")]
    // SAFETY: the number is valid for system calls even where nothing is open, and then they fail.
    unsafe {
        BorrowedFd::borrow_raw(number)
    }
}
