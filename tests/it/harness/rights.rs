//! What a machine may refuse to a test: a container, a chroot, a user who is not root.
//!
//! A test asks first, and returns where it is refused: `if refused([Right::Mounts]) { return; }`. A machine that refuses
//! nothing has all tests run, and `ZKLOCK_TEST_ALL=1` makes sure of that.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use nix::unistd::{Pid, geteuid};
use tempfile::TempDir;

use super::host;
use super::skipped::skip;
use super::traced::Traced;
use super::zklock::copy_program;

/// Words that run a program as a user who owns nothing.
pub(crate) const AS_NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

#[derive(Clone, Copy, Debug)]
pub(crate) enum Right {
    /// [`AS_NOBODY`].
    Root,
    /// A program in /tmp that makes root of any user.
    SetUserId,
    /// [`mounted`].
    Mounts,
    /// [`as_pid_1`].
    PidNamespaces,
    UserNamespaces,
    TimeNamespaces,
    Ptrace,
    /// To look into a process that leaves no core (proc(5)).
    Undumpable,
    /// To lock more memory than a user may as a rule.
    LockedMemory,
    RealTimePriority,
    /// [`host`](super::host).
    Hosts,
}

impl Right {
    /// Its name, and how it is tried. The numbers of capabilities are in linux/capability.h.
    fn row(self) -> (&'static str, fn() -> bool) {
        match self {
            Self::Root => ("root", || does(AS_NOBODY, &["true"])),
            Self::SetUserId => ("set-user-ID programs in /tmp", can_set_user_id),
            Self::Mounts => ("mount namespaces", || does(mounted("mount -t tmpfs none /proc"), &["true"])),
            Self::PidNamespaces => ("PID namespaces", || does(as_pid_1(), &["true"])),
            Self::UserNamespaces => ("user namespaces", || does(["unshare", "--user"], &["true"])),
            Self::TimeNamespaces => ("time namespaces", || does(unshare(&IN_ANOTHER_TIME), &["true"])),
            Self::Ptrace => ("ptrace(2)", can_trace),
            Self::Undumpable => ("CAP_SYS_PTRACE", || has_capability(19)),
            Self::LockedMemory => ("CAP_IPC_LOCK", || has_capability(14)),
            Self::RealTimePriority => ("a real-time priority", || does(["chrt", "--fifo", "98"], &["true"])),
            Self::Hosts => ("root of a machine with cgroups v2 and overlays", host::can_boot),
        }
    }

    fn is_given(self) -> bool {
        const COUNT: usize = Right::Hosts as usize + 1;
        static TRIED: [OnceLock<bool>; COUNT] = [const { OnceLock::new() }; COUNT];
        *TRIED[self as usize].get_or_init(self.row().1)
    }
}

/// Whether the machine refuses one of these rights, which is tried once. Then the test is skipped.
#[must_use]
#[track_caller]
pub(crate) fn refused<const N: usize>(rights: [Right; N]) -> bool {
    let missing = rights.into_iter().find(|right| !right.is_given());
    missing.inspect(|right| skip(right.row().0)).is_some()
}

/// Words that run a program by unshare(1) with these options, for which it is root of a user namespace unless we are root
/// (user_namespaces(7)).
pub(crate) fn unshare<'a>(options: &[&'a str]) -> Vec<&'a str> {
    let user: &[_] = if geteuid().is_root() { &[] } else { &["--user", "--map-root-user"] };
    // In a chroot there may be no mount at / whose propagation could be changed. --mount-proc changes that of /proc.
    [&["unshare", "--propagation", "unchanged"], user, options].concat()
}

/// Words that run a program as the first process of a PID namespace, with a /proc of its own, as in a container.
pub(crate) fn as_pid_1() -> Vec<&'static str> {
    unshare(&["--pid", "--fork", "--kill-child", "--mount-proc"])
}

/// Options of [`unshare`] for a time namespace.
pub(crate) const IN_ANOTHER_TIME: [&str; 4] = ["--time", "--boottime", "1000", "--fork"];

/// Words that run a program after this line of shell, in a mount namespace of its own.
pub(crate) fn mounted(line: &str) -> Vec<String> {
    // Nothing that is mounted here is to be seen elsewhere. nsenter goes to the root of the namespace, out of a chroot.
    let private = "nsenter --mount=/proc/self/ns/mnt mount --make-rprivate /";
    let script = format!(r#"{private} && {line} && exec "$@""#);
    unshare(&["--mount", "sh", "-c", &script, "sh"]).into_iter().map(str::to_owned).collect()
}

pub(super) fn does<W: AsRef<OsStr>>(by: impl IntoIterator<Item = W>, words: &[&str]) -> bool {
    let mut by = by.into_iter();
    let mut command = Command::new(by.next().expect("a program"));
    command.args(by).args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    status.success()
}

/// Copies of programs in a directory that every user may change.
pub(crate) struct Copies(TempDir);

impl Copies {
    pub(crate) fn new() -> Self {
        let place = tempfile::tempdir_in("/tmp").expect("a temporary directory");
        fs::set_permissions(place.path(), Permissions::from_mode(0o777)).expect("a directory of ours");
        Self(place)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A copy with this mode.
    pub(crate) fn add(&self, program: impl AsRef<Path>, mode: u32) -> PathBuf {
        let copy = self.0.path().join(program.as_ref().file_name().expect("a program"));
        copy_program(program, &copy);
        fs::set_permissions(&copy, Permissions::from_mode(mode)).expect("a file of ours");
        copy
    }
}

fn can_set_user_id() -> bool {
    let copies = Copies::new();
    let program = copies.add("/usr/bin/setpriv", 0o4755);
    let root = ["--reuid=0", "--regid=0", "--clear-groups", "true"];
    geteuid().is_root() && does(AS_NOBODY, &[&[program.to_str().expect("UTF-8")], &root[..]].concat())
}

fn can_trace() -> bool {
    let mut traced = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat");
    let is_traced = Traced::seize(Pid::from_raw(traced.id().try_into().expect("a process id")), 0).is_ok();
    // Its input ends.
    traced.wait().expect("a child of ours");
    is_traced
}

fn has_capability(number: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("a line").trim();
    u64::from_str_radix(mask, 16).expect("a mask in hexadecimal") & 1 << number != 0
}
