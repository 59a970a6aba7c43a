//! The whole suite with TLS and a login: by `ZKLOCK_TEST_SECURE=1`.
//!
//! Then every server takes TLS and plain connections on the same port. Each zklock has a certificate and a login in its
//! environment, so its nodes are its own, and others may read them ([`Secure::environment`]). The harness's client and
//! the peers show the same login over plain connections. A proxy that reads frames ends the encryption of those who
//! come to it with TLS, and is a server to them: what it loses or holds back they miss below TLS.
//!
//! A test that cannot be about TLS or a login says so by [`Zklock::plain`](super::zklock::Zklock::plain).

use std::env;
use std::ffi::OsString;
use std::sync::{Arc, OnceLock};
use std::thread;

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerConfig, WebPkiClientVerifier};

use super::authority::{Authority, Good, LOCAL};
use super::skipped::say;

const SWITCH: &str = "ZKLOCK_TEST_SECURE";

/// The kind of the login, and what is shown for it.
pub(crate) const LOGIN: (&str, &str) = ("digest", "suite:hidden-0");

/// What the suite has for TLS.
#[derive(Debug)]
pub(crate) struct Secure {
    authority: Authority,
    proxies: Arc<ServerConfig>,
}

impl Secure {
    /// `None` without the switch.
    pub(crate) fn used() -> Option<&'static Self> {
        static USED: OnceLock<Option<Secure>> = OnceLock::new();
        let is_on = || env::var_os(SWITCH).is_some_and(|value| !value.is_empty() && value != "0");
        USED.get_or_init(|| is_on().then(Self::new)).as_ref()
    }

    fn new() -> Self {
        let authority = Authority::new();
        authority.issue("server", LOCAL, Good::Days(365));
        // Of version 3 of X.509; rustls, by which proxies are servers, takes no other.
        authority.issue("client", "extendedKeyUsage=clientAuth", Good::Days(365));
        let proxies = server_config(&authority);
        Self { authority, proxies: proxies.into() }
    }

    /// The lines of zoo.cfg by which a server takes both kinds of connections. It asks for a certificate, and does
    /// without.
    pub(super) fn lines(&self) -> String {
        format!(
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\nclient.portUnification=true\n\
             authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider\n\
             ssl.keyStore.location={}\nssl.trustStore.location={}\nssl.clientAuth=want\n",
            self.authority.file("server-both.pem"),
            self.authority.file("ca.pem"),
        )
    }

    /// How a proxy is a server to those who come with TLS.
    pub(super) fn of_proxies(&self) -> Arc<ServerConfig> {
        self.proxies.clone()
    }

    pub(super) fn environment(&self) -> Vec<(OsString, OsString)> {
        [self.tls(), vec![login()]].concat()
    }

    pub(super) fn tls(&self) -> Vec<(OsString, OsString)> {
        [("CA", "ca.pem"), ("CERT", "client.pem"), ("KEY", "client.key")]
            .map(|(what, name)| (format!("ZKLOCK_TLS_{what}").into(), self.authority.path(name).into()))
            .into()
    }

    /// Those by which servers know who we are.
    pub(super) fn identity(&self) -> Vec<(OsString, OsString)> {
        [&self.tls()[1..], &[login()]].concat()
    }
}

/// How something is a server that has the certificate `server` of this authority. It asks for a certificate, and does
/// without.
pub(crate) fn server_config(authority: &Authority) -> ServerConfig {
    let certificate = |name| CertificateDer::from_pem_file(authority.path(name)).expect("openssl has written it");
    let key = PrivateKeyDer::from_pem_file(authority.path("server.key")).expect("openssl has written it");
    let mut roots = RootCertStore::empty();
    roots.add(certificate("ca.pem")).expect("a CA");
    let provider = Arc::new(ring::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
    let clients = clients.allow_unauthenticated().build();
    let proxies = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let proxies = proxies.expect("versions").with_client_cert_verifier(clients.expect("a CA"));
    proxies.with_single_cert(vec![certificate("server.pem")], key).expect("they belong together")
}

fn login() -> (OsString, OsString) {
    ("ZKLOCK_AUTH".into(), format!("{}:{}", LOGIN.0, LOGIN.1).into())
}

/// A four-letter word, as it is sent. A server that takes both kinds of connections wants a fifth byte before it knows
/// which one this is.
pub(super) fn word(word: &str) -> String {
    if Secure::used().is_some() { format!("{word}\n") } else { word.to_owned() }
}

/// Says that this test is about connections without TLS, or without the login. scripts/test counts these lines.
pub(super) fn say_plain() {
    let this = thread::current();
    say(&format!("plain: {}", this.name().unwrap_or("a thread of a test")));
}
