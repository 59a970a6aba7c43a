//! The flags and their help text, nothing else.
//!
//! Every document is made from these definitions: `--help`, the man page, the completions. Values
//! are kept as they were written; [`crate::plan`] interprets them, and refuses those that mean nothing.
//!
//! A subcommand is the first argument or it is none: a lock begins with a slash, and so is never taken for one, while
//! everything behind a lock belongs to the command that is run.

pub mod break_lock;
pub mod check;
pub mod fence;
pub mod groups;
pub mod hold;
pub mod job;
pub mod list;
pub mod status;

pub use job::command;

/// `--zookeeper` when neither the option nor the variable is given.
pub const DEFAULT_ZOOKEEPER: &str = "localhost:2181";
/// `--session-timeout` when neither the option nor the variable is given.
pub const DEFAULT_SESSION_TIMEOUT: &str = "30s";
/// `--connect-timeout` when it is not given.
pub const DEFAULT_CONNECT_TIMEOUT: &str = "15s";

/// A subcommand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subcommand {
    /// `zklock hold`
    Hold,
    /// `zklock status`
    Status,
    /// `zklock list`
    List,
    /// `zklock break`
    Break,
    /// `zklock check`
    Check,
    /// `zklock fence`
    Fence,
}

impl Subcommand {
    /// All of them, in the order of the documents.
    pub const ALL: [Self; 6] = [Self::Hold, Self::Status, Self::List, Self::Break, Self::Check, Self::Fence];

    /// The one of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|subcommand| subcommand.name() == name)
    }

    /// The first argument.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Status => "status",
            Self::List => "list",
            Self::Break => "break",
            Self::Check => "check",
            Self::Fence => "fence",
        }
    }

    /// The whole command line in short.
    pub const fn usage(self) -> &'static str {
        match self {
            Self::Hold => hold::USAGE,
            Self::Status => status::USAGE,
            Self::List => list::USAGE,
            Self::Break => break_lock::USAGE,
            Self::Check => check::USAGE,
            Self::Fence => fence::USAGE,
        }
    }

    /// Its definition.
    pub fn command(self) -> clap::Command {
        match self {
            Self::Hold => hold::command(),
            Self::Status => status::command(),
            Self::List => list::command(),
            Self::Break => break_lock::command(),
            Self::Check => check::command(),
            Self::Fence => fence::command(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_consistent() {
        for subcommand in Subcommand::ALL {
            let command = subcommand.command();
            assert_eq!(command.get_name(), format!("zklock {}", subcommand.name()));
            command.debug_assert();
        }
    }

    #[test]
    fn the_help_of_the_main_job_names_every_subcommand() {
        let help = command().render_help().to_string();
        for subcommand in Subcommand::ALL {
            assert!(help.contains(subcommand.usage()), "{subcommand:?}\n{help}");
        }
    }
}
