//! `zklock list`: the locks that are in use below a path.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::client::{Client, Kind};
use crate::harness::moment::Moment;
use crate::harness::oracle::expect_sane;
use crate::harness::running::{finish, silent};
use crate::harness::schema::expect_valid;
use crate::harness::scratch::Scratch;
use crate::harness::server::{Server, Settings};
use crate::harness::terminal::Terminal;
use crate::harness::zklock::Zklock;

/// Creates a node and what is missing above it.
fn create(scratch: &Scratch, path: &str) {
    for (end, _) in path.match_indices('/').filter(|(end, _)| *end > 0).chain([(path.len(), "")]) {
        // It may be there already.
        let _ = scratch.client().create(&path[..end], b"", Kind::Persistent);
    }
}

/// A contender for a lock, which is created if it is missing.
fn occupy(scratch: &Scratch, lock: &str, data: &str) -> String {
    create(scratch, lock);
    let prefix = format!("{lock}/mine-lock-");
    scratch.client().create(&prefix, data.as_bytes(), Kind::EphemeralSequential).expect("a contender can be created")
}

/// The locks, as a program reads them.
#[track_caller]
fn locks(scratch: &Scratch, args: &[&str]) -> Vec<Value> {
    let output = silent(scratch.zklock().args(["list", "--json"]).args(args).run().expect_code(0));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    expect_valid("list", &json);
    json["locks"].as_array().expect("an array").clone()
}

#[test]
fn locks_in_use_with_their_holders() {
    let scratch = Scratch::new();
    let mut holder = scratch
        .zklock()
        .args(["--shared", "--dialect", "curator,kazoo", "/jobs/backup"])
        .child(["--exit-on", "TERM"])
        .spawn();
    holder.wait_stdout("ready");
    // A reader beside it, and a writer that waits.
    create(&scratch, "/jobs/free");
    let client = scratch.client();
    let create_contender = |prefix: &str| client.create(prefix, b"", Kind::EphemeralSequential).unwrap();
    create_contender("/jobs/backup/0123456789abcdef0123456789abcdef__rlock__");
    create_contender("/jobs/backup/mine-lock-");
    occupy(&scratch, "/jobs/backup/below", r#"{"host":"db3","pid":7}"#);
    occupy(&scratch, "/jobs-a", "10.0.0.7");

    let found = locks(&scratch, &[]);
    let brief = |lock: &Value| json!([lock["path"], lock["holders"], lock["waiters"], lock["first"]["client"]]);
    assert_eq!(
        found.iter().map(brief).collect::<Vec<_>>(),
        [
            json!(["/jobs/backup", 2, 1, "zklock"]),
            json!(["/jobs/backup/below", 1, 0, null]),
            json!(["/jobs-a", 1, 0, null])
        ]
    );
    assert_eq!(found[0]["first"]["pid"], holder.zklock().as_raw());
    assert_eq!(found[0]["first"]["nodes"].as_array().unwrap().len(), 2);
    assert_eq!(locks(&scratch, &["/jobs"]).len(), 2);
    // The root may be a lock itself.
    assert_eq!(locks(&scratch, &["/jobs/backup/below"]).len(), 1);

    let output = silent(scratch.zklock().args(["list", "/jobs/backup/below"]).run().expect_code(0)).stdout();
    let (before, since) = output.split_once(", queued 20").expect("since when");
    assert_eq!(before, "/jobs/backup/below\t1\t0\tdb3 (pid 7) [unknown client]");
    assert!(since.ends_with("Z\n"), "{output}");
    finish(&mut holder);
}

#[test]
fn a_root_that_does_not_exist_has_no_locks() {
    let scratch = Scratch::new();
    let output = silent(scratch.zklock().args(["list", "/nowhere/here"]).run().expect_code(0));
    assert_eq!(output.stdout(), "");
    assert_eq!(locks(&scratch, &["/nowhere"]), Vec::<Value>::new());
}

#[test]
fn a_part_that_may_not_be_read_is_named() {
    let scratch = Scratch::new();
    occupy(&scratch, "/secret/lock", "");
    occupy(&scratch, "/open", "");
    let hidden = occupy(&scratch, "/hidden-holder", r#"{"host":"db3"}"#);
    scratch.client().make_unreadable(&hidden).unwrap();
    scratch.client().make_unreadable("/secret").unwrap();
    let output = scratch.zklock().anonymous().arg("list").run().expect_code(77);
    let paths: Vec<_> = output.stdout().lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect();
    assert_eq!(paths, ["/hidden-holder", "/open"]);
    assert_eq!(
        output.stderr(),
        "zklock: an ACL forbids listing the children of /secret: the permission r is missing; log in (--auth-file), or \
         ask for r on /secret\n"
    );
    scratch.client().make_open("/secret").unwrap();
    scratch.client().make_open(&hidden).unwrap();
}

#[test]
fn zookeepers_own_nodes_are_left_out() {
    let server = Settings::default().server();
    let scratch = Scratch::on(server.chroot());
    occupy(&scratch, "/lock", "");
    let root = Client::connect(&server.address());
    root.make_unreadable("/zookeeper/quota").unwrap();
    let output = silent(Zklock::at(server.address()).arg("list").run().expect_code(0));
    assert_eq!(output.stdout().lines().count(), 1, "{output}");
    // Below a chroot, the path means another node.
    occupy(&scratch, "/zookeeper", "");
    assert_eq!(locks(&scratch, &[]).len(), 2);
}

#[test]
fn a_tree_of_ten_thousand_nodes() {
    let scratch = Scratch::new();
    for group in 0..100 {
        create(&scratch, &format!("/{group:02}"));
        for number in 0..99 {
            scratch.client().create(&format!("/{group:02}/{number:02}"), b"", Kind::Persistent).unwrap();
        }
        occupy(&scratch, &format!("/{group:02}/98"), "");
    }
    let found = locks(&scratch, &[]);
    let expected: Vec<_> = (0..100).map(|group| format!("/{group:02}/98")).collect();
    assert_eq!(found.iter().map(|lock| lock["path"].as_str().unwrap()).collect::<Vec<_>>(), expected);
}

#[test]
fn locks_that_differ_in_what_nobody_sees_look_different() {
    let scratch = Scratch::new();
    let unseen = ["34f", "3164", "115f", "fe0f", "2800", "2028", "2029", "a0", "200b", "202e"];
    for hex in unseen {
        let character = char::from_u32(u32::from_str_radix(hex, 16).unwrap()).unwrap();
        occupy(&scratch, &format!("/a{character}b"), "");
    }
    let output = silent(scratch.zklock().arg("list").run().expect_code(0));
    expect_sane(&output);
    let shown: BTreeSet<_> = output.stdout().lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect();
    let expected = unseen.map(|hex| format!("/a<U+{:0>4}>b", hex.to_uppercase()));
    assert_eq!(shown, expected.into_iter().collect());
    let output = silent(scratch.zklock().args(["list", "--json"]).run().expect_code(0));
    expect_sane(&output);
    assert_eq!(output.stdout().lines().count(), 1, "{output}");
}

#[test]
fn a_terminal_shows_columns() {
    let scratch = Scratch::new();
    occupy(&scratch, "/a/one", "10.0.0.7");
    occupy(&scratch, "/a/\u{202e}two", "");
    let terminal = Terminal::new(120);
    terminal.spawn(scratch.zklock().arg("list")).wait().expect_code(0);
    let lines = terminal.wait("the locks", |lines| lines.len() == 2);
    assert!(lines[0].starts_with("/a/one          1 holds: 10.0.0.7 [unknown client], queued 20"), "{lines:#?}");
    assert!(lines[1].starts_with("/a/<U+202E>two  1 holds: "), "{lines:#?}");
    terminal.close();
}

/// What a search finds, it finds without a trace: nothing is created, deleted or written.
#[test]
fn nothing_is_written() {
    let server = Settings::default().server();
    let scratch = Scratch::on(server.chroot());
    occupy(&scratch, "/lock", "");
    let before = last_transaction(&server);
    silent(scratch.zklock().args(["list"]).run().expect_code(0));
    // The session itself was opened and closed.
    assert_eq!(last_transaction(&server), before + 2);
    silent(scratch.zklock().args(["status", "/lock"]).run().expect_code(0));
    assert_eq!(last_transaction(&server), before + 4);
}

fn last_transaction(server: &Server) -> u64 {
    let state = server.tell("srvr");
    let zxid = state.lines().find_map(|line| line.strip_prefix("Zxid: 0x")).expect("a number");
    u64::from_str_radix(zxid, 16).expect("hex")
}

/// What completions ask. A TAB with nothing to show for it is a short one.
#[test]
fn a_path_goes_on_with_the_nodes_that_may_be_locks() {
    let server = Settings::default().server();
    let scratch = Scratch::on(server.chroot());
    occupy(&scratch, "/jobs/backup", "");
    occupy(&scratch, "/jobs/backup/part/one", "");
    create(&scratch, "/jobs/free");
    create(&scratch, "/jobs/name with spaces");
    create(&scratch, "/jobs/hidden");
    scratch.client().create("/jobs/member", b"", Kind::Ephemeral).unwrap();
    scratch.client().make_unreadable("/jobs/hidden").unwrap();
    // A server takes its time for its first handshake of TLS.
    silent(scratch.zklock().args(["status", "/jobs/free"]).run().expect_code(0));
    let complete = |begun: &str| scratch.zklock().args(["list", "--complete", begun]);
    for (begun, paths) in [
        ("/", "/jobs/\n"),
        ("/jo", "/jobs/\n"),
        ("/jobs", "/jobs/\n"),
        ("/jobs/", "/jobs/backup\n/jobs/backup/\n/jobs/free\n/jobs/hidden\n"),
        ("/jobs/backup/", "/jobs/backup/part/\n"),
        ("/jobs/backup/part/o", "/jobs/backup/part/one\n"),
        ("/jobs/backup/part/one/", ""),
        ("/jobs/hidden/", ""),
        ("/nowhere/", ""),
    ] {
        assert_eq!(silent(complete(begun).run().expect_code(0)).stdout(), paths, "{begun}");
    }
    let no_chroot = Zklock::at(scratch.chroot().to_string() + "/nowhere").args(["list", "--complete", "/"]);
    assert_eq!(silent(no_chroot.run().expect_code(0)).stdout(), "");

    let asked = complete("/jo").arg("-v").run().expect_code(0);
    assert!(asked.stderr().contains("session 0x"), "{asked}");
    let not_asked = Zklock::bare().args(["list", "-v", "--complete", "/jo"]).run().expect_code(0);
    assert_eq!(silent(not_asked).stdout(), "", "no server is named");

    scratch.client().make_open("/jobs/hidden").unwrap();
    server.freeze();
    let asked = Moment::now();
    assert_eq!(silent(complete("/jo").run().expect_code(0)).stdout(), "");
    Moment::now().expect_within(Duration::from_millis(300), asked, "the user may type on");
    server.thaw();
}
