//! How supervisor and keeper talk: a socket pair. It carries whole messages (`SOCK_SEQPACKET`) and tells each side
//! when the other has gone. What must be read at its newest is in memory that they share: [`crate::between::page`].

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::poll;
use nix::sys::socket::{AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, recv, send, shutdown, socketpair};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// One end of the socket pair. The longest message is a report that carries the path of each lock twice. The plan limits
/// their total length, and a socket has room for more by default (wmem_default, socket(7)).
#[derive(Debug)]
pub struct Link {
    socket: OwnedFd,
    /// Room for the longest message, from the first that is received on.
    buffer: RefCell<Vec<u8>>,
}

/// More than a socket has room for by default.
const LONGEST_MESSAGE: usize = 256 * 1024;

impl Link {
    /// Both ends, non-blocking and closed on exec.
    pub fn pair() -> nix::Result<(Self, Self)> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok((Self { socket: ours, buffer: RefCell::default() }, Self { socket: theirs, buffer: RefCell::default() }))
    }

    /// Sends one message. An error means that the other side is gone, or so far behind that the
    /// socket is full.
    pub fn send(&self, message: &impl Serialize) -> io::Result<()> {
        Ok(send_whole(self.as_fd(), &serde_json::to_vec(message)?)?)
    }

    /// Lets the other side see that we have gone. This takes no memory, and the messages of the other side still arrive.
    pub fn hang_up(&self) {
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Write);
    }

    pub fn receive<T: DeserializeOwned>(&self) -> Received<T> {
        let mut buffer = self.buffer.borrow_mut();
        if buffer.is_empty() {
            // The system takes memory for it only where a message is written.
            *buffer = vec![0; LONGEST_MESSAGE];
        }
        loop {
            return match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(0) => Received::Gone,
                Ok(length) => match serde_json::from_slice(&buffer[..length]) {
                    Ok(message) => Received::Message(message),
                    Err(error) => {
                        log::error!("a message between the processes of zklock cannot be parsed: {error}");
                        Received::Gone
                    }
                },
                // ECONNRESET: the other side went before it had read everything. What it had sent is still to be read.
                Err(Errno::EINTR | Errno::ECONNRESET) => continue,
                Err(Errno::EAGAIN) => Received::Nothing,
                Err(error) => {
                    log::debug!("socket between supervisor and keeper: {error}");
                    Received::Gone
                }
            };
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What [`Link::receive`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received<T> {
    Message(T),
    Nothing,
    /// The other side has gone, and everything that it sent has been read.
    Gone,
}

/// How often a message is sent again when the system is short of memory for it, and the pause before that in milliseconds.
const TRIES: u32 = 10;
const SHORTAGE_PAUSE: u8 = 5;

/// Sends one message to another process of this run. Does not wait for room in the socket: then the error is EAGAIN.
pub fn send_whole(socket: BorrowedFd<'_>, message: &[u8]) -> nix::Result<()> {
    // MSG_NOSIGNAL: a peer that has gone is an error here, not a SIGPIPE.
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    let mut tries = 0;
    loop {
        match send(socket.as_raw_fd(), message, flags) {
            Err(Errno::EINTR) => {}
            Err(Errno::ENOBUFS | Errno::ENOMEM) if tries < TRIES => {
                tries += 1;
                let _ = poll(&mut [], SHORTAGE_PAUSE);
            }
            sent => return sent.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::poll::{PollFd, PollFlags, PollTimeout};

    use super::*;
    use crate::rules::instant::Instant;
    use crate::rules::message::{Connectivity, Grant, GrantedLock, Order, Progress, Report};

    #[test]
    fn messages_arrive_whole_and_the_end_is_seen() {
        let (ours, theirs) = Link::pair().unwrap();
        assert_eq!(ours.receive::<Report>(), Received::Nothing);
        theirs.send(&Report::Released { was_busy: true }).unwrap();
        theirs.send(&Report::Connection(Connectivity::Unreachable("x".repeat(20_000)))).unwrap();
        drop(theirs);
        // A child that another test forks just now has a copy until it executes its program.
        poll(&mut [PollFd::new(ours.as_fd(), PollFlags::empty())], PollTimeout::NONE).unwrap();
        assert_eq!(ours.receive(), Received::Message(Report::Released { was_busy: true }));
        assert_eq!(
            ours.receive(),
            Received::Message(Report::Connection(Connectivity::Unreachable("x".repeat(20_000))))
        );
        assert_eq!(ours.receive::<Report>(), Received::Gone);
        assert!(ours.send(&Order::Release).is_err());
    }

    #[test]
    fn the_longest_report_has_room() {
        // Its paths are as long as the plan lets them be, and nearly every character is escaped.
        let lock = |length: usize| format!("/{}", "\"".repeat(length - 1));
        let granted = |length| GrantedLock {
            lock: lock(length),
            node: format!("{}/{}", lock(length), "\"".repeat(100)),
            token: i64::MIN,
        };
        let grant = Grant {
            first: granted(4096),
            and: vec![granted(4096), granted(4096), granted(4096), granted(3600)],
            session: i64::MIN,
        };
        let latest = Instant::from_boot(Duration::MAX);
        let held = Report::Queue(Progress::Held { grant: Box::new(grant), timeout: Duration::MAX, from: latest });
        let (ours, theirs) = Link::pair().unwrap();
        theirs.send(&held).unwrap();
        assert_eq!(ours.receive(), Received::Message(held));
    }
}
