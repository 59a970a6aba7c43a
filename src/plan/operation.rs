//! Subcommands.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use clap::FromArgMatches as _;

use super::config::Surroundings;
use super::origin::Given;
use super::refusal::{quoted, refused_by_clap};
use super::written::{Access, Messages, Written};
use super::znode::{self, LockPath};
use super::{ConnectString, Exit, Task, UsageError, Verbosity, lock_path};
use super::{fence, hold, login};
use crate::cli::{self, Subcommand, break_lock, check, list, status};
use crate::duration;

/// What a subcommand is to do, and with which servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    pub access: Access,
    pub messages: Messages,
    pub subject: Subject,
}

/// A subcommand with what belongs to it alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    Status(Status),
    List(List),
    Complete(Complete),
    Break(Break),
    Check(Check),
}

/// `zklock status`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// At least one; none twice.
    pub locks: Vec<LockPath>,
    pub json: bool,
    /// Print again when something changes.
    pub watch: bool,
}

/// `zklock list`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// Where to begin: `/`, or the path of a node.
    pub root: String,
    pub json: bool,
}

/// `zklock list --complete`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complete {
    /// The node in whose children the path goes on: `/`, or the path of a node.
    pub directory: String,
    /// How the child's name begins.
    pub begun: String,
}

/// `zklock break`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Break {
    pub lock: LockPath,
    /// The name of a node of the contender that is to go; `None`: a person is asked.
    pub node: Option<String>,
    /// Delete its nodes.
    pub force: bool,
    /// How long to wait until it has gone.
    pub timeout: Duration,
}

/// `zklock check`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The lock that is to be possible.
    pub lock: Option<LockPath>,
    /// The session timeout that the main job would ask for.
    pub session_timeout: Duration,
    pub json: bool,
}

/// Reads the arguments of a subcommand, the program's own name and the subcommand's included.
pub(super) fn read(subcommand: Subcommand, args: &[OsString], surroundings: &impl Surroundings) -> Result<Task, Exit> {
    let refused = |error| refused_by_clap(error, Some(subcommand));
    let matches = subcommand.command().try_get_matches_from(&args[1..]).map_err(refused)?;
    let written = match subcommand {
        Subcommand::Fence => Written::without_config(&matches, surroundings),
        _ => Written::with_config(&matches, surroundings)?,
    };
    let operation = match subcommand {
        Subcommand::Hold => {
            let cli = cli::hold::Cli::from_arg_matches(&matches).map_err(refused)?;
            return Ok(Task::Job(Box::new(hold::read(cli, &written)?)));
        }
        Subcommand::Fence => {
            let cli = cli::fence::Cli::from_arg_matches(&matches).map_err(refused)?;
            return Ok(Task::Job(Box::new(fence::read(cli, &written)?)));
        }
        Subcommand::Status => {
            let cli = status::Cli::from_arg_matches(&matches).map_err(refused)?;
            let access = written.access(cli.connecting)?;
            let messages = written.messages(cli.messages)?;
            if cli.watch && messages.verbosity == Verbosity::Quiet {
                return Err(UsageError("--watch and --quiet exclude each other; write one of them".to_owned()).into());
            }
            let mut locks = vec![];
            for text in &cli.locks {
                let lock = lock_path("LOCK", text, &access.servers)?;
                if !locks.contains(&lock) {
                    locks.push(lock);
                }
            }
            let subject = Subject::Status(Status { locks, json: cli.json, watch: cli.watch });
            Operation { access, messages, subject }
        }
        Subcommand::List => {
            let cli = list::Cli::from_arg_matches(&matches).map_err(refused)?;
            let access = written.access(cli.connecting)?;
            let messages = written.messages(cli.messages)?;
            let subject = match cli.complete {
                Some(begun) => Subject::Complete(complete(&begun, &access.servers)?),
                None => {
                    let root = cli.root.to_str().ok_or_else(|| "is not UTF-8; write it in UTF-8".to_owned());
                    let root =
                        root.and_then(|text| znode::check_root(text, &access.servers.chroot).map(|()| text.to_owned()));
                    let root = root.map_err(|why| UsageError(format!("ROOT {} {why}", quoted(&cli.root))))?;
                    Subject::List(List { root, json: cli.json })
                }
            };
            Operation { access, messages, subject }
        }
        Subcommand::Break => {
            let cli = break_lock::Cli::from_arg_matches(&matches).map_err(refused)?;
            let access = written.access(cli.connecting)?;
            let messages = written.messages(cli.messages)?;
            let lock = lock_path("LOCK", &cli.lock, &access.servers)?;
            let node = cli.node.map(|node| node_name(&lock, &node)).transpose()?;
            let timeout = Given::new("--timeout", cli.timeout).read(duration::parse)?;
            let subject = Subject::Break(Break { lock, node, force: cli.force, timeout });
            Operation { access, messages, subject }
        }
        Subcommand::Check => {
            let cli = check::Cli::from_arg_matches(&matches).map_err(refused)?;
            let mut access = written.access(cli.connecting)?;
            let messages = written.messages(cli.messages)?;
            let (session_timeout, setting) = written.session_timeout(cli.asked)?;
            access.settings.push(setting);
            // It has no such option, but shows what a job would do.
            let acl = login::protect(&mut access.login, &access.settings, &written, None)?;
            access.settings.extend(acl);
            let lock = cli.lock.map(|text| lock_path("LOCK", &text, &access.servers)).transpose()?;
            let subject = Subject::Check(Check { lock, session_timeout, json: cli.json });
            Operation { access, messages, subject }
        }
    };
    Ok(Task::Operation(Box::new(operation)))
}

/// Cuts what is typed of a path at its last slash.
fn complete(text: &OsStr, servers: &ConnectString) -> Result<Complete, UsageError> {
    let typed = text.to_string_lossy();
    // Any character would do: what is typed is to be the beginning of a path.
    znode::check_root(&format!("{typed}x"), &servers.chroot)
        .map_err(|why| UsageError(format!("--complete {} {why}", quoted(text))))?;
    let (directory, begun) = typed.rsplit_once('/').unwrap_or_default();
    let directory = if directory.is_empty() { "/" } else { directory };
    Ok(Complete { directory: directory.to_owned(), begun: begun.to_owned() })
}

/// The name of a contender's node, which may be written as a path.
fn node_name(lock: &LockPath, text: &OsString) -> Result<String, UsageError> {
    let name = text.to_str().map(|text| text.strip_prefix(&lock.child("")).unwrap_or(text));
    let name = name.filter(|name| !name.is_empty() && !name.contains('/'));
    name.map(str::to_owned).ok_or_else(|| {
        UsageError(format!("--node {}: not a node of {lock}; write what zklock status --json shows", quoted(text)))
    })
}
