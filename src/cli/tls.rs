//! How connections are encrypted.

use std::ffi::OsStr;

use super::options::{TLS, TLS_CA, TLS_CERT, TLS_KEY, TLS_NO_VERIFY_HOSTNAME};
use super::origin::{Given, Origin, Setting};
use super::refusal::quoted;
use super::values::Values;
use crate::zookeeper::net::address::ConnectString;
use crate::zookeeper::net::tls::{OwnCertificate, Tls};

/// Reads the origins of TLS. `None`: connections are not encrypted.
pub(super) fn read(
    values: &Values<'_>,
    servers: &ConnectString,
    origins: &mut Vec<Setting>,
) -> Result<Option<Tls>, String> {
    let is_asked = values.flag(&TLS)?;
    let no_verify = values.flag(&TLS_NO_VERIFY_HOSTNAME)?;
    let [ca, certificate, key] = [TLS_CA, TLS_CERT, TLS_KEY].map(|option| values.given(&option));
    // Each of them implies TLS.
    let implying = [&ca, &certificate, &key].into_iter().flatten().map(|given| &given.origin);
    let implying = implying.chain(no_verify.iter().filter(|(is_on, _)| *is_on).map(|(_, given)| &given.origin));
    let implying = implying.max_by_key(|origin| origin.strength());
    let (is_wanted, origin) = match (&is_asked, implying) {
        (None, None) => (false, &Origin::Default),
        (None, Some(origin)) => (true, origin),
        // A no is overruled by something stronger only: that of a variable by an option, and by no other variable.
        (Some((false, asked)), Some(origin)) if origin.strength() > asked.origin.strength() => (true, origin),
        (Some((is_on, asked)), _) => (*is_on, &asked.origin),
    };
    origins.push(Setting { name: TLS.long, value: Some(is_wanted.to_string()), origin: origin.clone() });
    if !is_wanted {
        return Ok(None);
    }
    // The key of a file belongs to the certificate there. Another one, of the run or of a stronger file, brings its
    // own.
    let key = key.filter(|key| {
        !key.origin.is_file()
            || certificate.as_ref().is_none_or(|certificate| certificate.origin.strength() <= key.origin.strength())
    });
    let mut file = |given: &Option<Given>| given.as_ref().map(|given| given.file(origins)).transpose();
    let ca = file(&ca)?;
    let own = match (file(&certificate)?, file(&key)?) {
        (Some(certificate), key) => Some(OwnCertificate { certificate, key }),
        (None, None) => None,
        (None, Some(path)) => {
            let key = key.as_ref().filter(|key| key.origin.is_file());
            let name = key.map_or_else(|| format!("--{}", TLS_KEY.long), Given::what);
            let certificate = key.map_or_else(|| format!("--{}", TLS_CERT.long), |key| key.spelling(&TLS_CERT));
            return Err(format!(
                "{name} {}: a key without a certificate; write {certificate} as well",
                quoted(path.as_os_str())
            ));
        }
    };
    if let Some((is_on, given)) = &no_verify {
        origins.push(given.setting(is_on.to_string()));
    }
    let tls = Tls { ca, own, verify_hostname: !no_verify.is_some_and(|(is_on, _)| is_on) };
    let odd = servers.hosts.iter().find(|server| server.name_in_certificate().is_none());
    match odd {
        Some(odd) => Err(format!(
            "{}: no certificate can be for such a name; write another one, or leave out TLS",
            quoted(OsStr::new(&odd.host))
        )),
        None => Ok(Some(tls)),
    }
}
