//! The `zklock` command: parse, plan, supervise, exit.

use std::io::{self, Write as _};
use std::process::ExitCode;

use zklock::plan::{self, Exit, FencePlan, Plan, Task, Tls, Verbosity};
use zklock::rules::event::Unstarted;
use zklock::rules::login::Login;
use zklock::rules::outcome::{End, Outcome};
use zklock::terminal::Screen;
use zklock::writer::{self, Writer};
use zklock::{command, operate, session, signals, supervisor};

fn main() -> ExitCode {
    let outcome = match plan::from_args(std::env::args_os()) {
        Ok(Task::Job(plan)) => run(*plan),
        Ok(Task::Fence(plan)) => fence(&plan),
        Ok(Task::Operation(mut operation)) => {
            start_log(operation.messages.verbosity, operation.messages.log_filter.as_deref());
            let access = &mut operation.access;
            match use_files(access.tls.as_ref(), &mut access.login, operation.messages.verbosity) {
                Ok(()) => operate::run(&operation),
                Err(outcome) => outcome,
            }
        }
        Err(Exit::Help(text)) => {
            // It is no error if the reader has seen enough (`zklock --help | head`).
            let _ = std::io::stdout().write_all(text.as_bytes());
            Outcome::Exited(0)
        }
        Err(Exit::Usage(error)) => {
            say(&error.to_string());
            Outcome::Usage
        }
    };
    match outcome.end() {
        End::Exit(status) => ExitCode::from(status),
        End::DieOf(signal) => {
            signals::die_of(signal);
            // PID 1 of a container does not die of it: exit as a shell would.
            ExitCode::from(u8::try_from(128 + signal.number()).unwrap_or(u8::MAX))
        }
    }
}

fn run(mut plan: Plan) -> Outcome {
    start_log(plan.verbosity, plan.log_filter.as_deref());
    if let Err(outcome) = use_files(plan.tls.as_ref(), &mut plan.login, plan.verbosity) {
        return outcome;
    }
    if let Some(line) = plan.command()
        && let Err(error) = command::locate(&line.program)
    {
        return not_located(&line.program.display().to_string(), &error);
    }
    let mut writer = match Writer::open() {
        Ok(writer) => writer,
        Err(error) => return internal(&format!("cannot create a pipe: {error}")),
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

/// Looks at the files of TLS, and reads that with credentials. If they are of no use, that is a mistake of the user, to be
/// told before anything is connected.
fn use_files(tls: Option<&Tls>, login: &mut Login, verbosity: Verbosity) -> Result<(), Outcome> {
    let of_tls = tls.map_or(Ok(None), session::tls::check);
    let warnings = of_tls.and_then(|of_tls| Ok([of_tls, session::login::load(login)?])).map_err(|why| {
        say(&why);
        Outcome::Usage
    })?;
    if verbosity != Verbosity::Quiet {
        warnings.iter().flatten().for_each(|warning| say(warning));
    }
    Ok(())
}

fn fence(plan: &FencePlan) -> Outcome {
    start_log(plan.messages.verbosity, plan.messages.log_filter.as_deref());
    if let Err(error) = command::locate(&plan.command.program) {
        return not_located(&plan.command.program.display().to_string(), &error);
    }
    let mut writer = match Writer::open() {
        Ok(writer) => writer,
        Err(error) => return internal(&format!("cannot create a pipe: {error}")),
    };
    let outcome = supervisor::run_fence(plan, &mut writer);
    writer.finish(true);
    outcome
}

fn internal(error: &str) -> Outcome {
    say(&format!("internal error: {error}"));
    Outcome::Internal
}

fn not_located(program: &str, error: &io::Error) -> Outcome {
    if command::unstarted(error) != Unstarted::NotFound {
        say(&format!("{program}: cannot be executed: {error}"));
        return Outcome::CannotExecute;
    }
    let is_for_shell = |c: char| c.is_whitespace() || ";|&<>()$`*?=".contains(c);
    let hint = if program.contains(is_for_shell) { "; write -c before a line for the shell" } else { "" };
    say(&format!("{program}: command not found{hint}"));
    Outcome::NotFound
}

/// Writes a line to standard error. Not with `eprintln`, which writes it piece by piece, so that the
/// lines of two runs mix, and which panics when standard error is closed.
fn say(text: &str) {
    Screen::default().line(text);
}

/// Diagnostics go to standard error, at the level that the flags ask for.
fn start_log(verbosity: Verbosity, filter: Option<&str>) {
    let filter = match (filter, verbosity) {
        (Some(filter), _) => filter,
        (None, Verbosity::Quiet) => "off",
        (None, Verbosity::Normal) => "zklock=warn",
        (None, Verbosity::Verbose(1)) => "zklock=info",
        (None, Verbosity::Verbose(2)) => "zklock=debug",
        (None, Verbosity::Verbose(_)) => "zklock=trace",
    };
    env_logger::Builder::new()
        .parse_filters(filter)
        .target(env_logger::Target::Pipe(Box::new(writer::Log)))
        .format(|line, record| writeln!(line, "zklock: {}", record.args()))
        .init();
}
