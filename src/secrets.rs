//! Passwords and private keys: in the memory of the processes that need them, which are the keeper and the subcommands
//! that talk to servers, and in no core file.
//!
//! Those processes are not dumpable. The supervisor and the guard have to be: a nested run looks at them in /proc, and
//! what is there of a process that is not dumpable belongs to root. So they never read a file with a secret. That the
//! files are of use is found out in a fork; what the file with credentials holds is kept in a file that only exists in
//! the kernel, because the file may be a pipe, which can be read once.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::FromRawFd as _;

use nix::fcntl::OFlag;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork, pipe2, write};

use crate::fork::exit_now;

/// From here on this process leaves no core file, and only root can look into it. It fails nowhere.
pub fn enter() {
    let _ = prctl::set_dumpable(false);
}

/// An empty file that no path leads to (memfd_create(2)). By syscall(2): the C library has a function for it since
/// glibc 2.27, and the published binary runs with 2.17.
pub fn hidden_file() -> io::Result<File> {
    #[expect(unsafe_code, reason = "the function of the C library is too new")]
    // SAFETY: the name is a C string; a result that is not negative is a new descriptor that is owned here alone.
    unsafe {
        let result = libc::syscall(libc::SYS_memfd_create, c"credentials".as_ptr(), libc::MFD_CLOEXEC);
        match i32::try_from(result) {
            Ok(fd) if fd >= 0 => Ok(File::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Calls `reads` in a fork, so that nothing of what it reads stays in this process. Returns what it returns. This
/// process must have one thread only.
pub fn apart(reads: impl FnOnce() -> u8) -> io::Result<u8> {
    let (answer, says) = pipe2(OFlag::O_CLOEXEC)?;
    #[expect(unsafe_code, reason = "the files are read in a fork")]
    // SAFETY: this process has one thread, so the child may go on as any process may (fork(2)).
    match unsafe { fork() }? {
        ForkResult::Child => {
            enter();
            // The file may be a pipe to which no process writes.
            let _ = prctl::set_pdeathsig(Signal::SIGKILL);
            let _ = write(&says, &[reads()]);
            exit_now(0)
        }
        ForkResult::Parent { child } => {
            drop(says);
            let mut answers = vec![];
            File::from(answer).read_to_end(&mut answers)?;
            // Where SIGCHLD is ignored, the kernel has reaped it.
            let _ = waitpid(child, None);
            match answers[..] {
                [answer] => Ok(answer),
                _ => Err(io::Error::other("the process that looks at them has died")),
            }
        }
    }
}
