//! A command for zklock to run in tests.
//!
//! It prints `ready`, then a line `signal NAME` for each signal that it gets, and ends when it is told to: at once, or
//! by one of the options that make it wait. No signal ends it but SIGKILL and those named by `--exit-on`.
//!
//!     child [OPTION]... [-- ARGUMENT...]
//!
//!     --name NAME           begin each line with NAME, and use it in the log (default: child)
//!     --exit CODE           exit with this status (default 0)
//!     --die-of SIGNAL       end by sending itself this signal
//!     --wait                wait for ever
//!     --until FILE          wait until this file exists
//!     --until-stdin-closes  wait for the end of stdin
//!     --exit-on SIGNAL,...  end when one of these comes
//!     --ignore SIGNAL,...   set these to SIG_IGN; they make no line
//!     --default SIGNAL,...  leave these to the kernel: TSTP stops the process, CONT makes no line
//!     --log FILE            append `begin TIME PID NAME` and `end TIME PID NAME`, with CLOCK_BOOTTIME in nanoseconds
//!     --beat                append `alive TIME PID NAME` every few milliseconds, in case it is killed
//!     --env                 print the variables named ZKLOCK_*
//!     --state               print what it inherited: `ignored …`, `blocked …`, `descriptors …`, `umask …`, `group …`
//!     --echo                copy stdin to stdout before anything else
//!     --setsid              start a session of its own
//!     --second-thread       do the rest in a second thread, and end the first
//!     --spawn               start itself once more, with the ARGUMENTs
//!     --spawn-daemon        the same, twice forked and in a session of its own
//!
//! A signal that is ignored when it starts stays ignored, and makes no line.
//!
//! When it panics, it writes that to the file that `ZKLOCK_TEST` names, so that the harness fails the test: the panic
//! may have no other consequence.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::panic;
use std::path::PathBuf;
use std::process::{self, Command, ExitCode};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{self, SigHandler, SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{getpgrp, setsid};

#[derive(Debug, Default)]
struct Options {
    name: Option<String>,
    exit: u8,
    die_of: Option<Signal>,
    waits: bool,
    until: Option<PathBuf>,
    until_stdin_closes: bool,
    exit_on: Vec<Signal>,
    ignore: Vec<Signal>,
    default: Vec<Signal>,
    log: Option<PathBuf>,
    beats: bool,
    shows_environment: bool,
    shows_state: bool,
    echoes: bool,
    starts_session: bool,
    leaves_first_thread: bool,
    spawns: Option<Offspring>,
    arguments: Vec<OsString>,
}

#[derive(Clone, Copy, Debug)]
enum Offspring {
    Child,
    Daemon,
}

fn main() -> ExitCode {
    tell_panics();
    let options = Options::parse(env::args_os().skip(1)).unwrap_or_else(|error| panic!("child: {error}"));
    let inherited = Inherited::read();
    if options.starts_session {
        setsid().expect("setsid, as a child that leads no group");
    }
    if options.leaves_first_thread {
        thread::spawn(move || process::exit(live(&options, &inherited).into()));
        end_thread();
    }
    ExitCode::from(live(&options, &inherited))
}

/// Ends this thread, and no other.
#[expect(unsafe_code, reason = "neither nix nor std has the system call")]
fn end_thread() -> ! {
    loop {
        // SAFETY: nothing on the stack of the first thread is used by another.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}

/// Does what it is told to. Returns the exit status.
fn live(options: &Options, inherited: &Inherited) -> u8 {
    let signals = catch_signals(options, inherited);
    let mut job = Job { log: options.log.as_ref().map(open_log), options };
    job.log("begin");
    if options.echoes {
        io::copy(&mut io::stdin(), &mut io::stdout()).expect("stdin can be copied");
    }
    if options.shows_state {
        inherited.lines().iter().for_each(|line| job.say(line));
    }
    if options.shows_environment {
        show_environment();
    }
    if let Some(offspring) = options.spawns {
        spawn(offspring, &options.arguments);
    }
    job.say("ready");
    job.run(&signals);
    job.log("end");
    if let Some(signal) = options.die_of {
        die_of(signal);
    }
    options.exit
}

fn tell_panics() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if let Some(path) = env::var_os("ZKLOCK_TEST") {
            // First: SIGKILL may come while a backtrace is being printed.
            let file = File::options().create(true).append(true).open(path);
            let _ = file.and_then(|mut file| file.write_all(format!("{info}\n").as_bytes()));
        }
        print(info);
    }));
}

impl Options {
    fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let mut options = Self::default();
        while let Some(arg) = args.next() {
            let arg = arg.into_string().map_err(|arg| format!("what is {}?", arg.display()))?;
            let mut value = || args.next().ok_or(format!("{arg} needs a value"));
            let mut text = || value()?.into_string().map_err(|_| format!("{arg} needs text"));
            match arg.as_str() {
                "--name" => options.name = Some(text()?),
                "--exit" => options.exit = text()?.parse().map_err(|_| "--exit needs 0 to 255")?,
                "--die-of" => options.die_of = Some(parse_signal(&text()?)?),
                "--exit-on" => options.exit_on = parse_signals(&text()?)?,
                "--ignore" => options.ignore = parse_signals(&text()?)?,
                "--default" => options.default = parse_signals(&text()?)?,
                "--wait" => options.waits = true,
                "--until" => options.until = Some(value()?.into()),
                "--until-stdin-closes" => options.until_stdin_closes = true,
                "--log" => options.log = Some(value()?.into()),
                "--beat" => options.beats = true,
                "--env" => options.shows_environment = true,
                "--state" => options.shows_state = true,
                "--echo" => options.echoes = true,
                "--setsid" => options.starts_session = true,
                "--second-thread" => options.leaves_first_thread = true,
                "--spawn" => options.spawns = Some(Offspring::Child),
                "--spawn-daemon" => options.spawns = Some(Offspring::Daemon),
                "--" => {
                    options.arguments = args.collect();
                    break;
                }
                _ => return Err(format!("what is {arg}?")),
            }
        }
        Ok(options)
    }
}

fn parse_signals(names: &str) -> Result<Vec<Signal>, String> {
    names.split(',').map(parse_signal).collect()
}

fn parse_signal(name: &str) -> Result<Signal, String> {
    format!("SIG{name}").parse().map_err(|_| format!("no signal {name}"))
}

/// What zklock must have left as it was.
struct Inherited {
    ignored: SignalNumbers,
    blocked: SignalNumbers,
    descriptors: Vec<String>,
    umask: String,
}

/// Signals by their numbers: real-time signals have no other name.
type SignalNumbers = BTreeSet<u32>;

impl Inherited {
    fn read() -> Self {
        // First of all: later there are descriptors of our own.
        let descriptors = descriptors();
        let status = fs::read_to_string("/proc/self/status").expect("/proc is mounted");
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
        Self {
            ignored: signal_set(field("SigIgn:")),
            blocked: signal_set(field("SigBlk:")),
            descriptors,
            umask: field("Umask:").to_owned(),
        }
    }

    fn lines(&self) -> Vec<String> {
        let names = |set: &SignalNumbers| set.iter().map(|&number| signal_name(number)).collect::<Vec<_>>().join(",");
        vec![
            format!("ignored {}", names(&self.ignored)),
            format!("blocked {}", names(&self.blocked)),
            format!("descriptors {}", self.descriptors.join(",")),
            format!("umask {}", self.umask),
            format!("group {}", getpgrp()),
        ]
    }
}

/// The open descriptors, without the one by which they are listed.
fn descriptors() -> Vec<String> {
    let listed: Vec<PathBuf> =
        fs::read_dir("/proc/self/fd").expect("/proc is mounted").flatten().map(|entry| entry.path()).collect();
    let mut numbers: Vec<u32> = listed
        .iter()
        .filter(|path| fs::read_link(path).is_ok())
        .filter_map(|path| path.file_name()?.to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers.iter().map(u32::to_string).collect()
}

/// The signals in a mask as proc_pid_status(5) writes it, without SIGPIPE, which Rust's runtime ignores before `main`.
fn signal_set(mask: &str) -> SignalNumbers {
    let mask = u64::from_str_radix(mask, 16).expect("a mask in hexadecimal");
    (1..=64).filter(|number| mask & (1 << (number - 1)) != 0 && *number != Signal::SIGPIPE as u32).collect()
}

fn signal_name(number: u32) -> String {
    let known = i32::try_from(number).ok().and_then(|number| Signal::try_from(number).ok());
    known.map_or_else(|| number.to_string(), |signal| signal.as_str().trim_start_matches("SIG").to_owned())
}

/// Blocks every signal that is to make a line, and gives the descriptor that tells of them.
#[expect(unsafe_code, reason = "setting a signal's disposition has no safe form")]
fn catch_signals(options: &Options, inherited: &Inherited) -> SignalFd {
    for &signal in &options.ignore {
        // SAFETY: SIG_IGN installs no handler, so there is no code that a signal could run.
        unsafe { signal::signal(signal, SigHandler::SigIgn) }.expect("a signal that can be ignored");
    }
    // A blocked signal is queued even when it is ignored, so what is ignored must not be blocked.
    let by_kernel = [Signal::SIGCHLD, Signal::SIGTTIN, Signal::SIGTTOU, Signal::SIGPIPE];
    let mut caught = SigSet::all();
    for signal in by_kernel.iter().chain(&options.ignore).chain(&options.default) {
        caught.remove(*signal);
    }
    for signal in inherited.ignored.iter().filter_map(|&number| Signal::try_from(i32::try_from(number).ok()?).ok()) {
        caught.remove(signal);
    }
    caught.thread_set_mask().expect("signals can be blocked");
    SignalFd::with_flags(&caught, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).expect("a signalfd")
}

fn open_log(path: &PathBuf) -> File {
    File::options().create(true).append(true).open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn show_environment() {
    let mut stdout = io::stdout().lock();
    for (name, value) in env::vars_os().filter(|(name, _)| name.as_bytes().starts_with(b"ZKLOCK_")) {
        let line = [name.as_bytes(), b"=", value.as_bytes(), b"\n"].concat();
        stdout.write_all(&line).expect("stdout can be written");
    }
}

#[expect(clippy::zombie_processes, reason = "a child that outlives this process is the point")]
fn spawn(offspring: Offspring, arguments: &[OsString]) {
    let mut command = Command::new(env::current_exe().expect("the path of this program"));
    match offspring {
        Offspring::Child => {
            command.args(arguments).spawn().expect("a child can be started");
        }
        Offspring::Daemon => {
            let between = command.args(["--name", "between", "--setsid", "--spawn", "--"]).args(arguments).status();
            between.expect("a child can be started");
        }
    }
}

struct Job<'a> {
    options: &'a Options,
    log: Option<File>,
}

impl Job<'_> {
    fn say(&self, words: &str) {
        let line = match &self.options.name {
            Some(name) => format!("{name} {words}\n"),
            None => format!("{words}\n"),
        };
        // In one write, so that lines of several processes do not mix. It does not matter if nobody reads them any
        // more.
        let _ = io::stdout().write_all(line.as_bytes());
    }

    fn log(&mut self, word: &str) {
        if let Some(log) = &mut self.log {
            let now = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).expect("the clock can be read"));
            let name = self.options.name.as_deref().unwrap_or("child");
            let line = format!("{word} {} {} {name}\n", now.as_nanos(), process::id());
            log.write_all(line.as_bytes()).expect("the log can be written");
        }
    }

    fn run(&mut self, signals: &SignalFd) {
        let options = self.options;
        let waits =
            options.waits || options.until.is_some() || options.until_stdin_closes || !options.exit_on.is_empty();
        if !waits {
            return;
        }
        loop {
            if options.until.as_ref().is_some_and(|file| file.exists()) {
                return;
            }
            let mut interests = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
            let stdin = io::stdin();
            if options.until_stdin_closes {
                interests.push(PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
            }
            let looks_again = options.beats || options.until.is_some();
            match poll(&mut interests, if looks_again { PollTimeout::from(3_u8) } else { PollTimeout::NONE }) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => panic!("poll: {error}"),
            }
            let stdin_is_ready = interests.get(1).is_some_and(|stdin| stdin.any() != Some(false));
            if options.beats {
                self.log("alive");
            }
            while let Some(info) = signals.read_signal().expect("signals can be read") {
                self.say(&format!("signal {}", signal_name(info.ssi_signo)));
                if options.exit_on.iter().any(|&signal| signal as u32 == info.ssi_signo) {
                    return;
                }
            }
            if stdin_is_ready && io::stdin().read(&mut [0; 4096]).expect("stdin can be read") == 0 {
                return;
            }
        }
    }
}

#[expect(unsafe_code, reason = "setting a signal's disposition has no safe form")]
fn die_of(signal: Signal) -> ! {
    // SAFETY: SIG_DFL installs no handler, so there is no code that a signal could run.
    let outcome = unsafe { signal::signal(signal, SigHandler::SigDfl) };
    // SIGKILL has only its default, and refuses to be given it.
    assert!(outcome.is_ok() || signal == Signal::SIGKILL, "{signal}: {outcome:?}");
    SigSet::from(signal).thread_unblock().expect("signals can be unblocked");
    signal::raise(signal).expect("a signal can be sent");
    // Only a signal whose default is to do nothing lets this process come here.
    loop {
        thread::park();
    }
}
