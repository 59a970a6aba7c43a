//! A client of ZooKeeper.
//!
//! [`wire`] is the protocol without I/O. [`session`] is a session over any [`session::channel`]: the simulator of the
//! tests has one of its own. [`net`] has the real one: addresses, TCP, TLS and logins.

pub mod login; // who we are to the servers
pub mod net; // the way to a server
pub mod session; // a session, over any stream of bytes
pub mod wire; // the protocol: bytes in, events out
