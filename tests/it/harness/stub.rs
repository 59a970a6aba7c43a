//! A server that does not speak ZooKeeper's protocol: it is silent, or sends something else.

use std::io::Write;
use std::thread;

use super::server;

/// A server that accepts connections and answers each with the same bytes, or never. It stays until the tests end.
#[derive(Debug)]
pub(crate) struct Stub {
    port: u16,
}

impl Stub {
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
        thread::spawn(move || {
            let mut connections = Vec::new();
            for mut client in listener.incoming().flatten() {
                // 16 kB fit into a socket's buffer; a client that has gone does not matter.
                let _ = client.write_all(&bytes);
                connections.push(client);
            }
        });
        Self { port }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}
