//! Look-ups that may take for ever: names of hosts and users. The C library asks name and directory servers, and waits
//! for them. So each look-up has a process of its own, and is given up by killing that.

#[cfg(feature = "gssapi")]
pub mod talk;

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, RawFd};
use std::time::Duration;
use std::{io, mem};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{ForkResult, Pid, Uid, User, fork, getpid, getppid, getuid, pipe2, write};

use crate::clock;
use crate::command::exit_now;
use crate::descriptors;
use crate::signals;

/// How long the look-up of our user may take.
const USER_LOOKUP: Duration = Duration::from_millis(500);

/// A look-up that has begun. Dropping it gives it up.
#[derive(Debug)]
pub struct Lookup {
    child: Pid,
    pipe: File,
    answer: Vec<u8>,
}

impl Lookup {
    /// Forks a process that calls `look_up`. This process must have one thread only.
    pub fn begin(look_up: impl FnOnce() -> Vec<u8>) -> io::Result<Self> {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let child = fork_off(c"lock-lookup", writer.as_raw_fd(), || {
            ask_what_is_built_in();
            let mut answer = &look_up()[..];
            while let Ok(written @ 1..) = write(&writer, answer) {
                answer = &answer[written..];
            }
        })?;
        Ok(Self { child, pipe: reader.into(), answer: vec![] })
    }

    /// The answer, once it is complete. Empty if there is none.
    pub fn answer(&mut self) -> Option<Vec<u8>> {
        match self.pipe.read_to_end(&mut self.answer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            _ => Some(mem::take(&mut self.answer)),
        }
    }
}

impl AsFd for Lookup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        give_up(self.child, &self.pipe);
    }
}

/// Does `work` in a fork, which dies with this process and keeps one descriptor.
fn fork_off(name: &CStr, kept: RawFd, work: impl FnOnce()) -> io::Result<Pid> {
    // A fork may sleep uninterruptibly, or have a debugger, so it is not waited for. The keeper has no other children.
    signals::leave_children_to_the_kernel(true);
    let parent = getpid();
    #[expect(unsafe_code, reason = "the work is done in a fork")]
    // SAFETY: this process has one thread, so the child may go on as any process may (fork(2)).
    match unsafe { fork() }? {
        ForkResult::Child => {
            signals::leave_children_to_the_kernel(false);
            let _ = prctl::set_name(name);
            let _ = prctl::set_pdeathsig(Signal::SIGKILL);
            // A copy of our socket would hide our death from the supervisor.
            descriptors::close_all_but(&mut [kept]);
            if getppid() == parent {
                work();
            }
            exit_now(0)
        }
        ForkResult::Parent { child } => Ok(child),
    }
}

/// Ends a fork of ours that is of no more use. `ours`: our end of what it has kept.
fn give_up(child: Pid, ours: impl AsFd) {
    // As long as its own end is open, the pid is its own. One that is closed is that of a process that exits.
    if poll(&mut [PollFd::new(ours.as_fd(), PollFlags::empty())], PollTimeout::ZERO) == Ok(0) {
        let _ = kill(child, Signal::SIGKILL);
    }
}

/// In a static binary: look up in files and DNS only, whatever nsswitch.conf(5) says. The modules that it names belong
/// to the C library of this machine, and may crash in the one that is built in.
fn ask_what_is_built_in() {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    {
        use std::ffi::{c_char, c_int};

        #[expect(unsafe_code, reason = "glibc's, and not in the crate libc")]
        // SAFETY: this is how <nss.h> declares it.
        unsafe extern "C" {
            fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
        }
        for (database, services) in [(c"hosts", c"files dns"), (c"passwd", c"files")] {
            #[expect(unsafe_code, reason = "a call into glibc")]
            // SAFETY: both are strings that end in NUL and live for ever, and this process has one thread.
            let _ = unsafe { __nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
        }
    }
}

/// The name of our user. As a rule it is in /etc/passwd, which nsswitch.conf(5) asks first. A directory service is asked
/// in a process of its own, and not waited for long: the session needs us.
pub fn user_name() -> Option<String> {
    let uid = getuid();
    if let Some(name) = fs::read_to_string("/etc/passwd").ok().and_then(|users| named_in(&users, uid)) {
        return Some(name);
    }
    let look_up = || User::from_uid(uid).ok().flatten().map(|user| user.name.into_bytes()).unwrap_or_default();
    let mut lookup = Lookup::begin(look_up).inspect_err(|error| log::info!("cannot look up our user: {error}")).ok()?;
    let until = clock::now() + USER_LOOKUP;
    loop {
        if let Some(name) = lookup.answer() {
            return String::from_utf8(name).ok().filter(|name| !name.is_empty());
        }
        let left = until.saturating_since(clock::now());
        let patience = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        if left.is_zero() || poll(&mut [PollFd::new(lookup.as_fd(), PollFlags::POLLIN)], patience).is_err() {
            return None;
        }
    }
}

/// The name of a user in the text of passwd(5).
fn named_in(users: &str, uid: Uid) -> Option<String> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)?.parse() == Ok(uid.as_raw())).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_number() {
        let users = "root:x:0:0:root:/root:/bin/bash\n+\nbad line\n:x:7:\nops:x:7:7::/home/ops:/bin/sh\n";
        let named = |uid| named_in(users, Uid::from_raw(uid));
        assert_eq!((named(0).as_deref(), named(7).as_deref(), named(8)), (Some("root"), Some("ops"), None));
    }
}
