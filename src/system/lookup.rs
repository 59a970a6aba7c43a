//! Look-ups that may take for ever: names of hosts and users, tickets of Kerberos. The C library asks name and directory
//! servers, and waits for them. So each look-up has a process of its own, and killing that process ends the look-up.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use nix::unistd::{Pid, Uid, User, getuid};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::fork::{Life, fork};
use super::reactor::Reactor;
use super::signals;

/// How long the look-up of our user may take, in milliseconds.
const USER_LOOKUP: u16 = 500;

/// A process that answers questions. Dropping this value ends the process.
#[derive(Debug)]
pub struct Lookup {
    child: Pid,
    socket: OwnedFd,
}

impl Lookup {
    /// Makes a process with this name that answers each question with a `T`.
    pub fn talk<T: Serialize>(name: &CStr, mut answer: impl FnMut(&[u8]) -> T) -> io::Result<Self> {
        // Messages come whole, and each side sees the end of the other.
        let (socket, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        // It may sleep where no signal reaches it, or have a debugger, so it is not waited for. Neither keeper nor
        // subcommands have other children.
        signals::leave_children_to_the_kernel(true);
        let child = fork(name, Life::Parents, &[other.as_raw_fd()], || {
            ask_what_is_built_in();
            while let Ok(question) = receive(&other, MsgFlags::empty())
                && !question.is_empty()
                && let Ok(answer) = serde_json::to_vec(&answer(&question))
                && send(other.as_raw_fd(), &answer, MsgFlags::MSG_NOSIGNAL).is_ok()
            {}
        })?;
        Ok(Self { child, socket })
    }

    /// Makes a process that calls `look_up` once.
    pub fn begin<T: Serialize>(look_up: impl Fn() -> T) -> io::Result<Self> {
        let lookup = Self::talk(c"lock-lookup", |_| look_up())?;
        lookup.ask(b"?").map(|()| lookup)
    }

    /// Asks something, which must not be empty.
    pub fn ask(&self, question: &[u8]) -> io::Result<()> {
        send(self.socket.as_raw_fd(), question, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT)?;
        Ok(())
    }

    /// Waits for the answer. Fails if the process has died.
    pub async fn answered<T: DeserializeOwned>(&self, reactor: &Reactor) -> Result<T, String> {
        loop {
            match receive(&self.socket, MsgFlags::MSG_DONTWAIT) {
                Err(Errno::EAGAIN | Errno::EINTR) => reactor.ready(self, PollFlags::POLLIN).await,
                answer => {
                    let answer = serde_json::from_slice(&answer.unwrap_or_default());
                    return answer.map_err(|_| "the process that asks has died".to_owned());
                }
            }
        }
    }
}

/// The next message. Empty: the other side has gone.
fn receive(socket: &OwnedFd, flags: MsgFlags) -> nix::Result<Vec<u8>> {
    let length = recv(socket.as_raw_fd(), &mut [], flags | MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC)?;
    let mut message = vec![0; length];
    recv(socket.as_raw_fd(), &mut message, flags)?;
    Ok(message)
}

impl AsFd for Lookup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        // While the process has its end of the socket open, its pid is not another's. A closed end: the process exits.
        if poll(&mut [PollFd::new(self.as_fd(), PollFlags::empty())], PollTimeout::ZERO) == Ok(0) {
            let _ = kill(self.child, Signal::SIGKILL);
        }
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
    let look_up = || User::from_uid(uid).ok().flatten().map(|user| user.name);
    let lookup = Lookup::begin(look_up).inspect_err(|error| log::info!("cannot look up the user: {error}")).ok()?;
    let _ = poll(&mut [PollFd::new(lookup.as_fd(), PollFlags::POLLIN)], USER_LOOKUP);
    let answer = receive(&lookup.socket, MsgFlags::MSG_DONTWAIT).ok()?;
    serde_json::from_slice::<Option<String>>(&answer).ok().flatten().filter(|name| !name.is_empty())
}

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
