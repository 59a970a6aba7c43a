//! The `zklock` command: parse, plan, supervise, exit.

#![no_main]

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::slice;

use log::LevelFilter;
use nix::unistd::{getresgid, getresuid};
use zklock::between::stand_in::stand_in;
use zklock::cli::this_process::ThisProcess;
use zklock::cli::{self, Exit, Plan, Task, Verbosity};
use zklock::guard::program;
use zklock::rules::event::Unstarted;
use zklock::rules::outcome::{End, Outcome};
use zklock::system::terminal::{ours, say};
use zklock::system::writer::{self, Writer};
use zklock::system::{fork, secrets, signals, standard};
use zklock::{look, supervisor};

/// In the place of what Rust's runtime does before and after `main`, which takes twenty system calls and a dozen page faults.
#[expect(unsafe_code, reason = "the C library calls it")]
// SAFETY: no other symbol of this program has this name.
#[unsafe(no_mangle)]
extern "C" fn main(count: c_int, words: *const *const c_char) -> c_int {
    standard::open_missing();
    signals::record_inherited();
    #[expect(unsafe_code, reason = "the C library keeps the arguments")]
    // SAFETY: that many texts are there, and nothing changes them.
    let args = unsafe {
        slice::from_raw_parts(words, usize::try_from(count).unwrap_or(0)).iter().map(|word| CStr::from_ptr(*word))
    };
    let args = args.map(|word| OsStr::from_bytes(word.to_bytes()).to_owned());
    let status = match work(args).end() {
        End::Exit(status) => status,
        End::DieOf(signal) => {
            signals::die_of(signal);
            // PID 1 of a container does not die of it: exit as a shell would.
            u8::try_from(128 + signal.number()).unwrap_or(u8::MAX)
        }
    };
    // All has been written by now. What exit(3) would still do costs some twenty page faults.
    fork::exit_now(status.into())
}

fn work(args: impl Iterator<Item = OsString>) -> Outcome {
    if is_set_id() {
        say(
            "zklock does not run with the rights of another user than its caller, who chooses its files and its command: \
             remove the set-user-ID or set-group-ID bit of it, or of what starts it (chmod ug-s)",
        );
        return Outcome::Internal;
    }
    let args: Vec<_> = args.collect();
    if let Some(outcome) = stand_in(&args) {
        return outcome;
    }
    match cli::task(args, &ThisProcess) {
        Ok(Task::Run(plan)) => run(*plan),
        Ok(Task::Operation(operation)) => {
            start_log(operation.verbosity);
            secrets::enter();
            look::run(&operation)
        }
        Err(Exit::Help(text)) => print(&text),
        Err(Exit::Usage(error)) => {
            say(error.as_str());
            Outcome::Usage
        }
    }
}

/// Whether this program runs with the rights of another user than the one who has started it. Not AT_SECURE of
/// getauxval(3): SELinux sets that for services as well.
fn is_set_id() -> bool {
    getresuid().is_ok_and(|user| user.real != user.effective)
        || getresgid().is_ok_and(|group| group.real != group.effective)
}

fn run(mut plan: Plan) -> Outcome {
    start_log(plan.verbosity);
    if let Some(line) = &mut plan.command {
        match program::locate(&line.program) {
            Ok(found) => line.found = Some(found),
            Err(error) => return not_located(&line.program.display().to_string(), &error),
        }
    }
    let mut writer = match Writer::open() {
        Ok(writer) => writer,
        Err(error) => return internal(&format!("cannot make a socket: {error}")),
    };
    let outcome = match supervisor::run(&plan, &mut writer) {
        Ok(Outcome::NotFree) => Outcome::Exited(plan.conflict_exit_code),
        Ok(outcome) => outcome,
        Err(error) => internal(&format!("{error:#}")),
    };
    let is_nested = !plan.request.held.is_empty();
    writer.finish(!is_nested);
    outcome
}

fn internal(error: &str) -> Outcome {
    say(&format!("internal error: {error}"));
    Outcome::Internal
}

fn not_located(program: &str, error: &io::Error) -> Outcome {
    if program::unstarted(error) != Unstarted::NotFound {
        say(&format!("{program}: cannot be executed: {error}"));
        return Outcome::CannotExecute;
    }
    let is_for_shell = |c: char| c.is_whitespace() || ";|&<>()$`*?=".contains(c);
    let hint = if program.contains(is_for_shell) { "; write -c before a line for the shell" } else { "" };
    say(&format!("{program}: command not found{hint}"));
    Outcome::NotFound
}

/// Writes to standard output, before there is anything to wait for.
fn print(text: &str) -> Outcome {
    // Standard output itself would pass over one that is closed.
    match io::stdout().as_fd().try_clone_to_owned().and_then(|copy| File::from(copy).write_all(text.as_bytes())) {
        // It is no error if the reader has seen enough (`zklock --help | head`).
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            say(&format!("cannot write to standard output: {error}"));
            Outcome::Internal
        }
        _ => Outcome::Exited(0),
    }
}

/// Log records go to standard error, as far as the flags ask for them.
fn start_log(verbosity: Verbosity) {
    log::set_max_level(match verbosity {
        Verbosity::Quiet => LevelFilter::Off,
        Verbosity::Normal => LevelFilter::Warn,
        Verbosity::Verbose(1) => LevelFilter::Info,
        Verbosity::Verbose(2) => LevelFilter::Debug,
        Verbosity::Verbose(_) => LevelFilter::Trace,
    });
    let _ = log::set_logger(&Log);
}

struct Log;

impl log::Log for Log {
    /// What libraries log is left out.
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("zklock")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            writer::say(ours(&record.args().to_string()).control("\n"));
        }
    }

    fn flush(&self) {}
}
