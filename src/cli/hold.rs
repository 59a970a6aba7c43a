//! `zklock hold`.

use super::access::{Access, Messages};
use super::config::Surroundings;
use super::job::stopping;
use super::login;
use super::meaning::session_timeout;
use super::options::{NO_SIGNAL, SESSION_TIMEOUT, WHILE};
use super::origin::of_files;
use super::plan::{Hold, Plan, Published, Work};
use super::refusal::UsageError;
use super::taking::{Taking, lock_argument};
use super::values::Values;
use crate::rules::settings::Settings;

pub(super) fn read(values: &Values<'_, impl Surroundings>) -> Result<Plan, UsageError> {
    let Access { servers, servers_given, connect_timeout, tls, mut login, settings: origins } = Access::read(values)?;
    login::protect(&mut login, &origins, values)?;
    let taking = Taking::read(values)?;
    let (session_timeout, _) = values.required(&SESSION_TIMEOUT, session_timeout)?;
    let (stop_signal, kill_after) = stopping(values, session_timeout)?;
    let lasts_while = values.get(&WHILE, process_id)?;
    if lasts_while.is_some_and(|pid| pid.cast_unsigned() == std::process::id()) {
        let why = "--while names zklock itself; name the process that the lock is for".to_owned();
        return Err(UsageError(why));
    }
    let lock = lock_argument("LOCK", &values.word("lock"), &servers)?;
    let messages = Messages::read(values)?;
    Ok(Plan {
        settings: Settings {
            patience: taking.patience,
            connect_timeout,
            session_timeout,
            kill_after,
            stop_signal,
            max_run: None,
            wait_descendants: false,
        },
        conflict_exit_code: taking.conflict_exit_code,
        work: Work::Hold(Hold { lasts_while, signals_caller: !values.is_on(&NO_SIGNAL) }),
        on_lost: None,
        published: Published { description: taking.description.clone(), arguments: false },
        verbosity: messages.verbosity,
        log_filter: messages.log_filter,
        request: taking.request(lock, &servers, values.surroundings)?,
        servers,
        servers_given,
        tls,
        login,
        files: of_files(origins),
    })
}

fn process_id(text: &str) -> Result<i32, String> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let pid = if digits { text.parse().ok() } else { None };
    pid.filter(|pid| *pid > 0).ok_or_else(|| "write the number of a process, such as $$".to_owned())
}
