//! Setting the counter from which the children of a node get their sequence numbers.
//!
//! No request does that, and two thousand million creations take too long. So the server is stopped, and its
//! transaction log gets one more entry: that a child was created when the counter stood there (`CreateTxn` in
//! zookeeper.jute).

use std::fs;

use super::client::Kind;
use super::scratch::{LOCK, Scratch};
use super::server::{Data, Server};

/// A server, and a scratch on it where the next contender for [`LOCK`] gets the number `next`.
#[track_caller]
pub(crate) fn standing_at(next: i32) -> (Server, Scratch) {
    let server = Server::start();
    let scratch = Scratch::on(server.chroot());
    scratch.client().create(LOCK, b"", Kind::Persistent).expect("the lock can be created");
    // The only session open is that of the scratch, so no transaction follows. ZooKeeper 3.9 accepts no gap.
    let zxid = last_zxid(&server) + 1;
    server.kill();
    let child = format!("{}{LOCK}/counted", scratch.chroot().path());
    let log = server.directory().join(format!("version-2/log.{zxid:x}"));
    fs::write(log, log_of_one(zxid, &child, next)).expect("a log can be written");
    server.restart(Data::Kept);
    // A request that changes nothing connects again; one that does is sent once.
    scratch.client().sync();
    scratch.client().delete(&format!("{LOCK}/counted")).expect("the child is there");
    (server, scratch)
}

#[track_caller]
fn last_zxid(server: &Server) -> i64 {
    let answer = server.ask("srvr").expect("the server answers srvr");
    let zxid = answer.lines().find_map(|line| i64::from_str_radix(line.strip_prefix("Zxid: 0x")?, 16).ok());
    zxid.unwrap_or_else(|| panic!("no Zxid in:\n{answer}"))
}

/// A log file with one transaction, as `FileTxnLog` reads it.
fn log_of_one(zxid: i64, path: &str, parent_version: i32) -> Vec<u8> {
    const CREATE: i32 = 1;
    const ALL_PERMISSIONS: i32 = 31;
    let (version, database) = (2, 0_i64);
    let (session, request, time) = (0_i64, 0, 0_i64);
    let ephemeral = 0;
    let mut entry = Vec::new();
    entry.extend([session.to_be_bytes().as_slice(), &i32::to_be_bytes(request)].concat());
    entry.extend([zxid.to_be_bytes(), time.to_be_bytes()].concat());
    entry.extend(CREATE.to_be_bytes());
    entry.extend([text(path), text(""), 1_i32.to_be_bytes().to_vec()].concat());
    entry.extend([ALL_PERMISSIONS.to_be_bytes().to_vec(), text("world"), text("anyone")].concat());
    entry.push(ephemeral);
    entry.extend(parent_version.to_be_bytes());

    let mut file = b"ZKLG".to_vec();
    file.extend([i32::to_be_bytes(version).as_slice(), &database.to_be_bytes()].concat());
    file.extend(i64::from(adler32(&entry)).to_be_bytes());
    file.extend(text_of(&entry));
    file.push(b'B');
    file
}

fn text(text: &str) -> Vec<u8> {
    text_of(text.as_bytes())
}

fn text_of(bytes: &[u8]) -> Vec<u8> {
    let length = i32::try_from(bytes.len()).expect("a short text");
    [&length.to_be_bytes(), bytes].concat()
}

/// The checksum of RFC 1950.
fn adler32(bytes: &[u8]) -> u32 {
    const MODULUS: u32 = 65_521;
    let (low, high) = bytes.iter().fold((1, 0), |(low, high), &byte| {
        let low = (low + u32::from(byte)) % MODULUS;
        (low, (high + low) % MODULUS)
    });
    high << 16 | low
}
