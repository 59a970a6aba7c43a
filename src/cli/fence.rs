//! `zklock fence`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::access::{Access, Verbosity};
use super::options::{FENCE_KILL_AFTER, TOKEN};
use super::plan::{CommandLine, FencePlan, LockRequest, Plan};
use super::refusal::quoted;
use super::subcommands::Subcommand;
use super::values::Values;
use crate::rules::duration;
use crate::rules::lease::Span;
use crate::rules::lock_path::LockPath;
use crate::rules::mode::Mode;
use crate::rules::settings::{Patience, Settings};
use crate::rules::signal::Signal;
use crate::rules::text::decimal;
use crate::zookeeper::login::Login;
use crate::zookeeper::net::address::ConnectString;

pub(super) fn read(values: &Values<'_>) -> Result<Plan, String> {
    let token = values.get(&TOKEN, |text| decimal(text).ok_or_else(|| "write a decimal number".to_owned()))?;
    let token = token.ok_or_else(|| {
        "no token: neither --token nor ZKLOCK_TOKEN gives one (ssh, sudo and docker drop variables); write \
             --token \"$ZKLOCK_TOKEN\""
            .to_owned()
    })?;
    let (kill_after, _) = values.required(&FENCE_KILL_AFTER, duration::parse)?;
    let file = values.word("file");
    if !names_a_file(&file) {
        return Err(format!("FILE {} is no name of a file", quoted(&file)));
    }
    let file = PathBuf::from(file);
    let mut words = values.words("command");
    let program = words.next().ok_or_else(|| format!("no command; write {}", Subcommand::Fence.usage()))?;
    let command = CommandLine { program, args: words.collect(), found: None };
    // The keeper answers at once, and grants this.
    let timeout = Span::WITHOUT_END;
    Ok(Plan {
        access: Access {
            servers: ConnectString { hosts: vec![], chroot: String::new() },
            servers_given: true,
            connect_timeout: timeout,
            tls: None,
            login: Login::default(),
            origins: vec![],
        },
        verbosity: Verbosity::read(values),
        request: LockRequest {
            lock: LockPath::of_file(&file),
            and: vec![],
            mode: Mode::Exclusive,
            dialects: vec![],
            dialects_given: false,
            once_per: None,
            lock_delay: Duration::ZERO,
            held: vec![],
            offers: vec![],
        },
        settings: Settings {
            patience: Patience::Forever,
            connect_timeout: timeout,
            session_timeout: timeout,
            kill_after: Some(kill_after),
            stop_signal: Signal::TERM,
            max_run: None,
            wait_descendants: true,
        },
        conflict_exit_code: 0,
        command: Some(command),
        hold: None,
        fence: Some(FencePlan { file, token, kill_after }),
        description: None,
        publishes_arguments: false,
    })
}

/// Whether other files can lie beside it: `dir/`, `..` and an empty text name none.
fn names_a_file(text: &OsStr) -> bool {
    let ends_in_its_name = |name: &OsStr| text.as_encoded_bytes().ends_with(name.as_encoded_bytes());
    Path::new(text).file_name().is_some_and(ends_in_its_name)
}
