//! `--auth`, `--auth-file` and `--acl`.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::UsageError;
use super::config::Surroundings;
use super::options::{ACL, AUTH, AUTH_FILE, TLS_CERT};
use super::origin::{Given, Setting};
use super::values::Values;
use crate::rules::login::{Credential, DIGEST, GSSAPI, Login, Protection, SASL};

/// The `--auth-file` that is no login, in place of that of a weaker file.
const NONE: &str = "/dev/null";

/// Reads `SCHEME:CREDENTIAL`. The error says what to write, and nothing of what was written.
pub fn credential(text: &[u8]) -> Result<Credential, String> {
    const HOW: &str = "write digest:USER:PASSWORD or sasl:USER:PASSWORD";
    let mut halves = text.splitn(2, |byte| *byte == b':');
    let scheme = halves.next().and_then(|scheme| std::str::from_utf8(scheme).ok()).unwrap_or_default();
    let is_name = !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let Some(secret) = halves.next().filter(|_| is_name) else { return Err(HOW.to_owned()) };
    if scheme == GSSAPI && !cfg!(feature = "gssapi") {
        return Err("this zklock is built without GSSAPI (cargo's --features gssapi)".to_owned());
    }
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

/// Reads the settings of logging in. A credential of the run is not to be shown together with those of a file.
pub(super) fn read(values: &Values<'_, impl Surroundings>, settings: &mut Vec<Setting>) -> Result<Login, UsageError> {
    let (secret, file) = (values.given(&AUTH), values.given(&AUTH_FILE));
    let mut login = Login::default();
    match (secret, file) {
        (Some(secret), Some(file)) if secret.origin.strength() == file.origin.strength() => {
            return Err(UsageError("--auth and --auth-file exclude each other; write one of them".to_owned()));
        }
        (Some(secret), file) if file.as_ref().is_none_or(|file| file.origin.strength() < secret.origin.strength()) => {
            let credential =
                credential(secret.text.as_bytes()).map_err(|why| UsageError(format!("{}: {why}", secret.what())))?;
            // The service of Kerberos is no secret.
            login.in_sight = values.is_written(&AUTH) && credential.scheme != GSSAPI;
            login.credentials.push(credential);
            settings.push(secret.setting(None));
        }
        (_, Some(file)) => {
            let path = file.path()?;
            settings.push(file.setting(path.to_string_lossy().into_owned()));
            login.file = Some(path).filter(|path| path != Path::new(NONE));
        }
        _ => {}
    }
    if login.is_given() {
        login.protection = Protection::Read;
    }
    Ok(login)
}

/// Reads `--acl`, and returns it if it applies. `settings`: where login and certificate come from.
pub(super) fn protect(
    login: &mut Login,
    settings: &[Setting],
    values: &Values<'_, impl Surroundings>,
) -> Result<Option<Setting>, UsageError> {
    let Some(acl) = values.given(&ACL) else { return Ok(None) };
    let wanted = acl.read(protection)?;
    // It belongs to the login that was taken back.
    if !login.is_given() && settings.iter().any(|setting| takes_back(setting, &acl)) {
        return Ok(None);
    }
    // Whether a certificate counts as a login is for the servers to say.
    let may_be_known = login.is_given() || settings.iter().any(|setting| setting.name == TLS_CERT.long);
    if wanted != Protection::Open && !may_be_known {
        let why = [AUTH_FILE, TLS_CERT].map(|option| acl.spelling(&option)).join(" or ");
        return Err(acl.refused(&format!("for those who log in; write {why} as well")));
    }
    login.protection = wanted;
    Ok(Some(acl.setting(acl.text.to_string_lossy().into_owned())))
}

/// Whether this is a `--auth-file` that takes back the login of something weaker, as this `--acl` is.
fn takes_back(setting: &Setting, acl: &Given) -> bool {
    setting.name == AUTH_FILE.long
        && setting.value.as_deref() == Some(NONE)
        && setting.origin.strength() > acl.origin.strength()
}

/// Reads who may do what with the nodes that are created.
pub(super) fn protection(text: &str) -> Result<Protection, String> {
    match text {
        "open" => Ok(Protection::Open),
        "creator" => Ok(Protection::Creator),
        "read" => Ok(Protection::Read),
        _ => Err("write open, creator or read".to_owned()),
    }
}
