//! ZooKeeper's protocol without I/O: bytes in, events out; requests in, bytes out. Time comes in as an argument.
//!
//! A client connects, makes an [`Attempt`](handshake::Attempt) at a session, and has a
//! [`Connection`](connection::Connection) when a server grants one. When that is lost, the
//! [`Identity`](handshake::Identity) of the session stays, and the next attempt resumes it.
//!
//! The sources are ZooKeeper's `zookeeper.jute`, which names the records, and its server; their names are quoted here.
//! The servers are those of 3.4 to 3.9. Nothing in here panics, whatever bytes come, and memory grows with the bytes
//! that came, not with the lengths that they claim.
//!
//! | file | what is there |
//! | --- | --- |
//! | [`records`] | numbers, strings and lists as bytes |
//! | [`frames`] | the stream of bytes, cut into packets |
//! | [`request`], [`reply`] | what can be asked, and what is answered |
//! | [`handshake`] | how a session is opened or resumed |
//! | [`connection`] | one connection with a session: which reply belongs to which request, and when that was sent |
//! | [`error`] | what can go wrong |

pub mod connection;
pub mod error;
pub mod frames;
pub mod handshake;
pub mod records;
pub mod reply;
pub mod request;

#[cfg(test)]
mod tests;
