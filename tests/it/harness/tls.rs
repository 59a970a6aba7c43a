//! Servers and runs of zklock with certificates of their own.

use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

pub(crate) use super::authority::{Authority, Good, LOCAL};
use super::poll;
use super::process::{self, Seat};
use super::server::{Server, Settings, free_port};
use super::zklock::Zklock;

impl Authority {
    pub(crate) fn settings(&self, name: &str, protocol: Protocol, client_auth: &str) -> Settings {
        let ciphers = match protocol {
            Protocol::Tls12 => "",
            Protocol::Tls13 => {
                "ssl.protocol=TLSv1.3\nssl.enabledProtocols=TLSv1.3\nssl.ciphersuites=TLS_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384"
            }
        };
        Settings::default()
            .secure()
            .line("serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory")
            .line(format!("ssl.keyStore.location={}", self.file(&format!("{name}-both.pem"))))
            .line(format!("ssl.trustStore.location={}", self.file("ca.pem")))
            .line(format!("ssl.clientAuth={client_auth}"))
            .line(ciphers)
    }

    /// zklock that trusts this authority.
    pub(crate) fn trusted(&self, zklock: Zklock) -> Zklock {
        zklock.env("ZKLOCK_TLS_CA", self.path("ca.pem"))
    }

    /// The same, with the certificate `name`.
    pub(crate) fn known_as(&self, name: &str, zklock: Zklock) -> Zklock {
        let certificate = self.path(&format!("{name}.pem"));
        self.trusted(zklock)
            .env("ZKLOCK_TLS_CERT", certificate)
            .env("ZKLOCK_TLS_KEY", self.path(&format!("{name}.key")))
    }

    /// A server that does no more than the handshake, with the certificate `name`.
    pub(crate) fn handshaker(&self, name: &str) -> Handshaker {
        Handshaker::start(&self.path(&format!("{name}.pem")), &self.path(&format!("{name}.key")))
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Protocol {
    Tls12,
    Tls13,
}

/// A server for TLS 1.2 with a certificate for localhost, by name, which asks for no certificate. Not to be hurt.
pub(crate) fn server_12() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(|| {
        let authority = Authority::shared();
        authority.issue("server12", "subjectAltName=DNS:localhost,DNS:zk.example", Good::Days(30));
        authority.settings("server12", Protocol::Tls12, "none").server()
    })
}

/// A server for TLS 1.3 with a certificate for 127.0.0.1, which demands a certificate; `client` has one. Not to
/// be hurt.
pub(crate) fn server_13() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(|| {
        let authority = Authority::shared();
        authority.issue("server13", "subjectAltName=IP:127.0.0.1", Good::Days(10));
        authority.issue("client", "", Good::Days(30));
        authority.settings("server13", Protocol::Tls13, "need").server()
    })
}

/// `openssl s_server`
#[derive(Debug)]
pub(crate) struct Handshaker {
    port: u16,
    process: Child,
}

impl Handshaker {
    fn start(certificate: &Path, key: &Path) -> Self {
        let port = free_port();
        let mut openssl = Command::new("openssl");
        openssl.args(["s_server", "-quiet", "-accept", &format!("127.0.0.1:{port}")]);
        openssl.arg("-cert").arg(certificate).arg("-key").arg(key);
        openssl.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = process::spawn(openssl, Seat::OwnGroup, &[]).expect("openssl can be run");
        poll::until("openssl listens", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
        Self { port, process }
    }

    pub(crate) fn address(&self, host: &str) -> String {
        format!("{host}:{}", self.port)
    }
}

impl Drop for Handshaker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
