//! Why there is no encrypted connection, in words.

use std::{fmt, io};

use rustls::{AlertDescription, CertificateError, Error};

use super::Tls;
use crate::rules::text::printable;
use crate::system::errors::brief;

/// Why a server could not be connected to. All but the first are about TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::zookeeper::net) enum Unconnected {
    Io(String),
    /// The server has closed the connection, or has answered something else, when TLS began.
    Closed,
    /// The server wants a client certificate, or refuses ours.
    Refused(String),
    Failed(String),
}

impl From<io::Error> for Unconnected {
    fn from(error: io::Error) -> Self {
        Self::Io(brief(&error))
    }
}

impl fmt::Display for Unconnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => {
                "it does not answer with TLS: is this its secureClientPort, is it full (maxClientCnxns), or does its log name \
                 a fault?"
            }
            Self::Io(why) | Self::Refused(why) | Self::Failed(why) => why,
        })
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
            Error::InvalidCertificate(why) => Self::Failed(format!("its certificate {}", fault(why, seen))),
            Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => Self::Closed,
            Error::AlertReceived(alert) if seen.was_asked && is_about_certificates(*alert) => {
                Self::Refused(match &seen.tls.own {
                    None => "it wants a client certificate: use --tls-cert and --tls-key".to_owned(),
                    Some(own) => format!(
                        "it refuses the certificate in {} ({}): the certificate may have expired, or its CA is not in the \
                         server's truststore",
                        own.certificate.display(),
                        name(*alert)
                    ),
                })
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

/// What is wrong with the server's certificate.
fn fault(why: &CertificateError, seen: &Seen) -> String {
    use CertificateError as C;
    match why {
        // BadSignature: another CA has the name of a trusted one.
        C::UnknownIssuer | C::BadSignature => match &seen.tls.ca {
            Some(ca) => format!("is not signed by a CA in {}", ca.display()),
            None => "is not signed by a CA that this system trusts: name its CA with --tls-ca".to_owned(),
        },
        C::Expired | C::ExpiredContext { .. } => "has expired".to_owned(),
        C::NotValidYet | C::NotValidYetContext { .. } => "is not valid yet: is the clock right?".to_owned(),
        C::NotValidForNameContext { presented, .. } => {
            // They are written as `DnsName("localhost")` and `IpAddress(127.0.0.1)`.
            let bare =
                |name: &String| name.trim_start_matches(char::is_alphabetic).trim_matches(['(', ')', '"']).to_owned();
            let names: Vec<_> = presented.iter().map(bare).collect();
            let names = if names.is_empty() { "no name (subjectAltName)".to_owned() } else { names.join(", ") };
            format!("is for {}, not for {}", printable(&names), seen.host)
        }
        C::NotValidForName => format!("is not for {}", seen.host),
        why => format!("cannot be accepted: {}", printable(&why.to_string())),
    }
}

/// Whether these are words about our certificate (RFC 8446, 6.2): from `handshake_failure` to `certificate_unknown`,
/// `unknown_ca`, `access_denied`, `certificate_required`.
fn is_about_certificates(alert: AlertDescription) -> bool {
    matches!(u8::from(alert), 40..=46 | 48 | 49 | 116)
}

fn name(alert: AlertDescription) -> String {
    alert.as_str().map_or_else(|| format!("{alert:?}"), str::to_owned)
}
