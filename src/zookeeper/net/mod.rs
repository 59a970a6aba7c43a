//! The way to a server: its address, a connection, TLS, and a login.

pub mod address;
pub mod connect;
pub mod credentials;
mod diagnosis;
mod digest_md5;
#[cfg(feature = "gssapi")]
pub mod libgssapi;
pub mod probe;
mod race;
mod sasl;
pub mod servers;
pub mod tcp;
pub mod tls;
pub mod word;
