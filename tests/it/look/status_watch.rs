//! `zklock status --watch`: every change is shown, on a terminal and elsewhere, through lost connections.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::client::{Kind, expire_session};
use crate::harness::poll;
use crate::harness::running::{finish, silent};
use crate::harness::schema::expect_valid;
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::server::{Data, Settings};
use crate::harness::terminal::{CTRL_C, Terminal};

#[test]
fn every_change_is_a_line_of_json() {
    let scratch = Scratch::new();
    let mut watching = scratch.zklock().args(["status", "--watch", "--json", LOCK]).spawn();
    // No node, then a contender, then other data, then another contender, then none.
    watching.wait_stdout(r#""contenders":[]"#);
    let node = scratch.occupy(r#"{"host":"db3"}"#);
    watching.wait_stdout(r#""host":"db3""#);
    scratch.client().set(&node, br#"{"host":"db4","held_since":1}"#).unwrap();
    let line = watching.wait_stdout(r#""host":"db4""#);
    assert!(!line.contains(r#""held_since":null"#), "{line}");
    let other = scratch.occupy(r#"{"host":"db5"}"#);
    watching.wait_stdout(r#""host":"db5""#);
    scratch.delete(&node);
    scratch.delete(&other);
    watching.wait_stdout(r#""contenders":[]"#);
    watching.signal(Signal::SIGINT);
    let output = watching.wait().expect_signal(Signal::SIGINT);
    let lines = output.stdout();
    for (line, next) in lines.lines().zip(lines.lines().skip(1)) {
        expect_valid("status", &serde_json::from_str::<Value>(line).expect("one object a line"));
        assert_ne!(line, next, "nothing has changed");
    }
    assert_eq!(output.stderr(), "");
}

#[test]
fn it_goes_on_when_the_server_is_back() {
    let server = Settings::default().server();
    let scratch = Scratch::on(server.chroot()).with_lock();
    let mut watching = scratch.zklock().args(["status", "--watch", LOCK]).spawn();
    watching.wait_stdout("/lock: free");
    server.kill();
    watching.wait_stderr("zklock: connection to ZooKeeper lost, trying again: ");
    server.restart(Data::Kept);
    let mut holder = scratch.zklock().arg(LOCK).child(["--exit-on", "TERM"]).spawn();
    watching.wait_stdout("/lock: 1 holds");
    watching.signal(Signal::SIGTERM);
    let output = watching.wait().expect_signal(Signal::SIGTERM);
    assert_eq!(output.stderr().lines().count(), 1, "it says so once\n{output}");
    finish(&mut holder);
}

#[test]
fn a_session_that_is_over_is_followed_by_another() {
    let server = Settings::default().server();
    let scratch = Scratch::on(server.chroot());
    let others = server.sessions();
    let mut watching = scratch.zklock().args(["status", "--watch", LOCK]).spawn();
    watching.wait_stdout("/lock: free");
    let ours = poll::until("a session", || server.sessions().difference(&others).next().copied());
    expire_session(&server.address(), ours);
    scratch.occupy("db3");
    watching.wait_stdout("db3");
    watching.signal(Signal::SIGTERM);
    silent(watching.wait().expect_signal(Signal::SIGTERM));
    assert_eq!(server.sessions(), others);
}

#[test]
fn a_terminal_shows_the_latest_picture_alone() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(100);
    let before = terminal.settings();
    let mut watching = terminal.spawn(scratch.zklock().args(["status", "--watch", LOCK]));
    terminal.wait("a free lock", |lines| lines == ["/lock: free"]);
    // Not runs of zklock: the first beat of a holder would be one more change.
    scratch.occupy_as_db3();
    scratch.occupy("db4");
    let is_right = |lines: &[String]| lines.len() == 3 && lines[0] == "/lock: 1 holds, 1 waits";
    let lines = terminal.wait("two contenders", is_right);
    assert!(lines[1].starts_with("  1  holds  exclusive  ") && lines[2].starts_with("  2  waits  "), "{lines:#?}");
    // More than there is room for.
    for _ in 0..30 {
        scratch.client().create(&format!("{LOCK}/mine-lock-"), b"", Kind::EphemeralSequential).unwrap();
    }
    // 24 lines, the last of which is the cursor's.
    terminal.wait("the first of them", |lines| lines.len() == 23 && lines[22].starts_with("  22  waits  "));
    terminal.press(CTRL_C);
    watching.wait().expect_signal(Signal::SIGINT);
    assert_eq!(terminal.settings(), before);
    terminal.close();
}
