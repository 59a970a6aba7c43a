//! The contenders. A fixed number of them is alive at a time; one that has ended is replaced.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, pipe2, write};

use crate::checker::Time;
use crate::harness::process::{self, Process, Seat};
use crate::record::{Phase, Record, lock};
use crate::tool::{Entry, Give, Place, Tool};
use crate::work::{self, CONTENDER, INNER_FAILED, Job, Nature};

const SIZE: usize = 18;

const STEP: Duration = Duration::from_millis(5);

/// The environment variable by which the processes of a crowd are found again.
const MARK: &str = "TORTURE_CROWD";

/// The environment variable by which the processes of one contender are found again. Another torture on the same
/// machine has contenders with the same numbers.
const MEMBER: &str = "TORTURE_MEMBER";

/// The names of keepers, guards and commands, as /proc/PID/stat shows them.
const KEEPER: &str = "lock-keeper";
const GUARD: &str = "lock-guard";
pub(crate) const COMMAND: &str = "torture";

#[derive(Debug)]
pub(crate) struct Contender {
    /// Counted from 0. Its processes carry it in their environment.
    pub(crate) number: usize,
    pub(crate) nature: Nature,
    /// The command line that started it.
    pub(crate) what: String,
    pub(crate) time: Duration,
    /// Whether it is a tool other than zklock, whose exit statuses are not judged.
    is_foreign: bool,
    give: Give,
    pub(crate) timeout: Duration,
    pub(crate) network: usize,
    is_limited: bool,
    pid: Pid,
    /// The value of [`MEMBER`] in the environment of its processes.
    member: String,
    stderr: PathBuf,
    started: Time,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    child: Child,
    ended: Option<ExitStatus>,
    /// When that was seen.
    ended_at: Option<Time>,
    hurt: bool,
    killers: Vec<Signal>,
    /// Its keeper was killed, or its guard, or the guard was stopped and so may have been killed by the kernel.
    loses_process: bool,
    /// The other end of a pipe that is full, if that is its stderr.
    reader: Option<OwnedFd>,
}

/// Which contenders a fault is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Those whose command runs.
    Holder,
    Anyone,
}

/// The first of these processes that has this name and is alive.
fn living(processes: Vec<Process>, name: &str) -> Option<Process> {
    processes.into_iter().find(|process| process.name == name && process.state != 'Z')
}

impl Contender {
    /// Calls `act` with the supervisor's process id, unless the supervisor has been waited for: until then the id is
    /// its own. Keeps it from being waited for meanwhile.
    pub(crate) fn with_supervisor<T>(&self, act: impl FnOnce(Pid) -> T) -> Option<T> {
        let state = lock(&self.state);
        state.ended.is_none().then(|| act(self.pid))
    }

    pub(crate) fn keeper(&self) -> Option<Process> {
        self.child(KEEPER)
    }

    pub(crate) fn guard(&self) -> Option<Process> {
        self.child(GUARD)
    }

    /// The command, if it runs: the oldest child of the guard that has its name. Descendants whose parent has gone are
    /// also children of the guard. Another tool starts the command itself.
    pub(crate) fn command(&self) -> Option<Process> {
        let parent = if self.is_foreign { self.pid } else { self.guard()?.pid };
        living(process::children(parent), COMMAND)
    }

    fn child(&self, name: &str) -> Option<Process> {
        living(self.with_supervisor(process::children)?, name)
    }

    /// How much longer the command will run if nothing happens to it; `None` if it does not run.
    fn time_left(&self) -> Option<Duration> {
        const TICKS_PER_SECOND: u64 = 100;
        let started = Duration::from_millis(self.command()?.started * 1000 / TICKS_PER_SECOND);
        Some((started + self.time).saturating_sub(work::now()))
    }

    /// Whether its command runs, and will run for longer than the session can last without it.
    pub(crate) fn has_long_to_go(&self) -> bool {
        let long = self.timeout * 3 / 2;
        self.time > long && self.time_left().is_some_and(|left| left > long)
    }

    /// All its processes, nested runs included, in whatever group or session they are.
    pub(crate) fn processes(&self) -> Vec<Process> {
        process::marked(MEMBER, &self.member, self.pid)
    }

    /// The command and its descendants, in whatever group or session they are.
    pub(crate) fn family(&self) -> Vec<Process> {
        let mut family = self.processes();
        family.retain(|process| process.name == COMMAND);
        family
    }

    /// From now on, an end by this signal is expected.
    pub(crate) fn expect(&self, signal: Signal) {
        lock(&self.state).killers.push(signal);
    }

    pub(crate) fn expect_loss_of_process(&self) {
        lock(&self.state).loses_process = true;
    }

    fn has_ended(&self) -> bool {
        let mut state = lock(&self.state);
        if state.ended.is_none() {
            state.ended = state.child.try_wait().expect("a child can be waited for");
            if state.ended.is_some() {
                // What still waits to be written fails now, so that a process that was left behind for it can go.
                state.reader = None;
                state.ended_at = Some(work::now());
            }
        }
        state.ended.is_some()
    }

    pub(crate) fn status(&self) -> Option<ExitStatus> {
        lock(&self.state).ended
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stderr).unwrap_or_default()).into_owned()
    }

    /// Why its end is unexpected; `None` if its options and the faults that it met explain it. `has_done_its_work`:
    /// whether its command has written so. `stalls`: when the machine stalled.
    pub(crate) fn surprise(&self, has_done_its_work: bool, stalls: &[(Time, Time)]) -> Option<String> {
        if self.is_foreign {
            return None;
        }
        if self.stderr().contains("panicked at") {
            return Some("it panicked".to_owned());
        }
        let state = lock(&self.state);
        let status = state.ended?;
        let is_explained = match (status.code(), status.signal()) {
            (Some(0), _) => has_done_its_work,
            (Some(69 | 76), _) => true,
            (Some(75), _) => self.give != Give::Never,
            (Some(124), _) => self.is_limited,
            // A waiter gives up if its keeper dies. A guard that does not run for a fifth of the session timeout may be killed by the kernel. A command that
            // has lost its nested run in this way says so.
            (Some(70 | INNER_FAILED), _) => {
                let is_met = |(from, until): &(Time, Time)| {
                    *until >= self.started && state.ended_at.is_none_or(|ended_at| *from <= ended_at)
                };
                let is_long = |(from, until): &(Time, Time)| *until - *from > self.timeout / 5;
                state.loses_process || stalls.iter().any(|stall| is_met(stall) && is_long(stall))
            }
            (_, Some(signal)) => state.killers.iter().any(|&killer| killer as i32 == signal),
            _ => false,
        };
        (!is_explained).then(|| {
            let work = if has_done_its_work { "done" } else { "not done" };
            format!("{status}, its work {work}, signals sent: {:?}", state.killers)
        })
    }
}

/// A pipe that has room for no byte: its end to read from, and the other one, which blocks.
fn full_pipe() -> nix::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    while write(&writer, &[b'\n'; 4096]).is_ok() {}
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty()))?;
    Ok((reader, writer))
}

#[derive(Debug)]
pub(crate) struct Crowd {
    tool: Tool,
    place: Place,
    directory: PathBuf,
    seed: u64,
    all: Mutex<Vec<Arc<Contender>>>,
}

impl Crowd {
    /// An empty crowd. `seed` and its number decide what each contender is.
    pub(crate) fn new(tool: Tool, place: Place, directory: &Path, seed: u64) -> Self {
        fs::create_dir(directory.join("stderr")).expect("a directory for stderr");
        Self { tool, place, directory: directory.to_owned(), seed, all: Mutex::default() }
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.directory.join("commands")
    }

    /// Keeps the crowd full while there are faults, then waits until it is empty or the torture is over.
    pub(crate) fn run(&self, record: &Record) {
        let mut alive = Vec::new();
        while record.phase() == Phase::Faults || !alive.is_empty() && record.phase() != Phase::Over {
            alive.retain(|contender: &Arc<Contender>| !contender.has_ended());
            while record.phase() == Phase::Faults && alive.len() < SIZE {
                let contender = Arc::new(self.start());
                alive.push(contender.clone());
                lock(&self.all).push(contender);
            }
            thread::sleep(STEP);
        }
    }

    fn start(&self) -> Contender {
        let number = lock(&self.all).len();
        let mut rng = Rng::with_seed(self.seed ^ (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let milliseconds = match rng.u8(..100) {
            0..40 => rng.u64(10..150),
            40..60 => rng.u64(200..1500),
            // Only a command that takes longer than a session timeout can be seen to outlive its lock.
            _ => rng.u64(5000..12_000),
        };
        let nature = match rng.u8(..100) {
            0..25 => Nature::Plain,
            25..45 => Nature::Stubborn,
            // Only zklock promises anything about nested runs, or about processes that have left their group.
            _ if self.tool != Tool::Zklock => Nature::Plain,
            45..65 => Nature::Group,
            65..85 => Nature::Family,
            85..93 => Nature::Nesting,
            _ => Nature::Leaving,
        };
        let time = Duration::from_millis(milliseconds);
        let job = Job { log: self.log(), time, nature, inner: Vec::new() };
        let Entry { mut command, give, timeout, network, is_limited, stderr_blocks } =
            self.tool.contender(&self.place, job, &mut rng);
        let stderr = self.directory.join(format!("stderr/{number}"));
        let mut file = File::create(&stderr).expect("a file for stderr");
        let member = format!("{}-{number}", self.mark());
        command.env(MARK, self.mark()).env(MEMBER, &member);
        command.env(CONTENDER, number.to_string()).stdin(Stdio::null()).stdout(Stdio::null());
        let mut what = format!("{command:?}");
        let reader = if stderr_blocks {
            let (reader, writer) = full_pipe().expect("a pipe can be filled");
            command.stderr(writer);
            what.push_str(" (its stderr is a full pipe)");
            file.write_all(b"this contender's stderr is a full pipe\n").expect("a file can be written");
            Some(reader)
        } else {
            command.stderr(file);
            None
        };
        let started = work::now();
        let child = process::spawn(command, Seat::OwnSession, &[]).unwrap_or_else(|error| panic!("{what}: {error}"));
        let pid = Pid::from_raw(child.id().try_into().expect("a process id is positive"));
        let state = Mutex::new(State {
            child,
            ended: None,
            ended_at: None,
            hurt: false,
            killers: Vec::new(),
            loses_process: false,
            reader,
        });
        let is_foreign = self.tool != Tool::Zklock;
        Contender {
            number,
            nature,
            what,
            time,
            is_foreign,
            give,
            timeout,
            network,
            is_limited,
            pid,
            member,
            stderr,
            started,
            state,
        }
    }

    /// The living processes of all contenders, in whatever group or session they are.
    pub(crate) fn processes(&self) -> Vec<Process> {
        process::marked(MARK, &self.mark(), Pid::this())
    }

    /// The value of [`MARK`] in the environment of all processes of this crowd, and of no other.
    fn mark(&self) -> String {
        format!("{}-{}", Pid::this(), self.seed)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Contender>> {
        lock(&self.all).clone()
    }

    pub(crate) fn alive(&self) -> Vec<Arc<Contender>> {
        let mut all = self.all();
        all.retain(|contender| contender.status().is_none());
        all
    }

    /// Picks a contender to be hurt, as `dice` decides. Each is picked at most once: to hurt several of its processes
    /// is a fault of its own.
    pub(crate) fn pick(
        &self,
        wanted: Wanted,
        dice: usize,
        is_right: impl Fn(&Contender) -> bool,
    ) -> Option<Arc<Contender>> {
        let mut right = self.alive();
        right.retain(|contender| {
            !lock(&contender.state).hurt
                && is_right(contender)
                && (wanted == Wanted::Anyone || contender.command().is_some())
        });
        let picked = right.get(dice.checked_rem(right.len())?)?;
        let was_hurt = std::mem::replace(&mut lock(&picked.state).hurt, true);
        (!was_hurt).then(|| picked.clone())
    }
}
