//! Who we are to the servers, and who may do what with the nodes that we create.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Who we are to the servers, and who may do what with the nodes that we create.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// What we log in with over each connection.
    pub credentials: Vec<Credential>,
    /// A file with credentials that has not been read yet.
    pub file: Option<PathBuf>,
    /// The credentials were on the command line.
    pub in_sight: bool,
    pub protection: Protection,
}

impl Login {
    pub fn is_given(&self) -> bool {
        !self.credentials.is_empty() || self.file.is_some()
    }

    /// What is shown to the servers as it is.
    pub fn shown(&self) -> impl Iterator<Item = &Credential> {
        self.credentials.iter().filter(|credential| !credential.is_for_sasl())
    }

    /// What SASL is to prove. A connection has one identity of SASL.
    pub fn sasl(&self) -> Option<Sasl<'_>> {
        #[cfg(feature = "gssapi")]
        if let Some(gssapi) = self.credentials.iter().find(|credential| credential.scheme == GSSAPI) {
            return Some(Sasl::Gssapi { service: std::str::from_utf8(&gssapi.secret).ok()? });
        }
        let credential = self.credentials.iter().find(|credential| credential.scheme == SASL)?;
        let (user, password) = std::str::from_utf8(&credential.secret).ok()?.split_once(':')?;
        Some(Sasl::DigestMd5 { user, password })
    }
}

/// The scheme of a user and a password that the servers take as they are.
pub const DIGEST: &str = "digest";

/// The scheme of a user and a password that are proved by SASL.
pub const SASL: &str = "sasl";

/// The scheme of a login by Kerberos, where the credential is the service and no secret.
pub const GSSAPI: &str = "gssapi";

/// How SASL proves who we are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sasl<'l> {
    DigestMd5 {
        user: &'l str,
        password: &'l str,
    },
    /// By a ticket of Kerberos.
    #[cfg(feature = "gssapi")]
    Gssapi {
        /// What the ticket is for: a service on the host, such as `zookeeper`, or a principal.
        service: &'l str,
    },
}

impl fmt::Debug for Sasl<'_> {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a login by SASL")
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

impl Credential {
    /// Whether it is not shown to the servers, but proved.
    pub fn is_for_sasl(&self) -> bool {
        self.scheme == SASL || self.scheme == GSSAPI
    }
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
