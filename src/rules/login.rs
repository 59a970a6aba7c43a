//! Who we are to the servers, and who may do what with the nodes that we create.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Who we are to the servers, and who may do what with the nodes that we create.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// What is shown to the servers over each connection.
    pub credentials: Vec<Credential>,
    /// A file with credentials that has not been read yet.
    pub file: Option<PathBuf>,
    /// The credentials were on the command line.
    pub in_sight: bool,
    /// Who may do what with the nodes that we create.
    pub protection: Protection,
}

impl Login {
    /// Whether there is one at all.
    pub fn is_given(&self) -> bool {
        !self.credentials.is_empty() || self.file.is_some()
    }
}

/// Who may do what with the nodes that we create.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// Anyone may do everything.
    #[default]
    Open,
    /// We may do everything.
    Creator,
    /// The same, and others may read; below parents that we create, they may also create nodes.
    Read,
}

/// Something that shows the servers who we are.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// Of what kind it is, such as `digest`.
    pub scheme: String,
    /// Such as `user:password`.
    pub secret: Vec<u8>,
}

impl fmt::Debug for Credential {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a credential")
    }
}

/// What a lock needs of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Right {
    /// To list its children.
    Read,
    /// To create a child.
    Create,
}

impl Right {
    /// What it is for, before the name of the node.
    pub const fn phrase(self) -> &'static str {
        match self {
            Self::Read => "list the children of",
            Self::Create => "create children of",
        }
    }

    /// As ACLs are written.
    pub const fn letter(self) -> char {
        match self {
            Self::Read => 'r',
            Self::Create => 'c',
        }
    }
}
