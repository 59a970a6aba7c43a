//! 69: no server answers at the start. One line, in time, and hardly any processor time.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::client::Client;
use crate::harness::ensemble::Ensemble;
use crate::harness::frames::Op;
use crate::harness::poll;
use crate::harness::proxy::Proxy;
use crate::harness::running::{Output, finish, only_line};
use crate::harness::schema::expect_valid;
use crate::harness::scratch::{LASTING, LOCK, Scratch, direct};
use crate::harness::server::{Settings, free_port};
use crate::harness::stub::Stub;
use crate::harness::times::AT_ONCE;
use crate::harness::zklock::{Zklock, binary};

/// The exit status and the processor time of zklock and of everything that it has waited for, keepers included.
fn measured(zklock: Zklock, args: &[&str]) -> (Output, Duration) {
    // `times` of a POSIX shell: its own user and system time, then those of its children and theirs.
    let script = r#""$@"; status=$?; times; exit $status"#;
    let mut output = zklock.program("sh").args(["-c", script, "sh"]).arg(binary()).args(args).run();
    let text = std::mem::take(&mut output.stdout);
    let text = String::from_utf8(text).unwrap();
    let children = text.lines().last().unwrap_or_default();
    let spent = children.split_whitespace().map(|part| {
        let (minutes, seconds) = part.trim_end_matches('s').split_once('m').unwrap_or_else(|| panic!("times: {text}"));
        Duration::from_secs(60) * minutes.parse().unwrap() + Duration::from_secs_f64(seconds.parse().unwrap())
    });
    let spent = spent.sum();
    (output, spent)
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

/// How late a loaded machine may be. A run that hangs takes longer.
const SLOW: Duration = Duration::from_secs(8);

/// Against this address: gives up with 69 when `--connect-timeout` is over, and has done next to nothing meanwhile.
#[track_caller]
fn unreachable(addresses: &str) -> String {
    let args = ["--connect-timeout", "4s", LOCK, "true"];
    // Without this, the resolver would go on asking a silent name server for longer than the limit:
    // resolv.conf(5).
    let zklock = Zklock::at(addresses).env("RES_OPTIONS", "timeout:1 attempts:1");
    let (output, spent) = measured(zklock, &args);
    let output = output.expect_code(69);
    let line = only_line(&output);
    assert!(line.starts_with(&format!("no ZooKeeper server of {addresses} answered within 4s: ")), "{output}");
    // As a rule it is late by milliseconds, and by a second and a half when the keeper does not answer any more.
    let late = output.elapsed.checked_sub(CONNECT_TIMEOUT).expect("not before the timeout");
    assert!(late < AT_ONCE, "{late:?} late\n{output}");
    // A loop without a pause would take all of it.
    assert!(spent < CONNECT_TIMEOUT / 4, "{spent:?} of processor time\n{output}");
    line
}

#[test]
fn refused() {
    for count in [1, 2] {
        let servers: Vec<String> = (0..count).map(|_| format!("127.0.0.1:{}", free_port())).collect();
        let all = servers.join(",");
        let why = format!("{}: Connection refused", servers[0]);
        assert_eq!(unreachable(&all), format!("no ZooKeeper server of {all} answered within 4s: {why}"));
    }
}

#[test]
fn never_answers() {
    unreachable(&Stub::silent().address());
}

#[test]
fn answers_garbage() {
    unreachable(&Stub::garbage().address());
}

#[test]
fn another_protocol() {
    let greetings: [&[u8]; 3] = [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\0"];
    for greeting in greetings {
        unreachable(&Stub::answering(greeting.to_vec()).address());
    }
}

#[test]
fn closes_at_once() {
    // A proxy without a server behind it accepts, and resets.
    let target = format!("127.0.0.1:{}", free_port());
    let proxy = Proxy::plain(target.parse().unwrap());
    unreachable(&proxy.address());
    // The pauses between the tries grow.
    assert!(proxy.accepted() < 100, "{} connections", proxy.accepted());
}

/// Servers count the connections from one address, and close those beyond maxClientCnxns at once.
#[test]
fn full() {
    let server = Settings::default().line("maxClientCnxns=4").server();
    let connect = || Client::connect(&server.address());
    let check = || -> Value {
        let output = Zklock::at(server.address()).args(["check", "--json"]).run();
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let mut others = vec![connect(), connect()];
    let seen = check();
    expect_valid("check", &seen);
    assert_eq!(seen["servers"][0]["connections"], json!({"used": 2, "limit": 4}), "{seen:#}");
    others.extend([connect(), connect()]);
    let mut waiter = Zklock::at(server.address()).args(["-v", LOCK]).child(["--exit-on", "TERM"]).spawn();
    waiter.wait_stderr("(maxClientCnxns)");
    let seen = check();
    assert_eq!(seen["servers"][0]["reachable"], false, "{seen:#}");
    assert!(seen["findings"][0]["remedy"].as_str().unwrap().contains("maxClientCnxns"), "{seen:#}");
    others.pop();
    finish(&mut waiter);
}

#[test]
fn several_within_one_timeout() {
    let (silent, garbage) = (Stub::silent(), Stub::garbage());
    unreachable(&format!("{},127.0.0.1:{},{}", silent.address(), free_port(), garbage.address()));
}

#[test]
fn unknown_host() {
    let line = unreachable("no-such-host.invalid:2181/app");
    assert!(line.contains("cannot resolve no-such-host.invalid: "), "{line}");
}

#[test]
fn no_quorum() {
    let ensemble = Ensemble::start();
    let [survivor, other] = ensemble.followers();
    other.kill();
    ensemble.leader().kill();
    poll::until("the survivor serves no client", || {
        survivor.ask("srvr").is_ok_and(|state| state.contains("not currently serving")).then_some(())
    });
    let zklock = Zklock::at(survivor.address()).args(["--connect-timeout", "6s", LOCK, "true"]);
    let line = only_line(&zklock.run().expect_code(69));
    assert!(
        line.ends_with("is a ZooKeeper server that serves no clients now: it is starting, or has no quorum"),
        "{line}"
    );
}

#[test]
fn servers_come_up_in_time() {
    let (scratch, proxy) = Scratch::proxied();
    proxy.refuse();
    let options = [&LASTING[..], &["-v", "--connect-timeout", "60"]].concat();
    let mut job = scratch.start(&proxy.address(), "job", &options, &["--exit-on", "TERM"]);
    job.wait_stderr("no connection");
    proxy.accept();
    finish(&mut job);
    scratch.expect_tidy(&["job"]);
}

#[test]
fn one_that_answers_is_enough() {
    let scratch = Scratch::new();
    let (silent, garbage) = (Stub::silent(), Stub::garbage());
    let unused = free_port();
    let good = direct();
    let servers = format!("{},no-such-host.invalid,127.0.0.1:{unused},{},{good}", silent.address(), garbage.address());
    let output = scratch.zklock_by(servers).args([LOCK, "true"]).run().expect_code(0);
    assert_eq!(output.stderr(), "");
}

/// A server that opens sessions and then answers one request after the other answers each request with the
/// next body of a list, and stops answering after the last.
struct Impostor {
    address: String,
    is_over: Arc<AtomicBool>,
}

impl Impostor {
    fn answering(bodies: Vec<Vec<u8>>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        thread::spawn(move || {
            while let Ok((mut client, _)) = listener.accept() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                // A client may go in the middle.
                let _ = impose(&mut client, &bodies);
            }
        });
        Self { address, is_over }
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // The thread looks when a client comes.
        let _ = TcpStream::connect(&self.address);
    }
}

fn impose(client: &mut TcpStream, bodies: &[Vec<u8>]) -> io::Result<()> {
    receive(client)?;
    // Protocol version, a timeout of 4 s, the session id, a password, not read-only.
    let greeting = [&0_i32.to_be_bytes()[..], &4000_i32.to_be_bytes(), &0x1234_i64.to_be_bytes()];
    send(client, &[&greeting.concat()[..], &16_i32.to_be_bytes(), &[7; 16], &[0]].concat())?;
    let mut bodies = bodies.iter();
    loop {
        let request = receive(client)?;
        let (xid, op) = request.split_at_checked(4).ok_or(io::ErrorKind::InvalidData)?;
        // The client sees by a ping whether the session is there.
        let body = if op.starts_with(&Op::Ping.code().to_be_bytes()) { Some(&vec![]) } else { bodies.next() };
        if let Some(body) = body {
            // No error.
            send(client, &[xid, &1_i64.to_be_bytes(), &0_i32.to_be_bytes(), body].concat())?;
        }
    }
}

fn receive(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    client.read_exact(&mut length)?;
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    client.read_exact(&mut frame)?;
    Ok(frame)
}

fn send(client: &mut TcpStream, frame: &[u8]) -> io::Result<()> {
    client.write_all(&[&u32::try_from(frame.len()).unwrap().to_be_bytes()[..], frame].concat())
}

/// A reply whose bytes are no answer to the request is taken for a broken connection.
#[test]
fn nonsense_for_a_reply() {
    let huge = i32::MAX.to_be_bytes().to_vec();
    let nonsense = [vec![huge.clone(), huge], vec![vec![]]];
    thread::scope(|scope| {
        for bodies in nonsense {
            let impostor = Impostor::answering(bodies);
            let zklock = Zklock::at(&impostor.address).plain();
            scope.spawn(move || {
                let _impostor = impostor;
                let (output, spent) = measured(zklock, &["-w", "1s", LOCK, "true"]);
                let output = output.expect_code(69);
                let line = "gave up waiting for /lock after 1s: ZooKeeper did not answer in time";
                assert_eq!(only_line(&output), line, "{output}");
                // A second for the node that may be there, half a one for the session.
                assert!(output.elapsed < Duration::from_millis(2500) + SLOW, "{output}");
                assert!(spent < Duration::from_millis(500), "{spent:?} of processor time\n{output}");
            });
        }
    });
}

/// Its name would reach the command.
#[test]
fn another_node_than_asked_for() {
    for (body, shown) in [(created(), "/lock/_c_x-lock-0000000000"), (vec![0; 72], "/")] {
        let impostor = Impostor::answering(vec![body]);
        let output = Zklock::at(&impostor.address).plain().args(["-w", "1s", LOCK, "true"]).run().expect_code(70);
        let line = only_line(&output);
        assert!(line.starts_with(&format!("ZooKeeper refused: /lock: the server has created {shown:?} in")), "{line}");
    }
}

/// The body of a reply to the creation of a node: a path, and what the server knows of the node.
fn created() -> Vec<u8> {
    let path = b"/lock/_c_x-lock-0000000000";
    [&u32::try_from(path.len()).unwrap().to_be_bytes()[..], path, &[0; 68]].concat()
}
