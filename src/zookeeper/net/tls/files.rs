//! The files with certificates and keys.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys, RootCertStore};

use super::UnfitFile;
use super::{OwnCertificate, Tls};
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
    let are_one = own.key.is_none();
    let of_certificate = |why| UnfitFile { setting: Some("tls-cert"), why };
    let of_key = |why| UnfitFile { setting: Some(if are_one { "tls-cert" } else { "tls-key" }), why };
    let chain = certificates(&own.certificate).map_err(of_certificate)?;
    let key = provider.key_provider.load_private_key(key(own.key(), are_one).map_err(of_key)?);
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

/// `has_certificate`: no other file is named for the key.
fn key(path: &Path, has_certificate: bool) -> Result<PrivateKeyDer<'static>, String> {
    let text = read(path)?;
    match PrivateKeyDer::from_pem_slice(&text) {
        // As PKCS#8, and as openssl wrote the others in its time.
        _ if ["ENCRYPTED PRIVATE KEY", "Proc-Type: 4,ENCRYPTED"].iter().any(|mark| contains(&text, mark)) => {
            let path = path.display();
            Err(format!("{path}: the key is encrypted; decrypt it: openssl pkey -in {path} -out NEW.pem"))
        }
        Ok(key) => Ok(key),
        Err(PemError::NoItemsFound) => {
            let how = match has_certificate {
                true => "name the key's file with --tls-key, or append the key",
                false => "write one in PEM (BEGIN PRIVATE KEY)",
            };
            Err(format!("{}: no private key in this file; {how}", path.display()))
        }
        Err(why) => Err(format!("{}: damaged PEM: {why}", path.display())),
    }
}

fn contains(text: &[u8], mark: &str) -> bool {
    text.windows(mark.len()).any(|window| window == mark.as_bytes())
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error| format!("{}: {}", path.display(), brief(&error));
    // A pipe would be empty the next time, or would never end.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(format!("{}: no regular file; write one that can be read again", path.display()));
    }
    fs::read(path).map_err(failed)
}
