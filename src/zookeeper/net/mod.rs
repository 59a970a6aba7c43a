//! The way to a server: its address, a connection, TLS, and a login.

pub mod address; // connect strings
pub mod connect; // opens every session
pub mod credentials; // a file with a login
mod diagnosis; // why no server was of use
mod digest_md5; // a mechanism of SASL
mod libgssapi; // Kerberos, by the C library
mod race; // all servers are tried, the first wins
mod sasl; // logging in
pub mod servers; // names and addresses
pub mod tcp; // a connection
pub mod tls; // its encryption
pub mod word; // what a server says of itself
