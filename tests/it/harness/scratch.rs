//! What one test has for itself: a chroot on the servers, a client that looks at it, and a directory.
//!
//! The commands of its contenders write to one log, every few milliseconds while they live. So the log tells when a
//! command was last alive, however it died, and whether two of them ever overlapped.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tempfile::TempDir;

use super::client::{Client, Kind, Refusal, Stat};
use super::ensemble::Chroot;
use super::joblog::JobLog;
use super::moment::Moment;
use super::poll;
use super::proxy::Proxy;
use super::running::{Output, Running, finish};
use super::server::Server;
use super::times::{LEASE, LONG_SESSION, SHORT_SESSION, SOON};
use super::zklock::Zklock;

/// The lock that tests take unless its path matters.
pub(crate) const LOCK: &str = "/lock";

/// Options of a [job](Scratch::job) that loses no lock, however slow the machine.
pub(crate) const LASTING: [&str; 2] = ["--session-timeout", "20"];

/// The same, and it says what happens to its connection.
pub(crate) const LASTING_VERBOSE: [&str; 3] = ["-v", "--session-timeout", "20"];

/// Options of a [job](Scratch::job) under [`BRIEF_SESSION`].
///
/// [`BRIEF_SESSION`]: super::times::BRIEF_SESSION
pub(crate) const BRIEF: [&str; 2] = ["--session-timeout", "10"];

/// Options of a [job](Scratch::job) whose command is to get its stop signal. There is time for the command to say so,
/// and for the supervisor to be late without the keeper being first. The grace is longer than zklock recommends;
/// `--quiet` keeps it from saying so.
pub(crate) const GRACE: [&str; 3] = ["--quiet", "--kill-after", "1300ms"];

/// How a message names the holder of [`Scratch::occupy_as_db3`].
pub(crate) const HELD_BY_DB3: &str = "held by db3 (ops, pid 4242, backup.sh)";

/// A message without its age, which must be one of seconds.
pub(crate) fn ageless(message: &str) -> &str {
    let seconds = message.strip_suffix('s').map(|rest| rest.trim_end_matches(|digit: char| digit.is_ascii_digit()));
    seconds.and_then(|rest| rest.strip_suffix(" for ")).unwrap_or(message)
}

const SESSION_TIMEOUT: &str = "ZKLOCK_SESSION_TIMEOUT";

pub(crate) fn direct() -> String {
    Server::shared().address()
}

/// A chroot and a directory for one test.
///
/// Dropping it panics when the chroot still has an ephemeral node that its own client did not create. Whether processes
/// are left is checked by [`Running`].
#[derive(Debug)]
pub(crate) struct Scratch {
    chroot: Chroot,
    client: Client,
    directory: TempDir,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contender {
    /// Its path, as commands see it in `ZKLOCK_NODE`.
    pub(crate) path: String,
    pub(crate) stat: Stat,
}

impl Scratch {
    /// On the server that all tests share. There is no lock yet.
    #[track_caller]
    pub(crate) fn new() -> Self {
        Self::on(Server::shared().chroot())
    }

    /// On other servers.
    #[track_caller]
    pub(crate) fn on(chroot: Chroot) -> Self {
        let client = chroot.client();
        Self { chroot, client, directory: tempfile::tempdir().expect("a temporary directory") }
    }

    /// With the node of [`LOCK`], which stays. So a contender creates no node but its own.
    #[track_caller]
    pub(crate) fn with_lock(self) -> Self {
        self.client.create(LOCK, b"", Kind::Persistent).expect("the lock can be created");
        self
    }

    /// On the shared server [with the lock](Scratch::with_lock), and a way to that server that can be disturbed.
    #[track_caller]
    pub(crate) fn proxied() -> (Self, Proxy) {
        (Self::new().with_lock(), Proxy::zookeeper(&direct()))
    }

    /// The chroot; displayed, it is the connect string.
    pub(crate) fn chroot(&self) -> &Chroot {
        &self.chroot
    }

    /// A client whose paths begin at the chroot, by a way that nothing disturbs.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    // Its directory.

    /// The path of a file in the directory, which need not exist.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn touch(&self, name: &str) {
        fs::write(self.file(name), "").expect("a file can be created");
    }

    #[track_caller]
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).expect("a file that can be read")
    }

    // Runs of zklock. All of them work in the directory.

    /// zklock under [`LONG_SESSION`], with lock and command still to be named.
    pub(crate) fn zklock(&self) -> Zklock {
        self.zklock_at(&self.chroot)
    }

    /// The same, by another way to the servers.
    pub(crate) fn zklock_by(&self, addresses: impl Into<String>) -> Zklock {
        self.zklock_at(&self.chroot.by(addresses))
    }

    fn zklock_at(&self, chroot: &Chroot) -> Zklock {
        let timeout = LONG_SESSION.as_secs().to_string();
        Zklock::at(chroot).env(SESSION_TIMEOUT, timeout).directory(self.directory.path())
    }

    /// Arguments of a child that shows what zklock told it, and writes to the log under a name, until SIGTERM.
    pub(crate) fn logged(&self, name: &str) -> [String; 8] {
        let log = self.log_path();
        ["--name", name, "--env", "--beat", "--log", &log, "--exit-on", "TERM"].map(str::to_owned)
    }

    /// A contender under [`LONG_SESSION`], by a way that nothing disturbs. Its command ends on SIGTERM.
    #[track_caller]
    pub(crate) fn contend(&self, name: &str) -> Running {
        self.zklock().arg(LOCK).child(self.logged(name)).spawn()
    }

    /// The same, with its command running.
    #[track_caller]
    pub(crate) fn hold(&self) -> Running {
        let mut holder = self.contend("holder");
        holder.wait_stdout("ready");
        holder
    }

    /// The same, waiting behind `before` others.
    #[track_caller]
    pub(crate) fn queue(&self, name: &str, before: usize) -> Running {
        let waiter = self.contend(name);
        self.wait_queue(before + 1);
        waiter
    }

    /// A contender under [`SHORT_SESSION`] that reaches the servers by `addresses`, with these options of zklock. Its
    /// command is the child of tests/child/main.rs with a name and these further arguments, which say how it ends.
    pub(crate) fn job(&self, addresses: &str, name: &str, options: &[&str], child: &[&str]) -> Zklock {
        let log = self.log_path();
        let logged = ["--name", name, "--env", "--beat", "--log", &log];
        self.short(addresses, options).child(logged).args(child)
    }

    #[track_caller]
    pub(crate) fn start(&self, addresses: &str, name: &str, options: &[&str], child: &[&str]) -> Running {
        self.job(addresses, name, options, child).spawn()
    }

    /// A holder by a way that nothing disturbs, under [`LONG_SESSION`] unless the options say otherwise.
    pub(crate) fn lasting(&self, options: &[&str], child: &[&str]) -> Zklock {
        self.job(&direct(), "holder", options, child).env(SESSION_TIMEOUT, LONG_SESSION.as_secs().to_string())
    }

    /// The same, with its command running.
    #[track_caller]
    pub(crate) fn hold_with(&self, options: &[&str], child: &[&str]) -> Running {
        let mut run = self.lasting(options, child).spawn();
        run.wait_stdout("holder ready");
        run
    }

    /// The same with another program as its command, which writes to no log.
    pub(crate) fn program(&self, addresses: &str, options: &[&str], program: &Path) -> Zklock {
        self.short(addresses, options).arg("--").arg(program)
    }

    fn short(&self, addresses: &str, options: &[&str]) -> Zklock {
        let timeout = SHORT_SESSION.as_secs().to_string();
        self.zklock_by(addresses).env(SESSION_TIMEOUT, timeout).arg(LOCK).args(options)
    }

    /// A holder that reaches the servers by `addresses`, and whose command nothing but SIGKILL ends; and a waiter
    /// behind it, by a way that nothing disturbs.
    #[track_caller]
    pub(crate) fn holder_and_next(&self, addresses: &str, options: &[&str]) -> (Running, Running) {
        let mut holder = self.start(addresses, "holder", options, &["--wait"]);
        holder.wait_stdout("ready");
        (holder, self.queue("next", 1))
    }

    // Nodes.

    /// A contender for [`LOCK`] that is not zklock's, with this data. Returns its path.
    pub(crate) fn occupy(&self, data: &str) -> String {
        // The lock may be there already.
        let _ = self.client.create(LOCK, b"", Kind::Persistent);
        let prefix = format!("{LOCK}/_c_{:016x}-lock-", fastrand::u64(..));
        self.client.create(&prefix, data.as_bytes(), Kind::EphemeralSequential).expect("a contender can be created")
    }

    /// The same with the data of another zklock, see [`HELD_BY_DB3`].
    pub(crate) fn occupy_as_db3(&self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock later than 1970").as_millis();
        // By its own clock, which is an hour slow: it is not to be believed.
        let since = now - 3_600_000;
        let card = r#""v":1,"host":"db3","pid":4242,"user":"ops","command":"backup.sh","held_since""#;
        self.occupy(&format!("{{{card}:{since}}}"))
    }

    /// Creates a contender's node in the session of a run, as a creation does that comes late. Returns its path.
    pub(crate) fn create_late(&self, session: i64, prefix: &str) -> String {
        let create = |client: &Client| client.create(prefix, b"", Kind::EphemeralSequential);
        Client::in_session(&self.chroot.to_string(), session, create).expect("a contender can be created")
    }

    #[track_caller]
    pub(crate) fn delete(&self, path: &str) {
        self.client.delete(path).unwrap_or_else(|refusal| panic!("{path}: {refusal}"));
    }

    #[track_caller]
    pub(crate) fn delete_holder(&self) {
        self.delete(&self.contenders()[0].path);
    }

    /// The contenders for [`LOCK`], in their order.
    #[track_caller]
    pub(crate) fn contenders(&self) -> Vec<Contender> {
        let paths = self.client.children(LOCK).into_iter().map(|name| format!("{LOCK}/{name}"));
        let stat = |path: &str| match self.client.get(path) {
            Ok((_, stat)) => Some(stat),
            Err(Refusal::NO_NODE) => None,
            Err(refusal) => panic!("{path}: {refusal}"),
        };
        paths.filter_map(|path| stat(&path).map(|stat| Contender { path, stat })).collect()
    }

    #[track_caller]
    pub(crate) fn only_contender(&self) -> Contender {
        let [contender] = <[_; 1]>::try_from(self.contenders()).unwrap_or_else(|all| panic!("not one: {all:?}"));
        contender
    }

    /// Waits until [`LOCK`] has this many children. Returns their names, in the order of their numbers.
    #[track_caller]
    pub(crate) fn wait_queue(&self, length: usize) -> Vec<String> {
        self.client.wait_count(LOCK, length)
    }

    /// Waits until the locks have this many contenders each, because the others have been deleted: for [`SOON`].
    #[track_caller]
    pub(crate) fn wait_left<const N: usize>(&self, locks: [&str; N], counts: [usize; N]) {
        let now = || locks.map(|lock| self.client.children(lock).len());
        let left = poll::within(SOON, || (now() == counts).then_some(()));
        assert!(left.is_some(), "{locks:?} have {:?} contenders, not {counts:?}", now());
    }

    /// What the contender for [`LOCK`] whose node has this name says of itself.
    #[track_caller]
    pub(crate) fn card(&self, node: &str) -> Value {
        let (data, _) = self.client.get(&format!("{LOCK}/{node}")).expect("the node is there");
        serde_json::from_slice(&data).expect("JSON")
    }

    /// How many sessions watch each node, on the shared server.
    pub(crate) fn watchers(&self) -> BTreeMap<String, usize> {
        let mut watchers = BTreeMap::new();
        let mut path = String::new();
        for line in Server::shared().tell("wchp").lines() {
            match line.strip_prefix('\t') {
                None => path = line.to_owned(),
                Some(_session) => {
                    if let Some(path) = path.strip_prefix(self.chroot.path()) {
                        *watchers.entry(path.to_owned()).or_default() += 1;
                    }
                }
            }
        }
        watchers
    }

    /// Waits until a contender on the shared server watches its node: it knows then that the node is there.
    #[track_caller]
    pub(crate) fn wait_watched(&self, path: &str) {
        poll::until(format_args!("a watch on {path}"), || self.watchers().get(path).map(drop));
    }

    // The log.

    fn log_path(&self) -> String {
        self.file("log").into_os_string().into_string().expect("a path in UTF-8")
    }

    pub(crate) fn log(&self) -> JobLog {
        JobLog::read(self.file("log"))
    }

    #[track_caller]
    pub(crate) fn wait_alive_at(&self, name: &str, when: Moment) {
        poll::until(format_args!("{name} is alive {:?} from now", when.since(Moment::now())), || {
            self.log().runs().iter().any(|run| run.name == name && run.last >= when.0).then_some(())
        });
    }

    #[track_caller]
    pub(crate) fn last_alive(&self, name: &str) -> Moment {
        let log = self.log();
        Moment(log.runs().iter().rfind(|run| run.name == name).unwrap_or_else(|| panic!("{name} never ran")).last)
    }

    #[track_caller]
    pub(crate) fn begin(&self, name: &str) -> Moment {
        let log = self.log();
        Moment(log.runs().iter().rfind(|run| run.name == name).unwrap_or_else(|| panic!("{name} never ran")).begin)
    }

    // The end.

    /// Panics unless the commands ran in this order, none beside another. Waits until no contender is left.
    #[track_caller]
    pub(crate) fn expect_tidy(&self, order: &[&str]) {
        let log = self.log();
        assert_eq!(log.order(), order);
        if order.len() > 1 {
            log.expect_no_overlap();
        }
        self.wait_queue(0);
    }

    /// The holder was stopped within the lease that began to run out at `silence`, says why, and the next one started
    /// after it.
    #[track_caller]
    pub(crate) fn expect_handover(
        &self,
        holder: &mut Running,
        next: &mut Running,
        silence: Moment,
        why: &str,
    ) -> Output {
        let output = holder.expect_lost(why);
        holder.wait_until_nothing_is_left();
        self.last_alive("holder").expect_within(LEASE, silence, "the holder's command is dead");
        finish(next);
        self.expect_tidy(&["holder", "next"]);
        output
    }

    /// The only contender is what the running command was told of.
    #[track_caller]
    pub(crate) fn expect_ours(&self, job: &Running) {
        let only = self.only_contender();
        assert_eq!(job.variable("ZKLOCK_NODE"), only.path);
        assert_eq!(job.variable("ZKLOCK_TOKEN"), only.stat.czxid.to_string());
        assert_eq!(job.variable("ZKLOCK_SESSION"), format!("{:#x}", only.stat.owner));
    }

    /// The ephemeral nodes of others, anywhere in the chroot.
    fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        let mut paths = vec!["/".to_owned()];
        while let Some(path) = paths.pop() {
            // A node that has gone meanwhile counts as one without an owner; servers name no owner of a container.
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

impl Drop for Scratch {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        self.client.sync();
        let left = poll::within(SOON, || Some(()).filter(|()| self.left().is_empty()));
        assert!(left.is_some(), "nodes are left behind: {:?}", self.left());
    }
}
