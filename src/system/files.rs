//! Files that are always there, and what is said of files and of what fails.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

/// An I/O error without the words that std puts around it.
pub fn brief(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    let text = text.split(" (os error").next().unwrap_or(text);
    text.to_owned()
}

/// What every user of this machine can do with a file that has a secret. `None`: nothing.
pub const fn open_to_all(mode: u32) -> Option<&'static str> {
    match mode & 0o006 {
        0o004 => Some("read"),
        0o002 => Some("write to"),
        0o006 => Some("read and write"),
        _ => None,
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
