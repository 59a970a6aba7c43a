//! A lock of its own for one test, and the check that ends each: nothing is left behind.

use std::fmt;
use std::path::PathBuf;
use std::thread;

use tempfile::TempDir;

use super::client::Client;
use super::ensemble::Chroot;
use super::joblog::JobLog;
use super::lock::SOON;
use super::poll;
use super::running::Running;
use super::server::Server;
use super::zklock::Zklock;

/// The lock that tests take unless they care about its path.
pub(crate) const LOCK: &str = "/lock";

/// A chroot and a directory of one's own.
///
/// Dropping it panics when a node of an ephemeral kind is left in the chroot that this place's client did not make. The
/// processes are checked by [`Running`].
#[derive(Debug)]
pub(crate) struct Place {
    chroot: Chroot,
    client: Client,
    directory: TempDir,
}

impl Place {
    /// On the server that all tests share.
    pub(crate) fn new() -> Self {
        Self::at(Server::shared())
    }

    /// On a server of the test's own.
    pub(crate) fn at(server: &Server) -> Self {
        let chroot = server.chroot();
        let client = chroot.client();
        Self { chroot, client, directory: tempfile::tempdir().expect("a temporary directory") }
    }

    /// Where it is; displayed, the connect string.
    pub(crate) fn chroot(&self) -> &Chroot {
        &self.chroot
    }

    /// A client whose paths begin here.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// A file of this place, which need not exist.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// zklock, with the lock still to be named.
    pub(crate) fn zklock(&self) -> Zklock {
        self.zklock_at(&self.chroot)
    }

    /// The same, by a way of its own to the servers.
    pub(crate) fn zklock_by(&self, address: impl Into<String>) -> Zklock {
        self.zklock_at(self.chroot.by(address))
    }

    fn zklock_at(&self, chroot: impl fmt::Display) -> Zklock {
        // Long, so that nobody loses the lock on a machine that is slow for seconds, and that a release is none that
        // the servers have made.
        Zklock::at(chroot).env("ZKLOCK_SESSION_TIMEOUT", "20s").directory(self.directory.path())
    }

    /// [`LOCK`] held by a command that runs until [`finish`], and runs already.
    #[track_caller]
    pub(crate) fn hold(&self) -> Running {
        let mut holder = self.zklock().arg(LOCK).child(self.logged("holder")).spawn();
        holder.wait_stdout("ready");
        holder
    }

    /// Arguments of a child that writes to this place's log under a name, until SIGTERM.
    pub(crate) fn logged(&self, name: &str) -> [String; 6] {
        let log = self.file("log").into_os_string().into_string().expect("a path in UTF-8");
        ["--name", name, "--exit-on", "TERM", "--log", &log].map(str::to_owned)
    }

    /// What the children of [`Place::logged`] have written so far.
    pub(crate) fn log(&self) -> JobLog {
        JobLog::read(self.file("log"))
    }

    /// Waits until [`LOCK`] has that many children, and gives their names by their sequence numbers.
    #[track_caller]
    pub(crate) fn wait_queue(&self, length: usize) -> Vec<String> {
        self.client.wait_count(LOCK, length)
    }

    /// Waits until the locks have these many contenders, because the others have been deleted: for [`SOON`].
    #[track_caller]
    pub(crate) fn wait_left<const N: usize>(&self, locks: [&str; N], counts: [usize; N]) {
        let now = || locks.map(|lock| self.client.children(lock).len());
        let left = poll::within(SOON, || (now() == counts).then_some(()));
        assert!(left.is_some(), "{locks:?} have {:?} contenders, not {counts:?}", now());
    }

    /// The ephemeral nodes of others, wherever they are in this place.
    fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        let mut paths = vec!["/".to_owned()];
        while let Some(path) = paths.pop() {
            // What has gone meanwhile is not left. A container has no owner either, as far as servers tell.
            let owner = self.client.get(&path).map_or(0, |(_, stat)| stat.owner);
            if ![0, self.client.session()].contains(&owner) {
                left.push(path.clone());
            }
            let parent = if path == "/" { "" } else { &path };
            paths.extend(self.client.children(&path).iter().map(|child| format!("{parent}/{child}")));
        }
        left
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        self.client.sync();
        let left = poll::within(SOON, || Some(()).filter(|()| self.left().is_empty()));
        assert!(left.is_some(), "nodes are left behind: {:?}", self.left());
    }
}
