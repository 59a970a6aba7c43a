//! A server that does not speak ZooKeeper's protocol: it is silent, or sends something else.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread;

use nix::poll::PollFlags;

use super::proxy::{interest, is_ready, wait_for};
use super::server;

/// A server that accepts connections and answers each with the same bytes, or never.
#[derive(Debug)]
pub(crate) struct Stub {
    port: u16,
    stop: UnixStream,
}

impl Stub {
    /// Accepts and never answers.
    pub(crate) fn silent() -> Self {
        Self::answering(Vec::new())
    }

    /// Answers each connection with 16 kB of random bytes.
    pub(crate) fn garbage() -> Self {
        Self::answering((0..16 * 1024).map(|_| fastrand::u8(..)).collect())
    }

    /// Writes `bytes` to each connection and keeps it open.
    pub(crate) fn answering(bytes: Vec<u8>) -> Self {
        let (port, listener) = server::listener();
        let (stop, word) = UnixStream::pair().expect("a socket pair");
        thread::spawn(move || {
            let mut connections = Vec::new();
            loop {
                let mut interests = [interest(&listener, PollFlags::POLLIN), interest(&word, PollFlags::POLLIN)];
                wait_for(&mut interests, None);
                if is_ready(&interests[1]) {
                    return;
                }
                if let Ok((mut client, _)) = listener.accept() {
                    // 16 kB fit into a socket's buffer; a client that has gone does not matter.
                    let _ = client.write_all(&bytes);
                    connections.push(client);
                }
            }
        });
        Self { port, stop }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        // The thread ends only by this.
        let _ = self.stop.write(&[0]);
    }
}
