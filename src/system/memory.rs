//! Files that are memory, and that no path leads to (memfd_create(2)).

use std::ffi::{CStr, c_uint};
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd as _, RawFd};

use nix::errno::Errno;

/// Of Linux 6.3. The crate `libc` does not have it for every C library.
const MFD_NOEXEC_SEAL: c_uint = 8;

/// An empty file, whose length can be sealed.
pub fn file(name: &CStr) -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    match create(name, flags | MFD_NOEXEC_SEAL) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => create(name, flags),
        created => created,
    }
}

/// By syscall(2): the C library has a function for it since glibc 2.27, and the published binary runs with 2.17.
fn create(name: &CStr, flags: c_uint) -> io::Result<File> {
    #[expect(unsafe_code, reason = "the function of the C library is too new")]
    // SAFETY: the name is a C string; a result that is not negative is a new descriptor that is owned here alone.
    unsafe {
        let fd = Errno::result(libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags))?;
        Ok(File::from_raw_fd(fd as RawFd))
    }
}
