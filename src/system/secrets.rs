//! Passwords and private keys: in the memory of the processes that need them, which are the keeper and the subcommands
//! that talk to servers, and in no core file.
//!
//! Those processes are not dumpable. The supervisor and the guard have to be: a nested run looks at them in /proc, and
//! what is there of a process that is not dumpable belongs to root. So they never read a file with a secret.

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd as _, RawFd};

use nix::errno::Errno;
use nix::sys::prctl;

/// From here on this process leaves no core file, and only root can look into it. It fails nowhere.
pub fn enter() {
    let _ = prctl::set_dumpable(false);
}

/// An empty file that no path leads to (memfd_create(2)), where a keeper keeps the credentials for the next one: what it
/// has read them from may be a pipe. By syscall(2): the C library has a function for it since glibc 2.27, and the
/// published binary runs with 2.17.
pub fn hidden_file() -> io::Result<File> {
    #[expect(unsafe_code, reason = "the function of the C library is too new")]
    // SAFETY: the name is a C string; a result that is not negative is a new descriptor that is owned here alone.
    unsafe {
        let fd = Errno::result(libc::syscall(libc::SYS_memfd_create, c"credentials".as_ptr(), libc::MFD_CLOEXEC))?;
        Ok(File::from_raw_fd(fd as RawFd))
    }
}
