//! Why there is no encrypted connection, in words.

use std::{fmt, io};

use rustls::{AlertDescription, CertificateError, Error, ExtendedKeyPurpose};

use super::Tls;
use super::files::own_not_after;
use crate::rules::rfc3339::rfc3339;
use crate::rules::text::printable;
use crate::system::clock;
use crate::system::errors::brief;

/// Why a server could not be connected to. All but the first are about TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::zookeeper::net) enum Unconnected {
    Io(String),
    /// The server has closed the connection, or has answered something else, when TLS began.
    Closed,
    /// The server wants a client certificate, or refuses ours.
    Refused(String),
    /// The server's certificate is for another name.
    OtherName(String),
    /// The server's certificate is not good.
    Untrusted(String),
    Failed(String),
}

impl From<io::Error> for Unconnected {
    fn from(error: io::Error) -> Self {
        Self::Io(brief(&error))
    }
}

impl fmt::Display for Unconnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str(
                "it does not answer with TLS: is this its secureClientPort, or is it full (maxClientCnxns)?",
            ),
            Self::Io(why) | Self::Refused(why) | Self::OtherName(why) | Self::Untrusted(why) | Self::Failed(why) => {
                f.write_str(why)
            }
        }
    }
}

/// What is known of a connection, if it fails.
pub(super) struct Seen {
    /// The server has asked for a certificate of ours.
    pub(super) was_asked: bool,
    pub(super) tls: Tls,
    /// The server's name, as the user wrote it.
    pub(super) host: String,
}

impl Unconnected {
    pub(super) fn of(error: &Error, seen: &Seen) -> Self {
        match error {
            Error::InvalidCertificate(
                why @ (CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }),
            ) => Self::OtherName(of_certificate(why, seen)),
            Error::InvalidCertificate(why) => Self::Untrusted(of_certificate(why, seen)),
            Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => Self::Closed,
            Error::AlertReceived(alert) if seen.was_asked && is_about_certificates(*alert) => {
                Self::Refused(of_own(*alert, seen))
            }
            Error::AlertReceived(AlertDescription::HandshakeFailure | AlertDescription::ProtocolVersion)
            | Error::PeerIncompatible(_) => {
                let why = "no version of TLS and no cipher suite in common; zklock speaks TLS 1.2 and 1.3";
                Self::Failed(format!("{why} ({error})"))
            }
            Error::AlertReceived(alert) => Self::Failed(format!("it ended TLS: {}", name(*alert))),
            error => Self::Failed(format!("TLS: {error}")),
        }
    }
}

/// Why the server's certificate is not accepted.
fn of_certificate(why: &CertificateError, seen: &Seen) -> String {
    use CertificateError as C;
    let on = |time: rustls::pki_types::UnixTime| day(i64::try_from(time.as_secs()).unwrap_or(i64::MAX));
    match why {
        // BadSignature: another CA has the name of a trusted one.
        C::UnknownIssuer | C::BadSignature => match &seen.tls.ca {
            Some(ca) => format!("its certificate is not signed by a CA in {}", ca.display()),
            None => {
                "its certificate is not signed by a CA that this system trusts: name its CA with --tls-ca".to_owned()
            }
        },
        C::Expired => "its certificate has expired".to_owned(),
        C::ExpiredContext { not_after, .. } => format!("its certificate has expired on {}", on(*not_after)),
        C::NotValidYet => "its certificate is not valid yet: is the clock right?".to_owned(),
        C::NotValidYetContext { not_before, .. } => {
            format!("its certificate is not valid before {}: is the clock right?", on(*not_before))
        }
        C::NotValidForNameContext { presented, .. } => {
            let names: Vec<_> = presented.iter().filter_map(|name| bare(name)).collect();
            match names.is_empty() {
                true => format!("its certificate is not for {}: it has no subjectAltName", seen.host),
                false => format!("its certificate is for {}, not for {}", names.join(", "), seen.host),
            }
        }
        C::NotValidForName => format!("its certificate is not for {}", seen.host),
        C::InvalidPurpose | C::InvalidPurposeContext { required: ExtendedKeyPurpose::ServerAuth, .. } => {
            "its certificate is not for servers (extendedKeyUsage)".to_owned()
        }
        why => match why.to_string() {
            text if text.contains("UnsupportedCertVersion") => {
                "its certificate is of version 1 of X.509: it takes one of version 3, with a subjectAltName".to_owned()
            }
            text if text.contains("CaUsedAsEndEntity") => {
                "its certificate is that of a CA (CA:TRUE): make one for the server, or a self-signed one with openssl req \
                 -addext basicConstraints=critical,CA:FALSE"
                    .to_owned()
            }
            text => format!("its certificate cannot be accepted: {}", printable(&text)),
        },
    }
}

/// `localhost` of `DnsName("localhost")`, and `127.0.0.1` of `IpAddress(127.0.0.1)`.
fn bare(name: &str) -> Option<String> {
    let (_, rest) = name.split_once('(')?;
    Some(printable(rest.trim_end_matches(')').trim_matches('"')))
}

fn is_about_certificates(alert: AlertDescription) -> bool {
    use AlertDescription as A;
    matches!(
        alert,
        A::HandshakeFailure
            | A::NoCertificate
            | A::BadCertificate
            | A::UnsupportedCertificate
            | A::CertificateRevoked
            | A::CertificateExpired
            | A::CertificateUnknown
            | A::UnknownCA
            | A::AccessDenied
            | A::CertificateRequired
    )
}

/// Why the server does not let us in.
fn of_own(alert: AlertDescription, seen: &Seen) -> String {
    let Some(own) = &seen.tls.own else {
        return "it wants a client certificate: use --tls-cert and --tls-key".to_owned();
    };
    let file = own.certificate.display();
    let now = i64::try_from(clock::wall_millis() / 1000).unwrap_or(i64::MAX);
    match own_not_after(own).filter(|end| *end < now) {
        Some(end) => format!("it refuses the certificate in {file}, which has expired on {}", day(end)),
        None => format!("it refuses the certificate in {file}: {}", why_refused(alert)),
    }
}

/// What an alert of TLS says of our certificate (RFC 8446, 6.2). Servers in Java have `certificate_unknown` for a CA that they
/// do not trust.
fn why_refused(alert: AlertDescription) -> String {
    use AlertDescription as A;
    let why = match alert {
        A::UnknownCA | A::CertificateUnknown | A::BadCertificate => "its CA is not in the server's truststore",
        A::CertificateExpired => "it has expired by the server's clock",
        A::CertificateRevoked => "it was revoked",
        A::UnsupportedCertificate => "it is not for clients (extendedKeyUsage)",
        other => return format!("the server does not say why ({})", name(other)),
    };
    why.to_owned()
}

fn name(alert: AlertDescription) -> String {
    alert.as_str().map_or_else(|| format!("{alert:?}"), str::to_owned)
}

/// The day of a time, in UTC.
fn day(seconds: i64) -> String {
    let text = rfc3339(seconds.saturating_mul(1000)).unwrap_or_default();
    text.split('T').next().unwrap_or_default().to_owned()
}
