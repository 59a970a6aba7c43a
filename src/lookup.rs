//! Look-ups that may take for ever: names of hosts and users. The C library asks name and directory servers, and waits
//! for them. So each look-up has a process of its own, and is given up by killing that.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::{io, mem};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid, pipe2, write};

use crate::command::exit_now;
use crate::descriptors;

/// A look-up that has begun. Dropping it gives it up.
#[derive(Debug)]
pub struct Lookup {
    child: Pid,
    pipe: File,
    answer: Vec<u8>,
}

impl Lookup {
    /// Forks a process that calls `look_up`. This process must have one thread only.
    pub fn begin(look_up: impl FnOnce() -> Vec<u8>) -> io::Result<Self> {
        // Those that were given up. The keeper has no other children.
        while waitpid(None, Some(WaitPidFlag::WNOHANG)).is_ok_and(|status| status != WaitStatus::StillAlive) {}
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let parent = getpid();
        #[expect(unsafe_code, reason = "the look-up is done in a fork")]
        // SAFETY: this process has one thread, so the child may go on as any process may (fork(2)).
        match unsafe { fork() }? {
            ForkResult::Child => {
                let _ = prctl::set_name(c"lock-lookup");
                let _ = prctl::set_pdeathsig(Signal::SIGKILL);
                // A copy of our socket would hide our death from the supervisor.
                descriptors::close_all_but(&mut [writer.as_raw_fd()]);
                if getppid() == parent {
                    let mut answer = &look_up()[..];
                    while let Ok(written @ 1..) = write(&writer, answer) {
                        answer = &answer[written..];
                    }
                }
                exit_now(0)
            }
            ForkResult::Parent { child } => Ok(Self { child, pipe: reader.into(), answer: vec![] }),
        }
    }

    /// The answer, once it is complete. Empty if there is none.
    pub fn answer(&mut self) -> Option<Vec<u8>> {
        match self.pipe.read_to_end(&mut self.answer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            _ => Some(mem::take(&mut self.answer)),
        }
    }
}

impl AsFd for Lookup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        // Until it is reaped here, the pid is its own.
        if waitpid(self.child, Some(WaitPidFlag::WNOHANG)) == Ok(WaitStatus::StillAlive) {
            let _ = kill(self.child, Signal::SIGKILL);
            // It may sleep uninterruptibly, so it is not waited for. The next look-up reaps it.
        }
    }
}
