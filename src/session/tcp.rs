//! A session over a TCP connection.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};

use super::Failure;
use super::channel::Channel;
use super::client::ClientSession;
use super::dial::dial;
use super::servers::Servers;
use crate::clock;
use crate::reactor::Reactor;
use crate::rules::instant::Instant;
use crate::zookeeper::handshake::Identity;

/// A session over a TCP connection.
pub type TcpSession<'p> = ClientSession<TcpChannel<'p>>;

impl<'p> TcpSession<'p> {
    /// Opens a session with one of the servers, as `Outside::open` says, or goes on with that of `identity`, as
    /// `Outside::resume` says.
    pub async fn connect(
        servers: &'p Servers<'p>,
        reactor: &'p Reactor,
        timeout: Duration,
        identity: Option<&Identity>,
        unreachable: impl FnMut(String),
    ) -> Result<Self, Failure> {
        let (channel, granted) = dial(servers, reactor, timeout, identity, unreachable).await?;
        Ok(Self::new(channel, granted, &servers.connect.chroot, identity.map(|_| timeout)))
    }
}

/// A TCP connection to a server.
#[derive(Debug)]
pub struct TcpChannel<'p> {
    servers: &'p Servers<'p>,
    reactor: &'p Reactor,
    pub(super) server: SocketAddr,
    pub(super) socket: TcpStream,
    /// Connections to servers that were slower, and are to close what they open. If these were closed now, a server that
    /// writes to one of them would lose what it has not read yet.
    pub(super) losers: Vec<TcpStream>,
}

impl<'p> TcpChannel<'p> {
    /// Begins to connect.
    pub(super) fn begin(servers: &'p Servers<'p>, reactor: &'p Reactor, server: SocketAddr) -> io::Result<Self> {
        Ok(Self { servers, reactor, server, socket: begin_to_connect(server)?, losers: vec![] })
    }

    pub(super) fn is_writable(&self) -> bool {
        let mut now = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
        poll(&mut now, PollTimeout::ZERO).is_ok_and(|count| count > 0)
    }
}

impl fmt::Display for TcpChannel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.server.fmt(f)
    }
}

impl Channel for TcpChannel<'_> {
    fn now(&self) -> Instant {
        clock::now()
    }

    fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        (&self.socket).read(bytes)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        (&self.socket).write(bytes)
    }

    fn turn(&self) -> u64 {
        self.reactor.turn()
    }

    fn take_another_turn(&self) {
        self.reactor.take_another_turn();
    }

    fn wake_at(&self, at: Instant) {
        self.reactor.wake_at(at);
    }

    fn wake_on_bytes(&self, unsent: bool) {
        let events = if unsent { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
        self.reactor.wake_on(self.socket.as_fd(), events);
    }

    fn distrust(&self) {
        self.servers.distrusted.set(Some(self.server));
    }
}

/// A socket that is being connected. It never blocks, and sends at once what it is given.
pub(super) fn begin_to_connect(server: SocketAddr) -> io::Result<TcpStream> {
    let family = if server.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket: TcpStream = socket(family, SockType::Stream, flags, None)?.into();
    socket.set_nodelay(true)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(server)) {
        Ok(()) | Err(Errno::EINPROGRESS | Errno::EINTR) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}
