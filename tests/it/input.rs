//! What users write wrong, and servers that are none: one line, the right status, no time and no processor wasted.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness::frames::Op;
use crate::harness::proxy::Proxy;
use crate::harness::running::{Output, only_line};
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::server::free_port;
use crate::harness::stub::Stub;
use crate::harness::zklock::{Zklock, binary};

/// Refused for what was written: before any server is asked, so there is none.
#[track_caller]
fn refused(zklock: Zklock) -> String {
    let output = zklock.run().expect_code(64);
    let line = only_line(&output);
    assert!(!line.contains("panic") && !line.contains("error:"), "{output}");
    line
}

/// Arguments, the beginning of the one line and what it says to write instead.
type Refusal<'a> = (&'a [&'a str], &'a str, &'a str);

#[track_caller]
fn all_refused(refusals: &[Refusal<'_>]) {
    for (args, beginning, instead) in refusals {
        let line = refused(Zklock::bare().args(*args));
        assert!(line.starts_with(beginning) && line.contains(instead), "{args:?} gave: {line}");
    }
}

#[test]
fn lock_paths_that_are_none() {
    let slash = "write an absolute path such as /jobs/backup";
    all_refused(&[
        (&["", "true"], "LOCK '' is empty", "write a path such as /jobs/backup"),
        (&["jobs/backup", "true"], "LOCK 'jobs/backup' does not begin with a slash", slash),
        (&["./backup", "true"], "LOCK './backup' does not begin with a slash", slash),
        (&["hold", "/l"], "LOCK 'hold' does not begin with a slash", slash),
        (&["/", "true"], "LOCK '/' is the root", "write a path such as /jobs/backup"),
        (&["/a/", "true"], "LOCK '/a/' ends with a slash", "leave that out"),
        (&["/a//b", "true"], "LOCK '/a//b' has an empty component", "write each slash once"),
        (&["/a/./b", "true"], "LOCK '/a/./b' has the component .", "write the path without it"),
        (&["/a/..", "true"], "LOCK '/a/..' has the component ..", "write the path without it"),
        (&["/a\tb", "true"], "LOCK '/a\\tb' contains U+0009", "leave it out"),
        (&["/a\nzklock: b", "true"], "LOCK '/a\\nzklock: b' contains U+000A", "leave it out"),
        (&["/\u{1b}[31m", "true"], "LOCK '/\\u{1b}[31m' contains U+001B", "leave it out"),
        (&["/🔒", "true"], "LOCK '/🔒' contains U+1F512", "leave it out"),
        (&["/zookeeper", "true"], "LOCK '/zookeeper' belongs to ZooKeeper itself", "such as /locks/NAME"),
        (&["/zookeeper/a", "true"], "LOCK '/zookeeper/a' belongs to ZooKeeper itself", "such as /locks/NAME"),
        (&[&format!("/{}", "a".repeat(5000)), "true"], "LOCK '/aaa", "write at most 4096"),
    ]);
    let line = refused(Zklock::bare().arg(OsString::from_vec(b"/caf\xe9".to_vec())).arg("true"));
    assert_eq!(line, "LOCK '/caf\u{fffd}' is not UTF-8; write it in UTF-8");
}

#[test]
fn connect_strings_that_are_none() {
    let comma = "with one comma between two";
    for (text, instead) in [
        (" ", "write HOST:PORT, such as localhost:2181"),
        ("/app", "write HOST:PORT/app"),
        (":2181", "write HOST:2181"),
        ("a,,b", comma),
        ("a,", comma),
        ("a:0", "a number from 1 to 65535"),
        ("a:65536", "a number from 1 to 65535"),
        ("a:x", "a number from 1 to 65535"),
        ("::1:2181", "write IPv6 in brackets"),
        ("[::1", "write [ADDRESS]:PORT for IPv6"),
        ("[zz]:1", "write one such as [::1]:2181"),
        ("a b", "write a comma between two hosts"),
        ("http://a", "write HOST:PORT without http://"),
        ("a/x/", "leave that out"),
        ("a/../x", "write the path without it"),
        ("a/x,b/x", "write the chroot once"),
        ("zoö", "xn-- form"),
        ("a\nb", "leave it out"),
    ] {
        let option = refused(Zklock::bare().args(["-z", text, LOCK, "true"]));
        assert!(option.starts_with("--zookeeper '") && option.contains(instead), "{text:?} gave: {option}");
        let variable = refused(Zklock::at(text).args([LOCK, "true"]));
        assert!(variable.starts_with("ZKLOCK_ZOOKEEPER '") && variable.contains(instead), "{text:?} gave: {variable}");
    }
}

#[test]
fn durations_that_are_none() {
    const OPTIONS: [&str; 4] = ["--timeout", "--connect-timeout", "--session-timeout", "--kill-after"];
    for option in OPTIONS {
        for (text, instead) in [
            ("", "such as 30, 1.5, 500ms"),
            ("soon", "such as 30, 1.5, 500ms"),
            ("5x", "such as 30, 1.5, 500ms"),
            ("1e3", "such as 30, 1.5, 500ms"),
            ("NaN", "such as 30, 1.5, 500ms"),
            (" 5", "such as 30, 1.5, 500ms"),
            ("-1", "cannot be negative"),
            ("5m1h", "write the longer unit first"),
            ("1h30", "write 1h30m"),
            ("999999999999999999999d", "write at most 36500d"),
        ] {
            let line = refused(Zklock::bare().args([option, text, LOCK, "true"]));
            assert!(
                line.starts_with(&format!("{option} '{text}': ")) && line.contains(instead),
                "{text:?} gave: {line}"
            );
        }
    }
    all_refused(&[
        (&["--connect-timeout", "0", LOCK, "true"], "--connect-timeout '0': ", "such as 15s"),
        (&["--session-timeout", "0", LOCK, "true"], "--session-timeout '0': ", "write at least 100ms"),
        (&["--session-timeout", "25d", LOCK, "true"], "--session-timeout '25d': ", "write at most 24d"),
        (&["--session-timeout", "6s", "-k", "6s", LOCK, "true"], "--kill-after '6s': ", "lengthen --session-timeout"),
    ]);
    for (variable, option) in [("ZKLOCK_TIMEOUT", "soon"), ("ZKLOCK_SESSION_TIMEOUT", "-1")] {
        let line = refused(Zklock::bare().env(variable, option).args([LOCK, "true"]));
        assert!(line.starts_with(&format!("{variable} '{option}': ")), "{line}");
    }
}

#[test]
fn options_and_commands_that_are_none() {
    let status = "write a number from 0 to 255";
    let signal = "write a signal such as TERM, SIGINT, RTMIN+1 or a number from 1 to 64";
    all_refused(&[
        (&[], "no lock; ", "zklock /jobs/backup ./backup.sh"),
        (&["-n"], "no lock; ", "zklock /jobs/backup ./backup.sh"),
        (&[LOCK], "no command; ", "write zklock /lock COMMAND [ARG]..."),
        (&[LOCK, "--"], "no command; ", "write zklock /lock COMMAND [ARG]..."),
        (&[LOCK, "-c", "a", "b"], "-c and the command 'b' exclude each other; ", "write one of them"),
        (&[LOCK, "-c"], "no value after ", "write "),
        (&["--no-such", LOCK, "true"], "unknown option '--no-such'; ", "zklock --help"),
        (&["--time", "3", LOCK, "true"], "unknown option '--time'; ", "--timeout"),
        (&["--nonblock=yes", LOCK, "true"], "--nonblock takes no value; ", "write --nonblock alone"),
        (&["-w"], "no value after ", "write "),
        (&["-E", "256", LOCK, "true"], "--conflict-exit-code '256': ", status),
        (&["-E", "-1", LOCK, "true"], "--conflict-exit-code '-1': ", status),
        (&["-E", "+1", LOCK, "true"], "--conflict-exit-code '+1': ", status),
        (&["-E", "", LOCK, "true"], "--conflict-exit-code '': ", status),
        (&["-E", "one", LOCK, "true"], "--conflict-exit-code 'one': ", status),
        (&["--signal", "TREM", LOCK, "true"], "--signal 'TREM': ", signal),
        (&["--signal", "0", LOCK, "true"], "--signal '0': ", signal),
        (&["--signal", "65", LOCK, "true"], "--signal '65': ", signal),
        (&["--signal", "", LOCK, "true"], "--signal '': ", signal),
        (&["--describe", "two\nlines", LOCK, "true"], "--describe 'two\\nlines': ", "write one line of plain text"),
        (&["--describe", &"x".repeat(201), LOCK, "true"], "--describe 'xxx", "write at most 200"),
    ]);
    let odd = OsString::from_vec(b"--\xff".to_vec());
    assert!(refused(Zklock::bare().arg(odd).args([LOCK, "true"])).starts_with("unknown option '--\u{fffd}'"));
}

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

/// How late a loaded machine may be. What hangs takes longer.
const SLOW: Duration = Duration::from_secs(8);

/// Against this address: gives up with 69 when `--connect-timeout` is over, and has done next to nothing meanwhile.
#[track_caller]
fn unreachable(addresses: &str) -> String {
    let args = ["--connect-timeout", "4s", LOCK, "true"];
    // A name server that does not answer is asked for as long: resolv.conf(5).
    let zklock = Zklock::at(addresses).env("RES_OPTIONS", "timeout:1 attempts:1");
    let (output, spent) = measured(zklock, &args);
    let output = output.expect_code(69);
    let line = only_line(&output);
    assert!(line.starts_with("no ZooKeeper server of ") && line.contains(" answered within 4s: "), "{output}");
    // As a rule it is late by milliseconds, and by a second and a half when the keeper does not answer any more.
    let late = output.elapsed.checked_sub(CONNECT_TIMEOUT).expect("not before the timeout");
    assert!(late < SLOW, "{late:?} late\n{output}");
    // A loop without a pause would take all of it.
    assert!(spent < CONNECT_TIMEOUT / 4, "{spent:?} of processor time\n{output}");
    line
}

#[test]
fn a_server_that_refuses_is_unreachable() {
    let address = format!("127.0.0.1:{}", free_port());
    let line = unreachable(&address);
    assert_eq!(line, format!("no ZooKeeper server of {address} answered within 4s: {address}: Connection refused"));
}

#[test]
fn a_server_that_never_answers_is_unreachable() {
    unreachable(&Stub::silent().address());
}

#[test]
fn a_server_that_answers_garbage_is_unreachable() {
    unreachable(&Stub::garbage().address());
}

#[test]
fn a_server_of_another_protocol_is_unreachable() {
    let greetings: [&[u8]; 3] = [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\0"];
    for greeting in greetings {
        unreachable(&Stub::answering(greeting.to_vec()).address());
    }
}

#[test]
fn a_server_that_closes_at_once_is_unreachable() {
    // A proxy to nobody accepts, and resets.
    let nobody = format!("127.0.0.1:{}", free_port());
    let proxy = Proxy::plain(nobody.parse().unwrap());
    unreachable(&proxy.address());
    // The pauses between the tries grow.
    assert!(proxy.accepted() < 100, "{} connections", proxy.accepted());
}

#[test]
fn several_servers_of_which_none_answers_are_unreachable_within_one_timeout() {
    let (silent, garbage) = (Stub::silent(), Stub::garbage());
    unreachable(&format!("{},127.0.0.1:{},{}", silent.address(), free_port(), garbage.address()));
}

#[test]
fn a_host_that_nobody_knows_is_named() {
    let line = unreachable("no-such-host.invalid:2181/app");
    assert!(line.contains("cannot resolve no-such-host.invalid: "), "{line}");
}

#[test]
fn one_server_that_answers_is_enough() {
    let scratch = Scratch::new();
    let (silent, garbage) = (Stub::silent(), Stub::garbage());
    let nobody = free_port();
    let good = direct();
    let servers = format!("{},no-such-host.invalid,127.0.0.1:{nobody},{},{good}", silent.address(), garbage.address());
    let output = scratch.zklock_by(servers).args([LOCK, "true"]).run().expect_code(0);
    assert_eq!(output.stderr(), "");
}

/// A server that opens sessions and then answers one request after the other with the next of some bodies, and after
/// the last no more.
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
                // That a client goes in the middle is its right.
                let _ = impose(&mut client, &bodies);
            }
        });
        Self { address, is_over }
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // The thread looks when somebody comes.
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
fn a_server_that_answers_requests_with_nonsense_is_waited_for_no_longer_than_the_timeout() {
    let huge = i32::MAX.to_be_bytes().to_vec();
    // The first request creates the node, the second lists the children.
    let nonsense = [vec![created(), huge.clone()], vec![huge.clone(), huge], vec![created(), vec![]], vec![vec![]]];
    thread::scope(|scope| {
        for bodies in nonsense {
            scope.spawn(|| {
                let impostor = Impostor::answering(bodies);
                let (output, spent) = measured(Zklock::at(&impostor.address), &["-w", "1s", LOCK, "true"]);
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

/// The client library panics over a created node without a path.
#[test]
fn a_server_that_brings_the_keeper_down_is_an_internal_error() {
    let impostor = Impostor::answering(vec![vec![0; 72]]);
    let (output, spent) = measured(Zklock::at(&impostor.address), &["-w", "60s", LOCK, "true"]);
    let output = output.expect_code(70);
    assert!(output.stderr().lines().all(|line| line.starts_with("zklock: ")), "{output}");
    assert!(output.stderr().ends_with("zklock: internal error: the keeper process died repeatedly\n"), "{output}");
    assert!(spent < Duration::from_secs(5), "{spent:?} of processor time\n{output}");
}

/// The body of a reply to the creation of a node: a path, and what the server knows of the node.
fn created() -> Vec<u8> {
    let path = b"/lock/_c_x-lock-0000000000";
    [&u32::try_from(path.len()).unwrap().to_be_bytes()[..], path, &[0; 68]].concat()
}
