//! `--auth`, `--auth-file` and `--acl`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use super::UsageError;
use super::written::{Given, Written};
use crate::cli::groups::{self, Secret};
use crate::environment;
use crate::rules::login::{Credential, Login, Protection};

/// Reads `SCHEME:CREDENTIAL`. The error says what to write, and nothing of what was written.
pub fn credential(text: &[u8]) -> Result<Credential, String> {
    const DIGEST: &str = "write digest:USER:PASSWORD";
    let mut halves = text.splitn(2, |byte| *byte == b':');
    let scheme = halves.next().and_then(|scheme| std::str::from_utf8(scheme).ok()).unwrap_or_default();
    let is_name = !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let Some(secret) = halves.next().filter(|_| is_name) else { return Err(DIGEST.to_owned()) };
    if scheme == "sasl" {
        return Err(format!("SASL is not supported; {DIGEST}"));
    }
    // A server takes `bob` alone for another user.
    let colon = secret.iter().position(|byte| *byte == b':');
    if scheme == "digest" && !colon.is_some_and(|colon| colon > 0 && colon + 1 < secret.len()) {
        return Err(format!("a user or a password is missing; {DIGEST}"));
    }
    if secret.iter().any(u8::is_ascii_control) {
        return Err(format!("it contains a control character; {DIGEST}"));
    }
    Ok(Credential { scheme: scheme.to_owned(), secret: secret.to_vec() })
}
/// Reads the options of logging in.
pub(super) fn read<E: Fn(&str) -> Option<OsString>>(
    written: &Written<'_, E>,
    login: groups::Login,
) -> Result<Login, UsageError> {
    let parse =
        |origin: &str, text: &OsStr| credential(text.as_bytes()).map_err(|why| UsageError(format!("{origin}: {why}")));
    let file = login.auth_file.map(|path| Given::new("--auth-file", path).path()).transpose()?;
    let credentials = match (login.auth.filter(|_| written.is_written("auth")), &file) {
        (Some(_), Some(_)) => {
            return Err(UsageError("--auth and --auth-file exclude each other; write one of them".to_owned()));
        }
        (Some(Secret(text)), None) => vec![parse("--auth", &text)?],
        (None, Some(_)) => vec![],
        (None, None) => {
            let text = (written.environment)(environment::AUTH).filter(|text| !text.is_empty());
            text.map(|text| parse(environment::AUTH, &text)).transpose()?.into_iter().collect()
        }
    };
    let mut login = Login { credentials, file, in_sight: written.is_written("auth"), protection: Protection::Open };
    if login.is_given() {
        login.protection = Protection::Read;
    }
    Ok(login)
}

/// Reads `--acl`.
pub(super) fn protect(login: &mut Login, acl: Option<OsString>) -> Result<(), UsageError> {
    let Some(acl) = acl else { return Ok(()) };
    let is_given = login.is_given();
    login.protection = Given::new("--acl", acl).read(|text| match text {
        "open" => Ok(Protection::Open),
        "creator" | "read" if !is_given => Err("for those who log in; write --auth-file as well".to_owned()),
        "creator" => Ok(Protection::Creator),
        "read" => Ok(Protection::Read),
        _ => Err("write open, creator or read".to_owned()),
    })?;
    Ok(())
}
