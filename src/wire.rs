//! What supervisor and keeper say to each other: a socket pair, and one number in shared memory.
//!
//! The socket carries whole messages (`SOCK_SEQPACKET`) and tells each side when the other has
//! gone. The number is the send time of the last beat that was answered. It is not a message,
//! because a supervisor that is stopped for hours (Ctrl-Z) reads none: its socket would fill up,
//! and on SIGCONT it would judge the lease by the oldest news instead of the newest. A child that
//! is about to become the command reads it, too: it says whether the keeper has given up the lease.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::command::Remains;
use crate::core::lease::Instant;

/// The longest message. A report carries the path of each lock twice, and the plan bounds their sum.
/// Less than what a socket has room for by default (wmem_default, socket(7)).
const LONGEST: usize = 128 * 1024;

/// What the supervisor tells the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// The command is about to run; should the supervisor die, the keeper has to end it.
    Started(Remains),
    /// Delete the contender node, close the session, say so, and go.
    Release,
}

/// The send time of the last answered beat, and when the servers last answered anything, shared by both
/// processes.
#[derive(Clone, Copy, Debug)]
pub struct LastBeat(&'static Cells);

/// Nanoseconds since boot, 0 for never.
#[derive(Debug)]
struct Cells {
    beat: AtomicU64,
    answered: AtomicU64,
}

/// The lease is over, whatever was answered before.
const REVOKED: u64 = u64::MAX;

impl LastBeat {
    /// Cells that the processes forked from now on share with this one. Fails when there is no
    /// memory for one page.
    pub fn shared() -> nix::Result<Self> {
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

    /// Records that a beat sent at `sent` was answered.
    pub fn record(self, sent: Instant) {
        self.0.beat.store(nanos(sent), Ordering::Release);
    }

    /// Records that there is no lease, until the next beat.
    pub fn revoke(self) {
        self.0.beat.store(REVOKED, Ordering::SeqCst);
    }

    /// Whether there is no lease any more.
    pub fn is_revoked(self) -> bool {
        self.0.beat.load(Ordering::SeqCst) == REVOKED
    }

    /// The last answered beat, if there was one.
    pub fn last(self) -> Option<Instant> {
        match self.0.beat.load(Ordering::Acquire) {
            REVOKED => None,
            sent => instant(sent),
        }
    }

    /// Records that the servers answered at `now`, a beat or anything else.
    pub fn record_answer(self, now: Instant) {
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

    /// Receives one message if there is one.
    pub fn receive<T: DeserializeOwned>(&self) -> Received<T> {
        let mut buffer = vec![0; LONGEST];
        loop {
            return match recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(0) => Received::Gone,
                Ok(length) => match serde_json::from_slice(&buffer[..length]) {
                    Ok(message) => Received::Message(message),
                    Err(error) => {
                        log::error!("a message between our own processes cannot be read: {error}");
                        Received::Gone
                    }
                },
                // ECONNRESET: the other side went without having read everything. What it had sent
                // before comes next.
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
    /// The other side has gone, and all that it sent has been read.
    Gone,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::machine::{Grant, Granted, Report};

    #[test]
    fn messages_arrive_whole_and_the_end_is_seen() {
        let (ours, theirs) = Link::pair().unwrap();
        assert_eq!(ours.receive::<Report>(), Received::Nothing);
        theirs.send(&Report::Released).unwrap();
        theirs.send(&Report::Unreachable("x".repeat(20_000))).unwrap();
        drop(theirs);
        assert_eq!(ours.receive(), Received::Message(Report::Released));
        assert_eq!(ours.receive(), Received::Message(Report::Unreachable("x".repeat(20_000))));
        assert_eq!(ours.receive::<Report>(), Received::Gone);
        assert!(ours.send(&Order::Release).is_err());
    }

    #[test]
    fn the_longest_report_has_room() {
        // Of paths that are all escapes, as long as the plan lets them be.
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
            sent: Instant::from_boot(Duration::MAX),
        };
        let (ours, theirs) = Link::pair().unwrap();
        theirs.send(&Report::Held(grant.clone())).unwrap();
        assert_eq!(ours.receive(), Received::Message(Report::Held(grant)));
    }

    #[test]
    fn the_last_beat_is_kept() {
        let beat = LastBeat::shared().unwrap();
        assert_eq!(beat.last(), None);
        let sent = Instant::from_boot(Duration::from_millis(1234));
        beat.record(sent);
        assert_eq!((beat.last(), beat.answered()), (Some(sent), None));
        let now = Instant::from_boot(Duration::from_millis(1240));
        beat.record_answer(now);
        assert_eq!((beat.last(), beat.answered()), (Some(sent), Some(now)));
    }

    #[test]
    fn a_lease_that_was_revoked_is_none_until_the_next_beat() {
        let beat = LastBeat::shared().unwrap();
        let sent = Instant::from_boot(Duration::from_millis(1234));
        beat.record(sent);
        assert!(!beat.is_revoked());
        beat.revoke();
        assert!(beat.is_revoked());
        assert_eq!(beat.last(), None);
        beat.record(sent);
        assert!(!beat.is_revoked());
        assert_eq!(beat.last(), Some(sent));
    }
}
