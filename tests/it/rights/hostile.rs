//! A server that means harm, or has lost its mind: with TLS and without, zklock neither panics nor hangs, takes no more
//! memory than a long answer has, and shows nothing that a terminal would obey.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

use crate::harness::poll;
use crate::harness::release::{Feature, lacks};
use crate::harness::running::Output;
use crate::harness::scratch::LOCK;
use crate::harness::server::free_port;
use crate::harness::tls::{Authority, Good, LOCAL};
use crate::harness::zklock::Zklock;

/// What is sent: for the opening of the session if there is no request, or to a request with this opcode, which
/// begins with its xid. `None`: the connection is closed.
type Answer = dyn Fn(Option<&[u8]>, i32) -> Option<Vec<u8>> + Send + Sync;

/// A server that says what it is told to say.
struct Hostile {
    port: u16,
    is_over: Arc<AtomicBool>,
    authority: Option<Authority>,
}

impl Hostile {
    fn start(with_tls: bool, answer: impl Fn(Option<&[u8]>, i32) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        let authority = with_tls.then(|| {
            let authority = Authority::new();
            authority.issue("server", LOCAL, Good::Days(30));
            authority
        });
        let config = authority.as_ref().map(|authority| Arc::new(tls_of(authority)));
        let (port, listener) = poll::until("a port for a server", || {
            let port = free_port();
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok().map(|listener| (port, listener))
        });
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, answer): (_, Arc<Answer>) = (Arc::clone(&is_over), Arc::new(answer));
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (answer, config) = (Arc::clone(&answer), config.clone());
                // A client may go at any time.
                thread::spawn(move || match config {
                    None => talk(client, &*answer),
                    Some(config) => talk(StreamOwned::new(ServerConnection::new(config).unwrap(), client), &*answer),
                });
            }
        });
        Self { port, is_over, authority }
    }

    /// zklock, within a gigabyte of address space.
    fn zklock(&self) -> Zklock {
        let zklock = Zklock::at(format!("localhost:{}", self.port)).plain();
        let zklock = match &self.authority {
            Some(authority) => authority.trusted(zklock),
            None => zklock,
        };
        zklock.run_by(["sh", "-c", r#"ulimit -v 1048576 && exec "$@""#, "sh"])
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // The thread looks when a client comes.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

fn tls_of(authority: &Authority) -> ServerConfig {
    let certificate = CertificateDer::from_pem_file(authority.path("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(authority.path("server.key")).unwrap();
    let mut config = ServerConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    config.send_tls13_tickets = 0;
    config
}

fn talk(mut client: impl Read + Write, answer: &Answer) -> io::Result<()> {
    let mut is_open = false;
    loop {
        let mut length = [0; 4];
        client.read_exact(&mut length)?;
        if length.is_ascii() && length.iter().all(u8::is_ascii_lowercase) {
            // A word, as `srvr`.
            client.write_all(&answer(None, WORD).unwrap_or_default())?;
            return client.flush();
        }
        let mut packet = vec![0; u32::from_be_bytes(length) as usize];
        client.read_exact(&mut packet)?;
        let code = i32::from_be_bytes(packet[4..8].try_into().unwrap());
        let said = answer(Some(&packet[..]).filter(|_| std::mem::replace(&mut is_open, true)), code);
        client.write_all(&said.ok_or(io::ErrorKind::ConnectionReset)?)?;
        client.flush()?;
    }
}

/// In place of an opcode.
const WORD: i32 = 0x776f_7264;

fn packet(body: &[u8]) -> Vec<u8> {
    [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], body].concat()
}

/// Opens a session: protocol version, a timeout of 4 s, the session id, a password, not read-only.
fn greeting(session: i64) -> Vec<u8> {
    let start = [&0_i32.to_be_bytes()[..], &4000_i32.to_be_bytes(), &session.to_be_bytes()].concat();
    packet(&[&start[..], &16_i32.to_be_bytes(), &[7; 16], &[0]].concat())
}

/// A reply without an error.
fn reply(request: &[u8], body: &[u8]) -> Vec<u8> {
    packet(&[&request[..4], &1_i64.to_be_bytes(), &0_i32.to_be_bytes(), body].concat())
}

/// That of an ephemeral node: all is zero but the end of `ephemeralOwner`.
const STAT: [u8; 68] = {
    let mut stat = [0; 68];
    stat[51] = 1;
    stat
};

/// The body of a list of children, with a stat.
fn children<I: IntoIterator<Item: AsRef<[u8]>>>(names: I) -> Vec<u8> {
    let (mut body, mut count) = (vec![0; 4], 0_u32);
    for name in names {
        body.extend(u32::try_from(name.as_ref().len()).unwrap().to_be_bytes());
        body.extend(name.as_ref());
        count += 1;
    }
    body[..4].copy_from_slice(&count.to_be_bytes());
    body.extend(STAT);
    body
}

/// A server that opens sessions and answers lists, data and all else with these bodies.
fn with(list: Vec<u8>, data: Vec<u8>) -> impl Fn(Option<&[u8]>, i32) -> Option<Vec<u8>> + Send + Sync {
    move |xid, code| {
        let Some(xid) = xid else { return Some(if code == WORD { b"\x1b[2J".to_vec() } else { greeting(0x1234) }) };
        Some(match code {
            12 => reply(xid, &list),
            8 => reply(xid, &list[..list.len() - STAT.len()]),
            4 => reply(xid, &[&u32::try_from(data.len()).unwrap().to_be_bytes()[..], &data, &STAT].concat()),
            3 => reply(xid, &STAT),
            9 => reply(xid, &packet(b"/")),
            -11 => reply(xid, &[]),
            _ => reply(xid, &[]),
        })
    }
}

/// What every output must be.
#[track_caller]
fn expect_sane(output: &Output) {
    let all = output.stdout() + &output.stderr();
    assert!(!all.contains("panicked") && !all.contains("internal error"), "{output}");
    let obeyed = |character: char| character.is_control() && !matches!(character, '\n' | '\t');
    assert!(!all.contains(obeyed) && !all.contains('\u{202e}'), "{output}");
}

/// None of these gets the lock, or any other answer.
#[test]
fn answers_that_are_none() {
    if lacks(Feature::Tls) {
        return;
    }
    type Case = (&'static str, fn(Option<&[u8]>, i32) -> Option<Vec<u8>>);
    let cases: [Case; 9] = [
        ("garbage for a greeting", |_, _| Some(vec![0xa5; 16 * 1024])),
        ("a huge length", |_, _| Some(i32::MAX.to_be_bytes().to_vec())),
        ("a negative length", |_, _| Some((-1_i32).to_be_bytes().to_vec())),
        ("a long greeting that never comes", |_, _| Some((64_i32 << 20).to_be_bytes().to_vec())),
        ("a session without an id", |xid, _| xid.is_none().then(|| greeting(0))),
        ("garbage for a reply", |xid, _| Some(xid.map_or(greeting(1), |_| vec![0xa5; 16 * 1024]))),
        ("a long reply that never comes", |xid, _| {
            Some(xid.map_or(greeting(1), |_| (64_i32 << 20).to_be_bytes().to_vec()))
        }),
        ("the reply to another request", |xid, _| Some(xid.map_or(greeting(1), |_| reply(&[9; 4], &STAT)))),
        // The second connection finds another session than the one that it asks for.
        ("another session", |xid, code| xid.is_none().then(|| greeting(fastrand::i64(1..) + i64::from(code)))),
    ];
    thread::scope(|scope| {
        for (what, answer) in cases {
            for with_tls in [false, true] {
                scope.spawn(move || {
                    let server = Hostile::start(with_tls, answer);
                    let job = server.zklock().args(["--connect-timeout", "1s", "-w", "2s", LOCK, "true"]).run();
                    expect_sane(&job);
                    assert_eq!(job.status.code(), Some(69), "{what}: {job}");
                    let said = job.stderr();
                    let last = said.lines().last().unwrap_or_default();
                    assert!(last.starts_with("zklock: ") && last.contains("answer"), "{what}: {job}");
                    if what.starts_with("a long reply") {
                        // What goes on coming is waited for: the network may be slow.
                        return;
                    }
                    for args in [&["status", LOCK][..], &["check"]] {
                        let output = server.zklock().args(args).args(["--connect-timeout", "1s"]).run();
                        expect_sane(&output);
                        assert!(matches!(output.status.code(), Some(69 | 1)), "{what}: {output}");
                    }
                });
            }
        }
    });
}

/// What a terminal would obey is in names, in data, and in the answer to a word; real servers refuse such names.
#[test]
fn what_a_terminal_would_obey() {
    let node = "_c_00000000-0000-0000-0000-000000000000-lock-0000000001";
    let names = ["\u{9b}31m\u{202e}\u{1b}]0;title\u{7}", "\r\n\u{7f}", node, "\u{9b}31m\u{202e}-lock-0000000002"];
    let data = "{\"v\":1,\"host\":\"\\u009b2Jdb3\",\"user\":\"\\u001b[2J\\u202eroot\",\"describe\":\"a\\u0000\\u0007b\",\"pid\":1}";
    let server = Hostile::start(false, with(children(names), data.as_bytes().to_vec()));
    for args in [
        &["status", LOCK][..],
        &["status", "--json", LOCK],
        &["check", LOCK],
        &["check", "--json", LOCK],
        &["break", "--node", names[0], LOCK],
        &["-n", LOCK, "true"],
        &["-vvv", "-n", LOCK, "true"],
    ] {
        let output = server.zklock().args(args).run();
        expect_sane(&output);
        assert!(output.status.code().is_some_and(|code| code != 70), "{output}");
    }
    let output = server.zklock().args(["status", "--json", LOCK]).run();
    let json: Value = serde_json::from_str(&output.stdout()).expect("JSON");
    assert!(json.to_string().contains("db3"), "{json}");
}

#[test]
fn a_hundred_thousand_children() {
    let names = (0..100_000).map(|number| format!("_c_00000000-0000-0000-0000-000000000000-lock-{number:010}"));
    let server = Hostile::start(false, with(children(names), b"{}".to_vec()));
    let output = server.zklock().args(["status", LOCK]).run().expect_code(0);
    assert!(output.stdout().contains("1 holds, 99999 wait"), "{output}");
    let output = server.zklock().args(["-n", "--connect-timeout", "2s", LOCK, "true"]).run();
    expect_sane(&output);
}

/// Nor does it take longer because the server never answers the request to close it.
#[test]
fn a_login_that_fails_leaves_no_session() {
    // Garbage, silence, and what a server says that has no SASL.
    for (said, status) in [(Some(packet(b"abc")), 69), (Some(vec![]), 69), (None, 77)] {
        let counts = Arc::new(Mutex::new((0, 0)));
        let seen = Arc::clone(&counts);
        let server = Hostile::start(false, move |request, code| {
            let mut seen = seen.lock().unwrap();
            match (request, code) {
                (None, _) => {
                    seen.0 += 1;
                    let mut greeting = greeting(0x1234);
                    if said.is_none() {
                        greeting[8..12].copy_from_slice(&120_000_i32.to_be_bytes());
                    }
                    Some(greeting)
                }
                (_, -11) => {
                    seen.1 += 1;
                    Some(vec![])
                }
                (Some(request), _) => said.clone().or_else(|| Some(reply(request, &[0; 4]))),
            }
        });
        let options = ["--session-timeout", "2m", "--connect-timeout", "4s"];
        let zklock = server.zklock().args(options).args([LOCK, "true"]).env("ZKLOCK_AUTH", "sasl:alice:hidden-1");
        let output = zklock.run().expect_code(status);
        let (opened, closed) = *counts.lock().unwrap();
        match status {
            77 => assert_eq!((opened, closed), (1, 1), "{output}"),
            // The end of the run may come before that of the last one.
            _ => assert!(opened > 1 && closed + 1 >= opened, "{closed} of {opened}: {output}"),
        }
    }
}

/// Names that are longer than the processes of a run can tell each other: of a node that was created, and of one that
/// is found when no answer came.
#[test]
fn names_that_are_too_long() {
    let created = |request: Option<&[u8]>, code| match code {
        15 => request.map(|request| reply(request, &[packet(&[b'/'; 400_000]), STAT.to_vec()].concat())),
        _ => with(children(["a"]), vec![])(request, code),
    };
    let asked = Mutex::new(None);
    let found = move |request: Option<&[u8]>, code| match (code, request) {
        (15, Some(request)) => {
            // The path begins after the xid, the opcode and its length, and ends in `-lock-`.
            let id = request[12..].split(|byte| *byte == b'/').find(|name| name.starts_with(b"_c_")).unwrap();
            asked.lock().unwrap().replace(id[..39].to_vec());
            None
        }
        (8 | 12, _) => {
            let id = asked.lock().unwrap().clone().unwrap_or_default();
            let name = [&id[..], b"-", &[b'x'; 400_000], b"-lock-0000000001"].concat();
            with(children([name]), vec![])(request, code)
        }
        (4, Some(request)) => {
            let mut stat = STAT;
            stat[44..52].copy_from_slice(&0x1234_i64.to_be_bytes());
            Some(reply(request, &[&packet(b"")[..], &stat].concat()))
        }
        (14, Some(request)) => {
            // One check succeeds.
            let results = [&13_i32.to_be_bytes()[..], &[0], &[0; 4], &[255; 4], &[1], &[255; 4]].concat();
            Some(reply(request, &results))
        }
        _ => with(vec![0; 72], vec![])(request, code),
    };
    for (server, why) in [
        (Hostile::start(false, created), "the server has created \"///"),
        (Hostile::start(false, found), "a name that is too long is in an answer\n"),
    ] {
        let output = server.zklock().args(["-vv", "--timeout", "10s", LOCK, "true"]).run().expect_code(70);
        expect_sane(&output);
        let said = output.stderr();
        assert!(said.contains(why) && said.lines().last().unwrap().len() < 500, "{output}");
    }
}

/// The longest list that is believed, of the shortest names.
#[test]
fn a_list_that_takes_more_memory_than_bytes() {
    let names = std::iter::repeat_n(b"x", (64 << 20) / 5 - 100);
    let server = Hostile::start(false, with(children(names), vec![]));
    let output = server.zklock().args(["status", LOCK, "--connect-timeout", "10s"]).run();
    expect_sane(&output);
}
