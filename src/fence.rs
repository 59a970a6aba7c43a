//! FILE and FILE.lock of `zklock fence`: the highest token that has been here, and whose turn it is.
//!
//! FILE is only ever replaced as a whole, so it can be read at any time. FILE.lock stays the same file for ever. Two of its
//! bytes are locked, by locks that belong to the open file (F_OFD_SETLK of fcntl(2)) and so are shared with forks:
//!
//! - the first byte by the fence whose turn it is. Its guard has the same open file, so that the byte is free only when
//!   nothing is left of the command, whichever of the two has died;
//! - the second byte for as long as it takes to look at FILE, to replace it, and to say in FILE.lock whose turn it is. So
//!   a fence with a higher token either finds there whom to stop, or is found in FILE before another command starts.

mod runner;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::prctl;
use nix::sys::signal::Signal as Named;
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid};

use crate::command::exit_now;
use crate::descendants;
use crate::descriptors;
use crate::rules::fence::{Holder, Seen, Verdict, judge, record};

pub use runner::{Found, Runner};

/// The byte of FILE.lock that is locked for a turn.
const TURN: libc::off_t = 0;
/// The byte that is locked for a look at both files.
const LOOK: libc::off_t = 1;

/// More than a token or a holder takes. What is longer is garbage.
const LONGEST: usize = 200;

/// Why there is no fence around a command.
#[derive(Debug)]
pub enum Trouble {
    /// FILE is not what it should be; the sentence says what to do.
    File(String),
    /// This system cannot run a fence.
    Unfit(String),
    /// The operating system refuses something.
    System(String),
}

impl From<anyhow::Error> for Trouble {
    fn from(error: anyhow::Error) -> Self {
        Self::System(format!("internal error: {error:#}"))
    }
}

/// What comes of an attempt to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It is our turn.
    Begun,
    /// This token has been here, and is higher than ours.
    Later(u64),
    /// It is another's turn; if that is known, this one's.
    Busy(Option<Holder>),
}

/// The two files.
#[derive(Debug)]
pub struct Fence {
    path: PathBuf,
    lock_path: PathBuf,
    lock: File,
}

impl Fence {
    /// Opens FILE.lock, and makes it if it is not there.
    pub fn open(path: &Path) -> Result<Self, Trouble> {
        // First: nothing is to be made beside a file that was named by mistake.
        if seen(path)? == Seen::Garbage {
            return Err(garbage(path));
        }
        let lock_path = beside(path, ".lock");
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
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Trouble::File(format!(
                "{}: the directory does not exist; create it, or name another file",
                path.display()
            )),
            _ => failed("cannot open", &lock_path, &error),
        })?;
        Ok(Self { path: path.to_owned(), lock_path, lock })
    }

    /// What a guard has to keep open.
    pub fn descriptor(&self) -> RawFd {
        self.lock.as_raw_fd()
    }

    /// Records this token, and begins its turn if no other fence has its own.
    pub fn begin(&self, token: u64, kill_after: Duration) -> Result<Entry, Trouble> {
        self.control(Patience::Wait, LOOK, libc::F_WRLCK).map_err(|error| self.not_locked(error))?;
        let entry = self.look(token, kill_after);
        // It fails for no reason that would not have kept us from locking it.
        let _ = self.control(Patience::Try, LOOK, libc::F_UNLCK);
        entry
    }

    fn look(&self, token: u64, kill_after: Duration) -> Result<Entry, Trouble> {
        self.expect_in_place()?;
        let holder = self.holder()?;
        match judge(self.seen()?, token) {
            Verdict::Later(seen) => return Ok(Entry::Later(seen)),
            Verdict::Unknown => return Err(garbage(&self.path)),
            Verdict::Record => self.record(token).map_err(|error| failed("cannot write", &self.path, &error))?,
            Verdict::Recorded => {
                // What wrote it may have been killed just before it did this.
                self.sync_directory().map_err(|error| failed("cannot write", &self.path, &error))?;
            }
        }
        match self.control(Patience::Try, TURN, libc::F_WRLCK) {
            Ok(()) => {}
            Err(Errno::EAGAIN | Errno::EACCES) => return Ok(Entry::Busy(holder)),
            Err(error) => return Err(self.not_locked(error)),
        }
        self.say_whose_turn(token, kill_after).map_err(|error| failed("cannot write", &self.lock_path, &error))?;
        Ok(Entry::Begun)
    }

    /// What FILE says now.
    pub fn seen(&self) -> Result<Seen, Trouble> {
        seen(&self.path)
    }

    /// Forks a process that waits until no other fence has its turn. When it has exited with 0, it is ours. It dies with
    /// us. This process must have one thread only.
    pub fn wait_in_child(&self) -> io::Result<Pid> {
        let parent = getpid();
        #[expect(unsafe_code, reason = "what waits for the lock is a fork of the supervisor")]
        // SAFETY: this process has one thread, so the child may go on as any process may (fork(2)).
        match unsafe { fork() }? {
            ForkResult::Child => {
                let _ = prctl::set_name(c"lock-waiter");
                let _ = prctl::set_pdeathsig(Named::SIGKILL);
                if getppid() != parent {
                    exit_now(1);
                }
                descriptors::close_all_but(&mut [self.lock.as_raw_fd()]);
                loop {
                    match self.control(Patience::Wait, TURN, libc::F_WRLCK) {
                        Ok(()) => exit_now(0),
                        Err(Errno::EINTR) => {}
                        Err(_) => exit_now(1),
                    }
                }
            }
            ForkResult::Parent { child } => Ok(child),
        }
    }

    /// FILE.lock must still be what others find under its name.
    fn expect_in_place(&self) -> Result<(), Trouble> {
        let is_ours = |there: fs::Metadata, ours: fs::Metadata| (there.dev(), there.ino()) == (ours.dev(), ours.ino());
        let there = fs::symlink_metadata(&self.lock_path);
        match there.and_then(|there| Ok(is_ours(there, self.lock.metadata()?))) {
            Ok(true) => Ok(()),
            _ => Err(Trouble::System(format!(
                "{} was removed or replaced while it was in use; leave it in its place, and start again",
                self.lock_path.display()
            ))),
        }
    }

    /// In this order, so that a power cut leaves the old token or the new one, and the new one before a command runs.
    fn record(&self, token: u64) -> io::Result<()> {
        let new = beside(&self.path, ".new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::options().write(true).create_new(true).open(&new)?;
        file.write_all(record(token).as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        self.sync_directory()
    }

    fn sync_directory(&self) -> io::Result<()> {
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }

    fn say_whose_turn(&self, token: u64, kill_after: Duration) -> io::Result<()> {
        let started = descendants::started(std::process::id())?.ok_or(Errno::ESRCH)?;
        let holder = Holder { pid: getpid().as_raw(), started, descriptor: self.lock.as_raw_fd(), token, kill_after };
        let text = holder.to_text();
        self.lock.set_len(0)?;
        self.lock.write_all_at(text.as_bytes(), 0)
    }

    /// Whose turn it is, or was. It is not known before the first turn, nor after a power cut.
    fn holder(&self) -> Result<Option<Holder>, Trouble> {
        let mut text = [0; LONGEST];
        let length = self.lock.read_at(&mut text, 0).map_err(|error| failed("cannot read", &self.lock_path, &error))?;
        let text = &text[..length];
        let holder = Holder::read(text);
        if holder.is_none() && text.iter().any(|byte| *byte != 0) {
            return Err(Trouble::File(format!(
                "{} is not ours, so it is left as it is; name another file than {}, or remove it",
                self.lock_path.display(),
                self.path.display()
            )));
        }
        Ok(holder)
    }

    fn not_locked(&self, error: Errno) -> Trouble {
        failed("cannot lock", &self.lock_path, &error.into())
    }

    /// Locks or unlocks one byte.
    fn control(&self, patience: Patience, byte: libc::off_t, lock: i32) -> nix::Result<()> {
        #[expect(unsafe_code, reason = "flock has padding on some systems")]
        // SAFETY: zeroes are a valid flock.
        let mut range: libc::flock = unsafe { std::mem::zeroed() };
        // Neither constant is larger than the field.
        range.l_type = lock as _;
        range.l_whence = libc::SEEK_SET as _;
        range.l_start = byte;
        range.l_len = 1;
        loop {
            let argument = match patience {
                Patience::Try => FcntlArg::F_OFD_SETLK(&range),
                Patience::Wait => FcntlArg::F_OFD_SETLKW(&range),
            };
            match fcntl(&self.lock, argument) {
                Err(Errno::EINTR) => {}
                result => return result.map(drop),
            }
        }
    }
}

/// What a file says that is FILE, or is to be.
fn seen(path: &Path) -> Result<Seen, Trouble> {
    let mut text = vec![];
    let mut read = || File::open(path)?.take(LONGEST as u64 + 1).read_to_end(&mut text);
    match fs::symlink_metadata(path).map(|metadata| metadata.is_file()) {
        // A directory that is not there is found out when FILE.lock is opened.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(Seen::Nothing)
        }
        Ok(true) => match read() {
            Ok(length) if length > LONGEST => Ok(Seen::Garbage),
            Ok(_) => Ok(Seen::read(&text)),
            Err(error) => Err(failed("cannot read", path, &error)),
        },
        Ok(false) => {
            Err(Trouble::File(format!("{} is no plain file; name one that is, or is not there", path.display())))
        }
        Err(error) => Err(failed("cannot read", path, &error)),
    }
}

fn garbage(path: &Path) -> Trouble {
    Trouble::File(format!(
        "{} holds no token, so it is left as it is; name another file, or remove it if no later holder's token can have \
         been in it",
        path.display()
    ))
}

/// What to do about a byte that another has locked.
#[derive(Clone, Copy)]
enum Patience {
    Try,
    Wait,
}

/// The path with something behind the file's name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.into();
    name.push(suffix);
    name.into()
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Trouble {
    let why =
        error.raw_os_error().map_or_else(|| error.to_string(), |number| Errno::from_raw(number).desc().to_owned());
    Trouble::System(format!("{what} {}: {why}", path.display()))
}
