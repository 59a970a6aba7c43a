//! `zklock fence`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::config::Surroundings;
use super::origin::Given;
use super::refusal::quoted;
use super::written::{Messages, Written};
use super::{CommandLine, UsageError};
use crate::cli::Subcommand;
use crate::cli::fence::Cli;
use crate::duration;
use crate::environment;
use crate::rules::fence;

/// What a fence is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencePlan {
    /// Where the highest token is kept. It has the name of a file at its end.
    pub file: PathBuf,
    /// Our token.
    pub token: u64,
    /// Time from the stop signal to SIGKILL.
    pub kill_after: Duration,
    /// What to run.
    pub command: CommandLine,
    /// How much to say.
    pub messages: Messages,
}

pub(super) fn read(cli: Cli, written: &Written<'_, impl Surroundings>) -> Result<FencePlan, UsageError> {
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
    Ok(FencePlan {
        file: cli.file.into(),
        token,
        kill_after,
        command: CommandLine { program, args: words.collect() },
        messages: written.messages(cli.messages)?,
    })
}

/// Whether other files can lie beside it: `dir/`, `..` and an empty text name none.
fn names_a_file(text: &OsStr) -> bool {
    let ends_in_its_name = |name: &OsStr| text.as_encoded_bytes().ends_with(name.as_encoded_bytes());
    Path::new(text).file_name().is_some_and(ends_in_its_name)
}
