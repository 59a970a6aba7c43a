//! Passwords and private keys: in the memory of the processes that need them, which are the keeper and the subcommands
//! that talk to servers, and in no core file.
//!
//! Those processes are not dumpable. The supervisor and the guard have to be: a nested run looks at them in /proc, and
//! what is there of a process that is not dumpable belongs to root. So they never read a file with a secret.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::sys::prctl;

/// A warning, if every user of this machine can read or change a file with a secret. `what`: what to call it before its path.
pub fn exposed(path: &Path, what: &str) -> Option<String> {
    let can = match fs::metadata(path).ok()?.permissions().mode() & 0o006 {
        0o004 => "read",
        0o002 => "write to",
        0o006 => "read and write",
        _ => return None,
    };
    let path = path.display();
    Some(format!("warning: every user can {can} {what}{path}: chmod 600 {path}"))
}

/// From here on this process leaves no core file, and only root can look into it. It fails nowhere.
pub fn enter() {
    let _ = prctl::set_dumpable(false);
}
