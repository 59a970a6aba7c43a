//! Flags, environment and configuration files become a [`Plan`], or that of a subcommand: validated, with every default
//! filled in.
//!
//! Owns the meaning of what users write, and every sentence that refuses it. It looks at the arguments only, and at
//! what its [`Surroundings`] show: no host name and no clock. [`this_process`] alone reads the environment and files.

mod access; // how to reach the servers
mod config; // configuration files
pub mod environment; // the variables of zklock
mod fence; // `zklock fence`
mod forms; // what a command line consists of, and its help
mod job; // the main job and `zklock hold`
mod login; // `--auth`, `--auth-file`, `--acl`
mod meaning; // what single values mean
mod operation; // all other subcommands
mod option; // what is known of an option
mod options; // all options, a row each
mod origin; // where a value comes from
mod plan; // what a run is to do
mod refusal; // what is wrong with the arguments
pub mod sentences; // what the user is told while a run goes on
mod subcommands; // the subcommands, and their help
mod taking; // how a lock is to be taken
pub mod this_process; // our own environment and files
mod tls; // `--tls` and what belongs to it
mod values; // option before variable before file before default

use std::ffi::OsString;

pub use access::{Access, Verbosity};
pub use config::{Surroundings, Unread, keys};
pub use forms::command;
pub use job::job;
pub use operation::{Break, Check, Complete, List, Operation, Status, Subject};
pub use origin::{Origin, SYSTEMS, Setting, unfit};
pub use plan::{CommandLine, FencePlan, Hold, LockRequest, Plan};
pub use refusal::Exit;
pub use subcommands::Subcommand;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Run a command under a lock or behind a fence, or hold a lock for another process.
    Run(Box<Plan>),
    /// Any other subcommand.
    Operation(Box<Operation>),
}

/// The task for these arguments, the program's own name first, and the variables and files that `surroundings` has. The
/// first argument decides whether it is a subcommand.
pub fn task(args: impl IntoIterator<Item = OsString>, surroundings: &dyn Surroundings) -> Result<Task, Exit> {
    let mut args: Vec<_> = args.into_iter().collect();
    if args.get(1).is_some_and(|first| first == "help") {
        args = asking_for_help(args)?;
    }
    match args.get(1).and_then(|first| first.to_str()).and_then(Subcommand::of_name) {
        Some(subcommand) => operation::read(subcommand, &args, surroundings),
        None => Ok(Task::Run(Box::new(job(args, surroundings)?))),
    }
}

/// `zklock help SUBCOMMAND` asks for what `zklock SUBCOMMAND --help` does.
fn asking_for_help(mut args: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let is_subcommand = |word: &OsString| word.to_str().and_then(Subcommand::of_name).is_some();
    if args.len() > 3 || !args[2..].iter().all(is_subcommand) {
        let names = Subcommand::ALL.map(Subcommand::name).join(", ");
        return Err(format!("help takes the name of one subcommand at most: {names}"));
    }
    args.remove(1);
    args.push("--help".into());
    Ok(args)
}

#[cfg(test)]
mod tests;
