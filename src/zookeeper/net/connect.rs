//! Opens every session: addresses, a connection, TLS, a session, a login; and a pause before all of it begins again.
//! `race` tries the servers, `diagnosis` says why none was of use.

use std::time::Duration;

use super::diagnosis::{Round, not_let_in};
use super::race::{Lost, race};
use super::sasl::{LoginExchange, LoginTrouble};
use super::servers::Servers;
use super::tcp::TcpChannel;
use super::tls::Security;
use crate::rules::instant::Instant;
use crate::system::clock;
use crate::system::futures::or;
use crate::system::reactor::Reactor;
use crate::zookeeper::session::Failure;
use crate::zookeeper::session::channel::Channel as _;
use crate::zookeeper::session::client::ClientSession;
use crate::zookeeper::wire::handshake::{Granted, Identity};

/// The servers are tried again after this long, then after twice that, and so on.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_ROUND_PAUSE: Duration = Duration::from_secs(1);

/// How long to wait for the addresses of other names when there is one of the first.
const OTHER_NAMES: Duration = Duration::from_millis(50);

pub type TcpSession<'p> = ClientSession<TcpChannel<'p>>;

impl<'p> TcpSession<'p> {
    /// Opens a session with one of the servers, as `KeeperIo::open` says, or goes on with that of `identity`, as
    /// `KeeperIo::resume` says.
    pub async fn connect(
        servers: &'p Servers<'p>,
        reactor: &'p Reactor,
        timeout: Duration,
        identity: Option<&Identity>,
        unreachable: impl FnMut(String),
        shortened: impl FnMut(Duration, Instant),
    ) -> Result<Self, Failure> {
        let mut connector = Connector { servers, reactor, timeout, identity, logins: Logins::default() };
        // A fault that cuts off the servers may cut off the name servers as well, and the lease does not wait for those.
        let (channel, granted) = or(servers.keep_looking_up(reactor), connector.enter(unreachable, shortened)).await?;
        let session = Self::new(channel, granted, &servers.connect.chroot, identity.map(|_| connector.timeout));
        Ok(session.with_login(servers.login))
    }
}

/// The way to one session.
struct Connector<'a, 'p> {
    servers: &'p Servers<'p>,
    reactor: &'p Reactor,
    /// What to ask for; of a session that is resumed, what was granted last.
    timeout: Duration,
    identity: Option<&'a Identity>,
    logins: Logins,
}

#[derive(Default)]
struct Logins {
    /// The last one, by a closed connection.
    has_closed: bool,
    refused_since: Option<Instant>,
    /// Since when none has succeeded.
    troubled_since: Option<Instant>,
}

type Entered<'p> = (TcpChannel<'p>, Granted);

/// One attempt, after which another one may be worth it.
enum OpenResult<'p> {
    Entered(Entered<'p>),
    /// Why there is no session.
    Failed(String),
}

impl<'p> Connector<'_, 'p> {
    /// If a resumed session gets a shorter timeout, that counts from the handshake, however the login goes: `shortened` is
    /// told of it, and of when the server was asked.
    async fn enter(
        &mut self,
        mut unreachable: impl FnMut(String),
        mut shortened: impl FnMut(Duration, Instant),
    ) -> Result<Entered<'p>, Failure> {
        let mut pause = FIRST_PAUSE;
        loop {
            let (reason, is_login) = match self.open().await? {
                OpenResult::Failed(reason) => (reason, false),
                OpenResult::Entered((channel, granted)) => {
                    if self.identity.is_some() && granted.timeout < self.timeout {
                        self.timeout = granted.timeout;
                        shortened(self.timeout, granted.asked_at);
                    }
                    match self.log_in(channel, granted).await? {
                        OpenResult::Entered(entered) => return Ok(entered),
                        OpenResult::Failed(reason) => (reason, true),
                    }
                }
            };
            unreachable(reason);
            if is_login {
                self.let_session_end().await;
            }
            // Not all clients of a server that comes back at the same moment.
            let jitter = pause.mul_f64(fastrand::f64() / 2.0);
            self.reactor.sleep_until(clock::now() + pause - jitter).await;
            pause = (pause * 2).min(LONGEST_ROUND_PAUSE);
        }
    }

    /// A session on a connection, or why there is none. Fails if the next try would fail as well.
    async fn open(&self) -> Result<OpenResult<'p>, Failure> {
        let Self { servers, reactor, timeout, identity, .. } = *self;
        if let Err(reason) = servers.until_known().await {
            return Ok(OpenResult::Failed(reason));
        }
        // The first server need not be the best one: most look-ups take as long.
        or(servers.until_all_known(), reactor.sleep_until(clock::now() + OTHER_NAMES)).await;
        let known = servers.known();
        let troubles = match race(servers, known.clone(), reactor, timeout, identity).await {
            Ok(opened) => return Ok(OpenResult::Entered(opened)),
            Err(Lost::Final(failure)) => return Err(failure),
            Err(Lost::Troubles(troubles)) => troubles,
        };
        // What was found since then may let us in, and so may a certificate that was being replaced.
        let is_final = servers.are_all_known()
            && servers.known().len() == known.len()
            && !servers.security.as_ref().is_some_and(Security::is_outdated);
        if let Some(why) = not_let_in(&troubles).filter(|_| identity.is_none() && is_final) {
            return Err(Failure::NotLetIn(why));
        }
        let round = Round { servers, reactor, timeout, may_ask: identity.is_none(), known: &known };
        // Boxed, because this future is large and rarely needed.
        Ok(OpenResult::Failed(Box::pin(round.tell(&troubles)).await))
    }

    /// Logs in by SASL, if we do that. Returns the session, or why the login has failed. Fails if the next one would as well.
    async fn log_in(&mut self, channel: TcpChannel<'p>, granted: Granted) -> Result<OpenResult<'p>, Failure> {
        let Some(sasl) = self.servers.login.sasl() else { return Ok(OpenResult::Entered((channel, granted))) };
        let patience = self.servers.silence_limit(self.timeout.min(granted.timeout));
        let mut exchange = LoginExchange::new(&channel, granted, patience);
        let trouble = match exchange.log_in(sasl).await {
            Ok(()) => {
                let granted = exchange.finish();
                return Ok(OpenResult::Entered((channel, granted)));
            }
            Err(trouble) => trouble,
        };
        let why = format!("{channel}: {}", trouble.why());
        let is_refused = self.logins.is_refused(&trouble);
        if self.identity.is_none() {
            // Each attempt opens another session, and sessions that are left open would add up.
            exchange.close().await;
            if is_refused {
                return Err(match trouble {
                    LoginTrouble::NoLibrary(why) => Failure::NoLibrary(why),
                    _ => Failure::NotLetIn(why),
                });
            }
        }
        // Another server may take the login with which the session began. But each try prolongs the session, and those
        // who wait behind its node must not wait for ever.
        if is_refused && has_passed(&mut self.logins.refused_since, self.timeout) {
            return Err(Failure::NotLetIn(why));
        }
        channel.distrust();
        Ok(OpenResult::Failed(why))
    }

    /// A login without an answer, such as a ticket of Kerberos, prolongs the session as well: the session ends before the
    /// next try.
    async fn let_session_end(&mut self) {
        if self.identity.is_some() && has_passed(&mut self.logins.troubled_since, self.timeout) {
            self.logins.troubled_since = None;
            self.reactor.sleep_until(clock::now() + self.timeout * 3 / 2).await;
        }
    }
}

impl Logins {
    /// A server that is being stopped closes connections as well, but not twice.
    fn is_refused(&mut self, trouble: &LoginTrouble) -> bool {
        let is_closed = matches!(trouble, LoginTrouble::Closed);
        let had_closed = std::mem::replace(&mut self.has_closed, is_closed);
        matches!(trouble, LoginTrouble::Refused(_) | LoginTrouble::NoLibrary(_)) || had_closed && is_closed
    }
}

/// Whether this long has passed since then, or since now if nothing is noted.
fn has_passed(since: &mut Option<Instant>, time: Duration) -> bool {
    clock::now().saturating_since(*since.get_or_insert_with(clock::now)) >= time
}
