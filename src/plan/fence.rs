//! `zklock fence`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::config::Surroundings;
use super::origin::Given;
use super::refusal::quoted;
use super::written::Written;
use super::{CommandLine, ConnectString, LockPath, Plan, Published, Request, UsageError, Work};
use crate::cli::Subcommand;
use crate::cli::fence::Cli;
use crate::duration;
use crate::environment;
use crate::rules::fence;
use crate::rules::lease::Span;
use crate::rules::login::Login;
use crate::rules::mode::Mode;
use crate::rules::settings::{Patience, Settings};
use crate::rules::signal::Signal;

/// What stands in the place of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Where the highest token is kept. It has the name of a file at its end.
    pub file: PathBuf,
    pub token: u64,
    /// Time from the stop signal to SIGKILL.
    pub kill_after: Duration,
}

pub(super) fn read(cli: Cli, written: &Written<'_, impl Surroundings>) -> Result<Plan, UsageError> {
    let token = written.option("token", "--token", environment::TOKEN, cli.token);
    let token = token.ok_or_else(|| {
        UsageError(
            "no token: neither --token nor ZKLOCK_TOKEN gives one (ssh, sudo and docker drop variables); write \
             --token \"$ZKLOCK_TOKEN\""
                .to_owned(),
        )
    })?;
    let token = token.read(|text| fence::token(text).ok_or_else(|| "write a decimal number".to_owned()))?;
    let kill_after = Given::new("--kill-after", cli.kill_after).read(duration::parse)?;
    if !names_a_file(&cli.file) {
        return Err(UsageError(format!("FILE {} is no name of a file", quoted(&cli.file))));
    }
    let mut words = cli.command.into_iter();
    let program = words.next().ok_or_else(|| UsageError(format!("no command; write {}", Subcommand::Fence.usage())))?;
    let command = CommandLine { program, args: words.collect(), found: None };
    let file = PathBuf::from(cli.file);
    let messages = written.messages(cli.messages)?;
    // There are no servers: the keeper of a fence grants this timeout at once.
    let timeout = Span::WITHOUT_END;
    Ok(Plan {
        settings: Settings {
            patience: Patience::Forever,
            connect_timeout: timeout,
            session_timeout: timeout,
            kill_after: Some(kill_after),
            stop_signal: Signal::TERM,
            max_run: None,
            wait_descendants: true,
        },
        request: Request {
            lock: LockPath::of_file(&file),
            and: vec![],
            mode: Mode::Exclusive,
            dialects: vec![],
            dialects_given: false,
            once_per: None,
            held: vec![],
            offers: vec![],
        },
        work: Work::Fence(command, Fence { file, token, kill_after }),
        on_lost: None,
        conflict_exit_code: 0,
        published: Published::default(),
        verbosity: messages.verbosity,
        log_filter: messages.log_filter,
        servers: ConnectString { hosts: vec![], chroot: String::new() },
        servers_given: true,
        tls: None,
        login: Login::default(),
        files: vec![],
    })
}

/// Whether other files can lie beside it: `dir/`, `..` and an empty text name none.
fn names_a_file(text: &OsStr) -> bool {
    let ends_in_its_name = |name: &OsStr| text.as_encoded_bytes().ends_with(name.as_encoded_bytes());
    Path::new(text).file_name().is_some_and(ends_in_its_name)
}
