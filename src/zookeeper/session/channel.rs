//! What a session needs below it. [`crate::zookeeper::net::tcp`] has the real one; the simulator of the tests has another, so that
//! the same code speaks ZooKeeper's protocol in both.

use std::fmt::Display;
use std::io;

use crate::rules::instant::Instant;
use crate::zookeeper::wire::error::Broken;
use crate::zookeeper::wire::handshake::{Attempt, Granted};

/// A stream of bytes to a server and back, with a clock, and a way to be polled again. `Display` names the server.
///
/// What uses it is polled in rounds, as [`crate::system::reactor`] says, and asks anew in each round for the next one.
pub trait Channel: Display {
    /// Now, on the clock that counts sleep.
    fn now(&self) -> Instant;

    /// Reads what has come, without waiting, as [`io::Read::read`] does.
    fn read(&self, bytes: &mut [u8]) -> io::Result<usize>;

    /// Sends what can be sent without waiting, as [`io::Write::write`] does.
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// The number of this round, for what is to be done once in each.
    fn round(&self) -> u64;

    /// Something has changed that what was polled before in this round may be waiting for.
    fn poll_again(&self);

    /// The next round begins no later than `at`.
    fn wake_at(&self, at: Instant);

    /// The next round begins no later than bytes come, or the end; if `unsent`, no later than bytes can be sent.
    fn wake_on_bytes(&self, unsent: bool);

    /// The next connections are to another server than this one, as long as another one answers.
    fn distrust(&self);
}

/// Why a server has opened no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// The session that was to be resumed is over.
    SessionOver,
    /// It is no ZooKeeper server, though it opens sessions.
    ClickHouseKeeper,
    /// It opens none, or is no server.
    NoSession,
    /// It has closed the connection before it answered.
    Closed,
    /// It has not answered in time, for which the caller looks at the clock.
    Silent,
}

/// Sends and reads what can be without waiting. Returns the session when it is there. `resumes`: it existed before.
pub fn shake_hands(attempt: &mut Attempt, channel: &impl Channel, resumes: bool) -> Result<Option<Granted>, Rejected> {
    while let Some((count, at)) = send(channel, attempt.to_send()).map_err(|_| Rejected::Closed)? {
        attempt.sent(count, at);
    }
    let mut bytes = [0; 1024];
    loop {
        match channel.read(&mut bytes) {
            Err(error) if is_for_later(&error) => break,
            Ok(0) | Err(_) => return Err(Rejected::Closed),
            Ok(count) => match attempt.receive(&bytes[..count]) {
                Ok(None) => {}
                Ok(granted) => return Ok(granted),
                Err(Broken::Expired) if resumes => return Err(Rejected::SessionOver),
                // One server that goes on so with our session is that server's trouble: others may know better.
                Err(Broken::ClickHouseKeeper) if !resumes => return Err(Rejected::ClickHouseKeeper),
                Err(why) => {
                    log::info!("{channel}: {why}");
                    return Err(Rejected::NoSession);
                }
            },
        }
    }
    channel.wake_on_bytes(!attempt.to_send().is_empty());
    Ok(None)
}

/// Sends what can be of these bytes without waiting. Returns how many, and when they left at the earliest. `None`: there
/// are none, or no more can be sent now.
pub fn send(channel: &impl Channel, bytes: &[u8]) -> io::Result<Option<(usize, Instant)>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    // Before the bytes leave: the server may answer before we look at the clock again.
    let now = channel.now();
    match channel.write(bytes) {
        Ok(count) => Ok(Some((count, now))),
        Err(error) if is_for_later(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a call on a stream that does not block is to be made again later.
pub fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Whether the other end has closed the stream.
pub fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}
