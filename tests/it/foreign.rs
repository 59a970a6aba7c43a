//! What others put below a lock: names and data that nobody expects, and numbers near the end of their range.

use std::collections::BTreeSet;

use zklock::rules::queue::SEQUENCE_LIMIT;

use crate::harness::client::Kind;
use crate::harness::counter;
use crate::harness::running::{finish, only_line, silent};
use crate::harness::scratch::{LOCK, Scratch};

/// The most data that a server takes in one node: a request of at most `jute.maxbuffer` (0xfffff) bytes, less the rest
/// of the request.
const MOST_DATA: usize = 0xf_ffff - 256;

/// Names that look a little like contenders' names, or like nothing at all.
const NAMES: [&str; 29] = [
    "config",
    ".x",
    ".lock-0000000000",
    "lock-",
    "-lock-",
    "x-",
    "x--",
    "x-1",
    "0000000000",
    "lock-000000000",
    "lock-00000000000",
    "lock-2147483648",
    "lock-9999999999",
    "lock--000000000",
    "lock-+000000001",
    "lock-0x00000000",
    "lock-٠٠٠٠٠٠٠٠٠٠",
    "LOCK-0000000000",
    "_c_",
    "_c_-lock-1",
    "_c_00000000-0000-0000-0000-000000000000",
    "_c_00000000-0000-0000-0000-000000000000-latch-000000000",
    "__lock__",
    "__WRIT__000000000",
    "%s%n%d",
    "a b\u{a0}c\u{3000}",
    "\"'`$(reboot)\\",
    "…ünï漢",
    "locks",
];

/// Below each of which zklock finds its way: it takes the lock at once, and leaves them alone.
#[test]
fn children_that_are_no_contenders_are_ignored_whatever_their_names_and_their_data() {
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

/// The servers limit what they take, not what they give: with many children or long names, a list is far longer than
/// any request.
#[test]
fn a_list_of_eight_megabytes_is_read() {
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
    let mut waiter = scratch.zklock().arg(LOCK).child(scratch.logged("waiter")).spawn();
    scratch.wait_queue(10);
    finish(&mut holder);
    waiter.wait_stdout("ready");
    finish(&mut waiter);
    scratch.log().expect_no_overlap();
}

/// Data of a holder, which is read to tell who it is.
fn ugly_data() -> Vec<Vec<u8>> {
    let filled = |byte: u8| vec![byte; MOST_DATA];
    vec![
        Vec::new(),
        filled(0),
        filled(b'a'),
        filled(b'['),
        filled(0xc3),
        b"\xff\xfe\0".to_vec(),
        b"{\"v\":1,\"host\":\"\x1b[2J\",\"pid\":-1}".to_vec(),
        b"{\"host\":\"db\\u001b]0;x\\u0007\",\"describe\":\"\\u202e\\n\\n\"}".to_vec(),
        b"{\"v\":1".repeat(50_000),
        format!("{{\"host\":\"{}\"}}", "h".repeat(MOST_DATA - 20)).into_bytes(),
        b"10.0.0.7".to_vec(),
        b"\x01\0\0\x2d\x47\x39\0\x34".to_vec(),
    ]
}

#[test]
fn a_holder_may_say_of_itself_what_it_likes() {
    let scratch = Scratch::new();
    let client = scratch.client();
    client.create(LOCK, b"", Kind::Persistent).unwrap();
    for data in ugly_data() {
        let holder = client.create(&format!("{LOCK}/lock-"), &data, Kind::EphemeralSequential).unwrap();
        let output = scratch.zklock().args(["-n", LOCK, "true"]).run().expect_code(75);
        let line = only_line(&output);
        assert!(line.len() < 400 && !line.contains(char::is_control), "{output}");
        // Who waits reads it, too, and is served all the same.
        let mut waiter = scratch.zklock().env("CI", "1").arg(LOCK).child(scratch.logged("waiter")).spawn();
        scratch.wait_queue(2);
        client.delete(&holder).unwrap();
        waiter.wait_stdout("ready");
        finish(&mut waiter);
    }
}

/// Every kind of client's contender counts, also one that was made by hand and belongs to no session.
#[test]
fn contenders_of_every_kind_are_waited_for() {
    let scratch = Scratch::new();
    let client = scratch.client();
    client.create(LOCK, b"", Kind::Persistent).unwrap();
    let uuid = "2a9f0cc5-5b46-4a0c-9ac9-4a1d5b3d0c1e";
    for prefix in [
        "lock-".to_owned(),
        format!("_c_{uuid}-lock-"),
        "_c_2a9f0cc55b464a0c9ac94a1d5b3d0c1e-lock-".to_owned(),
        "x-72057594037927936-".to_owned(),
        "x--72057594037927936-".to_owned(),
        "x-ff0000012f3a0001-".to_owned(),
        "ü漢-lock-".to_owned(),
        format!("_c_{uuid}-read-lock-"),
        format!("_c_{uuid}-permits3-lock-"),
        format!("_c_{uuid}-permits0-lock-"),
    ] {
        let before = client.create(&format!("{LOCK}/{prefix}"), b"", Kind::EphemeralSequential).unwrap();
        scratch.zklock().args(["-n", LOCK, "true"]).run().expect_code(75);
        client.delete(&before).unwrap();
        silent(scratch.zklock().args(["-n", LOCK, "true"]).run().expect_code(0));
    }
}

// Sequence numbers.

/// A number that no server would have given yet, made by hand.
#[test]
fn numbers_near_the_end_and_past_it_are_refused_and_nothing_is_left() {
    for number in ["2147483647", "2147483646", "-2147483648", "-2147483647", "-000000001"] {
        for prefix in ["_c_x-lock-", "lock-", "x-1-"] {
            let scratch = Scratch::new();
            let client = scratch.client();
            client.create(LOCK, b"", Kind::Persistent).unwrap();
            let name = format!("{prefix}{number}");
            client.create(&format!("{LOCK}/{name}"), b"", Kind::Persistent).unwrap();
            let output = scratch.zklock().args([LOCK, "true"]).run().expect_code(78);
            assert!(only_line(&output).contains("/lock are used up"), "{output}");
            assert_eq!(client.children(LOCK), [name]);
        }
    }
}

#[test]
fn a_counter_that_has_run_out_is_noticed_in_time() {
    let (_server, scratch) = counter::standing_at(SEQUENCE_LIMIT - 1);
    let mut holder = scratch.hold();
    let node = &scratch.client().children(LOCK)[0];
    assert!(node.ends_with(&(SEQUENCE_LIMIT - 1).to_string()), "{node}");
    let refused = scratch.zklock().args([LOCK, "true"]).run().expect_code(78);
    assert!(only_line(&refused).contains("/lock are used up"), "{refused}");
    assert_eq!(scratch.client().children(LOCK).len(), 1);
    finish(&mut holder);
    scratch.zklock().args([LOCK, "true"]).run().expect_code(78);
    // A node that is created anew counts from 0.
    scratch.delete(LOCK);
    silent(scratch.zklock().args([LOCK, "true"]).run().expect_code(0));
}

/// The last numbers that a server gives. What comes after is its own affair: nothing is started and nothing is left.
#[test]
fn beyond_the_last_number_nothing_starts() {
    let (_server, scratch) = counter::standing_at(i32::MAX - 1);
    for _ in 0..4 {
        only_line(&scratch.zklock().args([LOCK, "true"]).run().expect_code(78));
        assert_eq!(scratch.client().children(LOCK), Vec::<String>::new());
    }
}
