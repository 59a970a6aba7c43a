//! A client of ZooKeeper.
//!
//! [`wire`] is the protocol without I/O. [`session`] is a session over any [`session::channel`]: the simulator of the
//! tests has one of its own. [`net`] has the real one: addresses, TCP, TLS and logins.

pub mod login;
pub mod net;
pub mod session;
pub mod wire;
