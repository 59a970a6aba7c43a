//! `zklock status`: the holders and the waiters of a lock, whatever library they use.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::client::Kind;
use crate::harness::frames::Op;
use crate::harness::peers::{Peer, Recipe};
use crate::harness::proxy::Fate;
use crate::harness::running::{Output, finish, only_line, silent};
use crate::harness::schema::expect_valid;
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::server::{Server, Settings};
use crate::harness::zklock::Zklock;

/// The contenders of [`LOCK`], as a program reads them.
#[track_caller]
fn contenders(scratch: &Scratch) -> Vec<Value> {
    let output = silent(scratch.zklock().args(["status", "--json", LOCK]).run().expect_code(0));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    expect_valid("status", &json);
    assert_eq!(json["locks"][0]["path"], LOCK);
    json["locks"][0]["contenders"].as_array().expect("an array").clone()
}

/// As people read it.
#[track_caller]
fn shown(scratch: &Scratch) -> String {
    silent(scratch.zklock().args(["status", LOCK]).run().expect_code(0)).stdout()
}

fn quiet(scratch: &Scratch, locks: &[&str]) -> Output {
    scratch.zklock().args(["status", "-q"]).args(locks).run()
}

#[test]
fn a_lock_without_a_node_is_free() {
    let scratch = Scratch::new();
    assert_eq!(shown(&scratch), "/lock: free\n");
    assert_eq!(contenders(&scratch), Vec::<Value>::new());
    let scratch = scratch.with_lock();
    assert_eq!(shown(&scratch), "/lock: free\n");
}

#[test]
fn quiet_is_an_answer_by_the_exit_status() {
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    for (locks, code) in [(&[LOCK][..], 0), (&["/other"], 1), (&["/other", LOCK], 0)] {
        let output = quiet(&scratch, locks).expect_code(code);
        assert_eq!((output.stdout(), output.stderr()), (String::new(), String::new()), "{locks:?}");
    }
    finish(&mut holder);
    quiet(&scratch, &[LOCK]).expect_code(1);
}

#[test]
fn contenders_of_all_modes_in_the_order_of_the_queue() {
    let scratch = Scratch::new();
    let contend = |options: &[&str], before: usize, nodes: usize| {
        let run = scratch.zklock().args(options).arg(LOCK).child(["--env", "--exit-on", "TERM"]).spawn();
        scratch.wait_queue(before + nodes);
        run
    };
    let mut holder = contend(&["--describe", "nightly dump"], 0, 1);
    holder.wait_stdout("ready");
    let mut others = vec![contend(&["--shared"], 1, 1), contend(&["--permits", "3"], 2, 1)];
    others.push(contend(&["--dialect", "curator,curator-rw,kazoo", "--publish-command"], 3, 3));

    let seen = contenders(&scratch);
    let brief = |one: &Value| json!([one["position"], one["holds"], one["mode"], one["client"]]);
    let brief: Vec<_> = seen.iter().map(brief).collect();
    assert_eq!(
        brief,
        [
            json!([1, true, "exclusive", "zklock"]),
            json!([2, false, "shared", "zklock"]),
            json!([3, false, "permits:3", "zklock"]),
            json!([4, false, "exclusive", "zklock"]),
        ]
    );
    let first = &seen[0];
    assert_eq!(first["session"], holder.variable("ZKLOCK_SESSION"));
    assert_eq!(first["token"].to_string(), holder.variable("ZKLOCK_TOKEN"));
    assert_eq!(format!("{LOCK}/{}", first["node"].as_str().unwrap()), holder.variable("ZKLOCK_NODE"));
    assert_eq!(first["pid"], holder.zklock().as_raw());
    assert_eq!((&first["command"], &first["describe"]), (&json!("child"), &json!("nightly dump")));
    assert_eq!(seen[3]["nodes"].as_array().unwrap().len(), 3);
    assert!(seen[3]["command"].as_str().unwrap().ends_with("child --env --exit-on TERM"), "{}", seen[3]);
    assert!(seen.iter().all(|one| one["queued_since"].is_string()));

    let text = shown(&scratch);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!((lines[0], lines.len()), ("/lock: 1 holds, 3 wait", 5), "{text}");
    assert!(lines[1].starts_with("  1  holds  exclusive  ") && lines[1].ends_with("child: nightly dump)"), "{text}");
    assert!(lines[3].starts_with("  3  waits  permits:3  queued 20"), "{text}");
    finish(&mut holder);
    for other in &mut others {
        finish(other);
    }
}

#[test]
fn since_when_a_holder_holds_is_zookeepers_time() {
    let scratch = Scratch::new();
    let first = scratch.hold();
    let mut second = scratch.queue("second", 1);
    assert_eq!(contenders(&scratch)[1]["held_since"], Value::Null);
    first.end();
    second.wait_stdout("ready");
    // The card has the time of the holder's own clock, and another version of the card is what is looked at.
    let node = scratch.only_contender().path;
    let (data, _) = scratch.client().get(&node).expect("the node is there");
    let mut card: Value = serde_json::from_slice(&data).expect("JSON");
    card["held_since"] = json!(1);
    scratch.client().set(&node, card.to_string().as_bytes()).expect("anyone may");
    let seen = contenders(&scratch);
    let (queued, held) = (seen[0]["queued_since"].as_str().unwrap(), seen[0]["held_since"].as_str().unwrap());
    assert!(queued < held, "{seen:#?}");
    assert!(shown(&scratch).contains("  holds since 20"));
    finish(&mut second);
}

#[test]
fn clients_of_other_libraries_are_contenders() {
    for (recipe, client, mode) in [
        (Recipe::CuratorMutex, "curator", "exclusive"),
        (Recipe::CuratorReader, "curator", "shared"),
        (Recipe::WriteLock, "writelock", "exclusive"),
        (Recipe::KazooLock, "kazoo", "exclusive"),
        (Recipe::KazooReader, "kazoo", "shared"),
    ] {
        if recipe.needs_newer_servers() {
            continue;
        }
        let scratch = Scratch::new();
        let mut peer = Peer::start(&scratch, recipe);
        peer.acquire();
        let seen = contenders(&scratch);
        assert_eq!(seen.len(), 1, "{seen:#?}");
        let expected = json!([client, mode, true, format!("{:#x}", peer.session()), null]);
        let one = &seen[0];
        assert_eq!(json!([one["client"], one["mode"], one["holds"], one["session"], one["held_since"]]), expected);
        let text = shown(&scratch);
        assert!(text.ends_with(&format!(" [{client}]\n")), "{text}");
        peer.release();
    }
}

#[test]
fn children_that_are_no_contenders_are_mentioned() {
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    for name in ["a", "b", "c", "d"] {
        scratch.client().create(&format!("{LOCK}/{name}"), b"", Kind::Persistent).unwrap();
    }
    let text = shown(&scratch);
    assert_eq!(text.lines().last(), Some("  children that are no contenders (4): a, b, c, d"), "{text}");
    assert_eq!(contenders(&scratch).len(), 1);
    finish(&mut holder);
}

#[test]
fn a_contender_that_may_not_be_read_is_there_all_the_same() {
    let scratch = Scratch::new();
    let path = scratch.occupy_as_db3();
    scratch.client().make_unreadable(&path).unwrap();
    let seen = contenders(&scratch);
    let expected = json!([true, null, null]);
    assert_eq!(json!([seen[0]["holds"], seen[0]["host"], seen[0]["session"]]), expected);
    scratch.client().make_open(&path).unwrap();
}

#[test]
fn a_lock_that_may_not_be_read_is_named_and_the_others_are_shown() {
    let scratch = Scratch::new().with_lock();
    scratch.client().make_unreadable(LOCK).unwrap();
    let output = scratch.zklock().anonymous().args(["status", LOCK, "/other"]).run().expect_code(77);
    assert_eq!(output.stdout(), "/other: free\n");
    assert_eq!(
        output.stderr(),
        "zklock: an ACL forbids listing the children of /lock: the permission r is missing; log in (--auth-file), or \
         ask for r on /lock\n"
    );
    quiet(&scratch, &[LOCK]).expect_code(77);
    let mut holder = scratch.zklock().arg("/other").child(["--exit-on", "TERM"]).spawn();
    holder.wait_stdout("ready");
    silent(quiet(&scratch, &[LOCK, "/other"]).expect_code(0));
    finish(&mut holder);
    scratch.client().make_open(LOCK).unwrap();
}

#[test]
fn a_chroot_that_does_not_exist_is_named() {
    for command in [&["status", LOCK][..], &["status", "-q", LOCK], &["list"], &["list", "/jobs"]] {
        let servers = format!("{}/nowhere", Server::shared().address());
        let output = Zklock::at(servers).args(command).run().expect_code(78);
        assert_eq!(only_line(&output), "the chroot /nowhere does not exist: create it, or correct --zookeeper");
    }
}

#[test]
fn servers_that_do_not_answer_are_named() {
    for command in [&["status", LOCK][..], &["status", "--watch", LOCK], &["status", "-q", LOCK], &["list"]] {
        let output = Zklock::at("127.0.0.1:1").args(command).args(["--connect-timeout", "200ms"]).run();
        let line = only_line(&output.expect_code(69));
        assert!(line.starts_with("no ZooKeeper server of 127.0.0.1:1 answered within 200ms: "), "{line}");
    }
}

#[test]
fn servers_that_answer_and_hang_up_are_named() {
    let (scratch, proxy) = Scratch::proxied();
    let _resets: Vec<_> = (0..5).map(|_| proxy.trap_ops(Fate::Reset, &[Op::Sync])).collect();
    let output = scratch.zklock_by(proxy.address()).args(["status", LOCK]).run().expect_code(69);
    let line = only_line(&output);
    assert!(line.starts_with("none of 5 connections to 127.0.0.1:"), "{line}");
    assert!(line.ends_with(" lasted until all was answered: the connection was lost"), "{line}");
}

#[test]
fn no_session_is_left_behind() {
    let server = Settings::default().server();
    let scratch = Scratch::on(server.chroot());
    let sessions = || server.sessions();
    let before = sessions();
    assert!(!before.is_empty(), "{}", server.tell("dump"));
    silent(scratch.zklock().args(["status", LOCK]).run().expect_code(0));
    silent(scratch.zklock().arg("list").run().expect_code(0));
    let mut watching = scratch.zklock().args(["status", "--watch", LOCK]).spawn();
    watching.wait_stdout("free");
    assert_ne!(sessions(), before);
    watching.signal(Signal::SIGTERM);
    silent(watching.wait().expect_signal(Signal::SIGTERM));
    assert_eq!(sessions(), before);
}

#[test]
fn a_reader_that_leaves_ends_it_silently() {
    let scratch = Scratch::new();
    // head ends after the first line. Nothing changes after that.
    let by_head = ["bash", "-c", r#"set -o pipefail; "$0" "$@" | head -n 1"#];
    let watching = scratch.zklock().args(["status", "--watch", LOCK]).run_by(by_head).run();
    let output = silent(watching.expect_code(128 + Signal::SIGPIPE as i32));
    assert_eq!(output.stdout(), "/lock: free\n");
}
