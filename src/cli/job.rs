//! The main job: a command under a lock.

use std::ffi::OsString;
use std::time::Duration;

use super::access::{Access, Messages};
use super::config::Surroundings;
use super::forms::{JOB, Subcommand};
use super::login;
use super::meaning::{kill_after, once_per, session_timeout};
use super::options::{
    COMMAND, KILL_AFTER, MAX_RUN, ON_LOST, ONCE_PER, PUBLISH_COMMAND, SESSION_TIMEOUT, SIGNAL, WAIT_DESCENDANTS,
};
use super::origin::of_files;
use super::plan::{CommandLine, LockRequest, Plan, Published, Work};
use super::refusal::{Exit, UsageError, comes_first, quoted, refused_job, with_hint};
use super::taking::{Taking, lock_argument};
use super::values::Values;
use crate::rules::duration;
use crate::rules::lock_path::LockPath;
use crate::rules::mode::Mode;
use crate::rules::settings::Settings;
use crate::rules::signal::{Signal, UnknownSignal};

/// The plan of the main job for these arguments, the program's own name first, and the variables and files that
/// `surroundings` has. An option wins over its variable, and that over the files; an empty variable counts as unset.
pub fn job(args: impl IntoIterator<Item = OsString>, surroundings: &impl Surroundings) -> Result<Plan, Exit> {
    let args: Vec<_> = args.into_iter().collect();
    let values = Values::read(&JOB, &args, surroundings).map_err(|error| refused_job(error, &args))?;
    let values = values.with_config()?;
    let Access { servers, servers_given, connect_timeout, tls, mut login, settings: origins } = Access::read(&values)?;
    login::protect(&mut login, &origins, &values)?;
    let taking = Taking::read(&values)?;
    let once_per = values.get(&ONCE_PER, once_per)?;
    if once_per.is_some() && taking.mode != Mode::Exclusive {
        return Err(UsageError(
            "--once-per is for an exclusive lock alone: runs that hold together would all run".to_owned(),
        )
        .into());
    }
    let (session_timeout, _) = values.required(&SESSION_TIMEOUT, session_timeout)?;
    let (stop_signal, kill_after) = stopping(&values, session_timeout)?;
    let settings = Settings {
        patience: taking.patience,
        connect_timeout,
        session_timeout,
        kill_after,
        stop_signal,
        // 0 is no limit, as with timeout(1).
        max_run: values.get(&MAX_RUN, duration::parse)?.filter(|limit| !limit.is_zero()),
        wait_descendants: values.is_on(&WAIT_DESCENDANTS),
    };
    // Only after the options: if the value of one was forgotten, it has taken the lock as its value, and that is
    // the mistake to name.
    let lock = values.word("lock");
    if let Some(subcommand) = lock.to_str().and_then(Subcommand::of_name) {
        return Err(comes_first(subcommand).into());
    }
    let lock = lock_argument("LOCK", &lock, &servers).map_err(|error| with_hint(error, &args, &lock))?;
    let messages = Messages::read(&values)?;
    let shell = || surroundings.variable("SHELL");
    Ok(Plan {
        settings,
        conflict_exit_code: taking.conflict_exit_code,
        work: Work::Command(command_line(&lock, values.words("command"), values.words(COMMAND.id()), shell())?),
        on_lost: values.given(&ON_LOST).map(|script| shell_line(shell(), script.text)),
        published: Published { description: taking.description.clone(), arguments: values.is_on(&PUBLISH_COMMAND) },
        verbosity: messages.verbosity,
        log_filter: messages.log_filter,
        request: LockRequest { once_per, ..taking.request(lock, &servers, surroundings)? },
        servers,
        servers_given,
        tls,
        login,
        files: of_files(origins),
    })
}

pub(super) fn stopping(
    values: &Values<'_, impl Surroundings>,
    session_timeout: Duration,
) -> Result<(Signal, Option<Duration>), UsageError> {
    let kill_after = values.get(&KILL_AFTER, |text| kill_after(text, session_timeout))?;
    let signal = values.required(&SIGNAL, |text| text.parse().map_err(|unknown: UnknownSignal| unknown.to_string()))?;
    Ok((signal.0, kill_after))
}

fn command_line(
    lock: &LockPath,
    mut words: impl Iterator<Item = OsString>,
    mut scripts: impl Iterator<Item = OsString>,
    shell: Option<OsString>,
) -> Result<CommandLine, UsageError> {
    let (program, script) = (words.next(), scripts.next());
    if let (Some(script), Some(next)) = (&script, scripts.next()) {
        return Err(UsageError(format!(
            "-c {} and -c {} exclude each other; write all that is to run in one argument",
            quoted(script),
            quoted(&next)
        )));
    }
    match (program, script) {
        (Some(program), None) => Ok(CommandLine { program, args: words.collect(), found: None }),
        (None, Some(script)) => Ok(shell_line(shell, script)),
        (Some(program), Some(_)) => Err(UsageError(format!(
            "-c and the command {} exclude each other; write one of them, and all that belongs to -c in one argument",
            quoted(&program)
        ))),
        (None, None) => Err(UsageError(format!(
            "no command; write zklock {lock} COMMAND [ARG]... or zklock {lock} -c 'SHELL COMMAND'"
        ))),
    }
}

/// What runs a script: the user's shell.
fn shell_line(shell: Option<OsString>, script: OsString) -> CommandLine {
    let program = shell.filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into());
    CommandLine { program, args: vec!["-c".into(), script], found: None }
}
