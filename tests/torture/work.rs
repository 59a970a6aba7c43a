//! The command under the lock. While it or a descendant lives, it writes to a log every few milliseconds, so that the
//! log shows when it was last alive, however it died.
//!
//! A line is `WORD TIME CONTENDER PID MODE`, with CLOCK_BOOTTIME in nanoseconds, followed by `LOCK TOKEN NODE` for each
//! lock that is held.

use std::env;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::setsid;

use crate::tool::binary;

/// The environment variable that tells a command the number of its contender.
pub(crate) const CONTENDER: &str = "TORTURE_CONTENDER";

/// The environment variables in which the tools tell their commands the lock, the token and the node.
const LOCKS: &[&str] = &["ZKLOCK_PATH", "TORTURE_LOCK"];
const TOKENS: &[&str] = &["ZKLOCK_TOKEN", "ETCD_LOCK_REV", "TORTURE_TOKEN"];
const NODES: &[&str] = &["ZKLOCK_NODE", "ETCD_LOCK_KEY", "TORTURE_NODE"];

/// The exit status of a command whose nested run ended in an unexpected way.
pub(crate) const INNER_FAILED: i32 = 99;

const BEAT: Duration = Duration::from_millis(5);

/// How long a descendant that has lost its parent goes on after the end of its job, unless it is killed.
const ORPHANED_FOR: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Nature {
    /// Signals act on it as on any program.
    Plain,
    /// Only SIGKILL ends it early.
    Stubborn,
    /// Stubborn, with a descendant that is also stubborn.
    Group,
    /// The same, but the descendant has left its group and its session.
    Family,
    /// Plain, with a nested run on a lock that it holds. It waits for the nested run to end.
    Nesting,
    /// The same, but it leaves the nested run behind.
    Leaving,
}

/// The job of a command, as given by its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) log: PathBuf,
    pub(crate) time: Duration,
    pub(crate) nature: Nature,
    /// The arguments of its nested run, before `--`.
    pub(crate) inner: Vec<String>,
}

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
        let own = [role.flag().to_owned(), log, self.time.as_millis().to_string(), format!("{:?}", self.nature)];
        own.into_iter().chain(self.inner.iter().cloned()).collect()
    }

    /// Does the job if the arguments of this process ask for one. Returns whether they did.
    pub(crate) fn run_if_asked(arguments: &[String]) -> bool {
        let [flag, log, time, nature, inner @ ..] = arguments else { return false };
        let roles = [Role::Command, Role::Between, Role::Descendant];
        let Some(role) = roles.into_iter().find(|role| role.flag() == flag) else { return false };
        let time = Duration::from_millis(time.parse().expect("a number of milliseconds"));
        let nature = Nature::from_str(nature, true).expect("a nature");
        let job = Self { log: log.into(), time, nature, inner: inner.to_vec() };
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
        if matches!(self.nature, Nature::Stubborn | Nature::Group | Nature::Family) {
            // Blocked signals end neither this process nor its descendant, which inherits the mask.
            let deaf: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
            deaf.thread_block().expect("signals can be blocked");
        }
        let has_descendant = matches!(self.nature, Nature::Group | Nature::Family);
        let descendant = has_descendant.then(|| Descendant::start(self));
        let mut inner = matches!(self.nature, Nature::Nesting | Nature::Leaving).then(|| self.spawn_inner());
        let mut inner_ended = None;
        while now() < end || self.nature == Nature::Nesting && inner_ended.is_none() {
            thread::sleep(BEAT);
            log.line("alive");
            if let Some(inner) = inner.as_mut().filter(|_| inner_ended.is_none()) {
                inner_ended = inner.try_wait().expect("a child can be waited for");
            }
        }
        // 69: no server could be reached. 76: the lock was lost.
        if inner_ended.and_then(|status| status.code()).is_some_and(|code| ![0, 69, 76].contains(&code)) {
            process::exit(INNER_FAILED);
        }
        if let Some(descendant) = descendant {
            descendant.dismiss();
        }
        log.line("end");
    }

    /// Starts a nested run on a lock that is already held, with a plain command that takes as long as this one.
    fn spawn_inner(&self) -> Child {
        let job = Self { nature: Nature::Plain, inner: Vec::new(), ..self.clone() };
        let mut zklock = Command::new(binary());
        zklock.args(&self.inner).arg("--").args(job.command());
        zklock.spawn().expect("zklock can be started")
    }

    /// Leaves the group and the session, unless the job is to stay there, starts the descendant, and does not wait for
    /// it.
    #[expect(clippy::zombie_processes, reason = "the descendant is meant to outlive this process")]
    fn spawn_descendant(&self) {
        if self.nature == Nature::Family {
            setsid().expect("setsid, as a child that leads no group");
        }
        let program = env::current_exe().expect("the path of this program");
        Command::new(program).args(self.arguments(Role::Descendant)).spawn().expect("a descendant can be started");
    }

    /// Lives until a byte arrives on stdin. The end of stdin does not count: its parent may have been killed.
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
        // The descendant may have been killed.
        let _ = self.stdin.write_all(b"q");
        let _ = self.stdout.read_to_end(&mut Vec::new());
    }
}

/// Time since boot, sleep included.
pub(crate) fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).expect("the clock can be read").into()
}

/// `LOCK TOKEN NODE` for each lock that is held.
fn held() -> Vec<String> {
    let variable = |names: &[&str]| names.iter().find_map(|name| env::var(name).ok());
    if let (Some(tokens), Some(nodes)) = (variable(&["ZKLOCK_TOKENS"]), variable(&["ZKLOCK_HELD"])) {
        let one = |line: &str| {
            let (token, lock) = line.split_once(' ').expect("a token and a lock");
            // A nested run that could not borrow the lock has a node of its own, listed after that of the outer run.
            let is_below = |node: &&str| node.rsplit_once('/').is_some_and(|(parent, _)| parent == lock);
            let node = nodes.lines().rev().find(is_below).expect("a node of the lock");
            format!("{lock} {token} {node}")
        };
        return tokens.lines().map(one).collect();
    }
    let token = variable(TOKENS).expect("the tool tells the token");
    let node = variable(NODES).expect("the tool tells the node");
    // etcdctl does not tell the name of the lock, but its keys are `LOCK/LEASE`.
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

    /// The time is read before the line is written, so the process was alive at that time.
    fn line(&mut self, word: &str) {
        let line = format!("{word} {} {}", now().as_nanos(), self.tail);
        self.file.write_all(line.as_bytes()).expect("the log can be written");
    }
}
