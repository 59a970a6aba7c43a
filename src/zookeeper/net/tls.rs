//! TLS between a [`TcpChannel`](super::tcp::TcpChannel) and its socket.
//!
//! Everything here happens without waiting, like the reading and writing of the socket itself. A process that uses no TLS
//! sets up nothing of it.

mod files;
mod stream;
mod trouble;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption, WebPkiServerVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use self::files::Stamp;
use super::address::HostPort;
use crate::system::secrets::exposed;

pub(super) use stream::Stream;
pub(super) use trouble::Unconnected;

/// How many sessions of TLS are kept, eight for each server: reconnecting costs no full handshake then.
const SESSIONS: usize = 64;

/// How connections are encrypted. The files are not looked at here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificates of the CAs that are trusted. `None`: those that the system trusts.
    pub ca: Option<PathBuf>,
    /// Our own certificate and its key, which may be in one file.
    pub own: Option<OwnCertificate>,
    /// Whether a certificate has to be for the server that it comes from.
    pub verify_hostname: bool,
}

/// What we show to a server that asks who we are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnCertificate {
    /// The file with the certificate, and with those of intermediate CAs.
    pub certificate: PathBuf,
    /// The file with the private key, if it is another one.
    pub key: Option<PathBuf>,
}

impl OwnCertificate {
    pub fn key(&self) -> &Path {
        self.key.as_ref().unwrap_or(&self.certificate)
    }
}

/// Why one of our own files cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfitFile {
    /// The setting that names the file. `None`: it is not about one file that a setting names.
    pub setting: Option<&'static str>,
    /// The reason, with the path.
    pub why: String,
}

/// How the connections of a process are encrypted.
#[derive(Debug)]
pub struct Security<'p> {
    pub(super) tls: &'p Tls,
    loaded: RefCell<Option<Loaded>>,
}

/// What was made of our files.
#[derive(Debug)]
struct Loaded {
    stamps: Vec<Stamp>,
    config: Arc<ClientConfig>,
    shows: Arc<Shows>,
}

impl<'p> Security<'p> {
    /// Nothing is read yet.
    pub const fn new(tls: &'p Tls) -> Self {
        Self { tls, loaded: RefCell::new(None) }
    }

    /// Reads our own files. Returns what the user is to be warned of. The error says why a file cannot be used.
    pub fn read(&self) -> Result<Option<String>, UnfitFile> {
        self.loaded.replace(Some(load(self.tls)?));
        Ok(self.tls.own.as_ref().and_then(|own| exposed(own.key(), "the key in ")))
    }

    /// Whether our files have changed since they were read.
    pub(super) fn is_outdated(&self) -> bool {
        self.loaded.borrow().as_ref().is_some_and(|loaded| loaded.stamps != files::stamps(self.tls))
    }

    /// TLS for one connection to `server`. Files that have changed are read again, and then nothing is left of earlier
    /// sessions of TLS.
    // The frames of what it calls are large, and those who use no TLS are not to have them on their stack.
    #[inline(never)]
    pub(super) fn begin(&self, server: &HostPort) -> Result<Stream, Unconnected> {
        let is_current = self.loaded.borrow().is_some() && !self.is_outdated();
        match if is_current { Ok(None) } else { self.read() } {
            Ok(_) => {}
            // They may be in the middle of being replaced. What they were goes on to be good enough.
            Err(unfit) if self.loaded.borrow().is_some() => log::info!("using the earlier certificates: {}", unfit.why),
            Err(unfit) => return Err(Unconnected::Failed(unfit.why)),
        }
        let loaded = self.loaded.borrow();
        let Loaded { config, shows, .. } = loaded.as_ref().expect("it was just read");
        let failed = |why: &str| Unconnected::Failed(why.to_owned());
        let name = server.name_in_certificate().ok_or_else(|| failed("its name can be in no certificate"))?;
        let connection = ClientConnection::new(Arc::clone(config), name).map_err(|why| failed(&why.to_string()))?;
        Ok(Stream::new(connection, Arc::clone(shows), self.tls.clone(), server.host.clone()))
    }
}

fn load(tls: &Tls) -> Result<Loaded, UnfitFile> {
    // If they change while they are read, the stamps are old, and they are read again the next time.
    let stamps = files::stamps(tls);
    let provider = Arc::new(ring::default_provider());
    let of_ca = |why| UnfitFile { setting: tls.ca.as_ref().map(|_| "tls-ca"), why };
    let roots: Arc<RootCertStore> = files::roots(tls.ca.as_deref()).map_err(of_ca)?.into();
    let own = tls.own.as_ref().map(|own| files::own(own, &provider)).transpose()?;
    let shows = Arc::new(Shows { own: own.map(Arc::new), was_asked: AtomicBool::new(false) });
    let internal = |error: &dyn std::fmt::Display| UnfitFile { setting: None, why: format!("TLS: {error}") };
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
    let verifier = verifier.map_err(|error| internal(&error))?;
    let verifier: Arc<dyn ServerCertVerifier> =
        if tls.verify_hostname { verifier } else { Arc::new(AnyName(verifier)) };
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| internal(&error))?.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = builder.with_client_cert_resolver(Arc::clone(&shows) as Arc<dyn ResolvesClientCert>);
    config.resumption = Resumption::in_memory_sessions(SESSIONS);
    Ok(Loaded { stamps, config: Arc::new(config), shows })
}

/// What we show of ourselves, and whether a server has asked for it.
#[derive(Debug)]
struct Shows {
    own: Option<Arc<CertifiedKey>>,
    was_asked: AtomicBool,
}

impl Shows {
    /// Whether a server has asked since the last call. There is one thread, so it is the one whose bytes were just read.
    fn was_asked(&self) -> bool {
        self.was_asked.swap(false, Ordering::Relaxed)
    }
}

impl ResolvesClientCert for Shows {
    /// Whatever CAs the server names: a server that does not like our certificate says so, and then we can tell the user.
    fn resolve(&self, _issuers: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.was_asked.store(true, Ordering::Relaxed);
        self.own.clone()
    }

    fn has_certs(&self) -> bool {
        self.own.is_some()
    }
}

/// Accepts a certificate that is good but for its name.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        match self.0.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // The name is looked at last.
            Err(Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
