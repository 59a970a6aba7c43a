//! A server that means harm, or has lost its mind: with TLS and without, zklock neither panics nor hangs, takes no more
//! memory than a long answer has, and shows nothing that a terminal would obey.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::{ServerConnection, StreamOwned};
use serde_json::Value;

use crate::harness::oracle::{expect_sane, within_memory};
use crate::harness::release::{Feature, lacks};
use crate::harness::scratch::LOCK;
use crate::harness::secure::server_config;
use crate::harness::server;
use crate::harness::tls::{Authority, Good, LOCAL};
use crate::harness::zklock::Zklock;

/// What is sent: for the opening of the session if there is no request, or to a request with this opcode, which
/// begins with its xid. `None`: the connection is closed.
type Answer = dyn Fn(Option<&[u8]>, i32) -> Option<Vec<u8>> + Send + Sync;

/// A server that says what it is told to say.
pub(super) struct Hostile {
    port: u16,
    is_over: Arc<AtomicBool>,
    authority: Option<Authority>,
}

impl Hostile {
    pub(super) fn start(
        with_tls: bool,
        answer: impl Fn(Option<&[u8]>, i32) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        let authority = with_tls.then(|| {
            let authority = Authority::new();
            authority.issue("server", LOCAL, Good::Days(30));
            authority
        });
        let config = authority.as_ref().map(|authority| Arc::new(server_config(authority)));
        let (port, listener) = server::listener();
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

    pub(super) fn zklock(&self) -> Zklock {
        let zklock = Zklock::at(format!("localhost:{}", self.port)).plain();
        within_memory(match &self.authority {
            Some(authority) => authority.trusted(zklock),
            None => zklock,
        })
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // The thread looks when a client comes.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
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

pub(super) fn packet(body: &[u8]) -> Vec<u8> {
    [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], body].concat()
}

/// Opens a session: protocol version, a timeout of 4 s, the session id, a password, not read-only.
pub(super) fn greeting(session: i64) -> Vec<u8> {
    let start = [&0_i32.to_be_bytes()[..], &4000_i32.to_be_bytes(), &session.to_be_bytes()].concat();
    packet(&[&start[..], &16_i32.to_be_bytes(), &[7; 16], &[0]].concat())
}

/// A reply without an error.
pub(super) fn reply(request: &[u8], body: &[u8]) -> Vec<u8> {
    packet(&[&request[..4], &1_i64.to_be_bytes(), &0_i32.to_be_bytes(), body].concat())
}

/// That of an ephemeral node: all is zero but the end of `ephemeralOwner`.
pub(super) const STAT: [u8; 68] = {
    let mut stat = [0; 68];
    stat[51] = 1;
    stat
};

/// The body of a list of children, with a stat.
pub(super) fn children<I: IntoIterator<Item: AsRef<[u8]>>>(names: I) -> Vec<u8> {
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
            // One node was checked.
            14 => reply(xid, &[0, 0, 0, 13, 0, 0, 0, 0, 0, 255, 255, 255, 255, 1, 255, 255, 255, 255]),
            -11 => reply(xid, &[]),
            _ => reply(xid, &[]),
        })
    }
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

/// What a terminal would obey, and what forges a line.
const FORGED: &str = "\u{1b}]0;owned\u{7}\nzklock: forged\u{2028}\u{202e}";

/// A server that refuses each request that names a forged node, with this error.
fn refusing(names: Vec<String>, error: i32, request: Option<&[u8]>, code: i32) -> Option<Vec<u8>> {
    match request {
        Some(request) if request.windows(5).any(|part| part == b"owned") => {
            Some(packet(&[&request[..4], &1_i64.to_be_bytes(), &error.to_be_bytes()].concat()))
        }
        _ => with(children(names), vec![])(request, code),
    }
}

#[test]
fn a_refusal_that_names_another_node_is_one_line() {
    const BAD_ARGUMENTS: i32 = -8;
    // The reply to the creation is lost, and the session resumed: the list has a second node of the run by its name.
    let twins = Mutex::new(vec![]);
    let server = Hostile::start(false, move |request, code| match (request, code) {
        (Some(request), 15) => {
            let length = u32::from_be_bytes(request[8..12].try_into().unwrap()) as usize;
            let path = String::from_utf8_lossy(&request[12..12 + length]).into_owned();
            let name = path.strip_prefix("/lock/").unwrap();
            let twin = name.replace("-lock-", &format!("-{FORGED}-lock-"));
            *twins.lock().unwrap() = vec![format!("{name}0000000001"), format!("{twin}0000000002")];
            None
        }
        _ => refusing(twins.lock().unwrap().clone(), BAD_ARGUMENTS, request, code),
    });
    expect_sane(&server.zklock().args(["-w", "3s", LOCK, "true"]).run());
}

#[test]
fn break_names_no_contender_in_one_line() {
    const NO_AUTH: i32 = -102;
    let forged = format!("_c_00000000-0000-0000-0000-000000000000-{FORGED}-lock-0000000001");
    let names = vec![forged.clone()];
    let server = Hostile::start(false, move |request, code| refusing(names.clone(), NO_AUTH, request, code));
    for options in [&["--force"][..], &[]] {
        let zklock = server.zklock().args(["break", "--node", &forged]).args(options);
        expect_sane(&zklock.arg(LOCK).run().expect_code(75));
    }
}

#[test]
fn a_tree_without_an_end() {
    for names_below_each in [2, 10_000] {
        let names: Vec<_> = (0..names_below_each).map(|name: i32| name.to_string()).collect();
        let server = Hostile::start(false, with(children(&names), vec![]));
        let output = server.zklock().args(["list", "--json"]).run().expect_code(78);
        expect_sane(&output);
        assert!(output.stderr().starts_with("zklock: there is more: stopped after "), "{output}");
        let output = server.zklock().args(["list", "--complete", "/"]).run().expect_code(0);
        expect_sane(&output);
    }
}

/// The name of the node that was created would reach the command.
#[test]
fn another_node_than_asked_for() {
    for name in ["/".repeat(400_000), "/lock/_c_x-lock-0000000000".to_owned()] {
        let created = packet(name.as_bytes());
        let server = Hostile::start(false, move |request, code| match code {
            15 => request.map(|request| reply(request, &[&created[..], &STAT].concat())),
            _ => with(children(["a"]), vec![])(request, code),
        });
        let output = server.zklock().args(["-vv", "--timeout", "10s", LOCK, "true"]).run().expect_code(70);
        expect_sane(&output);
        let said = output.stderr();
        let shown = format!("the server has created \"{}", &name[..3]);
        assert!(said.contains(&shown) && said.lines().last().unwrap().len() < 500, "{output}");
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
