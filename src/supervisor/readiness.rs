//! What a service manager is told (sd_notify(3)): that we wait, that we hold the lock, and how it ends.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::cli::sentences::Weight;
use crate::rules::instant::Instant;
use crate::rules::text::Legible;

/// Where a service manager listens.
const SOCKET: &str = "NOTIFY_SOCKET";
/// The process that it has started, where it says so (systemd.exec(5)).
const STARTED: &str = "SYSTEMD_EXEC_PID";

/// How often to ask for more time to start.
const EVERY: Duration = Duration::from_secs(10);
/// How much more to ask for: it takes three silences to be given up.
const MORE: Duration = Duration::from_secs(30);

/// The service manager that has started us, if there is one that wants to know.
#[derive(Debug)]
pub(super) struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// When to call [`Self::extend_start_timeout`] next; `None` when we are ready.
    pub(super) ask_at: Option<Instant>,
    /// The last status is the reason for the end of the run, which the manager goes on to show.
    says_why: bool,
}

impl Manager {
    /// The one that this environment names. If it has started another process, we are no service but a part of one.
    pub(super) fn new(now: Instant) -> Self {
        let own = std::process::id().to_string();
        let is_ours = std::env::var_os(STARTED).is_none_or(|pid| pid == *own);
        let name = std::env::var_os(SOCKET).filter(|name| is_ours && !name.is_empty());
        let socket = name.and_then(|name| connect(&name).inspect_err(|error| log::info!("{SOCKET}: {error}")).ok());
        let ask_at = socket.is_some().then_some(now);
        Self { socket, ask_at, says_why: false }
    }

    /// We still wait: the manager must not take us for a service that does not start.
    pub(super) fn extend_start_timeout(&mut self, now: Instant) {
        if self.ask_at.is_some_and(|at| at <= now) {
            self.ask_at = Some(now + EVERY);
            self.notify(&format!("EXTEND_TIMEOUT_USEC={}", MORE.as_micros()));
        }
    }

    /// This is what we do, or what has gone wrong. Users see it in `systemctl status`.
    pub(super) fn status(&mut self, weight: Weight, text: &Legible) {
        if !matches!(weight, Weight::News | Weight::Hint) {
            self.says_why = matches!(weight, Weight::Error | Weight::Notable);
            self.notify(&format!("STATUS={}", text.as_str()));
        }
    }

    /// We hold the lock.
    pub(super) fn ready(&mut self) {
        self.ask_at = None;
        self.notify("READY=1");
    }

    /// We are about to end: what we have told that we do is true no more.
    pub(super) fn stopping(&self) {
        self.notify(if self.says_why { "STOPPING=1" } else { "STOPPING=1\nSTATUS=ended" });
    }

    fn notify(&self, text: &str) {
        let Some((socket, address)) = &self.socket else { return };
        if let Err(error) = socket.send_to_addr(text.as_bytes(), address) {
            log::info!("{SOCKET}: {error}");
        }
    }
}

fn connect(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes() {
        // In the abstract namespace (unix(7)).
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that does not listen holds up nothing.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}
