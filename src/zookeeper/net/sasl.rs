//! Logging in by SASL: after a session was granted, and before anything else is asked over its connection.
//!
//! A server accepts no password of SASL that is not right, unlike one of digest. But one where SASL is not set up lets
//! us in all the same, without a login, and so does one that is told to (`zookeeper.allowSaslFailedClients`). So
//! the login counts when the server has confirmed it, and not before.

mod gssapi;

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use rustls::crypto::ring;
use serde::{Deserialize, Serialize};

use super::digest_md5::Response;
use super::tcp::TcpChannel;
use crate::rules::instant::Instant;
use crate::rules::keep_alive::KeepAlive;
use crate::system::errors::brief;
use crate::zookeeper::login::Sasl;
use crate::zookeeper::session::channel::{Channel, is_for_later, send};
use crate::zookeeper::wire::connection::{Connection, ServerEvent};
use crate::zookeeper::wire::error::Code;
use crate::zookeeper::wire::handshake::Granted;
use crate::zookeeper::wire::reply::Reply;
use crate::zookeeper::wire::request::{Request, Secret};

/// The service and the host that DIGEST-MD5 is about: each ZooKeeper server says that it is this one (`SecurityUtils`).
const URI: &str = "zookeeper/zk-sasl-md5";

/// Why a server with SASL may not take part (ZOOKEEPER-5043), and what helps.
const NO_MD5: &str = "servers do so from 3.9.6 on, unless -Dzookeeper.fips-mode=false is set there; use a client \
                      certificate, Kerberos or digest: instead";

/// Of a server that answers the first token with nothing.
const NO_SASL: &str = "SASL is not set up there, so it would ignore the login";

/// How long to wait for the answer to the request that closes the session. The server carries it out all the same.
const LAST_ANSWER: Duration = Duration::from_millis(200);

/// Why there is no login.
#[derive(Clone, Serialize, Deserialize)]
pub(super) enum LoginTrouble {
    /// It will not mend itself.
    Refused(String),
    /// This machine lacks the library that the login needs.
    NoLibrary(String),
    /// The server has closed the connection in place of an answer. ZooKeeper 3.4 does that if it refuses the login.
    Closed,
    /// The connection cannot be used, for this reason.
    Lost(String),
}

impl LoginTrouble {
    pub(super) fn why(&self) -> &str {
        match self {
            Self::Refused(why) | Self::NoLibrary(why) | Self::Lost(why) => why,
            Self::Closed => "it closes the connection at the login, as ZooKeeper 3.4 does if the password is wrong",
        }
    }
}

/// A connection on which a session was granted.
pub(super) struct LoginExchange<'c, 'p> {
    channel: &'c TcpChannel<'p>,
    connection: Connection<()>,
    /// How long the server may be silent.
    patience: Duration,
    until: Instant,
}

impl<'c, 'p> LoginExchange<'c, 'p> {
    pub(super) fn new(channel: &'c TcpChannel<'p>, granted: Granted, patience: Duration) -> Self {
        let now = channel.now();
        // No path is named, and no ping is sent.
        let connection = Connection::new(granted, "", KeepAlive::brisk(patience), now);
        Self { channel, connection, patience, until: now + patience }
    }

    pub(super) async fn log_in(&mut self, sasl: Sasl<'_>) -> Result<(), LoginTrouble> {
        match sasl {
            Sasl::DigestMd5 { user, password } => self.digest_md5(user, password).await?,
            Sasl::Gssapi { service } => self.gssapi(service).await?,
        }
        log::info!("logged in to {} by SASL", self.channel);
        Ok(())
    }

    /// The session, after the login.
    pub(super) fn finish(self) -> Granted {
        self.connection.into_granted()
    }

    async fn digest_md5(&mut self, user: &str, password: &str) -> Result<(), LoginTrouble> {
        let refused = |why: &str| Err(LoginTrouble::Refused(why.to_owned()));
        let challenge = match self.ask(b"").await? {
            Ok(challenge) if challenge.is_empty() => {
                return refused(&format!("{NO_SASL}; or it refuses DIGEST-MD5: {NO_MD5}"));
            }
            Ok(challenge) => challenge,
            Err(code) => return refused(&format!("it refuses a login by DIGEST-MD5 ({code}): {NO_MD5}")),
        };
        let Some(response) = Response::to(&challenge, user, password, &nonce()?, URI) else {
            return refused("it wants SASL, but not by DIGEST-MD5");
        };
        match self.ask(&response.token).await? {
            Ok(answer) if response.is_confirmed_by(&answer) => Ok(()),
            // It goes on without a login (`zookeeper.allowSaslFailedClients`).
            Ok(answer) if answer.is_empty() => refused("it refuses the login: no such user, or another password"),
            Ok(_) => refused("it does not know the password itself"),
            Err(Code::AuthFailed | Code::SessionClosedRequireAuth) => {
                refused("it refuses the login: no such user, or another password")
            }
            Err(code) => refused(&format!("it refuses the login ({code})")),
        }
    }

    async fn ask(&mut self, token: &[u8]) -> Result<Result<Vec<u8>, Code>, LoginTrouble> {
        if self.connection.request(&Request::Sasl(Secret(token)), (), self.channel.now()).is_err() {
            return Err(LoginTrouble::Refused("the login is too long".to_owned()));
        }
        self.until = self.channel.now() + self.patience;
        poll_fn(|_| self.go_on().transpose().map_or(Poll::Pending, Poll::Ready)).await
    }

    /// Sends and reads what can be without waiting.
    fn go_on(&mut self) -> Result<Option<Result<Vec<u8>, Code>>, LoginTrouble> {
        while let Some((count, at)) = send(self.channel, self.connection.to_send()).map_err(|error| lost(&error))? {
            self.connection.sent(count, at);
        }
        let mut bytes = [0; 4096];
        loop {
            let event = self.connection.next_event().map_err(|error| LoginTrouble::Lost(error.to_string()))?;
            if let Some(ServerEvent::Answered { result, .. }) = event {
                return Ok(Some(match result {
                    Ok(Reply::Token(token)) => Ok(token),
                    Ok(_) => Ok(vec![]),
                    Err(code) => Err(code),
                }));
            }
            match self.channel.read(&mut bytes) {
                Ok(0) => return Err(LoginTrouble::Closed),
                Ok(count) => self.connection.receive(&bytes[..count], self.channel.now()),
                Err(error) if is_for_later(&error) => break,
                Err(error) => return Err(lost(&error)),
            }
        }
        if self.channel.now() >= self.until {
            return Err(LoginTrouble::Lost("it does not answer the login".to_owned()));
        }
        self.channel.wake_at(self.until);
        self.channel.wake_on_bytes(!self.connection.to_send().is_empty());
        Ok(None)
    }

    /// Closes the session, as far as the server does that. It closes the connection after it, or has already.
    pub(super) async fn close(mut self) {
        // Never too long.
        let _ = self.connection.request(&Request::Close, (), self.channel.now());
        self.until = self.channel.now() + LAST_ANSWER;
        let _ = poll_fn(|_| self.go_on().transpose().map_or(Poll::Pending, Poll::Ready)).await;
    }
}

fn lost(error: &io::Error) -> LoginTrouble {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => LoginTrouble::Closed,
        _ => LoginTrouble::Lost(brief(error)),
    }
}

/// One that was never used before, and that others cannot guess.
fn nonce() -> Result<String, LoginTrouble> {
    let mut bytes = [0; 16];
    let drawn = ring::default_provider().secure_random.fill(&mut bytes);
    drawn.map_err(|_| LoginTrouble::Lost("the system has no random numbers".to_owned()))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}
