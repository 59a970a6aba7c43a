//! Servers that know users by SASL.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::release::Release;
use super::server::Settings;

/// The users that servers know, in a file that each server reads when it starts.
#[derive(Debug)]
pub(crate) struct Users(TempDir);

impl Users {
    pub(crate) fn new(users: &[(&str, &str)]) -> Self {
        let this = Self(tempfile::tempdir().expect("a temporary directory"));
        this.write(users);
        this
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("jaas.conf")
    }

    /// From the next start of a server on, these are the users.
    pub(crate) fn write(&self, users: &[(&str, &str)]) {
        let users: String = users.iter().map(|(user, password)| format!("  user_{user}=\"{password}\"\n")).collect();
        let module = class("DigestLoginModule");
        fs::write(self.path(), format!("Server {{\n  {module} required\n{users};\n}};\n"))
            .expect("a file can be written");
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings::default()
            .property(format_args!("java.security.auth.login.config={}", self.path().display()))
            .line(format!("authProvider.sasl={}", class("SASLAuthenticationProvider")))
            // From 3.9.6 on, servers know no DIGEST-MD5 otherwise.
            .property("zookeeper.fips-mode=false")
    }
}

/// A class of the servers, with its package.
pub(crate) fn class(name: &str) -> String {
    let package = Release::used().main.strip_suffix("quorum.QuorumPeerMain").expect("the class of all servers");
    format!("{package}auth.{name}")
}
