//! How connections are encrypted.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::refusal::quoted;
use super::written::{Given, Written};
use super::{ConnectString, UsageError};
use crate::cli::groups;
use crate::environment;

/// How connections are encrypted. The files are not looked at here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificates of the CAs that are trusted. `None`: those that the system trusts.
    pub ca: Option<PathBuf>,
    /// Our own certificate and its key, which may be in one file.
    pub own: Option<OwnCertificate>,
    /// Whether a certificate has to be for the server that it comes from.
    pub verify_hostname: bool,
}

/// What we show to a server that asks who we are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnCertificate {
    /// The file with the certificate, and with those of intermediate CAs.
    pub certificate: PathBuf,
    /// The file with the private key.
    pub key: PathBuf,
}

/// Reads the options of TLS. `None`: connections are not encrypted.
pub(super) fn read<E: Fn(&str) -> Option<OsString>>(
    written: &Written<'_, E>,
    tls: groups::Tls,
    servers: &ConnectString,
) -> Result<Option<Tls>, UsageError> {
    let is_asked = written.flag("tls", environment::TLS)?;
    let no_verify = written.flag("tls_no_verify_hostname", environment::TLS_NO_VERIFY_HOSTNAME)?;
    let options = [
        written.option("tls_ca", "--tls-ca", environment::TLS_CA, tls.tls_ca),
        written.option("tls_cert", "--tls-cert", environment::TLS_CERT, tls.tls_cert),
        written.option("tls_key", "--tls-key", environment::TLS_KEY, tls.tls_key),
    ];
    let is_wanted = match is_asked {
        Some(given) if given.is_on => true,
        // A variable that says no is overruled by an option, and by no other variable.
        Some(_) => options.iter().flatten().any(Given::is_option) || no_verify.is_some_and(|flag| flag.is_option),
        None => options.iter().any(Option::is_some) || no_verify.is_some_and(|flag| flag.is_on),
    };
    if !is_wanted {
        return Ok(None);
    }
    let [ca, certificate, key] = options.map(|given| given.map(|given| given.path()).transpose());
    let own = match (certificate?, key?) {
        (Some(certificate), key) => {
            Some(OwnCertificate { key: key.unwrap_or_else(|| certificate.clone()), certificate })
        }
        (None, None) => None,
        (None, Some(key)) => {
            return Err(UsageError(format!(
                "--tls-key {}: a key without a certificate; write --tls-cert as well",
                quoted(key.as_os_str())
            )));
        }
    };
    let tls = Tls { ca: ca?, own, verify_hostname: !no_verify.is_some_and(|flag| flag.is_on) };
    let odd = servers.hosts.iter().find(|server| server.name_in_certificate().is_none());
    match odd {
        Some(odd) => Err(UsageError(format!(
            "{}: no certificate can be for such a name; write another one, or leave out TLS",
            quoted(OsStr::new(&odd.host))
        ))),
        None => Ok(Some(tls)),
    }
}
