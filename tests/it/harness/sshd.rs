//! An sshd on 127.0.0.1 that lets in the user of the tests, and no one else. What it uses is in a directory of its own.
//! scripts/test installs it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::thread;

use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use tempfile::TempDir;

use super::running::Running;
use super::server::free_port;
use super::zklock::{MARK, Zklock};

/// It starts itself again for each connection, so it wants to be called by its whole path.
const SSHD: &str = "/usr/sbin/sshd";

/// An sshd that answers. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Sshd {
    running: Running,
    port: u16,
    directory: TempDir,
}

impl Sshd {
    #[track_caller]
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| directory.path().join(name).into_os_string().into_string().expect("a path in UTF-8");
        for key in ["host", "user"] {
            let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)]).output();
            assert!(made.expect("ssh-keygen can be run").status.success(), "{key}");
        }
        let port = free_port();
        let key = fs::read_to_string(path("host.pub")).expect("ssh-keygen has written it");
        fs::write(path("known"), format!("[127.0.0.1]:* {key}")).expect("a file can be written");
        // The user may be root. The directory of the keys may be below one that others may write to, such as /tmp.
        let lines = [
            &format!("ListenAddress 127.0.0.1:{port}"),
            &format!("HostKey \"{}\"", path("host")),
            &format!("AuthorizedKeysFile \"{}\"", path("user.pub")),
            "AuthenticationMethods publickey",
            "PermitRootLogin prohibit-password",
            "StrictModes no",
            "UsePAM no",
            "PidFile none",
        ];
        fs::write(path("config"), lines.join("\n") + "\n").expect("a file can be written");
        if geteuid().is_root() {
            // Where it puts its processes that parse what strangers send. Debian's service creates it.
            fs::create_dir_all("/run/sshd").expect("a directory of sshd's");
        }
        // The processes of its users have an environment of their own; the harness is to find them as well.
        let script = format!("exec {SSHD} -D -e -f \"$0\" -o \"SetEnv={MARK}=${MARK}\"");
        let mut running = Zklock::bare().program("sh").args(["-c", &script, &path("config")]).spawn();
        running.wait_stderr("Server listening on ");
        Self { running, port, directory }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The words, for a shell, by which ssh reaches it through this port of 127.0.0.1. The remote command is still to be
    /// named.
    pub(crate) fn ssh(&self, port: u16) -> String {
        let path = self.directory.path().display();
        format!(
            "ssh -F none -o BatchMode=yes -o IdentitiesOnly=yes -i '{path}/user' -o UserKnownHostsFile='{path}/known' \
             -p {port} 127.0.0.1"
        )
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        // The harness does not find it by its environment, which it overwrites to show what it does.
        self.running.signal(Signal::SIGTERM);
        if !thread::panicking() {
            self.running.wait();
        }
    }
}
