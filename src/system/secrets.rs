//! Passwords and private keys: in the memory of the processes that need them, which are the keeper and the subcommands
//! that talk to servers, and in no core file.
//!
//! Those processes are not dumpable. The supervisor and the guard have to be: a nested run looks at them in /proc, and
//! what is there of a process that is not dumpable belongs to root. So they never read a file with a secret.

use nix::sys::prctl;

/// What every user of this machine can do with a file that has a secret. `None`: nothing.
pub const fn open_to_all(mode: u32) -> Option<&'static str> {
    match mode & 0o006 {
        0o004 => Some("read"),
        0o002 => Some("write to"),
        0o006 => Some("read and write"),
        _ => None,
    }
}

/// From here on this process leaves no core file, and only root can look into it. It fails nowhere.
pub fn enter() {
    let _ = prctl::set_dumpable(false);
}
