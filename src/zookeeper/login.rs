//! Logins as users write them: credentials, mechanisms of SASL, and the ACL of our nodes.

use std::fmt;
use std::path::PathBuf;

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
    Gssapi {
        /// What the ticket is for: a service on the host, such as `zookeeper`, or a principal.
        service: &'l str,
    },
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

/// Reads `SCHEME:CREDENTIAL`. The error says what to write, and nothing of what was written.
pub fn credential(text: &[u8]) -> Result<Credential, String> {
    const HOW: &str = "write digest:USER:PASSWORD or sasl:USER:PASSWORD";
    let mut halves = text.splitn(2, |byte| *byte == b':');
    let scheme = halves.next().and_then(|scheme| std::str::from_utf8(scheme).ok()).unwrap_or_default();
    let is_name = !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let Some(secret) = halves.next().filter(|_| is_name) else { return Err(HOW.to_owned()) };
    if scheme == GSSAPI && secret.is_empty() {
        return Err("the service is missing; write gssapi:zookeeper".to_owned());
    }
    // A server takes `bob` alone for another user.
    let colon = secret.iter().position(|byte| *byte == b':');
    let is_whole = colon.is_some_and(|colon| colon > 0 && colon + 1 < secret.len());
    if matches!(scheme, DIGEST | SASL) && !is_whole {
        return Err(format!("a user or a password is missing; write {scheme}:USER:PASSWORD"));
    }
    if secret.iter().any(u8::is_ascii_control) {
        return Err(format!("it contains a control character; {HOW}"));
    }
    if matches!(scheme, SASL | GSSAPI) && std::str::from_utf8(secret).is_err() {
        return Err(format!("it is not UTF-8; {HOW}"));
    }
    Ok(Credential { scheme: scheme.to_owned(), secret: secret.to_vec() })
}
