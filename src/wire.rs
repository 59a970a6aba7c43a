//! How supervisor and keeper talk: a socket pair, and two numbers in shared memory.
//!
//! The socket carries whole messages (`SOCK_SEQPACKET`) and tells each side when the other has
//! gone. The numbers say when the lease starts and when the servers last answered. They are not
//! messages, because a supervisor that is stopped for hours (Ctrl-Z) reads none: its socket would fill
//! up, and on SIGCONT it would judge the lease by the oldest news instead of the newest. The child that
//! is about to become the command also reads the first, to see whether the keeper has given up the lease.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::rules::instant::Instant;

/// The longest message. A report carries the path of each lock twice, and the plan limits their total length.
/// A socket has room for more by default (wmem_default, socket(7)).
const LONGEST: usize = 128 * 1024;

/// From when the lease counts, and when the servers last answered anything, in memory that both processes
/// share.
#[derive(Clone, Copy, Debug)]
pub struct SharedLease(&'static Cells);

/// Nanoseconds since boot, 0 for never.
#[derive(Debug)]
struct Cells {
    from: AtomicU64,
    answered: AtomicU64,
}

/// In place of the start of a lease: it is over, whatever was answered before.
const REVOKED: u64 = u64::MAX;

impl SharedLease {
    /// Cells that are shared with every process forked from now on. Fails if there is no memory for
    /// one page.
    pub fn new() -> nix::Result<Self> {
        let length = std::num::NonZeroUsize::new(size_of::<Cells>()).expect("numbers have a size");
        #[expect(unsafe_code, reason = "shared memory comes from mmap(2)")]
        // SAFETY: a fresh anonymous mapping aliases nothing, is page-aligned and zeroed, large
        // enough for the numbers, and never unmapped, so it lives as long as the process.
        let cells = unsafe {
            mmap_anonymous(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED)?
                .cast::<Cells>()
                .as_ref()
        };
        Ok(Self(cells))
    }

    /// The lease counts from `from`.
    pub fn extend(self, from: Instant) {
        self.0.from.store(nanos(from), Ordering::Release);
    }

    /// There is no lease, until it is extended again.
    pub fn revoke(self) {
        self.0.from.store(REVOKED, Ordering::SeqCst);
    }

    /// Whether the lease was revoked.
    pub fn is_revoked(self) -> bool {
        self.0.from.load(Ordering::SeqCst) == REVOKED
    }

    /// From when the lease counts, if there is one.
    pub fn from(self) -> Option<Instant> {
        match self.0.from.load(Ordering::Acquire) {
            REVOKED => None,
            from => instant(from),
        }
    }

    /// The servers answered at `now`, a beat or anything else.
    pub fn answer(self, now: Instant) {
        self.0.answered.store(nanos(now), Ordering::Relaxed);
    }

    /// When the servers last answered, if they have.
    pub fn answered(self) -> Option<Instant> {
        instant(self.0.answered.load(Ordering::Relaxed))
    }
}

fn nanos(instant: Instant) -> u64 {
    u64::try_from(instant.since_boot().as_nanos()).unwrap_or(u64::MAX)
}

fn instant(nanos: u64) -> Option<Instant> {
    (nanos > 0).then(|| Instant::from_boot(Duration::from_nanos(nanos)))
}

/// One end of the socket pair.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl Link {
    /// Both ends, non-blocking and closed on exec.
    pub fn pair() -> nix::Result<(Self, Self)> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok((Self(ours), Self(theirs)))
    }

    /// Sends one message. An error means that the other side is gone, or so far behind that the
    /// socket is full.
    pub fn send(&self, message: &impl Serialize) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        // MSG_NOSIGNAL: a peer that has gone is an error here, not a SIGPIPE.
        send(self.0.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL)?;
        Ok(())
    }

    /// Receives a message if there is one.
    pub fn receive<T: DeserializeOwned>(&self) -> Received<T> {
        let mut buffer = vec![0; LONGEST];
        loop {
            return match recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(0) => Received::Gone,
                Ok(length) => match serde_json::from_slice(&buffer[..length]) {
                    Ok(message) => Received::Message(message),
                    Err(error) => {
                        log::error!("a message between our own processes cannot be parsed: {error}");
                        Received::Gone
                    }
                },
                // ECONNRESET: the other side went without having read everything. What it sent
                // before that is still to be read.
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
        self.0.as_fd()
    }
}

/// What [`Link::receive`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received<T> {
    /// A message.
    Message(T),
    /// Nothing to read for now.
    Nothing,
    /// The other side has gone, and everything that it sent has been read.
    Gone,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::message::{Connection, Grant, Granted, Order, Progress, Report};

    #[test]
    fn messages_arrive_whole_and_the_end_is_seen() {
        let (ours, theirs) = Link::pair().unwrap();
        assert_eq!(ours.receive::<Report>(), Received::Nothing);
        theirs.send(&Report::Released).unwrap();
        theirs.send(&Report::Connection(Connection::Unreachable("x".repeat(20_000)))).unwrap();
        drop(theirs);
        assert_eq!(ours.receive(), Received::Message(Report::Released));
        assert_eq!(ours.receive(), Received::Message(Report::Connection(Connection::Unreachable("x".repeat(20_000)))));
        assert_eq!(ours.receive::<Report>(), Received::Gone);
        assert!(ours.send(&Order::Release).is_err());
    }

    #[test]
    fn the_longest_report_has_room() {
        // Its paths are as long as the plan lets them be, and nearly every character is escaped.
        let lock = |length: usize| format!("/{}", "\"".repeat(length - 1));
        let granted = |length| Granted {
            lock: lock(length),
            node: format!("{}/{}", lock(length), "\"".repeat(100)),
            token: i64::MIN,
        };
        let grant = Grant {
            first: granted(4096),
            and: vec![granted(4096), granted(4096), granted(4096), granted(3600)],
            session: i64::MIN,
        };
        let held = Report::Queue(Progress::Held { grant, from: Instant::from_boot(Duration::MAX) });
        let (ours, theirs) = Link::pair().unwrap();
        theirs.send(&held).unwrap();
        assert_eq!(ours.receive(), Received::Message(held));
    }

    #[test]
    fn the_lease_is_shared_until_it_is_revoked() {
        let lease = SharedLease::new().unwrap();
        assert_eq!((lease.from(), lease.is_revoked()), (None, false));
        let from = Instant::from_boot(Duration::from_millis(1234));
        lease.extend(from);
        assert_eq!((lease.from(), lease.answered()), (Some(from), None));
        let now = Instant::from_boot(Duration::from_millis(1240));
        lease.answer(now);
        assert_eq!((lease.from(), lease.answered()), (Some(from), Some(now)));
        lease.revoke();
        assert_eq!((lease.from(), lease.is_revoked()), (None, true));
        lease.extend(from);
        assert_eq!((lease.from(), lease.is_revoked()), (Some(from), false));
    }
}
