//! How connections are encrypted.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::config::Surroundings;
use super::origin::{Given, Origin, Setting};
use super::refusal::quoted;
use super::written::Written;
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
    /// The file with the private key, if it is another one.
    pub key: Option<PathBuf>,
}

impl OwnCertificate {
    /// The file with the private key.
    pub fn key(&self) -> &Path {
        self.key.as_ref().unwrap_or(&self.certificate)
    }
}

/// Reads the settings of TLS. `None`: connections are not encrypted.
pub(super) fn read(
    written: &Written<'_, impl Surroundings>,
    tls: groups::Tls,
    servers: &ConnectString,
    settings: &mut Vec<Setting>,
) -> Result<Option<Tls>, UsageError> {
    let is_asked = written.flag("tls", "--tls", environment::TLS)?;
    let no_verify =
        written.flag("tls_no_verify_hostname", "--tls-no-verify-hostname", environment::TLS_NO_VERIFY_HOSTNAME)?;
    let ca = written.option("tls_ca", "--tls-ca", environment::TLS_CA, tls.tls_ca);
    let certificate = written.option("tls_cert", "--tls-cert", environment::TLS_CERT, tls.tls_cert);
    let key = written.option("tls_key", "--tls-key", environment::TLS_KEY, tls.tls_key);
    // Each of them implies TLS.
    let implying = [&ca, &certificate, &key].into_iter().flatten().map(|given| &given.origin);
    let implying = implying.chain(no_verify.iter().filter(|flag| flag.is_on).map(|flag| &flag.origin));
    let implying = implying.max_by_key(|origin| origin.strength());
    let (is_wanted, origin) = match (&is_asked, implying) {
        (None, None) => (false, &Origin::Default),
        (None, Some(origin)) => (true, origin),
        // A no is overruled by something stronger only: that of a variable by an option, and by no other variable.
        (Some(asked), Some(origin)) if !asked.is_on && origin.strength() > asked.origin.strength() => (true, origin),
        (Some(asked), _) => (asked.is_on, &asked.origin),
    };
    settings.push(Setting { name: "tls", value: Some(is_wanted.to_string()), origin: origin.clone() });
    if !is_wanted {
        return Ok(None);
    }
    // The key of a file belongs to the certificate there. Another one, of the run or of a stronger file, brings its
    // own.
    let key = key.filter(|key| {
        !key.origin.is_file()
            || certificate.as_ref().is_none_or(|certificate| certificate.origin.strength() <= key.origin.strength())
    });
    let mut path = |name: &'static str, given: Option<&Given>| {
        let Some(given) = given else { return Ok(None) };
        let path = given.path()?;
        settings.push(given.setting(name, path.to_string_lossy().into_owned()));
        Ok(Some(path))
    };
    let ca = path("tls-ca", ca.as_ref())?;
    let own = match (path("tls-cert", certificate.as_ref())?, path("tls-key", key.as_ref())?) {
        (Some(certificate), key) => Some(OwnCertificate { certificate, key }),
        (None, None) => None,
        (None, Some(path)) => {
            let key = key.as_ref().filter(|key| key.origin.is_file());
            let name = key.map_or_else(|| "--tls-key".to_owned(), Given::name);
            let certificate = key.map_or("--tls-cert", |key| key.spelling("--tls-cert"));
            return Err(UsageError(format!(
                "{name} {}: a key without a certificate; write {certificate} as well",
                quoted(path.as_os_str())
            )));
        }
    };
    if let Some(flag) = &no_verify {
        let value = Some(flag.is_on.to_string());
        settings.push(Setting { name: "tls-no-verify-hostname", value, origin: flag.origin.clone() });
    }
    let tls = Tls { ca, own, verify_hostname: !no_verify.is_some_and(|flag| flag.is_on) };
    let odd = servers.hosts.iter().find(|server| server.name_in_certificate().is_none());
    match odd {
        Some(odd) => Err(UsageError(format!(
            "{}: no certificate can be for such a name; write another one, or leave out TLS",
            quoted(OsStr::new(&odd.host))
        ))),
        None => Ok(Some(tls)),
    }
}
