//! A TCP connection, with or without TLS.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::task::Poll;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};

use super::servers::{Address, Servers};
use super::tls::{Stream, Unconnected};
use crate::rules::instant::Instant;
use crate::system::clock;
use crate::system::reactor::Reactor;
use crate::zookeeper::session::channel::Channel;

#[derive(Debug)]
pub struct TcpChannel<'p> {
    servers: &'p Servers<'p>,
    pub(super) reactor: &'p Reactor,
    pub(super) address: Address<'p>,
    pub(super) socket: TcpStream,
    is_connected: Cell<bool>,
    /// `None`: it is not encrypted.
    tls: Option<Box<RefCell<Stream>>>,
}

impl<'p> TcpChannel<'p> {
    pub(super) fn begin(
        servers: &'p Servers<'p>,
        reactor: &'p Reactor,
        address: Address<'p>,
    ) -> Result<Self, Unconnected> {
        let tls = servers.security.as_ref().map(|security| security.begin(address.server)).transpose();
        let tls = tls?.map(RefCell::new).map(Box::new);
        Ok(Self { tls, ..Self::begin_plain(servers, reactor, address)? })
    }

    /// Begins to connect, without TLS whatever the servers are said to want.
    pub(super) fn begin_plain(
        servers: &'p Servers<'p>,
        reactor: &'p Reactor,
        address: Address<'p>,
    ) -> Result<Self, Unconnected> {
        Ok(Self {
            servers,
            reactor,
            address,
            socket: begin_to_connect(address.socket)?,
            is_connected: Cell::new(false),
            tls: None,
        })
    }

    /// Goes on with connecting, without waiting. Returns whether that is done.
    pub(super) fn connect_on(&self) -> Result<bool, Unconnected> {
        if !self.is_connected.get() {
            let mut now = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
            if !poll(&mut now, PollTimeout::ZERO).is_ok_and(|count| count > 0) {
                self.reactor.wake_on(self.socket.as_fd(), PollFlags::POLLOUT);
                return Ok(false);
            }
            match self.socket.take_error()? {
                // It was accepted, and closed since then: what is sent next will tell.
                Some(error) if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {}
                Some(error) => return Err(error.into()),
                None => {}
            }
            self.is_connected.set(true);
        }
        let Some(tls) = &self.tls else { return Ok(true) };
        let is_done = tls.borrow_mut().shake_hands(&self.socket)?;
        if !is_done {
            self.wake_on_bytes(false);
        }
        Ok(is_done)
    }

    /// Goes on with connecting until that is done.
    pub(super) async fn connected(&self) -> Result<(), Unconnected> {
        let step = || self.connect_on().map(|is_done| is_done.then_some(())).transpose();
        poll_fn(|_| step().map_or(Poll::Pending, Poll::Ready)).await
    }

    pub(super) fn is_accepted(&self) -> bool {
        self.is_connected.get()
    }

    /// Why the connection has failed, if that is because of TLS.
    pub(super) fn tls_trouble(&self) -> Option<Unconnected> {
        self.tls.as_ref()?.borrow().trouble()
    }

    /// The server has asked for a certificate, and we have none.
    pub(super) fn lacks_certificate(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.borrow().lacks_certificate())
    }
}

impl fmt::Display for TcpChannel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.socket.fmt(f)
    }
}

impl Channel for TcpChannel<'_> {
    fn now(&self) -> Instant {
        clock::now()
    }

    fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match &self.tls {
            Some(tls) => tls.borrow_mut().read(&self.socket, bytes),
            None => (&self.socket).read(bytes),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.tls {
            Some(tls) => tls.borrow_mut().write(&self.socket, bytes),
            None => (&self.socket).write(bytes),
        }
    }

    fn round(&self) -> u64 {
        self.reactor.round()
    }

    fn poll_again(&self) {
        self.reactor.poll_again();
    }

    fn wake_at(&self, at: Instant) {
        self.reactor.wake_at(at);
    }

    fn wake_on_bytes(&self, unsent: bool) {
        let unsent = match &self.tls {
            Some(tls) => {
                let mut tls = tls.borrow_mut();
                // poll(2) knows nothing of them.
                if tls.has_unread() {
                    self.reactor.poll_again();
                }
                unsent || tls.has_unsent()
            }
            None => unsent,
        };
        let events = if unsent { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
        self.reactor.wake_on(self.socket.as_fd(), events);
    }

    fn distrust(&self) {
        self.servers.distrusted.set(Some(self.address.socket));
    }
}

/// A socket that is being connected. It never blocks, and sends at once what it is given.
fn begin_to_connect(server: SocketAddr) -> io::Result<TcpStream> {
    let family = if server.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket: TcpStream = socket(family, SockType::Stream, flags, None)?.into();
    socket.set_nodelay(true)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(server)) {
        Ok(()) | Err(Errno::EINPROGRESS | Errno::EINTR) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}
