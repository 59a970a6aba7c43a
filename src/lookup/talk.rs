//! A process of its own for what may take for ever and has several steps. Unlike a [`Lookup`](super::Lookup), it is
//! talked with.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use nix::unistd::Pid;

use super::{fork_off, give_up};

/// The longest message. Tickets have some kilobytes.
const LONGEST: usize = 128 << 10;

/// A process to talk with. Dropping it ends it.
#[derive(Debug)]
pub struct Talk {
    child: Pid,
    socket: OwnedFd,
}

impl Talk {
    /// Forks a process with this name, which answers each message. This process must have one thread only.
    pub fn begin(name: &CStr, mut answer: impl FnMut(&[u8]) -> Vec<u8>) -> io::Result<Self> {
        // Messages come whole, and the end of the other side is noticed.
        let (socket, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        let child = fork_off(name, other.as_raw_fd(), || {
            let mut message = vec![0; LONGEST];
            while let Ok(length @ 1..) = recv(other.as_raw_fd(), &mut message, MsgFlags::empty()) {
                if send(other.as_raw_fd(), &answer(&message[..length]), MsgFlags::MSG_NOSIGNAL).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { child, socket })
    }

    /// Says something, which must not be empty.
    pub fn say(&self, message: &[u8]) -> io::Result<()> {
        send(self.socket.as_raw_fd(), message, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT)?;
        Ok(())
    }

    /// The answer, once it is there. Empty: the process has died.
    pub fn answer(&self) -> Option<Vec<u8>> {
        let mut answer = vec![0; LONGEST];
        match recv(self.socket.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EAGAIN | Errno::EINTR) => None,
            Err(_) => Some(vec![]),
            Ok(length) => {
                answer.truncate(length);
                Some(answer)
            }
        }
    }
}

impl AsFd for Talk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        give_up(self.child, &self.socket);
    }
}
