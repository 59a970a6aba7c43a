//! A file with the credentials of a login.

use std::fs;
use std::path::Path;

use crate::system::errors::brief;
use crate::system::secrets::exposed;
use crate::zookeeper::login::{Credential, Login, credential};

/// Adds the credentials in the file of a login, once. Returns what the user is to be warned of. The error says why the file
/// cannot be used.
pub fn load(login: &mut Login) -> Result<Vec<String>, String> {
    if login.in_sight {
        let warning = "warning: every user can see the password with ps: use --auth-file or ZKLOCK_AUTH";
        return Ok(vec![warning.to_owned()]);
    }
    let Some(path) = login.file.take() else { return Ok(vec![]) };
    let shown = path.display();
    let (credentials, cut) = credentials(&path).map_err(|why| format!("{shown}: {why}"))?;
    login.credentials = credentials;
    let cut =
        cut.into_iter().map(|line| format!("warning: {shown}: line {line} ends in a blank, which does not count"));
    Ok(cut.chain(exposed(&path, "")).collect())
}

/// The credentials, and the numbers of the lines that end in a blank: a password may have been meant to.
fn credentials(path: &Path) -> Result<(Vec<Credential>, Vec<usize>), String> {
    let text = fs::read(path).map_err(|error| brief(&error))?;
    // Some editors begin a file with a byte order mark.
    let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&text);
    let mut cut = vec![];
    let mut credentials = vec![];
    for (line, number) in text.split(|byte| *byte == b'\n').zip(1..) {
        let (line, whole) = (line.trim_ascii(), line.strip_suffix(b"\r").unwrap_or(line));
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        credentials.push(credential(line).map_err(|why| format!("line {number}: {why}"))?);
        cut.extend(Some(number).filter(|_| !whole.ends_with(line)));
    }
    if credentials.is_empty() {
        return Err("no line in it; write digest:USER:PASSWORD or sasl:USER:PASSWORD".to_owned());
    }
    if credentials.iter().filter(|credential| credential.is_for_sasl()).count() > 1 {
        return Err("several lines are for SASL; a connection takes one".to_owned());
    }
    Ok((credentials, cut))
}
