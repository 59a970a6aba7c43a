//! The environment and the configuration files of this process. A file in the hands of another user is refused: it says
//! which servers are believed, and whose login they get to see.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::libc;
use nix::unistd::geteuid;

use super::{Surroundings, Unread};
use crate::system::errors::brief;

/// The largest file that is read, in bytes. The settings take a few hundred.
const LARGEST: u64 = 64 * 1024;

#[derive(Clone, Copy, Debug)]
pub struct ThisProcess;

impl Surroundings for ThisProcess {
    fn variable(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }

    fn file(&self, path: &Path) -> Result<Vec<u8>, Unread> {
        if path == Path::new("/dev/null") {
            return Ok(vec![]);
        }
        // Without waiting for a writer, if it is a pipe; without making a terminal ours.
        let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
        let file = opened.map_err(|error| {
            if is_missing(path, &error) { Unread::Missing(brief(&error)) } else { Unread::Unusable(brief(&error)) }
        })?;
        content(file, path).map_err(Unread::Unusable)
    }
}

/// Whether there is no file, as far as this user can see: HOME may be that of a user who lets no other one look into
/// it.
fn is_missing(path: &Path, error: &io::Error) -> bool {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => true,
        ErrorKind::PermissionDenied => fs::symlink_metadata(path).is_err(),
        _ => false,
    }
}

fn content(file: File, path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: io::Error| brief(&error);
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err("no regular file; write the path of one, or /dev/null for none".to_owned());
    }
    let user = geteuid().as_raw();
    if ![0, user].contains(&found.uid()) {
        return Err(format!(
            "it belongs to the user {}, so neither to root nor to the user {user}, whose run this is; chown it, or name \
             another one with --config",
            found.uid()
        ));
    }
    if found.mode() & 0o022 != 0 {
        return Err(format!("other users can write to it; chmod go-w {}", path.display()));
    }
    let mut content = vec![];
    file.take(LARGEST + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > LARGEST {
        return Err(format!("larger than {} KiB; write settings only", LARGEST / 1024));
    }
    Ok(content)
}
