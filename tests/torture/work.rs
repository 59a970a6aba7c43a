//! The command under the lock: it writes to a log, every few milliseconds while it or a descendant lives, so that the
//! log tells when it was last alive, however it died.
//!
//! A line is `WORD TIME CONTENDER PID MODE`, with CLOCK_BOOTTIME in nanoseconds, and then `LOCK TOKEN NODE` of each lock
//! that is held.

use std::env;
use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStdin, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::setsid;

use crate::tool::binary;

/// The variable by which a command knows whose it is.
pub(crate) const CONTENDER: &str = "TORTURE_CONTENDER";

/// What the tools call the lock, the token and the node that they tell their commands.
const LOCKS: &[&str] = &["ZKLOCK_PATH", "TORTURE_LOCK"];
const TOKENS: &[&str] = &["ZKLOCK_TOKEN", "ETCD_LOCK_REV", "TORTURE_TOKEN"];
const NODES: &[&str] = &["ZKLOCK_NODE", "ETCD_LOCK_KEY", "TORTURE_NODE"];

/// The exit status of a command of which a zklock below it ended in a way that nothing explains.
const INNER_FAILED: i32 = 99;

/// How often a line is written.
const BEAT: Duration = Duration::from_millis(5);

/// A descendant that lost its parent ends after this much more than its time, should nobody kill it.
const ORPHANED_FOR: Duration = Duration::from_secs(10);

/// What sort of command it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nature {
    /// Signals do to it what they do to any program.
    Plain,
    /// Nothing but SIGKILL ends it before its time.
    Stubborn,
    /// Stubborn, with a descendant that is so too and has left its group and its session.
    Family,
    /// Plain, with a zklock below it on a lock that it holds, for the end of which it waits.
    Nesting,
    /// The same, but it leaves that zklock behind.
    Leaving,
}

const NATURES: [(Nature, &str); 5] = [
    (Nature::Plain, "plain"),
    (Nature::Stubborn, "stubborn"),
    (Nature::Family, "family"),
    (Nature::Nesting, "nesting"),
    (Nature::Leaving, "leaving"),
];

impl fmt::Display for Nature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NATURES.iter().find(|(nature, _)| nature == self).expect("the table has them all").1)
    }
}

impl FromStr for Nature {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = NATURES.iter().find(|(_, known)| *known == name);
        known.map(|(nature, _)| *nature).ok_or_else(|| format!("no nature {name}"))
    }
}

/// What to do, as it stands on the command line.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// The log to append to.
    pub(crate) log: PathBuf,
    /// How long it takes.
    pub(crate) time: Duration,
    /// What sort of command does it.
    pub(crate) nature: Nature,
    /// The arguments of a zklock below it, before `--`.
    pub(crate) inner: Vec<String>,
}

/// Who of a command's processes this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Command,
    Between,
    Descendant,
}

impl Role {
    fn flag(self) -> &'static str {
        match self {
            Self::Command => "--work",
            Self::Between => "--between",
            Self::Descendant => "--descendant",
        }
    }
}

impl Job {
    /// This program and its arguments, for the tool to run.
    pub(crate) fn command(&self) -> Vec<String> {
        let program = env::current_exe().expect("the path of this program");
        let text = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
        [text(&program)].into_iter().chain(self.arguments(Role::Command)).collect()
    }

    fn arguments(&self, role: Role) -> Vec<String> {
        let log = self.log.to_str().expect("a path in UTF-8").to_owned();
        let own = [role.flag().to_owned(), log, self.time.as_millis().to_string(), self.nature.to_string()];
        own.into_iter().chain(self.inner.iter().cloned()).collect()
    }

    /// Does the job when the arguments of this process say so; false when they say something else.
    pub(crate) fn run_if_asked(arguments: &[String]) -> bool {
        let [flag, log, time, nature, inner @ ..] = arguments else { return false };
        let roles = [Role::Command, Role::Between, Role::Descendant];
        let Some(role) = roles.into_iter().find(|role| role.flag() == flag) else { return false };
        let time = Duration::from_millis(time.parse().expect("a number of milliseconds"));
        let job = Self { log: log.into(), time, nature: nature.parse().expect("a nature"), inner: inner.to_vec() };
        match role {
            Role::Command => job.work(),
            Role::Between => job.spawn_descendant(),
            Role::Descendant => job.linger(),
        }
        true
    }

    fn work(&self) {
        let mut log = Log::open(&self.log);
        log.line("begin");
        let end = now() + self.time;
        if matches!(self.nature, Nature::Stubborn | Nature::Family) {
            // What is blocked neither ends it nor, as it is inherited, its descendant.
            let deaf: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
            deaf.thread_block().expect("signals can be blocked");
        }
        let descendant = (self.nature == Nature::Family).then(|| Descendant::start(self));
        let mut inner = matches!(self.nature, Nature::Nesting | Nature::Leaving).then(|| self.spawn_inner());
        let mut inner_ended = None;
        while now() < end || self.nature == Nature::Nesting && inner_ended.is_none() {
            thread::sleep(BEAT);
            log.line("alive");
            if let Some(inner) = inner.as_mut().filter(|_| inner_ended.is_none()) {
                inner_ended = inner.try_wait().expect("a child can be waited for");
            }
        }
        // No server could be reached, or the lock was lost.
        if inner_ended.and_then(|status| status.code()).is_some_and(|code| ![0, 69, 76].contains(&code)) {
            process::exit(INNER_FAILED);
        }
        if let Some(descendant) = descendant {
            descendant.dismiss();
        }
        log.line("end");
    }

    /// A zklock on a lock that is held already, with a plain command that takes as long as this one.
    fn spawn_inner(&self) -> Child {
        let job = Self { nature: Nature::Plain, inner: Vec::new(), ..self.clone() };
        let mut zklock = Command::new(binary());
        zklock.args(&self.inner).arg("--").args(job.command());
        zklock.spawn().expect("zklock can be started")
    }

    /// Leaves the group and the session, starts the descendant and leaves it alone.
    #[expect(clippy::zombie_processes, reason = "that the descendant outlives this process is the point")]
    fn spawn_descendant(&self) {
        setsid().expect("setsid, as a child that leads no group");
        let program = env::current_exe().expect("the path of this program");
        Command::new(program).args(self.arguments(Role::Descendant)).spawn().expect("a descendant can be started");
    }

    /// Lives until it is dismissed by a byte on stdin, not by the end of stdin.
    fn linger(&self) {
        let mut log = Log::open(&self.log);
        let end = now() + self.time + ORPHANED_FOR;
        let mut stdin = Some(std::io::stdin());
        while now() < end {
            log.line("alive");
            let Some(open) = &mut stdin else {
                thread::sleep(BEAT);
                continue;
            };
            let wait = PollTimeout::try_from(BEAT).expect("a few milliseconds");
            match poll(&mut [PollFd::new(open.as_fd(), PollFlags::POLLIN)], wait) {
                Ok(0) | Err(_) => {}
                Ok(_) => match open.read(&mut [0]) {
                    Ok(1) => return,
                    _ => stdin = None,
                },
            }
        }
    }
}

/// A descendant, as the command sees it.
struct Descendant {
    stdin: ChildStdin,
    stdout: ChildStdout,
}

impl Descendant {
    fn start(job: &Job) -> Self {
        let program = env::current_exe().expect("the path of this program");
        let mut between = Command::new(program)
            .args(job.arguments(Role::Between))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child can be started");
        let stdin = between.stdin.take().expect("a pipe was asked for");
        let stdout = between.stdout.take().expect("a pipe was asked for");
        between.wait().expect("a child can be waited for");
        Self { stdin, stdout }
    }

    /// Ends it, and waits until it has gone.
    fn dismiss(mut self) {
        // It may have been killed.
        let _ = self.stdin.write_all(b"q");
        let _ = self.stdout.read_to_end(&mut Vec::new());
    }
}

/// Time since boot, sleep included.
pub(crate) fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).expect("the clock can be read").into()
}

/// `LOCK TOKEN NODE` of each lock that is held.
fn held() -> Vec<String> {
    let variable = |names: &[&str]| names.iter().find_map(|name| env::var(name).ok());
    if let (Some(tokens), Some(nodes)) = (variable(&["ZKLOCK_TOKENS"]), variable(&["ZKLOCK_HELD"])) {
        let one = |line: &str| {
            let (token, lock) = line.split_once(' ').expect("a token and a lock");
            // A nested run that could not use the lock above it has a node of its own, after that one.
            let is_below = |node: &&str| node.rsplit_once('/').is_some_and(|(parent, _)| parent == lock);
            let node = nodes.lines().rev().find(is_below).expect("a node of the lock");
            format!("{lock} {token} {node}")
        };
        return tokens.lines().map(one).collect();
    }
    let token = variable(TOKENS).expect("the tool tells the token");
    let node = variable(NODES).expect("the tool tells the node");
    // etcdctl does not tell the lock's name. Its keys are `LOCK/LEASE`.
    let lock = variable(LOCKS).unwrap_or_else(|| node.rsplit_once('/').expect("a key below the lock's").0.to_owned());
    vec![format!("{lock} {token} {node}")]
}

struct Log {
    file: File,
    tail: String,
}

impl Log {
    fn open(path: &Path) -> Self {
        let file = File::options().create(true).append(true).open(path).expect("the log can be opened");
        let contender = env::var(CONTENDER).expect("the crowd tells the contender");
        let mode = env::var("ZKLOCK_MODE").unwrap_or_else(|_| "exclusive".to_owned());
        let held = held().join(" ");
        Self { file, tail: format!("{contender} {} {mode} {held}\n", process::id()) }
    }

    /// The time is read before the line is written: so the process lived at that time or later.
    fn line(&mut self, word: &str) {
        let line = format!("{word} {} {}", now().as_nanos(), self.tail);
        self.file.write_all(line.as_bytes()).expect("the log can be written");
    }
}
