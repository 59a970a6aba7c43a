//! GSSAPI: a ticket of Kerberos shows who we are, and the server proves that it is the one the ticket is for.

use super::{LoginExchange, LoginTrouble};
use crate::system::clock;
use crate::system::errors::brief;
use crate::system::futures::or;
use crate::system::lookup::Lookup;
use crate::zookeeper::net::libgssapi::{Client, Token};

/// How many tokens we send at most. Kerberos needs three.
const TOKENS: usize = 10;

/// Begins the process that has the C library.
fn begin(service: &str, host: &str) -> Result<Lookup, LoginTrouble> {
    let mut client = None;
    let talk = Lookup::talk(c"lock-gssapi", |message| {
        // The first byte is there because no message may be empty.
        let token = message.get(1..).unwrap_or_default();
        let client = client.get_or_insert_with(|| Client::new(service, host)).as_mut();
        client.map_err(|trouble| trouble.clone()).and_then(|client| client.step(token))
    });
    talk.map_err(|error| LoginTrouble::Lost(format!("Kerberos: {}", brief(&error))))
}

impl LoginExchange<'_, '_> {
    pub(super) async fn gssapi(&mut self, service: &str) -> Result<(), LoginTrouble> {
        let refused = |why: String| Err(LoginTrouble::Refused(why));
        let talk = begin(service, &self.channel.address.server.host)?;
        let mut said = vec![];
        for number in 0..TOKENS {
            let token = self.token(&talk, &said).await?;
            said = match self.ask(&token.bytes).await? {
                Ok(_) if token.is_last => return Ok(()),
                Ok(answer) if answer.is_empty() => return refused(super::NO_SASL.to_owned()),
                Ok(answer) => answer,
                Err(code) if number == 0 => return refused(format!("it refuses a login by GSSAPI ({code})")),
                Err(code) => return refused(format!("it refuses the login ({code})")),
            };
        }
        refused("it never comes to an end with the login".to_owned())
    }

    /// What is to be sent.
    async fn token(&self, talk: &Lookup, said: &[u8]) -> Result<Token, LoginTrouble> {
        let failed = |why: &str| LoginTrouble::Lost(format!("Kerberos: {why}"));
        talk.ask(&[b"s", said].concat()).map_err(|error| failed(&brief(&error)))?;
        let reactor = self.channel.reactor;
        let answer = async { talk.answered(reactor).await.unwrap_or_else(|why| Err(failed(&why))) };
        let silence = async {
            reactor.sleep_until(clock::now() + self.patience).await;
            Err(failed("no answer in time"))
        };
        or(answer, silence).await
    }
}
