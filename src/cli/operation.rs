//! Subcommands.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use super::access::{Access, Verbosity};
use super::config::Surroundings;
use super::meaning::{connect_timeout, session_timeout};
use super::options::{
    BREAK_TIMEOUT, CHECK_JSON, COMPLETE, FORCE, LIST_JSON, NODE, SESSION_TIMEOUT, STATUS_JSON, WATCH,
};
use super::refusal::{Exit, quoted, refused_by_clap};
use super::subcommands::Subcommand;
use super::taking::{argument, lock_argument};
use super::values::Values;
use super::{Task, fence, job, login};
use crate::rules::duration;
use crate::rules::lock_path::{self, LockPath};
use crate::zookeeper::net::address::ConnectString;

/// What a subcommand is to do, and with which servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    pub access: Access,
    pub verbosity: Verbosity,
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// At least one; none twice.
    pub locks: Vec<LockPath>,
    pub json: bool,
    pub watch: bool,
}

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Break {
    pub lock: LockPath,
    /// The name of a node of the contender that is to go; `None`: a person is asked.
    pub node: Option<String>,
    pub force: bool,
    /// How long to wait until it has gone.
    pub timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The lock that is to be possible.
    pub lock: Option<LockPath>,
    /// The session timeout that the main job would ask for.
    pub session_timeout: Duration,
    pub json: bool,
}

/// Reads the arguments of a subcommand, the program's own name and the subcommand's included.
pub(super) fn read(subcommand: Subcommand, args: &[OsString], surroundings: &dyn Surroundings) -> Result<Task, Exit> {
    let values = Values::read(subcommand.form(), &args[1..], surroundings);
    let values = values.map_err(|error| refused_by_clap(error, Some(subcommand)))?;
    if subcommand == Subcommand::Fence {
        return Ok(Task::Run(Box::new(fence::read(&values)?)));
    }
    let values = values.with_config()?;
    if subcommand == Subcommand::Hold {
        return Ok(Task::Run(Box::new(job::read(&values, None)?)));
    }
    let is_check = subcommand == Subcommand::Check;
    let mut access = Access::read(&values, if is_check { duration::parse } else { connect_timeout })?;
    let verbosity = Verbosity::read(&values);
    let servers = &access.servers;
    let subject = match subcommand {
        Subcommand::Status => {
            let watch = values.is_written(&WATCH);
            if watch && verbosity == Verbosity::Quiet {
                return Err("--watch and --quiet exclude each other; write one of them".to_owned().into());
            }
            let mut locks = vec![];
            for text in values.words("locks") {
                let lock = lock_argument("LOCK", &text, servers)?;
                if !locks.contains(&lock) {
                    locks.push(lock);
                }
            }
            Subject::Status(Status { locks, json: values.is_written(&STATUS_JSON), watch })
        }
        Subcommand::List => match values.given(&COMPLETE) {
            Some(begun) => Subject::Complete(complete(&begun.text, servers)?),
            None => {
                let check = |root: &str| lock_path::check_root(root, &servers.chroot).map(|()| root.to_owned());
                let root = argument("ROOT", &values.word("root"), check)?;
                Subject::List(List { root, json: values.is_written(&LIST_JSON) })
            }
        },
        Subcommand::Break => {
            let lock = lock_argument("LOCK", &values.word("lock"), servers)?;
            let node = values.given(&NODE).map(|node| node_name(&lock, &node.text)).transpose()?;
            let (timeout, _) = values.required(&BREAK_TIMEOUT, duration::parse)?;
            Subject::Break(Break { lock, node, force: values.is_written(&FORCE), timeout })
        }
        Subcommand::Check => {
            let lock = values.words("lock").next().map(|text| lock_argument("LOCK", &text, servers)).transpose()?;
            let (session_timeout, given) = values.required(&SESSION_TIMEOUT, session_timeout)?;
            access.origins.push(given.setting(duration::show(session_timeout)));
            // It has no such option, but shows what a job would do.
            let acl = login::protect(&mut access.login, &access.origins, &values)?;
            access.origins.extend(acl);
            Subject::Check(Check { lock, session_timeout, json: values.is_written(&CHECK_JSON) })
        }
        Subcommand::Hold | Subcommand::Fence => unreachable!("both have been read"),
    };
    Ok(Task::Operation(Box::new(Operation { access, verbosity, subject })))
}

/// Cuts what is typed of a path at its last slash.
fn complete(text: &OsStr, servers: &ConnectString) -> Result<Complete, String> {
    let typed = text.to_string_lossy();
    // Any character would do: what is typed is to be the beginning of a path.
    lock_path::check_root(&format!("{typed}x"), &servers.chroot)
        .map_err(|why| format!("--complete {} {why}", quoted(text)))?;
    let (directory, begun) = typed.rsplit_once('/').unwrap_or_default();
    let directory = if directory.is_empty() { "/" } else { directory };
    Ok(Complete { directory: directory.to_owned(), begun: begun.to_owned() })
}

/// The name of a contender's node, which may be written as a path.
fn node_name(lock: &LockPath, text: &OsStr) -> Result<String, String> {
    let name = text.to_str().map(|text| text.strip_prefix(&lock.child("")).unwrap_or(text));
    let name = name.filter(|name| !name.is_empty() && !name.contains('/'));
    name.map(str::to_owned)
        .ok_or_else(|| format!("--node {}: not a node of {lock}; write what zklock status --json shows", quoted(text)))
}
