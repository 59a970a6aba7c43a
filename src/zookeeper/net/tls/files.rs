//! The files with certificates and keys.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys, RootCertStore};

use super::{OwnCertificate, Tls, UnfitFile};
use crate::system::errors::brief;

/// Where systems keep the CAs that they trust: Debian, Alpine and Arch; Fedora and Red Hat; SUSE; others.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// What changes when a file is written or replaced. `None`: it is not there.
pub(super) type Stamp = Option<(u64, u64, u64, i64, i64)>;

pub(super) fn stamps(tls: &Tls) -> Vec<Stamp> {
    let stamp = |file: Metadata| (file.dev(), file.ino(), file.len(), file.ctime(), file.ctime_nsec());
    let own = tls.own.iter().flat_map(|own| [own.certificate.as_path(), own.key()]);
    let ca = tls.ca.as_deref().or_else(|| system().map(Path::new));
    ca.into_iter().chain(own).map(|path| fs::metadata(path).ok().map(stamp)).collect()
}

fn system() -> Option<&'static str> {
    SYSTEM.into_iter().find(|path| Path::new(path).is_file())
}

/// The CAs that are trusted. `file`: `None` for those of the system.
pub(super) fn roots(file: Option<&Path>) -> Result<RootCertStore, String> {
    let path = match (file, system()) {
        (Some(path), _) => path,
        (None, Some(path)) => Path::new(path),
        (None, None) => {
            return Err("this system has no list of trusted CAs: install ca-certificates, or use --tls-ca".to_owned());
        }
    };
    let certificates = certificates(path)?;
    let mut roots = RootCertStore::empty();
    if file.is_none() {
        // Lists of systems have had certificates that no library can read.
        roots.add_parsable_certificates(certificates);
    } else {
        for certificate in certificates {
            roots
                .add(certificate)
                .map_err(|why| format!("{}: a certificate that cannot be read: {why}", path.display()))?;
        }
    }
    Ok(roots)
}

pub(super) fn own(own: &OwnCertificate, provider: &CryptoProvider) -> Result<CertifiedKey, UnfitFile> {
    let of_certificate = |why| UnfitFile { setting: Some("tls-cert"), why };
    let of_key = |why| UnfitFile { setting: Some(if own.key.is_some() { "tls-key" } else { "tls-cert" }), why };
    let chain = certificates(&own.certificate).map_err(of_certificate)?;
    let key = provider.key_provider.load_private_key(key(own.key()).map_err(of_key)?);
    let key = key.map_err(|why| of_key(format!("{}: a key that cannot be used: {why}", own.key().display())))?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            let (key, certificate) = (own.key().display(), own.certificate.display());
            let why = format!("the key in {key} does not belong to the certificate in {certificate}");
            Err(UnfitFile { setting: None, why })
        }
        // Or the certificate is one that rustls cannot read. Then it is for the servers to judge.
        _ => Ok(certified),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => {
            Err(format!("{}: no certificate in this file; write one in PEM (BEGIN CERTIFICATE)", path.display()))
        }
        Ok(certificates) => Ok(certificates),
        Err(why) => Err(format!("{}: damaged PEM: {why}", path.display())),
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|why| match why {
        PemError::NoItemsFound => format!(
            "{}: no private key in this file, or an encrypted one; name its file with --tls-key, and write it in PEM (BEGIN \
             PRIVATE KEY, as openssl pkey does)",
            path.display()
        ),
        why => format!("{}: damaged PEM: {why}", path.display()),
    })
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error| format!("{}: {}", path.display(), brief(&error));
    // A pipe would be empty the next time, or would never end.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(format!("{}: no regular file; write one that can be read again", path.display()));
    }
    fs::read(path).map_err(failed)
}
