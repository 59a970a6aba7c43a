//! One lock for one test, on the shared server: zklock runs against it, and in the end nothing is left of it.

use std::fmt::Display;
use std::thread;
use std::time::Duration;

use super::client::{Client, Kind};
use super::ensemble::Chroot;
use super::poll;
use super::server::Server;
use super::zklock::Zklock;

/// The session timeout that zklock asks for here. Far longer than anything that is to happen at once, so that an expiry
/// cannot pass for a release, and that nobody loses the lock on a machine that is slow for seconds.
pub(crate) const SESSION_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a node may take to go that somebody deletes. Whoever gives up waits for the server's word for a second, and
/// no longer: a server that stands still for that long hears of it, and does it when it goes on. By itself, a session of
/// [`SESSION_TIMEOUT`] lasts longer than this.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// The lock `/lock` below a chroot of its own. Dropping it panics when a contender is left.
#[derive(Debug)]
pub(crate) struct Lock {
    chroot: Chroot,
    client: Client,
}

impl Lock {
    /// Its path.
    pub(crate) const PATH: &str = "/lock";

    /// A lock that nobody has ever taken.
    pub(crate) fn new() -> Self {
        let chroot = Server::shared().chroot();
        let client = chroot.client();
        Self { chroot, client }
    }

    /// `zklock --session-timeout 20s /lock`, for a command or more options to be added.
    pub(crate) fn zklock(&self) -> Zklock {
        self.zklock_by(&self.chroot, SESSION_TIMEOUT)
    }

    /// The same by other servers, see [`Chroot::by`], and with another session timeout.
    pub(crate) fn zklock_by(&self, servers: impl Display, session_timeout: Duration) -> Zklock {
        let timeout = format!("{}ms", session_timeout.as_millis());
        Zklock::at(servers).args(["--session-timeout", &timeout, Self::PATH])
    }

    /// Where it is.
    pub(crate) fn chroot(&self) -> &Chroot {
        &self.chroot
    }

    /// A session with the server, whose paths begin at the chroot.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// A contender that is not zklock's, with this data; it holds the lock when it is the first. Gives its path.
    pub(crate) fn occupy(&self, data: &str) -> String {
        // That it is there already is as good.
        let _ = self.client.create(Self::PATH, b"", Kind::Persistent);
        let prefix = format!("{}/_c_{:016x}-lock-", Self::PATH, fastrand::u64(..));
        self.client.create(&prefix, data.as_bytes(), Kind::EphemeralSequential).expect("a contender can be created")
    }

    /// Removes a contender.
    #[track_caller]
    pub(crate) fn remove(&self, contender: &str) {
        self.client.delete(contender).unwrap_or_else(|refusal| panic!("{contender}: {refusal}"));
    }

    /// The names of the contenders, in their order.
    pub(crate) fn contenders(&self) -> Vec<String> {
        self.client.children(Self::PATH)
    }

    /// Waits until only this many contenders are left, because the others have been deleted: for [`SOON`].
    #[track_caller]
    pub(crate) fn wait_left(&self, count: usize) {
        let left = poll::within(SOON, || (self.contenders().len() == count).then_some(()));
        assert!(left.is_some(), "not {count} contenders are left: {:?}", self.contenders());
    }

    /// Waits until there are this many contenders.
    #[track_caller]
    pub(crate) fn wait_contenders(&self, count: usize) -> Vec<String> {
        self.client.wait_count(Self::PATH, count)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.wait_left(0);
        }
    }
}
