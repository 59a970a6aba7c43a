//! Files and nodes with contents that no program of ours has written, and TLS with bytes that no server sends; made
//! from what is right. `protocol::fuzz` has the bytes of ZooKeeper's protocol.
//!
//! `ZKLOCK_FUZZ_SECONDS=600 cargo test --release --test it fuzz` goes on for ten minutes with each.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::thread;

use fastrand::Rng;
use zklock::look::roster::Roster;
use zklock::rules::card::Card;
use zklock::rules::child_name::ChildName;
use zklock::rules::fence::Holder;
use zklock::rules::last_run::LastRun;
use zklock::rules::queue::Queue;
use zklock::rules::revocation::Revocation;
use zklock::zookeeper::login::Login;
use zklock::zookeeper::net;
use zklock::zookeeper::net::tls::{OwnCertificate, Tls};

use crate::harness::oracle::expect_sane;
use crate::harness::running::Output;
use crate::harness::scratch::LOCK;
use crate::harness::tls::{Authority, Good, LOCAL};
use crate::harness::zklock::Zklock;
use crate::protocol::fuzz::{in_between, mutate, rounds};

/// A changed copy, in which PEM's base64 is changed in what it stands for as well.
fn changed(rng: &mut Rng, text: &[u8]) -> Vec<u8> {
    let mut text = text.to_vec();
    for _ in 0..rng.usize(0..3) {
        let lines: Vec<usize> = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect();
        // Other letters of base64 in one line.
        if let Some(at) = rng.choice(&lines)
            && let Some(end) = at.checked_add(1 + rng.usize(1..60)).filter(|end| *end < text.len())
        {
            const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
            text[end] = *rng.choice(LETTERS).unwrap();
        }
    }
    if rng.bool() {
        mutate(rng, &mut text);
    }
    text
}

/// Certificates and keys: they are taken or refused, in one line.
#[test]
fn certificates_and_keys() {
    let authority = Authority::new();
    authority.issue("client", LOCAL, Good::Days(30));
    authority.openssl("genpkey -algorithm rsa -pkeyopt rsa_keygen_bits:1024 -out rsa.key");
    authority.openssl("req -x509 -key rsa.key -days 30 -subj /CN=rsa -out rsa.pem");
    let read = |name: &str| fs::read(authority.path(name)).expect("it was written");
    let pairs = [("client.pem", "client.key"), ("rsa.pem", "rsa.key"), ("client-both.pem", "client-both.pem")];
    let path = |name: &str| -> PathBuf { authority.path(name) };
    let mut taken = 0;
    rounds(2000, |rng| {
        let (certificate, key) = rng.choice(&pairs).unwrap();
        fs::write(path("a.pem"), changed(rng, &read(certificate))).unwrap();
        fs::write(path("a.key"), changed(rng, &read(key))).unwrap();
        fs::write(path("a.ca"), changed(rng, &read("ca.pem"))).unwrap();
        let own = OwnCertificate { certificate: path("a.pem"), key: Some(path("a.key")) };
        let tls = Tls { ca: Some(path("a.ca")), own: Some(own), verify_hostname: true };
        match net::tls::Security::new(&tls).read() {
            Ok(_) => taken += 1,
            Err(unfit) => assert!(!unfit.why.contains(char::is_control), "{unfit:?}"),
        }
    });
    assert!(taken > 0, "everything was refused at first sight");
}

#[test]
fn files_with_credentials() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("credentials");
    rounds(5000, |rng| {
        let mut text = b"# users\n\ndigest:alice:hidden-1\n  digest:bob:hidden-2\r\nx509:CN=\xff\n".to_vec();
        mutate(rng, &mut text);
        mutate(rng, &mut text);
        fs::write(&path, text).unwrap();
        let mut login = Login { file: Some(path.clone()), ..Login::default() };
        if let Err(why) = net::credentials::load(&mut login) {
            assert!(!why.contains("hidden") && !why.contains(char::is_control), "{why:?}");
        }
    });
}

/// The data and the names of nodes, and the file of a fence.
#[test]
fn nodes() {
    let data: [&[u8]; 5] = [
        br#"{"v":1,"host":"db3","pid":4242,"started":17,"user":"ops","command":"a b","mode":"permits 3","held_since":1}"#,
        br#"{"v":1,"started":1700000000000,"took_ms":17,"host":"db3"}"#,
        b"10.0.0.7",
        b"__REVOKE__",
        b"4242 17 5 33 5000\n",
    ];
    let names = [
        "_c_00000000-0000-0000-0000-000000000000-lock-0000000001",
        "_c_f0000000-0000-0001-f000-000000000001-__WRIT__0000000002",
        "0123456789abcdef0123456789abcdef__lock__0000000003",
        "x-72057594037927936-0000000004",
        "lock",
        "lease-5",
    ];
    rounds(50_000, |rng| {
        let mut bytes = rng.choice(&data).unwrap().to_vec();
        mutate(rng, &mut bytes);
        let card = Card::from_bytes(&bytes);
        let texts = [&card.host, &card.user, &card.command, &card.describe];
        assert!(texts.into_iter().flatten().all(|text| !text.contains(char::is_control)), "{card:?}");
        let _ = card.phrase();
        let _ = LastRun::from_bytes(&bytes, rng.i64(..));
        let _ = Revocation::from_bytes(&bytes);
        let _ = Holder::read(&bytes);
        let children = (0..rng.usize(0..8)).map(|_| {
            let mut name = rng.choice(&names).unwrap().as_bytes().to_vec();
            mutate(rng, &mut name);
            String::from_utf8_lossy(&name).into_owned()
        });
        let children: Vec<_> = children.filter_map(ChildName::parse).collect();
        let queue = Queue::as_numbered(children.clone());
        assert_eq!(queue.contenders().len() + queue.foreign().len(), children.len());
        assert_eq!(queue.standings().count(), queue.contenders().len());
        let _ = Roster::new(children, &[].into());
    });
}

/// Passes bytes between a client and a server, and changes those of the server.
fn relay(client: TcpStream, server: TcpStream, mut rng: Rng) -> io::Result<()> {
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Both);
    });
    let (mut from_server, mut to_client) = (server, client);
    let mut bytes = [0; 4096];
    loop {
        let count = from_server.read(&mut bytes)?;
        if count == 0 {
            return to_client.shutdown(Shutdown::Both);
        }
        let mut bytes = bytes[..count].to_vec();
        if rng.u8(..) < 160 {
            mutate(&mut rng, &mut bytes);
        }
        to_client.write_all(&bytes)?;
    }
}

/// zklock says that the server is of no use, or asks it, and does not panic.
#[test]
fn tls() {
    let authority = Authority::new();
    authority.issue("server", LOCAL, Good::Days(30));
    let server = authority.handshaker("server");
    let target = server.address("127.0.0.1");
    let (port, seed) = in_between(target, relay);
    let address = format!("localhost:{port}");
    rounds(20, |rng| {
        seed.store(rng.u64(..u64::MAX / 2), Ordering::Relaxed);
        let zklock = Zklock::at(&address).args(["status", "--connect-timeout", "300ms", LOCK]);
        let output: Output = authority.trusted(zklock).run();
        expect_sane(&output);
        assert_eq!(output.status.code(), Some(69), "{output}");
        let said = output.stderr();
        assert!(said.lines().count() == 1 && said.starts_with("zklock: no ZooKeeper server"), "{output}");
    });
}
