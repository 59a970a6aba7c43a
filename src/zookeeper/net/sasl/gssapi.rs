//! GSSAPI: a ticket of Kerberos shows who we are, and the server proves that it is the one the ticket is for.

use std::future::poll_fn;
use std::task::Poll;

use nix::poll::PollFlags;

use super::{LoginExchange, LoginTrouble};
use crate::rules::text::printable;
use crate::system::clock;
use crate::system::errors::brief;
use crate::system::lookup::Lookup;
use crate::zookeeper::net::libgssapi::{Client, GssapiFailure, Token};
use std::os::fd::AsFd as _;

/// How many tokens we send at most. Kerberos needs three.
const TOKENS: usize = 10;

/// What begins a message of the process that has the C library.
const NEXT: u8 = b'n';
const LAST: u8 = b'l';
const REFUSED: u8 = b'r';
const UNREACHABLE: u8 = b'u';

/// Begins the process that has the C library.
fn begin(service: &str, host: &str) -> Result<Lookup, LoginTrouble> {
    let mut client = None;
    let talk = Lookup::talk(c"lock-gssapi", |message| {
        // The first byte is there because no message may be empty.
        let token = message.get(1..).unwrap_or_default();
        let step = client.get_or_insert_with(|| Client::new(service, host)).as_mut().map_err(|failure| failure.clone());
        let (kind, text) = match step.and_then(|client| client.step(token)) {
            Ok(Token::Next(token)) => (NEXT, token),
            Ok(Token::Last(token)) => (LAST, token),
            Err(GssapiFailure::Refused(why)) => (REFUSED, why.into_bytes()),
            Err(GssapiFailure::Unreachable(why)) => (UNREACHABLE, why.into_bytes()),
        };
        [&[kind], &text[..]].concat()
    });
    talk.map_err(|error| LoginTrouble::Lost(format!("Kerberos: {}", brief(&error))))
}

impl LoginExchange<'_, '_> {
    pub(super) async fn gssapi(&mut self, service: &str) -> Result<(), LoginTrouble> {
        let refused = |why: String| Err(LoginTrouble::Refused(why));
        let talk = begin(service, &self.channel.address.server.host)?;
        let mut said = vec![];
        for number in 0..TOKENS {
            let (token, is_last) = self.token(&talk, &said).await?;
            said = match self.ask(&token).await? {
                // The server has proved who it is before this last token was sent.
                Ok(_) if is_last => return Ok(()),
                Ok(answer) if answer.is_empty() => return refused(super::NO_SASL.to_owned()),
                Ok(answer) => answer,
                Err(code) if number == 0 => return refused(format!("it refuses a login by GSSAPI ({code})")),
                Err(code) => return refused(format!("it refuses the login ({code})")),
            };
        }
        refused("it never comes to an end with the login".to_owned())
    }

    /// What is to be sent, and whether it is the last that is.
    async fn token(&mut self, talk: &Lookup, said: &[u8]) -> Result<(Vec<u8>, bool), LoginTrouble> {
        let failed = |why: &str| LoginTrouble::Lost(format!("Kerberos: {why}"));
        talk.ask(&[b"s", said].concat()).map_err(|error| failed(&brief(&error)))?;
        self.until = clock::now() + self.patience;
        let answer = poll_fn(|_| match talk.answer() {
            Some(answer) => Poll::Ready(Some(answer)),
            None if clock::now() >= self.until => Poll::Ready(None),
            None => {
                self.channel.reactor.wake_on(talk.as_fd(), PollFlags::POLLIN);
                self.channel.reactor.wake_at(self.until);
                Poll::Pending
            }
        });
        let answer = answer.await.ok_or_else(|| failed("no answer in time"))?;
        let text = || format!("Kerberos: {}", printable(&String::from_utf8_lossy(&answer[1..])));
        match answer.first() {
            Some(&NEXT) => Ok((answer[1..].to_vec(), false)),
            Some(&LAST) => Ok((answer[1..].to_vec(), true)),
            Some(&REFUSED) => Err(LoginTrouble::Refused(text())),
            Some(&UNREACHABLE) => Err(LoginTrouble::Lost(text())),
            _ => Err(failed("the process that asks has died")),
        }
    }
}
