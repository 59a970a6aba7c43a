//! A command under a lock, and `zklock hold`.

use std::ffi::OsString;

use super::access::{Access, Verbosity};
use super::config::Surroundings;
use super::forms::JOB;
use super::meaning::{connect_timeout, description, exit_status, kill_after, once_per, session_timeout};
use super::options::{
    COMMAND, CONFLICT_EXIT_CODE, DESCRIBE, KILL_AFTER, MAX_RUN, NO_SIGNAL, ONCE_PER, PUBLISH_COMMAND, SESSION_TIMEOUT,
    SIGNAL, WAIT_DESCENDANTS, WHILE,
};
use super::plan::{CommandLine, Hold, LockRequest, Plan};
use super::refusal::{Exit, quoted, refused_job, refused_lock};
use super::taking::{also, dialects, lock_argument, lock_delay, mode, patience};
use super::values::Values;
use super::{environment, login};
use crate::rules::duration;
use crate::rules::lock_path::LockPath;
use crate::rules::mode::Mode;
use crate::rules::queue::Dialect;
use crate::rules::settings::Settings;
use crate::rules::text::decimal;

/// The plan of the main job for these arguments, the program's own name first, and the variables and files that
/// `surroundings` has. An option wins over its variable, and that over the files; an empty variable counts as unset.
pub fn job(args: impl IntoIterator<Item = OsString>, surroundings: &dyn Surroundings) -> Result<Plan, Exit> {
    let args: Vec<_> = args.into_iter().collect();
    let values = Values::read(&JOB, &args, surroundings).map_err(|error| refused_job(error, &args))?;
    Ok(read(&values.with_config()?, Some(&args))?)
}

/// `args`: those of the main job, or `None` for `zklock hold`. What only one of them has is not given in the other.
pub(super) fn read(values: &Values<'_>, args: Option<&[OsString]>) -> Result<Plan, String> {
    let mut access = Access::read(values, connect_timeout)?;
    login::protect(&mut access.login, &access.origins, values)?;
    let mode = mode(values)?;
    let dialects = dialects(values, mode)?;
    let patience = patience(values)?;
    let (conflict_exit_code, _) = values.required(&CONFLICT_EXIT_CODE, exit_status)?;
    let description = values.get(&DESCRIBE, description)?.flatten();
    let once_per = values.get(&ONCE_PER, once_per)?;
    if once_per.is_some() && mode != Mode::Exclusive {
        return Err("--once-per is for an exclusive lock alone: runs that hold together would all run".to_owned());
    }
    let lock_delay = lock_delay(values, mode, dialects.as_deref())?;
    let (session_timeout, _) = values.required(&SESSION_TIMEOUT, session_timeout)?;
    let kill_after = values.get(&KILL_AFTER, |text| kill_after(text, session_timeout))?;
    let (stop_signal, _) = values.required(&SIGNAL, str::parse)?;
    let settings = Settings {
        patience,
        connect_timeout: access.connect_timeout,
        session_timeout,
        kill_after,
        stop_signal,
        // 0 is no limit, as with timeout(1).
        max_run: values.get(&MAX_RUN, duration::parse)?.filter(|limit| !limit.is_zero()),
        wait_descendants: values.is_written(&WAIT_DESCENDANTS),
    };
    let hold = if args.is_none() { Some(hold(values)?) } else { None };
    // Only after the options: if the value of one was forgotten, it has taken the lock as its value, and that is
    // the mistake to name.
    let word = values.word("lock");
    let lock = lock_argument("LOCK", &word, &access.servers);
    let lock = lock.map_err(|why| args.map_or(why.clone(), |args| refused_lock(why, args, &word)))?;
    let command = if args.is_some() { Some(command_line(values, &lock)?) } else { None };
    let inherited = |name| values.variable(name).unwrap_or_default();
    let request = LockRequest {
        and: also(&lock, values, &access.servers)?,
        lock,
        mode,
        dialects_given: dialects.is_some(),
        dialects: dialects.unwrap_or_else(|| vec![Dialect::Curator]),
        once_per,
        lock_delay,
        held: environment::nodes_held(&inherited(environment::HELD)),
        offers: environment::offers(&inherited(environment::LENDER)),
    };
    Ok(Plan {
        access,
        verbosity: Verbosity::read(values),
        request,
        settings,
        conflict_exit_code,
        command,
        hold,
        fence: None,
        description,
        publishes_arguments: values.is_written(&PUBLISH_COMMAND),
    })
}

fn hold(values: &Values<'_>) -> Result<Hold, String> {
    let process_id = |text: &str| {
        let pid = decimal(text).filter(|pid: &i32| *pid > 0);
        pid.ok_or_else(|| "write the number of a process, such as $$".to_owned())
    };
    let lasts_while = values.get(&WHILE, process_id)?;
    if lasts_while.is_some_and(|pid| pid.cast_unsigned() == std::process::id()) {
        return Err("--while names zklock itself; name the process that the lock is for".to_owned());
    }
    Ok(Hold { lasts_while, signals_caller: !values.is_written(&NO_SIGNAL) })
}

fn command_line(values: &Values<'_>, lock: &LockPath) -> Result<CommandLine, String> {
    let (mut words, mut scripts) = (values.words("command"), values.words(COMMAND.id()));
    match (words.next(), scripts.next(), scripts.next()) {
        (Some(program), None, _) => Ok(CommandLine { program, args: words.collect(), found: None }),
        (None, Some(script), None) => Ok(shell_line(values, script)),
        (Some(other), Some(_), _) | (None, Some(_), Some(other)) => {
            let other = quoted(&other);
            Err(format!("-c and {other} exclude each other; write all that is to run in one argument of -c"))
        }
        (None, None, _) => {
            Err(format!("no command; write zklock {lock} COMMAND [ARG]... or zklock {lock} -c 'SHELL COMMAND'"))
        }
    }
}

/// What runs a script: the user's shell.
fn shell_line(values: &Values<'_>, script: OsString) -> CommandLine {
    let program = values.variable("SHELL").unwrap_or_else(|| "/bin/sh".into());
    CommandLine { program, args: vec!["-c".into(), script], found: None }
}
