//! `zklock check`: what the servers grant, what is to be fixed, and what holds on them.

use serde_json::{Value, json};

use crate::harness::ensemble::Ensemble;
use crate::harness::poll;
use crate::harness::proxy::Proxy;
use crate::harness::running::{Output, count_own_lines, silent};
use crate::harness::schema::expect_valid;
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::server::{Server, Settings};
use crate::harness::zklock::Zklock;

/// Permissions of an ACL.
const READ: i32 = 1;
const CREATE: i32 = 4;
const ADMIN: i32 = 16;

fn check(servers: &str, args: &[&str]) -> Output {
    silent(Zklock::at(servers).arg("check").args(args).run())
}

/// What a program reads, and the exit status.
#[track_caller]
fn checked(servers: &str, args: &[&str]) -> (Value, i32) {
    let output = check(servers, &[&["--json"], args].concat());
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    expect_valid("check", &json);
    assert_eq!(json["ok"], json!(json["findings"].as_array().expect("an array").is_empty()), "{json:#}");
    (json, output.status.code().expect("an exit status"))
}

fn codes(json: &Value) -> Vec<&str> {
    json["findings"].as_array().unwrap().iter().map(|finding| finding["code"].as_str().unwrap()).collect()
}

#[test]
fn a_server_alone_is_well() {
    let server = Server::shared();
    let (json, status) = checked(&server.address(), &[]);
    assert_eq!((codes(&json), status), (vec![], 0));
    let one = &json["servers"][0];
    assert_eq!(one["name"], server.address());
    assert_eq!(one["address"], server.address());
    assert_eq!((&one["role"], &one["error"]), (&json!("standalone"), &json!(null)));
    assert_eq!((&one["min_session_timeout_ms"], &one["max_session_timeout_ms"]), (&json!(400), &json!(120_000)));
    assert!(server.tell("srvr").contains(one["version"].as_str().unwrap()), "{one}");
    assert!(one["beat_ms"].as_f64().unwrap() > 0.0, "{one}");
    // As docs/promises.md has it, with a tick of 200 ms.
    let promise = &json["promise"];
    assert_eq!((&promise["session_timeout_ms"], &promise["takeover_ms"]), (&json!(30_000), &json!(30_200)));
    assert_eq!(promise["patience_ms"].as_u64().unwrap() / 100, 137);

    let text = check(&server.address(), &[]).expect_code(0).stdout();
    assert!(text.contains("  standalone  ") && text.contains("  400ms to 2m  "), "{text}");
    assert!(text.contains("a command survives an outage of ZooKeeper of 13.7s"), "{text}");
    assert!(text.contains("the lock of a machine that dies is free after 30.2s"), "{text}");
}

#[test]
fn quiet_is_an_answer_by_the_exit_status() {
    let server = Server::shared();
    for (servers, args, code) in [
        (server.address(), &["-q"][..], 0),
        (server.address(), &["-q", "--session-timeout", "5m"], 1),
        ("127.0.0.1:1".to_owned(), &["-q", "--connect-timeout", "1s"], 69),
        (format!("{}/nowhere", server.address()), &["-q"], 78),
    ] {
        assert_eq!(check(&servers, args).expect_code(code).stdout(), "");
    }
}

#[test]
fn a_member_that_is_down_is_found() {
    let ensemble = Ensemble::start();
    let (json, status) = checked(&ensemble.addresses(), &[]);
    assert_eq!((codes(&json), status), (vec![], 0));
    let roles = |json: &Value| {
        let mut roles: Vec<_> = (0..3).map(|number| json["servers"][number]["role"].to_string()).collect();
        roles.sort();
        roles
    };
    assert_eq!(roles(&json), [r#""follower""#, r#""follower""#, r#""leader""#]);
    let [follower, _] = ensemble.followers();
    follower.kill();
    let (json, status) = checked(&ensemble.addresses(), &[]);
    assert_eq!((codes(&json), status), (vec!["server-down"], 1));
    assert!(json["findings"][0]["text"].as_str().unwrap().contains(&follower.address()), "{json:#}");
    let well = (0..3).filter(|&number| json["servers"][number]["error"].is_null()).count();
    assert_eq!((well, &json["promise"]["session_timeout_ms"]), (2, &json!(30_000)));
    let text = check(&ensemble.addresses(), &[]).expect_code(1).stdout();
    assert!(text.contains(&format!("\nserver-down: {}: Connection refused\n", follower.address())), "{text}");

    // The last server is there, but serves no clients.
    let others = ensemble.servers().iter().filter(|server| server.address() != follower.address());
    let [gone, left] = others.collect::<Vec<_>>()[..] else { panic!("two are left") };
    gone.kill();
    poll::until("no quorum", || left.role().is_none().then_some(()));
    let (json, status) = checked(&left.address(), &["--connect-timeout", "0"]);
    assert_eq!((codes(&json), status), (vec!["server-down"], 69), "{json:#}");
    let why = json["servers"][0]["error"].as_str().unwrap();
    assert!(why.ends_with(" serves no clients now: it is starting, or has no quorum"), "{why}");
}

#[test]
fn servers_that_do_not_grant_alike() {
    let other = Settings::default().line("maxSessionTimeout=20000").server();
    let servers = format!("{},{}", Server::shared().address(), other.address());
    let (json, status) = checked(&servers, &[]);
    assert_eq!((codes(&json), status), (vec!["timeouts-differ", "timeout-not-granted"], 1));
    assert_eq!(json["servers"][1]["max_session_timeout_ms"], 20_000);
    assert_eq!(json["promise"]["session_timeout_ms"], 20_000);
    let (json, status) = checked(&servers, &["--session-timeout", "10s"]);
    assert_eq!((codes(&json), status), (vec!["timeouts-differ"], 1));
}

#[test]
fn a_long_tick_is_found() {
    let server = Settings::default().line("tickTime=5000").line("minSessionTimeout=-1").server();
    let (json, status) = checked(&server.address(), &[]);
    assert_eq!((codes(&json), status), (vec!["tick-too-long"], 1));
    assert_eq!(json["servers"][0]["min_session_timeout_ms"], 10_000);
    assert_eq!(json["promise"]["takeover_ms"], 35_000);
}

#[test]
fn a_chroot_that_does_not_exist() {
    let (json, status) = checked(&format!("{}/nowhere", Server::shared().address()), &[LOCK]);
    assert_eq!((codes(&json), status), (vec!["no-chroot"], 78));
}

#[test]
fn servers_that_cannot_be_reached() {
    let frozen = Server::start();
    frozen.freeze();
    let servers = format!("127.0.0.1:1,{},no.such.host.invalid", frozen.address());
    let (json, status) = checked(&servers, &["--connect-timeout", "500ms"]);
    assert_eq!((codes(&json), status), (vec!["server-down"; 3], 69));
    assert_eq!(json["promise"], Value::Null);
    let error = |number: usize| json["servers"][number]["error"].as_str().unwrap();
    assert_eq!(error(0), "127.0.0.1:1: Connection refused");
    assert_eq!(error(1), "no answer within 500ms");
    assert_eq!(json["servers"][2]["address"], Value::Null);
    frozen.thaw();
}

#[test]
fn no_time_is_one_try() {
    let frozen = Server::start();
    frozen.freeze();
    for (server, why) in
        [("127.0.0.1:1", "127.0.0.1:1: Connection refused"), (&frozen.address(), "no answer within 2s")]
    {
        let (json, status) = checked(server, &["--connect-timeout", "0"]);
        assert_eq!((codes(&json), status), (vec!["server-down"], 69));
        assert_eq!(json["servers"][0]["error"], why);
    }
    frozen.thaw();
    checked(&frozen.address(), &["--connect-timeout", "0"]);
}

/// A container's port is open before the server in it listens.
#[test]
fn a_server_that_is_starting_is_waited_for() {
    let server = Proxy::zookeeper(&Server::shared().address());
    server.refuse();
    let container = Proxy::zookeeper(&server.address());
    let mut checking = Zklock::at(container.address()).args(["check", "--connect-timeout", "1m"]).spawn();
    // It closes connections; with TLS, that is said in other words.
    checking.wait_stderr(&format!("waiting up to 1m for a ZooKeeper server: {}", container.address()));
    server.accept();
    let output = checking.wait();
    assert_eq!(count_own_lines(&output.stderr()), 1, "{output}");
    assert!(output.expect_code(0).stdout().contains("a command survives an outage "));
}

#[test]
fn an_acl_that_forbids_what_a_lock_needs() {
    let scratch = Scratch::new().with_lock();
    let servers = scratch.chroot().to_string();
    let below = format!("{LOCK}/a/b");
    assert_eq!(checked(&servers, &[LOCK]).1, 0);
    assert_eq!(checked(&servers, &[&below]).1, 0);
    let says = |text: &str| check(&servers, &[&below]).stdout().lines().any(|line| line == text);
    let usable = format!("{below}: may be used");
    assert!(says(&usable));
    for (permissions, lock, what) in [
        (CREATE + ADMIN, LOCK, "listing the children of"),
        (READ + ADMIN, LOCK, "creating children of"),
        (READ + ADMIN, &below, "creating children of"),
    ] {
        scratch.client().allow(LOCK, permissions).unwrap();
        let (json, status) = checked(&servers, &[lock]);
        assert_eq!((codes(&json), status), (vec!["acl"], 77), "{permissions}");
        let text = json["findings"][0]["text"].as_str().unwrap();
        assert!(text.starts_with(&format!("an ACL forbids {what} {LOCK}: ")), "{permissions}: {text}");
    }
    assert!(!says(&usable));
    // A contender goes with its session.
    scratch.client().allow(LOCK, READ + CREATE + ADMIN).unwrap();
    assert_eq!(checked(&servers, &[LOCK]).1, 0);
    scratch.client().make_open(LOCK).unwrap();
    assert_eq!(scratch.client().children(LOCK), Vec::<String>::new());
}

#[test]
fn an_ephemeral_node_is_no_lock() {
    let scratch = Scratch::new().with_lock();
    let node = scratch.occupy("");
    let (json, status) = checked(&scratch.chroot().to_string(), &[&node]);
    assert_eq!((codes(&json), status), (vec!["lock-refused"], 1));
}

#[test]
fn nothing_is_left_behind() {
    let server = Settings::default().server();
    let scratch = Scratch::on(server.chroot());
    let (sessions, nodes) = (server.sessions(), server.figure("zk_znode_count"));
    let servers = scratch.chroot().to_string();
    assert_eq!(checked(&servers, &[]).1, 0);
    assert_eq!(checked(&servers, &["/not/there"]).1, 0);
    assert_eq!((server.sessions(), server.figure("zk_znode_count")), (sessions.clone(), nodes));
}
