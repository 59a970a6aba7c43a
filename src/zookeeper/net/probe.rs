//! Sessions with one server each, to see what it grants. They are closed in any case, also if the work that uses them
//! is dropped half-way.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::ops::Deref;
use std::task::Poll;
use std::time::Duration;

use super::connect::TcpSession;
use super::sasl::{LoginExchange, LoginTrouble};
use super::servers::{Address, Servers};
use super::tcp::TcpChannel;
use super::tls::{Encryption, Unconnected};
use super::word::answer_to;
use crate::system::futures::{all, or};
use crate::system::reactor::Reactor;
use crate::zookeeper::login::Login;
use crate::zookeeper::session::channel::{Rejected, shake_hands};
use crate::zookeeper::session::client::ClientSession;
use crate::zookeeper::session::{Failure, Session as _};
use crate::zookeeper::wire::handshake::{Attempt, Granted};
use crate::zookeeper::wire::request::Request;

/// How long a server may take over each step of a login.
const LOGIN: Duration = Duration::from_secs(5);

/// What helps against a server that does not answer as it should.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cure {
    /// Something is to be done about the server, or about its address.
    #[default]
    Server,
    /// To use TLS, or another port.
    Tls,
    /// The same, or to make room for more connections.
    Full,
    /// To use no TLS, or another port.
    NoTls,
    /// To call it what its certificate says.
    Name,
    /// To trust its certificate, or to give it another one.
    Trust,
    /// To show it another client certificate.
    Certificate,
    /// To log in, or to log in otherwise.
    Login,
    /// To use ZooKeeper: it is ClickHouse Keeper.
    ZooKeeper,
}

/// Why a server has opened no session.
#[derive(Debug)]
pub enum NoProbe {
    /// It could not be connected to, or wants something else of us: what helps, and the reason.
    Failed(Cure, String),
    /// It accepts connections, and opens no session on them.
    NoSession,
    /// It closes connections before it answers.
    Closed,
}

impl From<Unconnected> for NoProbe {
    fn from(trouble: Unconnected) -> Self {
        let cure = match &trouble {
            Unconnected::Closed => Cure::NoTls,
            Unconnected::Refused(_) => Cure::Certificate,
            Unconnected::OtherName(_) => Cure::Name,
            Unconnected::Untrusted(_) => Cure::Trust,
            Unconnected::Io(_) | Unconnected::Failed(_) => Cure::Server,
        };
        Self::Failed(cure, trouble.to_string())
    }
}

#[derive(Debug)]
pub struct Probes<'p> {
    servers: &'p Servers<'p>,
    reactor: &'p Reactor,
    left: RefCell<Vec<Left<'p>>>,
}

/// What is still to be closed.
#[derive(Debug)]
enum Left<'p> {
    /// A server that was asked for a session, and may open it yet.
    Asked(Box<(TcpChannel<'p>, Attempt)>),
    Open(Box<TcpSession<'p>>),
}

impl<'p> Probes<'p> {
    pub fn new(servers: &'p Servers<'p>, reactor: &'p Reactor) -> Self {
        Self { servers, reactor, left: RefCell::default() }
    }

    /// Asks one server for a session. `chroot`: what its paths begin at.
    pub async fn open(&self, address: Address<'p>, timeout: Duration, chroot: &str) -> Result<Probe<'_, 'p>, NoProbe> {
        let channel = TcpChannel::begin(self.servers, self.reactor, address)?;
        channel.connected().await?;
        let asked = Left::Asked(Box::new((channel, Attempt::open(timeout))));
        let mut probe = Probe { probes: self, left: Some(asked), encryption: None };
        let granted = match &mut probe.left {
            Some(Left::Asked(asked)) => entered(&asked.0, &mut asked.1, self.servers.login).await,
            _ => Err(NoProbe::NoSession),
        };
        if let Some(Left::Asked(asked)) = probe.left.take() {
            probe.encryption = asked.0.encryption();
            probe.left = Some(Left::Open(Box::new(self.session(asked.0, granted?, chroot))));
        }
        Ok(probe)
    }

    fn session(&self, channel: TcpChannel<'p>, granted: Granted, chroot: &str) -> TcpSession<'p> {
        ClientSession::new(channel, granted, chroot, None).with_login(self.servers.login)
    }

    /// What a server answers to a four letter word, as far as it does, and from which address it was asked.
    pub async fn word(&self, word: &str, address: Address<'p>) -> Option<(String, SocketAddr)> {
        answer_to(word, TcpChannel::begin(self.servers, self.reactor, address).ok()?, true).await
    }

    /// Closes the sessions that were left open, as far as their servers answer. The caller limits the time.
    pub async fn close(&self) {
        let left = self.left.take();
        all(left.into_iter().map(|left| async move {
            match left {
                Left::Open(session) => close(&session).await,
                Left::Asked(asked) => {
                    let (channel, mut attempt) = *asked;
                    // A server that is slower than this process finds it when it is ready.
                    attempt.abandon();
                    if let Ok(granted) = granted(&mut attempt, &channel).await {
                        self.session(channel, granted, "").lost().await;
                    }
                }
            }
        }))
        .await;
    }
}

/// Until the server has opened the session that it was asked for, or has refused it.
async fn granted(attempt: &mut Attempt, channel: &TcpChannel<'_>) -> Result<Granted, Rejected> {
    poll_fn(|_| shake_hands(attempt, channel, false).transpose().map_or(Poll::Pending, Poll::Ready)).await
}

/// Until the session is closed, or the connection is lost. The session may have been asked to close before.
async fn close(session: &TcpSession<'_>) {
    let asked = async { drop(session.ask(&Request::Close).await) };
    or(session.lost(), asked).await;
}

/// The session that the server has opened, after the login by SASL, if we do that.
async fn entered(channel: &TcpChannel<'_>, attempt: &mut Attempt, login: &Login) -> Result<Granted, NoProbe> {
    let granted = granted(attempt, channel).await.map_err(|why| match channel.tls_trouble() {
        Some(trouble) => trouble.into(),
        None if why == Rejected::Closed => NoProbe::Closed,
        None if why == Rejected::ClickHouseKeeper => {
            NoProbe::Failed(Cure::ZooKeeper, "it is ClickHouse Keeper".to_owned())
        }
        None => NoProbe::NoSession,
    })?;
    let Some(sasl) = login.sasl() else { return Ok(granted) };
    let mut exchange = LoginExchange::new(channel, granted, LOGIN);
    let Err(trouble) = exchange.log_in(sasl).await else { return Ok(exchange.finish()) };
    exchange.close().await;
    Err(match trouble {
        LoginTrouble::Lost(why) => NoProbe::Failed(Cure::Server, why),
        trouble => NoProbe::Failed(Cure::Login, trouble.why().to_owned()),
    })
}

/// A session with one server, or what is on the way to it.
#[derive(Debug)]
pub struct Probe<'a, 'p> {
    probes: &'a Probes<'p>,
    left: Option<Left<'p>>,
    /// How its connection is encrypted. `None`: it is not.
    pub encryption: Option<Encryption>,
}

impl<'p> Deref for Probe<'_, 'p> {
    type Target = TcpSession<'p>;

    fn deref(&self) -> &TcpSession<'p> {
        match &self.left {
            Some(Left::Open(session)) => session,
            _ => unreachable!("it is open until it is taken out at the end"),
        }
    }
}

impl Probe<'_, '_> {
    pub async fn with<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let lost = async {
            self.lost().await;
            Err(Failure::Unknown("the connection was lost".to_owned()))
        };
        or(lost, work).await
    }

    pub async fn close(mut self) {
        close(&self).await;
        self.left = None;
    }
}

impl Drop for Probe<'_, '_> {
    fn drop(&mut self) {
        self.probes.left.borrow_mut().extend(self.left.take());
    }
}
