//! `zklock fence`: a run whose lock is a file on this machine. Its keeper (`keeper`) has this file in place of a ZooKeeper
//! session.
//!
//! FILE keeps the highest token that has been here. It is only ever replaced as a whole, so it can be read at any time.
//! FILE.lock stays the same file for ever. Two of its bytes are locked, by locks that belong to the open file
//! (F_OFD_SETLK of fcntl(2)) and so are shared with forks:
//!
//! - the first byte by the fence that holds: its command may run. Keeper and guard have the same open file, so that the
//!   byte is free only when nothing is left of the command;
//! - the second byte for as long as it takes to look at FILE, to replace it, and to say in FILE.lock who holds.

pub(crate) mod keeper;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

use crate::cli;
use crate::rules::fence::{Holder, NotOurs, SeenToken, record};
use crate::rules::message::Refusal;

/// The byte of FILE.lock that the holder locks.
const HOLDER_BYTE: libc::off_t = 0;
/// The byte that is locked for a look at both files.
const LOOK_BYTE: libc::off_t = 1;

/// More than a token or a holder takes. What is longer is garbage.
const LONGEST_RECORD: usize = 200;

/// The two files, for a run with a token.
#[derive(Debug)]
pub struct Fence {
    pub(crate) path: PathBuf,
    pub(crate) token: u64,
    pub(crate) kill_after: Duration,
    lock_path: PathBuf,
    lock: File,
}

/// Another fence holds: this one, if FILE.lock says so.
#[derive(Debug)]
pub(crate) struct Busy(pub(crate) Option<Holder>);

impl Fence {
    /// Opens FILE.lock, and makes it if it is not there.
    pub fn open(plan: &cli::FencePlan) -> Result<Self, Refusal> {
        let path = plan.file.clone();
        // First, so that no file is made beside one that was named by mistake.
        if seen(&path)? == SeenToken::Garbage {
            return Err(garbage(&path));
        }
        let lock_path = beside(&path, ".lock");
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_NOFOLLOW);
        // First without O_CREAT: with it, another user's file in a directory like /tmp could not be opened
        // (fs.protected_regular, proc_sys_fs(5)).
        let opened = loop {
            match options.open(&lock_path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => break opened,
            }
            match options.clone().create_new(true).open(&lock_path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                opened => break opened,
            }
        };
        let lock = opened.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Refusal::File(format!(
                "{}: the directory does not exist; create it, or name another file",
                path.display()
            )),
            io::ErrorKind::PermissionDenied => Refusal::System(format!(
                "cannot open {}; this user needs the right to read and to write it",
                lock_path.display()
            )),
            _ => failed("cannot open", &lock_path, &error),
        })?;
        Ok(Self { path, token: plan.token, kill_after: plan.kill_after, lock_path, lock })
    }

    /// What a guard has to keep open.
    pub fn descriptor(&self) -> RawFd {
        self.lock.as_raw_fd()
    }

    /// Records our token, and holds unless another fence does. `pid`: our run, for others to read.
    pub(crate) fn try_hold(&self, pid: u32) -> Result<Result<(), Busy>, Refusal> {
        self.lock_byte(libc::F_OFD_SETLKW, LOOK_BYTE, libc::F_WRLCK)?;
        let begun = self.record_and_hold(pid);
        // Unlocking fails only where locking has failed already.
        let _ = self.control(libc::F_OFD_SETLK, LOOK_BYTE, libc::F_UNLCK);
        begun
    }

    /// To be called while the byte for a look is ours.
    fn record_and_hold(&self, pid: u32) -> Result<Result<(), Busy>, Refusal> {
        self.expect_in_place()?;
        let holder = self.holder()?;
        let recorded = match self.seen()? {
            SeenToken::Garbage => return Err(garbage(&self.path)),
            SeenToken::Token(seen) if seen > self.token => {
                return Err(Refusal::LaterHolder { file: self.path.display().to_string(), seen, ours: self.token });
            }
            // The fence that wrote this token may have been killed before it synced the directory.
            SeenToken::Token(seen) if seen == self.token => self.sync_directory(),
            SeenToken::Token(_) | SeenToken::Nothing => self.record(),
        };
        recorded.map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => Refusal::System(format!(
                "cannot replace {}; this user needs the right to write to its directory, and that without the sticky bit",
                self.path.display()
            )),
            _ => failed("cannot write", &self.path, &error),
        })?;
        match self.control(libc::F_OFD_SETLK, HOLDER_BYTE, libc::F_WRLCK) {
            Err(Errno::EAGAIN | Errno::EACCES) => return Ok(Err(Busy(holder))),
            locked => locked.map_err(|error| failed("cannot lock", &self.lock_path, &error.into()))?,
        }
        let said = self
            .lock
            .set_len(0)
            .and_then(|()| self.lock.write_all_at(Holder { pid, token: self.token }.to_text().as_bytes(), 0));
        said.map(Ok).map_err(|error| failed("cannot write", &self.lock_path, &error))
    }

    /// Waits until no other fence holds, and holds.
    pub(crate) fn wait_to_hold(&self) -> Result<(), Refusal> {
        self.lock_byte(libc::F_OFD_SETLKW, HOLDER_BYTE, libc::F_WRLCK)
    }

    /// Nothing is left of the command.
    pub(crate) fn release(&self) {
        let _ = self.control(libc::F_OFD_SETLK, HOLDER_BYTE, libc::F_UNLCK);
    }

    pub(crate) fn seen(&self) -> Result<SeenToken, Refusal> {
        seen(&self.path)
    }

    /// FILE.lock must still be what others find under its name.
    fn expect_in_place(&self) -> Result<(), Refusal> {
        let is_ours = |there: fs::Metadata, ours: fs::Metadata| (there.dev(), there.ino()) == (ours.dev(), ours.ino());
        let there = fs::symlink_metadata(&self.lock_path);
        match there.and_then(|there| Ok(is_ours(there, self.lock.metadata()?))) {
            Ok(true) => Ok(()),
            _ => Err(Refusal::System(format!(
                "{} was removed or replaced while it was in use; leave it in its place, and start again",
                self.lock_path.display()
            ))),
        }
    }

    /// Replaces FILE. After a power cut FILE has the old token or the new one, and the new one if a command has run.
    fn record(&self) -> io::Result<()> {
        let new = beside(&self.path, ".new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
        self.keep_access(&file)?;
        file.write_all(record(self.token).as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        self.sync_directory()
    }

    /// Those who may use the old FILE may use the `new` one. Without an old one, those who may use FILE.lock.
    fn keep_access(&self, new: &File) -> io::Result<()> {
        let old = fs::symlink_metadata(&self.path).or_else(|_| self.lock.metadata())?;
        // Only root gives a file away. Others may give it to a group of theirs.
        let is_given = fchown(new, Some(old.uid()), Some(old.gid())).or_else(|_| fchown(new, None, Some(old.gid())));
        // If the group cannot be kept, the new group does not get its rights.
        let kept = if is_given.is_ok() { 0o777 } else { 0o707 };
        new.set_permissions(fs::Permissions::from_mode(old.mode() & kept))
    }

    fn sync_directory(&self) -> io::Result<()> {
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }

    /// Who holds, or has held, if that is known.
    fn holder(&self) -> Result<Option<Holder>, Refusal> {
        let mut text = [0; LONGEST_RECORD];
        let length = self.lock.read_at(&mut text, 0).map_err(|error| failed("cannot read", &self.lock_path, &error))?;
        Holder::read(&text[..length]).map_err(|NotOurs| {
            Refusal::File(format!(
                "{} is not ours, so it is left as it is; name another file than {}, or remove it",
                self.lock_path.display(),
                self.path.display()
            ))
        })
    }

    fn lock_byte(&self, command: i32, byte: libc::off_t, lock: i32) -> Result<(), Refusal> {
        self.control(command, byte, lock).map_err(|error| failed("cannot lock", &self.lock_path, &error.into()))
    }

    fn control(&self, command: i32, byte: libc::off_t, lock: i32) -> nix::Result<()> {
        #[expect(unsafe_code, reason = "flock has padding on some systems")]
        // SAFETY: zeroes are a valid flock.
        let mut range: libc::flock = unsafe { std::mem::zeroed() };
        // Neither constant is larger than the field.
        range.l_type = lock as _;
        range.l_whence = libc::SEEK_SET as _;
        range.l_start = byte;
        range.l_len = 1;
        let waits = command == libc::F_OFD_SETLKW;
        loop {
            let argument = if waits { FcntlArg::F_OFD_SETLKW(&range) } else { FcntlArg::F_OFD_SETLK(&range) };
            match fcntl(&self.lock, argument) {
                Err(Errno::EINTR) => {}
                result => return result.map(drop),
            }
        }
    }
}

fn seen(path: &Path) -> Result<SeenToken, Refusal> {
    let mut text = vec![];
    let mut read = || File::open(path)?.take(LONGEST_RECORD as u64 + 1).read_to_end(&mut text);
    match fs::symlink_metadata(path).map(|metadata| metadata.is_file()) {
        // A directory that is not there is found out when FILE.lock is opened.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(SeenToken::Nothing)
        }
        Ok(true) => match read() {
            Ok(length) if length > LONGEST_RECORD => Ok(SeenToken::Garbage),
            Ok(_) => Ok(SeenToken::read(&text)),
            Err(error) => Err(failed("cannot read", path, &error)),
        },
        Ok(false) => {
            Err(Refusal::File(format!("{} is no plain file; name one that is, or is not there", path.display())))
        }
        Err(error) => Err(failed("cannot read", path, &error)),
    }
}

fn garbage(path: &Path) -> Refusal {
    Refusal::File(format!(
        "{} holds no token, so it is left as it is; name another file, or remove it if no later holder's token can have \
         been in it",
        path.display()
    ))
}

/// The path with something behind the file's name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.into();
    name.push(suffix);
    name.into()
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Refusal {
    let why =
        error.raw_os_error().map_or_else(|| error.to_string(), |number| Errno::from_raw(number).desc().to_owned());
    Refusal::System(format!("{what} {}: {why}", path.display()))
}
