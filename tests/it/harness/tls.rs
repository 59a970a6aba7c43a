//! Certificates by openssl, and servers that use them.

use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use super::poll;
use super::process::{self, Seat};
use super::server::{Server, Settings, free_port};
use super::zklock::Zklock;

/// `openssl ca` is the one command that takes the dates of a certificate.
const CONFIG: &str = "[ca]\ndefault_ca = d\n[d]\ndatabase = index\nnew_certs_dir = .\nrand_serial = yes\npolicy = p\n\
                      unique_subject = no\ndefault_md = sha256\n[p]\ncommonName = supplied\n[req]\n\
                      distinguished_name = dn\n[dn]\n";

/// A certificate for this machine.
pub(crate) const LOCAL: &str = "subjectAltName=DNS:localhost,IP:127.0.0.1";

/// A CA, and what it has signed, in a directory.
#[derive(Debug)]
pub(crate) struct Authority {
    directory: TempDir,
}

/// What a certificate is to say beyond a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Good {
    /// From yesterday on, for this number of days.
    Days(u32),
    /// In the year 2020.
    Past,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let this = Self { directory: tempfile::tempdir().expect("a temporary directory") };
        fs::write(this.path("cnf"), CONFIG).expect("a file can be written");
        fs::write(this.path("index"), "").expect("a file can be written");
        this.openssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -days 30 -subj /CN=ca");
        this
    }

    /// The one that most tests use.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Authority> = OnceLock::new();
        SHARED.get_or_init(Self::new)
    }

    /// The path of a file in the directory: `ca.pem`, `NAME.pem`, `NAME.key`, and `NAME-both.pem` with both.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    /// The same as a text.
    pub(crate) fn file(&self, file: &str) -> String {
        self.path(file).into_os_string().into_string().expect("a path in UTF-8")
    }

    /// Runs openssl in the directory.
    #[track_caller]
    pub(crate) fn openssl(&self, arguments: &str) -> String {
        let mut command = Command::new("openssl");
        let output = command.args(arguments.split(' ')).current_dir(self.directory.path()).output();
        let output = output.unwrap_or_else(|error| panic!("cannot run openssl ({error}): apt-get install openssl"));
        assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// When a certificate expires, such as `2026-12-22T17:34:28.000Z`.
    pub(crate) fn end(&self, name: &str) -> String {
        let said = self.openssl(&format!("x509 -noout -enddate -dateopt iso_8601 -in {name}.pem"));
        let time = said.trim().strip_prefix("notAfter=").and_then(|time| time.strip_suffix('Z')).expect("a time");
        format!("{}.000Z", time.replace(' ', "T"))
    }

    /// Signs a certificate with an extension as openssl writes it, such as [`LOCAL`]. Without one it is of version 1.
    pub(crate) fn issue(&self, name: &str, extensions: &str, good: Good) {
        self.openssl(&format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}"
        ));
        fs::write(self.path("extensions"), extensions).expect("a file can be written");
        let time = match good {
            Good::Days(days) => format!("-days {days}"),
            Good::Past => "-startdate 20200101000000Z -enddate 20201231235959Z".to_owned(),
        };
        self.openssl(&format!(
            "ca -batch -notext -config cnf -cert ca.pem -keyfile ca.key -in {name}.csr -out {name}.pem -extfile extensions {time}"
        ));
        let both = [".key", ".pem"].map(|end| fs::read(self.path(&format!("{name}{end}"))).expect("it was written"));
        let file = self.path(&format!("{name}-both.pem"));
        fs::write(&file, both.concat()).expect("a file can be written");
        fs::set_permissions(file, Permissions::from_mode(0o600)).expect("and made private");
    }

    /// How a server shows the certificate `name`. It trusts this authority.
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

/// The version that a server speaks.
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
