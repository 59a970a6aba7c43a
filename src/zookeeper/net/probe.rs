//! Sessions with one server each, to see what it grants. They are closed in any case, also if the work that uses them
//! is dropped half-way.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::ops::Deref;
use std::task::Poll;
use std::time::Duration;

use super::connect::TcpSession;
use super::sasl::{Line, LoginTrouble};
use super::servers::{Address, Servers};
use super::tcp::{TcpChannel, Unconnected};
use super::tls::{Encryption, TlsTrouble};
use super::word::answer_to;
use crate::system::futures::{all, or};
use crate::system::reactor::Reactor;
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
    fn from(error: Unconnected) -> Self {
        match error {
            Unconnected::Tls(trouble) => Self::Failed(cure(&trouble), trouble.to_string()),
            error => Self::Failed(Cure::Server, error.to_string()),
        }
    }
}

const fn cure(trouble: &TlsTrouble) -> Cure {
    match trouble {
        TlsTrouble::Closed => Cure::NoTls,
        TlsTrouble::Refused(_) => Cure::Certificate,
        TlsTrouble::OtherName(_) => Cure::Name,
        TlsTrouble::Untrusted(_) => Cure::Trust,
        TlsTrouble::Failed(_) => Cure::Server,
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
        let mut asked = Asking { probes: self, pair: Some((channel, Attempt::open(timeout))) };
        let granted = asked.granted().await;
        let granted = match granted {
            Ok(granted) => Ok(asked.log_in(granted).await?),
            rejected => rejected,
        };
        let channel = asked.pair.take().map(|(channel, _)| channel);
        match (granted, channel) {
            (Ok(granted), Some(channel)) => {
                let encryption = channel.encryption();
                Ok(Probe { probes: self, session: Some(Box::new(self.session(channel, granted, chroot))), encryption })
            }
            (rejected, channel) => match channel.and_then(|channel| channel.tls_trouble()) {
                Some(trouble) => Err(Unconnected::Tls(trouble).into()),
                None if matches!(rejected, Err(Rejected::Closed)) => Err(NoProbe::Closed),
                None => Err(NoProbe::NoSession),
            },
        }
    }

    fn session(&self, channel: TcpChannel<'p>, granted: Granted, chroot: &str) -> TcpSession<'p> {
        ClientSession::new(channel, granted, chroot, None).with_login(self.servers.login)
    }

    /// What a server answers to a four letter word, as far as it does, and from which address it was asked.
    pub async fn word(&self, word: &str, address: Address<'p>) -> Option<(String, SocketAddr)> {
        answer_to(word, self.servers, address, self.reactor).await
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
    poll_fn(|_| match shake_hands(attempt, channel, false) {
        Ok(None) => Poll::Pending,
        Ok(Some(granted)) => Poll::Ready(Ok(granted)),
        Err(rejected) => Poll::Ready(Err(rejected)),
    })
    .await
}

/// Until the session is closed, or the connection is lost. The session may have been asked to close before.
async fn close(session: &TcpSession<'_>) {
    let asked = async { drop(session.ask(&Request::Close).await) };
    or(session.lost(), asked).await;
}

/// A server that is being asked for a session.
struct Asking<'a, 'p> {
    probes: &'a Probes<'p>,
    pair: Option<(TcpChannel<'p>, Attempt)>,
}

impl Asking<'_, '_> {
    async fn granted(&mut self) -> Result<Granted, Rejected> {
        match &mut self.pair {
            Some((channel, attempt)) => granted(attempt, channel).await,
            None => Err(Rejected::NoSession),
        }
    }

    /// Logs in by SASL, if we do that.
    async fn log_in(&mut self, granted: Granted) -> Result<Granted, NoProbe> {
        let (Some(sasl), Some((channel, _))) = (self.probes.servers.login.sasl(), &self.pair) else {
            return Ok(granted);
        };
        let mut line = Line::new(channel, granted, LOGIN);
        let Err(trouble) = line.log_in(sasl).await else { return Ok(line.finish()) };
        line.close().await;
        self.pair.take();
        Err(match trouble {
            LoginTrouble::Lost(why) => NoProbe::Failed(Cure::Server, why),
            trouble => NoProbe::Failed(Cure::Login, trouble.why().to_owned()),
        })
    }
}

impl Drop for Asking<'_, '_> {
    fn drop(&mut self) {
        if let Some(pair) = self.pair.take() {
            self.probes.left.borrow_mut().push(Left::Asked(Box::new(pair)));
        }
    }
}

/// A session with one server.
#[derive(Debug)]
pub struct Probe<'a, 'p> {
    probes: &'a Probes<'p>,
    session: Option<Box<TcpSession<'p>>>,
    encryption: Option<Encryption>,
}

impl<'p> Deref for Probe<'_, 'p> {
    type Target = TcpSession<'p>;

    fn deref(&self) -> &TcpSession<'p> {
        self.session.as_ref().expect("it is taken out at the end only")
    }
}

impl Probe<'_, '_> {
    /// How its connection is encrypted. `None`: it is not.
    pub fn encryption(&self) -> Option<Encryption> {
        self.encryption.clone()
    }

    pub async fn with<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let lost = async {
            self.lost().await;
            Err(Failure::Unknown("the connection was lost".to_owned()))
        };
        or(lost, work).await
    }

    pub async fn close(mut self) {
        close(&self).await;
        self.session.take();
    }
}

impl Drop for Probe<'_, '_> {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            self.probes.left.borrow_mut().push(Left::Open(session));
        }
    }
}
