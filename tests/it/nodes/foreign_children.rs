//! What others put below a lock: names and data of every kind.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::harness::client::Kind;
use crate::harness::creation::connections;
use crate::harness::proxy::{Flow, Proxy};
use crate::harness::running::{finish, only_line, silent};
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::terminal::Terminal;
use crate::harness::times::SHORT_SESSION;
use crate::harness::zklock::binary;

/// The most data that a server takes in one node: a request of at most `jute.maxbuffer` (0xfffff) bytes, less the rest
/// of the request.
const MOST_DATA: usize = 0xf_ffff - 256;

/// Names that look a little like contenders' names, or like nothing at all.
const NAMES: [&str; 10] =
    ["config", ".x", "lock-", "x-1", "lock-9999999999", "__lock__", "%s%n%d", "\"'`$(reboot)\\", "…ünï漢", "lease-5"];

/// With all of these children below the lock, zklock takes it at once and leaves them alone.
#[test]
fn other_children_are_ignored() {
    let scratch = Scratch::new();
    let client = scratch.client();
    client.create(LOCK, b"", Kind::Persistent).unwrap();
    let long = "ü".repeat(100_000);
    let names: Vec<&str> = NAMES.into_iter().chain([long.as_str()]).collect();
    for (n, name) in names.iter().enumerate() {
        let data: Vec<u8> = (0..n * 100).map(|_| fastrand::u8(..)).collect();
        client.create(&format!("{LOCK}/{name}"), &data, Kind::Persistent).unwrap();
    }
    client.set(&format!("{LOCK}/config"), &vec![0xff; MOST_DATA]).unwrap();
    silent(scratch.zklock().args(["-n", LOCK, "true"]).run().expect_code(0));
    let output = scratch.zklock().args(["-v", "-n", LOCK, "true"]).run().expect_code(0);
    let told: Vec<String> =
        output.stderr().lines().filter(|line| line.contains("not a contender")).map(Into::into).collect();
    assert_eq!(told.len(), 1, "{output}");
    assert!(told[0].starts_with("zklock: /lock has a child that is not a contender, ignored: "), "{output}");
    assert!(told[0].len() < 300 && !told[0].contains(char::is_control), "{output}");
    let left: BTreeSet<String> = client.children(LOCK).into_iter().collect();
    assert_eq!(left, names.into_iter().map(str::to_owned).collect());
}

/// A lock below a lock is in order. It is worth a word to a person, and no mail.
#[test]
fn told_at_a_terminal_and_with_verbose() {
    let scratch = Scratch::new();
    let below = format!("{LOCK}/production");
    for path in [LOCK, &below] {
        scratch.client().create(path, b"", Kind::Persistent).expect("a node can be created");
    }
    let hint = "zklock: /lock has a child that is not a contender, ignored: production";
    for ci in ["", "1"] {
        let output = scratch.zklock().arg(LOCK).env("CI", ci).bare_child().run().expect_code(0);
        assert_eq!(output.stderr(), "");
    }
    for (option, told) in [(None, true), (Some("-q"), false), (Some("-v"), true)] {
        let terminal = Terminal::new(120);
        terminal.spawn(scratch.zklock().arg(LOCK).args(option).bare_child()).wait().expect_code(0);
        terminal.wait("the command's line", |lines| lines.iter().any(|line| line == "ready"));
        terminal.wait(hint, |lines| lines.iter().filter(|line| **line == hint).count() == usize::from(told));
    }
    let output = scratch.zklock().arg(LOCK).arg("-v").bare_child().run().expect_code(0);
    assert_eq!(output.stderr().lines().filter(|line| *line == hint).count(), 1, "{output}");
    scratch.delete(&below);
}

/// The servers limit what they take, not what they give: with many children or long names, a list is far longer than
/// any request.
#[test]
fn list_of_eight_megabytes() {
    let scratch = Scratch::new();
    let client = scratch.client();
    client.create(LOCK, b"", Kind::Persistent).unwrap();
    for first in 'a'..='h' {
        let name: String = [first].into_iter().chain(std::iter::repeat_n('.', MOST_DATA)).collect();
        client.create(&format!("{LOCK}/{name}"), b"", Kind::Persistent).unwrap();
    }
    let mut holder = scratch.hold();
    let busy = scratch.zklock().args(["-n", LOCK, "true"]).run().expect_code(75);
    assert!(busy.stderr.len() < 1000, "{}", busy.stderr.len());
    finish(&mut holder);
}

/// Meanwhile nothing else is heard from the server, not even an answer to a ping.
#[test]
fn list_that_takes_longer_than_the_session_timeout() {
    let scratch = Scratch::new();
    let client = scratch.client();
    client.create(LOCK, b"", Kind::Persistent).unwrap();
    for number in 0..10_000 {
        client.create(&format!("{LOCK}/a-child-that-is-no-contender-{number}"), b"", Kind::Persistent).unwrap();
    }
    let length: usize = client.children(LOCK).iter().map(|name| size_of::<u32>() + name.len()).sum();
    let proxy = Proxy::zookeeper(&direct());
    proxy.flows(Flow::Pass, Flow::Slow(length / SHORT_SESSION.as_secs() as usize * 2 / 3));
    let timeout = SHORT_SESSION.as_secs().to_string();
    let begun = Instant::now();
    let job = scratch.zklock_by(proxy.address()).args(["--session-timeout", &timeout]);
    let mut job = job.arg(LOCK).child(["--env", "--exit-on", "TERM"]).spawn();
    job.wait_stdout("ready");
    assert!(begun.elapsed() > SHORT_SESSION, "{:?}", begun.elapsed());
    // No further connection, and the first session and its node.
    assert_eq!(proxy.accepted(), connections());
    let (_, stat) = client.get(&job.variable("ZKLOCK_NODE")).expect("its node is there");
    assert_eq!(format!("{:#x}", stat.owner), job.variable("ZKLOCK_SESSION"));
    proxy.pass();
    silent(finish(&mut job));
}

#[test]
fn holder_with_ugly_data() {
    let scratch = Scratch::new();
    let client = scratch.client();
    client.create(LOCK, b"", Kind::Persistent).unwrap();
    for data in [
        vec![0xc3; MOST_DATA],
        b"{\"v\":1,\"host\":\"\x1b[2J\",\"pid\":-1,\"describe\":\"\\u202e\\n\\n\"}".to_vec(),
        format!("{{\"host\":\"{}\"}}", "h".repeat(MOST_DATA - 20)).into_bytes(),
    ] {
        let holder = client.create(&format!("{LOCK}/lock-"), &data, Kind::EphemeralSequential).unwrap();
        let output = scratch.zklock().args(["-n", LOCK, "true"]).run().expect_code(75);
        let line = only_line(&output);
        assert!(line.len() < 400 && !line.contains(char::is_control), "{output}");
        // A waiter reads it as well, and is served all the same.
        let mut waiter = scratch.zklock().env("CI", "1").arg(LOCK).child(scratch.logged("waiter")).spawn();
        scratch.wait_queue(2);
        client.delete(&holder).unwrap();
        waiter.wait_stdout("ready");
        finish(&mut waiter);
    }
}

/// Locks below a lock whose names are those of contenders: before all of them, and between two.
#[test]
fn contenders_are_ephemeral() {
    let scratch = Scratch::new();
    // A container, where servers know them.
    let below = format!("{LOCK}/order-lock-0000000000");
    silent(scratch.zklock().args([&below, "true"]).run().expect_code(0));
    let client = scratch.client();
    let create = |name: &str| client.create(&format!("{LOCK}/{name}"), b"", Kind::Persistent).unwrap();
    for name in [
        "0123456789abcdef0123456789abcdef__lock__0000000001",
        "_c_2a9f0cc5-5b46-4a0c-9ac9-4a1d5b3d0c1e-permits2-lock-0000000002",
    ] {
        create(name);
    }
    for options in [&[][..], &["--shared"], &["--permits", "3"], &["--dialect", "single"], &["--once-per", "1h"]] {
        silent(scratch.zklock().args(options).args(["-n", LOCK, "true"]).run().expect_code(0));
    }
    let mut holder = scratch.hold();
    let number: u32 = holder.variable("ZKLOCK_NODE").split('-').next_back().unwrap().parse().unwrap();
    create(&format!("order-lock-{:010}", number + 1));
    let mut waiter = scratch.zklock().arg(LOCK).child(scratch.logged("waiter")).spawn();
    scratch.wait_queue(6);
    let busy = only_line(&scratch.zklock().args(["-n", LOCK, "true"]).run().expect_code(75));
    assert!(busy.contains(&format!("pid {}", holder.zklock())), "{busy}");
    let status = silent(scratch.zklock().args(["status", LOCK]).run().expect_code(0)).stdout();
    assert!(status.contains("1 holds, 1 waits"), "{status}");
    // The locks are found, whether they are in use or not.
    let taken = client.create(&format!("{below}/mine-lock-"), b"", Kind::EphemeralSequential).unwrap();
    let list = silent(scratch.zklock().arg("list").run().expect_code(0)).stdout();
    let brief: Vec<_> = list.lines().map(|line| line.split('\t').take(3).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(brief, [format!("{LOCK} 1 1"), format!("{below} 1 0")]);
    client.delete(&taken).unwrap();
    finish(&mut holder);
    waiter.wait_stdout("ready");
    finish(&mut waiter);
    // A nested run uses the lock of the one that holds it.
    let nested = scratch.zklock().args([LOCK, "--"]).arg(binary()).args(["-n", LOCK, "true"]);
    silent(nested.run().expect_code(0));
}
