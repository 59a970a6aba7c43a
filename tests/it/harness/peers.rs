//! Other programs that take the same lock: Curator, ZooKeeper's own recipes, kazoo.
//!
//! Each is a program of tests/peers/ that does as it is told by lines on its stdin. Debian's packages have what they
//! need; scripts/test installs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};

use super::release::{Feature, lacks};
use super::running::Running;
use super::scratch::{LOCK, Scratch};
use super::times::{CROWD_LIMIT, LONG_SESSION};
use super::zklock::{Zklock, binary};

const JARS: &str = "/usr/share/java";

/// Has a JVM leave nothing in /tmp/hsperfdata_USER.
const NO_FILES: &str = "-XX:-UsePerfData";

/// The jars that Peer.java is compiled and run with. What zookeeper.jar needs it names itself.
const CLASS_PATH: &str =
    "curator-client curator-framework curator-recipes guava slf4j-api slf4j-nop zookeeper zookeeper-recipes-lock";

const PYTHON: &str = "/usr/bin/python3";

macro_rules! recipes {
    ($($name:ident $word:literal $dialect:ident $is_kazoo:literal)*) => {
        /// The recipe by which a peer takes the lock.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Recipe { $($name,)* }

        impl Recipe {
            fn row(self) -> (&'static str, &'static [&'static str], bool) {
                match self { $(Self::$name => ($word, $dialect, $is_kazoo),)* }
            }
        }
    };
}

const ANY: &[&str] = &[];
const CURATOR: &[&str] = &["--dialect", "curator"];
const READ_WRITE: &[&str] = &["--dialect", "curator-rw"];
const KAZOO: &[&str] = &["--dialect", "kazoo"];
const SINGLE: &[&str] = &["--dialect", "single"];

// The word for it on the command line of its program; what zklock is to be told so that it and clients of this kind see
// each other; whether the program is kazoo's. CuratorRevocable is told when it is asked to give up; KazooLock takes no
// notice of readers. zklock takes no turns with those from CuratorSemaphoreMutex to KazooLease.
recipes! {
    CuratorMutex "mutex" ANY false
    CuratorRevocable "revocable" ANY false
    WriteLock "write-lock" ANY false
    CuratorReader "rw-read" READ_WRITE false
    CuratorWriter "rw-write" READ_WRITE false
    KazooLockBesideCurator "lock+curator" CURATOR true
    KazooLock "lock" KAZOO true
    KazooReader "read" KAZOO true
    KazooWriter "write" KAZOO true
    CuratorMultiLock "multi-lock" ANY false
    CuratorLeaderSelector "selector" ANY false
    KazooElection "election" KAZOO true
    CuratorSemaphoreMutex "semaphore-mutex" ANY false
    CuratorSemaphore "semaphore" ANY false
    CuratorLeaderLatch "latch" ANY false
    KazooSemaphore "semaphore" ANY true
    KazooLease "lease" ANY true
    KazooSingle "single" SINGLE true
}

impl Recipe {
    pub(crate) fn word(self) -> &'static str {
        self.row().0
    }

    pub(crate) fn options(self) -> &'static [&'static str] {
        self.row().1
    }

    /// Whether it needs newer servers than there are. See [`lacks`].
    #[must_use]
    pub(crate) fn needs_newer_servers(self) -> bool {
        !self.row().2 && self != Self::WriteLock && lacks(Feature::Curator)
    }
}

/// A peer that runs, and has a session. To the log of its [`Scratch`] it writes when it holds the lock, or believes so.
///
/// Dropping it ends it, in an orderly way unless the test has failed. So it must be dropped before its [`Scratch`].
#[derive(Debug)]
pub(crate) struct Peer {
    running: Running,
    session: i64,
}

impl Peer {
    #[track_caller]
    pub(crate) fn start(scratch: &Scratch, recipe: Recipe) -> Self {
        Self::with_session_timeout(scratch, recipe, LONG_SESSION)
    }

    #[track_caller]
    pub(crate) fn with_session_timeout(scratch: &Scratch, recipe: Recipe, session_timeout: Duration) -> Self {
        let session_timeout = session_timeout.as_millis().to_string();
        let program = if recipe.row().2 { kazoo() } else { java() };
        let arguments = [scratch.chroot().to_string(), LOCK.to_owned(), recipe.word().to_owned(), session_timeout];
        let running = program.args(arguments).arg(scratch.file("log")).open_stdin().spawn();
        let mut peer = Self { running, session: 0 };
        let ready = peer.answer();
        let session = ready.strip_prefix("ready 0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        peer.session = session.unwrap_or_else(|| panic!("{ready:?}\n{}", peer.running)).cast_signed();
        peer
    }

    pub(crate) fn session(&self) -> i64 {
        self.session
    }

    #[track_caller]
    pub(crate) fn acquire(&mut self) {
        self.queue();
        self.expect_acquired();
    }

    #[track_caller]
    pub(crate) fn queue(&mut self) {
        self.tell("acquire");
    }

    /// Waits until it has the lock that it has [begun](Peer::queue) to take.
    #[track_caller]
    pub(crate) fn expect_acquired(&mut self) {
        self.expect("acquired");
    }

    #[track_caller]
    pub(crate) fn expect_busy(&mut self) {
        self.tell("acquire 100");
        self.expect("busy");
    }

    #[track_caller]
    pub(crate) fn release(&mut self) {
        self.tell("release");
        self.expect("released");
    }

    #[track_caller]
    pub(crate) fn expect_asked(&mut self) {
        self.expect("asked");
    }

    #[track_caller]
    pub(crate) fn revoke(&mut self, node: &str) {
        self.tell(&format!("revoke {node}"));
        self.expect("done");
    }

    /// Begins a crowd of `size` contenders that take `turns` turns between them, and write to the log of the place.
    #[track_caller]
    pub(crate) fn crowd(&mut self, size: usize, turns: usize) {
        self.tell(&format!("crowd {size} {turns}"));
    }

    #[track_caller]
    pub(crate) fn expect_crowd_done(&mut self) {
        let answer = self.running.wait_stdout_at_most(CROWD_LIMIT, "");
        assert_eq!(answer, "done", "{}", self.running);
    }

    #[track_caller]
    pub(crate) fn kill(&mut self) {
        self.running.signal(Signal::SIGKILL);
        self.running.wait().expect_signal(Signal::SIGKILL);
    }

    #[track_caller]
    fn tell(&mut self, command: &str) {
        self.running.write_stdin(format!("{command}\n").as_bytes());
    }

    #[track_caller]
    fn answer(&mut self) -> String {
        self.running.wait_stdout("")
    }

    #[track_caller]
    fn expect(&mut self, answer: &str) {
        let given = self.answer();
        assert_eq!(given, answer, "{}", self.running);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.running.close_stdin();
        if !thread::panicking() {
            self.running.wait();
        }
    }
}

fn kazoo() -> Zklock {
    Zklock::bare().program(PYTHON).arg(sources().join("kazoo_peer.py"))
}

fn java() -> Zklock {
    // The defaults are for servers: many threads for the collector, and a compiler that takes its time.
    let modest = ["-Xmx96m", "-Xss256k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", NO_FILES];
    let class_path = format!("{}:{}", classes().display(), jars());
    let clock = format!("-Dclock.offset={}", clock_offset());
    Zklock::bare().program("java").args(modest).args([&clock, "-cp", &class_path, "Peer"])
}

fn jars() -> String {
    CLASS_PATH.split(' ').map(|name| format!("{JARS}/{name}.jar")).collect::<Vec<_>>().join(":")
}

/// Where the classes of Peer.java are. They are compiled when they are missing or older than it.
fn classes() -> &'static Path {
    static CLASSES: OnceLock<PathBuf> = OnceLock::new();
    CLASSES.get_or_init(|| {
        let classes = binary().parent().expect("the binary is in a directory").join("peers");
        let source = sources().join("Peer.java");
        let modified = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
        if modified(&classes.join("Peer.class")) >= modified(&source) {
            return classes;
        }
        let compiled = Command::new("javac")
            .arg(format!("-J{NO_FILES}"))
            .args(["-cp", &jars(), "-d"])
            .args([&classes, &source])
            .output();
        let compiled = compiled.expect("javac can be run");
        let complaint = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{} does not compile:\n{complaint}", source.display());
        classes
    })
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers")
}

/// The nanoseconds by which CLOCK_BOOTTIME, the clock of all logs, is ahead of CLOCK_MONOTONIC, the one that Java
/// reads.
fn clock_offset() -> i128 {
    let now = |clock| i128::try_from(Duration::from(clock_gettime(clock).expect("a clock")).as_nanos()).expect("small");
    // The two cannot be read at once, and this thread may be interrupted in between: the quickest of several is right.
    let read = |_| {
        let before = now(ClockId::CLOCK_MONOTONIC);
        let boot = now(ClockId::CLOCK_BOOTTIME);
        (now(ClockId::CLOCK_MONOTONIC) - before, boot - before)
    };
    (0..20).map(read).min().expect("there are several").1
}
