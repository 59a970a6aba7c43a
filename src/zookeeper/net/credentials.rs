//! A file with the credentials of a login.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;

use crate::system::files::{brief, open_to_all};
use crate::zookeeper::login::{Credential, Login, credential};

/// Adds the credentials in the file of a login, once. `kept`: an empty file, which gets a copy of what is in there; or
/// that copy, which is then read in its place. Returns what the user is to be warned of. The error says why the file
/// cannot be used.
pub fn load(login: &mut Login, kept: Option<&File>) -> Result<Option<String>, String> {
    if login.in_sight {
        let warning = "warning: every user can see the password with ps: use --auth-file or ZKLOCK_AUTH";
        return Ok(Some(warning.to_owned()));
    }
    let Some(path) = login.file.take() else { return Ok(None) };
    let shown = path.display();
    login.credentials = credentials(&path, kept).map_err(|why| format!("{shown}: {why}"))?;
    let mode = fs::metadata(&path).map_or(0, |file| file.permissions().mode());
    Ok(open_to_all(mode).map(|can| format!("warning: every user can {can} {shown}: chmod 600 {shown}")))
}

fn text(path: &Path, kept: Option<&File>) -> io::Result<Vec<u8>> {
    let Some(kept) = kept else { return fs::read(path) };
    let mut text = vec![0; usize::try_from(kept.metadata()?.len()).map_err(io::Error::other)?];
    if text.is_empty() {
        text = fs::read(path)?;
        kept.write_all_at(&text, 0)?;
    } else {
        kept.read_exact_at(&mut text, 0)?;
    }
    Ok(text)
}

fn credentials(path: &Path, kept: Option<&File>) -> Result<Vec<Credential>, String> {
    let text = text(path, kept).map_err(|error| brief(&error))?;
    // Some editors begin a file with a byte order mark.
    let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&text);
    let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).enumerate();
    let used = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with(b"#"));
    let read = |(number, line)| credential(line).map_err(|why| format!("line {}: {why}", number + 1));
    let credentials: Vec<_> = used.map(read).collect::<Result<_, _>>()?;
    if credentials.is_empty() {
        return Err("no line in it; write digest:USER:PASSWORD or sasl:USER:PASSWORD".to_owned());
    }
    if credentials.iter().filter(|credential| credential.is_for_sasl()).count() > 1 {
        return Err("several lines are for SASL; a connection takes one".to_owned());
    }
    Ok(credentials)
}
