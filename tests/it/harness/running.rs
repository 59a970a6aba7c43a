//! A run of the binary and everything below it, and how it ended.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::poll::{self, PATIENCE};
use super::process::{self, Process};
use super::scratch::LOCK;
use super::zklock::{MARK, is_guard};

/// What a process writes, kept in an unnamed file. A file has no reader that could lag behind, and needs none: what a
/// process had written when it ended is there, even while a daemon that it left holds the descriptor open.
#[derive(Debug)]
pub(super) struct Capture {
    file: File,
    /// Where the first line begins that no `wait_…` has returned or passed.
    read_to: usize,
}

impl Capture {
    pub(super) fn new() -> Self {
        Self { file: tempfile::tempfile().expect("a temporary file"), read_to: 0 }
    }

    pub(super) fn stdio(&self) -> Stdio {
        self.file.try_clone().expect("a descriptor for the output").into()
    }

    fn bytes(&self) -> Vec<u8> {
        let length = self.file.metadata().expect("the size of the output").len();
        let mut bytes = vec![0; usize::try_from(length).expect("output that fits in memory")];
        // Not `read`: the offset is shared with the process that writes.
        self.file.read_exact_at(&mut bytes, 0).expect("the output can be read");
        bytes
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// The next whole line that holds `part`; passes over those before it.
    fn next_line(&mut self, part: &str) -> Option<String> {
        let bytes = self.bytes();
        while let Some(length) = bytes[self.read_to..].iter().position(|&byte| byte == b'\n') {
            let line = String::from_utf8_lossy(&bytes[self.read_to..][..length]).into_owned();
            self.read_to += length + 1;
            if line.contains(part) {
                return Some(line);
            }
        }
        None
    }
}

/// A zklock that was started, and everything below it.
///
/// Dropping it kills what is left, and panics when there was something: a test ends its processes by [`wait`] or, where
/// it means to, by [`end`]. It also panics when a child has: otherwise a child that no test waits for would test
/// nothing.
///
/// [`wait`]: Running::wait
/// [`end`]: Running::end
#[derive(Debug)]
pub(crate) struct Running {
    pub(super) child: Child,
    pub(super) what: String,
    pub(super) mark: String,
    pub(super) started: Instant,
    pub(super) ended: Option<(ExitStatus, Instant)>,
    pub(super) stdout: Capture,
    pub(super) stderr: Capture,
}

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().expect("a process id is positive"))
    }

    /// The keeper, the guard, and what writes to standard error, once there is one.
    #[track_caller]
    pub(crate) fn keeper(&self) -> Pid {
        self.child_process("lock-keeper")
    }

    #[track_caller]
    pub(crate) fn guard(&self) -> Pid {
        self.child_process("lock-guard")
    }

    #[track_caller]
    pub(crate) fn writer(&self) -> Pid {
        self.child_process("lock-writer")
    }

    #[track_caller]
    pub(crate) fn command(&self) -> Pid {
        // A child that has not executed its program yet still has the guard's own name.
        let found =
            poll::within(PATIENCE, || process::below_guard(self.pid()).into_iter().find(|process| !is_guard(process)));
        found.unwrap_or_else(|| panic!("no command appeared\n{self}")).pid
    }

    /// Stops the process that is to become the command as soon as there is one: as a rule, before it becomes the
    /// command.
    #[track_caller]
    pub(crate) fn stop_forked(&self) -> Pid {
        let children = |pid: i32| {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            children.split_whitespace().map(|pid| pid.parse().expect("a process id")).collect::<Vec<i32>>()
        };
        let is_guard =
            |pid: &i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "lock-guard\n");
        let deadline = Instant::now() + PATIENCE;
        // No pause between two looks: what is waited for lasts for a moment.
        while Instant::now() < deadline {
            let guards = children(self.pid().as_raw()).into_iter().filter(is_guard);
            if let Some(forked) = guards.flat_map(children).next() {
                process::stop(Pid::from_raw(forked));
                return Pid::from_raw(forked);
            }
        }
        panic!("no command was forked\n{self}");
    }

    #[track_caller]
    fn child_process(&self, name: &str) -> Pid {
        let is_it = |process: &Process| process.name == name;
        let found = poll::within(PATIENCE, || process::children(self.pid()).into_iter().find(is_it));
        found.unwrap_or_else(|| panic!("no {name} appeared\n{self}")).pid
    }

    /// Sends `signal` to zklock itself, not to its group.
    #[track_caller]
    pub(crate) fn signal(&self, signal: Signal) {
        assert!(self.ended.is_none(), "{signal} for a process that has been waited for\n{self}");
        process::send(self.pid(), signal);
    }

    /// Lets zklock find all of these signals when it looks: it is stopped while they are sent.
    #[track_caller]
    pub(crate) fn signal_all_at_once(&self, signals: &[Signal]) {
        process::stop(self.pid());
        for &signal in signals {
            self.signal(signal);
        }
        self.signal(Signal::SIGCONT);
    }

    #[track_caller]
    pub(crate) fn wait_stdout_all(&self, lines: &[&str]) {
        let there = poll::within(PATIENCE, || {
            let stdout = self.stdout();
            lines.iter().all(|line| stdout.lines().any(|there| there == *line)).then_some(())
        });
        assert!(there.is_some(), "not all of {lines:?}\n{self}");
    }

    /// Waits for a line on stdout that contains `part`, and returns it. A line is returned once: the next wait looks
    /// behind it. Panics after [`PATIENCE`], or when there is no process left that could write it.
    #[track_caller]
    pub(crate) fn wait_stdout(&mut self, part: &str) -> String {
        self.wait_stdout_at_most(PATIENCE, part)
    }

    #[track_caller]
    pub(crate) fn wait_stdout_at_most(&mut self, limit: Duration, part: &str) -> String {
        self.wait_line(limit, "stdout", part, |running| &mut running.stdout)
    }

    #[track_caller]
    pub(crate) fn wait_stderr(&mut self, part: &str) -> String {
        self.wait_line(PATIENCE, "stderr", part, |running| &mut running.stderr)
    }

    #[track_caller]
    fn wait_line(&mut self, limit: Duration, name: &str, part: &str, stream: fn(&mut Self) -> &mut Capture) -> String {
        let line = poll::within(limit, || {
            // In this order: what was written before the end is there when the end has been seen.
            let ended = self.has_ended() && self.processes().is_empty();
            stream(self).next_line(part).map(Some).or(ended.then_some(None))
        });
        match line {
            Some(Some(line)) => line,
            Some(None) => panic!("ended without {part:?} on {name}\n{self}"),
            None => panic!("no {part:?} on {name}\n{self}"),
        }
    }

    pub(crate) fn stdout(&self) -> String {
        self.stdout.text()
    }

    pub(crate) fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// What zklock told the command that runs, as `child --env` shows it.
    #[track_caller]
    pub(crate) fn variable(&self, name: &str) -> String {
        let stdout = self.stdout();
        let value = stdout.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("no {name}\n{self}")).to_owned()
    }

    #[track_caller]
    pub(crate) fn write_stdin(&mut self, bytes: &[u8]) {
        let pipe = self.child.stdin.as_mut().expect("open_stdin was asked for");
        pipe.write_all(bytes).expect("stdin is read");
    }

    pub(crate) fn close_stdin(&mut self) {
        self.child.stdin = None;
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether zklock has ended. Never waits.
    pub(crate) fn has_ended(&mut self) -> bool {
        if self.ended.is_none()
            && let Some(status) = self.child.try_wait().expect("a child can be waited for")
        {
            self.ended = Some((status, Instant::now()));
        }
        self.ended.is_some()
    }

    /// Waits for the end of zklock, not of what it may have left. Panics when that takes longer than [`PATIENCE`].
    #[track_caller]
    pub(crate) fn wait(&mut self) -> Output {
        self.wait_at_most(PATIENCE)
    }

    #[track_caller]
    pub(crate) fn wait_at_most(&mut self, limit: Duration) -> Output {
        let ended = poll::within(limit, || if self.has_ended() { self.ended } else { None });
        let (status, when) = ended.unwrap_or_else(|| panic!("did not end within {limit:?}\n{self}"));
        Output {
            status,
            stdout: self.stdout.bytes(),
            stderr: self.stderr.bytes(),
            elapsed: when.duration_since(self.started),
            what: self.what.clone(),
        }
    }

    /// The processes that carry this run's mark: zklock itself, its keeper, the command and what that has started.
    pub(crate) fn processes(&self) -> Vec<Process> {
        process::marked(MARK, &self.mark, self.pid())
    }

    /// The processes of this run below zklock itself: its own, which have something left to do in the end,
    /// and the others, of which there are `count`.
    #[track_caller]
    pub(crate) fn family(&self, count: usize) -> (Vec<Process>, Vec<Process>) {
        let all = self.processes().into_iter().filter(|process| process.pid != self.pid());
        let own = ["lock-keeper", "lock-guard", "lock-writer"];
        let (helpers, others): (Vec<_>, Vec<_>) = all.partition(|process| own.contains(&process.name.as_str()));
        assert_eq!(others.len(), count, "{others:?}");
        (helpers, others)
    }

    #[track_caller]
    pub(crate) fn zklock(&self) -> Pid {
        let found = poll::within(PATIENCE, || self.processes().into_iter().find(|process| process.name == "zklock"));
        found.unwrap_or_else(|| panic!("no zklock\n{self}")).pid
    }

    /// Panics unless zklock ends with the status of a lost lock, and with one line that begins with `why`.
    #[track_caller]
    pub(crate) fn expect_lost(&mut self, why: &str) -> Output {
        let output = self.wait().expect_code(76);
        let said = output.stderr();
        let is_so = said.starts_with(&format!("zklock: lost the lock {LOCK}: {why}")) && said.lines().count() == 1;
        assert!(is_so, "{output}");
        output
    }

    #[track_caller]
    pub(crate) fn wait_until_nothing_is_left(&mut self) {
        let gone = poll::within(PATIENCE, || (self.has_ended() && self.processes().is_empty()).then_some(()));
        assert!(gone.is_some(), "processes are left\n{self}");
    }

    /// Kills every process of this run. For tests that are done with it and mean to leave it running.
    pub(crate) fn end(mut self) {
        self.kill_everything();
    }

    /// SIGKILL for all of them, until none is left. Returns those that it had to kill.
    fn kill_everything(&mut self) -> Vec<String> {
        let mut killed = BTreeSet::new();
        let gone = poll::within(PATIENCE, || {
            let left = self.processes();
            for process in &left {
                killed.insert(process.to_string());
                process::send(process.pid, Signal::SIGKILL);
            }
            (self.has_ended() && left.is_empty()).then_some(())
        });
        assert!(gone.is_some() || thread::panicking(), "cannot be killed\n{self}");
        killed.into_iter().collect()
    }
}

impl fmt::Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "--- command: {}", self.what)?;
        match self.ended {
            Some((status, _)) => writeln!(f, "--- ended: {status}")?,
            None => writeln!(f, "--- running for {:?}", self.started.elapsed())?,
        }
        writeln!(f, "--- stdout:\n{}--- stderr:\n{}--- processes:", self.stdout(), self.stderr())?;
        self.processes().iter().try_for_each(|process| writeln!(f, "{process}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.has_ended() && !thread::panicking() {
            // A keeper that outlives its supervisor has work to do, and ends by itself.
            poll::within(PATIENCE / 6, || self.processes().is_empty().then_some(()));
        }
        let was_there = self.to_string();
        let killed = self.kill_everything();
        if !killed.is_empty() && !thread::panicking() {
            panic!("left behind and killed: {}\n{was_there}", killed.join(", "));
        }
        if let Ok(panics) = fs::read_to_string(&self.mark) {
            let _ = fs::remove_file(&self.mark);
            assert!(thread::panicking(), "a child panicked: {panics}{was_there}");
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Output {
    /// As wait(2) gave it.
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// From just before the start to when the end was seen, at most a few milliseconds late.
    pub(crate) elapsed: Duration,
    what: String,
}

impl Output {
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    #[track_caller]
    pub(crate) fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "exit status\n{self}");
        self
    }

    pub(crate) fn died_of(&self, signal: i32) -> bool {
        self.status.signal() == Some(signal)
    }

    #[track_caller]
    pub(crate) fn expect_signal(self, signal: Signal) -> Self {
        assert_eq!(self.status.signal(), Some(signal as i32), "death by {signal}\n{self}");
        self
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "--- command: {}\n--- ended: {} after {:?}", self.what, self.status, self.elapsed)?;
        write!(f, "--- stdout:\n{}--- stderr:\n{}", self.stdout(), self.stderr())
    }
}

/// Ends a run whose command says `ready` and ends on SIGTERM.
#[track_caller]
pub(crate) fn finish(run: &mut Running) -> Output {
    if !run.stdout().contains("ready\n") {
        run.wait_stdout("ready");
    }
    run.signal(Signal::SIGTERM);
    run.wait().expect_code(0)
}

/// The only line on stderr of a run that has written nothing to stdout, without `zklock: `.
#[track_caller]
pub(crate) fn only_line(output: &Output) -> String {
    assert_eq!(output.stdout, b"", "stdout belongs to the command\n{output}");
    let stderr = output.stderr();
    let line = stderr.strip_suffix('\n').filter(|line| !line.contains('\n'));
    let line = line.and_then(|line| line.strip_prefix("zklock: "));
    line.unwrap_or_else(|| panic!("not one line of zklock's on stderr\n{output}")).to_owned()
}

/// Panics unless the run was silent on stderr. Returns it.
#[track_caller]
pub(crate) fn silent(output: Output) -> Output {
    assert_eq!(output.stderr, b"", "a success is silent\n{output}");
    output
}

/// Panics unless every line begins with the program's name. Returns their number.
#[track_caller]
pub(crate) fn count_own_lines(stderr: &str) -> usize {
    let strange: Vec<&str> = stderr.lines().filter(|line| !line.starts_with("zklock: ")).collect();
    assert!(
        strange.is_empty() && (stderr.is_empty() || stderr.ends_with('\n')),
        "not zklock's: {strange:#?}\n{stderr}"
    );
    stderr.lines().count()
}
