//! `--auth`, `--auth-file` and `--acl`.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::meaning::protection;
use super::options::{ACL, AUTH, AUTH_FILE, TLS_CERT};
use super::origin::Setting;
use super::values::Values;
use crate::zookeeper::login::{GSSAPI, Login, Protection, credential};

/// Reads the origins of logging in. A credential of the run is not to be shown together with those of a file.
pub(super) fn read(values: &Values<'_>, origins: &mut Vec<Setting>) -> Result<Login, String> {
    let (secret, file) = (values.given(&AUTH), values.given(&AUTH_FILE));
    let mut login = Login::default();
    match (secret, file) {
        (Some(secret), Some(file)) if secret.origin.strength() == file.origin.strength() => {
            return Err("--auth and --auth-file exclude each other; write one of them".to_owned());
        }
        (Some(secret), file) if file.as_ref().is_none_or(|file| file.origin.strength() < secret.origin.strength()) => {
            let credential = credential(secret.text.as_bytes()).map_err(|why| format!("{}: {why}", secret.what()))?;
            // The service of Kerberos is no secret.
            login.in_sight = values.is_written(&AUTH) && credential.scheme != GSSAPI;
            login.credentials.push(credential);
            origins.push(secret.setting(None));
        }
        (_, Some(file)) => {
            // /dev/null takes back the login of a weaker file.
            login.file = Some(file.file(origins)?).filter(|path| path != Path::new("/dev/null"));
        }
        _ => {}
    }
    if login.is_given() {
        login.protection = Protection::Read;
    }
    Ok(login)
}

/// Reads `--acl`, and returns it if it is given. `origins`: where login and certificate come from.
pub(super) fn protect(login: &mut Login, origins: &[Setting], values: &Values<'_>) -> Result<Option<Setting>, String> {
    let Some(acl) = values.given(&ACL) else { return Ok(None) };
    let wanted = acl.read(protection)?;
    // Whether a certificate counts as a login is for the servers to say.
    let may_be_known = login.is_given() || origins.iter().any(|setting| setting.name == TLS_CERT.long);
    if wanted != Protection::Open && !may_be_known {
        let why = [AUTH_FILE, TLS_CERT].map(|option| acl.spelling(&option)).join(" or ");
        return Err(acl.refused(&format!("for those who log in; write {why} as well")));
    }
    login.protection = wanted;
    Ok(Some(acl.setting(acl.text.to_string_lossy().into_owned())))
}
