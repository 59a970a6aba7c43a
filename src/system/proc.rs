//! The directory /proc, as it was at the start of the run. A command can mount the /proc of another PID namespace over it,
//! where its numbers mean other processes.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open as open_path, openat, readlinkat};
use nix::sys::stat::Mode;

static DIRECTORY: OnceLock<OwnedFd> = OnceLock::new();

/// It is opened by the first call. A fork that closes all descriptors but its own is to keep this one, if it goes on
/// looking at processes.
pub fn directory() -> io::Result<BorrowedFd<'static>> {
    if let Some(directory) = DIRECTORY.get() {
        return Ok(directory.as_fd());
    }
    // Its files can be opened even where it may not be listed.
    let opened = open_path("/proc", OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    Ok(DIRECTORY.get_or_init(|| opened).as_fd())
}

pub fn open(path: &str) -> io::Result<File> {
    Ok(openat(directory()?, path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?.into())
}

/// The beginning of a file below it, as far as there is room. Such a file is short, and comes whole.
pub fn read<'t>(path: &str, room: &'t mut [u8]) -> io::Result<&'t [u8]> {
    let length = open(path)?.read(room)?;
    Ok(&room[..length])
}

pub fn read_link(path: &str) -> io::Result<OsString> {
    Ok(readlinkat(directory()?, path)?)
}

/// The names in a directory below it that are numbers.
pub fn numbers(path: &str) -> io::Result<Vec<i32>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut directory = Dir::openat(directory()?, path, flags, Mode::empty())?;
    let names = directory.iter().map(|entry| Ok(entry?.file_name().to_str().ok().and_then(|name| name.parse().ok())));
    Ok(names.collect::<Result<Vec<_>, Errno>>()?.into_iter().flatten().collect())
}
