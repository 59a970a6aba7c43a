//! Logging in, and the ACLs of what is created.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::harness::client::Refusal;
use crate::harness::ensemble::Chroot;
use crate::harness::frames::Op;
use crate::harness::release::{Feature, lacks};
use crate::harness::running::{Output, Running, finish, only_line, silent};
use crate::harness::scratch::{LASTING, LASTING_VERBOSE, LOCK, Scratch, direct};
use crate::harness::server::{Server, Settings};
use crate::harness::times::SOON;
use crate::harness::zklock::Zklock;

const AUTH: &str = "ZKLOCK_AUTH";
const ALICE: &str = "digest:alice:hidden-1";
const BOB: &str = "digest:bob:hidden-2";

/// A contender that has logged in.
fn contend(scratch: &Scratch, name: &str, login: &str, options: &[&str]) -> Running {
    scratch.job(&direct(), name, options, &["--exit-on", "TERM"]).env(AUTH, login).spawn()
}

/// Runs `true` under a lock.
fn run(chroot: &Chroot, args: &[&str]) -> Zklock {
    Zklock::at(chroot).args(args).args([LOCK, "true"])
}

fn credentials(scratch: &Scratch, text: &str, mode: u32) -> PathBuf {
    let file = scratch.file("credentials");
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    file
}

/// The first one creates the lock. The other one may not delete nodes there, its own included: those go with its session.
#[test]
fn two_users_share_a_lock() {
    let scratch = Scratch::new();
    let mut alice = contend(&scratch, "alice", ALICE, &[]);
    alice.wait_stdout("alice ready");
    let mut bob = contend(&scratch, "bob", BOB, &[]);
    let nodes = scratch.wait_queue(2);
    // Anyone may see who waits.
    assert_eq!(scratch.card(&nodes[1])["command"], "child");
    let stranger = run(scratch.chroot(), &["-n"]).run().expect_code(75);
    assert!(only_line(&stranger).contains("held by"), "{stranger}");
    finish(&mut alice);
    bob.wait_stdout("bob ready");
    assert_eq!(finish(&mut bob).stderr(), "");
    scratch.expect_tidy(&["alice", "bob"]);
    // What they have created is theirs.
    assert_eq!(scratch.client().set(LOCK, b""), Err(Refusal::NO_AUTH));
}

/// A server that refuses to delete a node does so before it looks whether the node is there.
#[test]
fn node_of_a_waiter_that_may_delete_none() {
    let scratch = Scratch::new();
    let mut alice = contend(&scratch, "alice", ALICE, &[]);
    alice.wait_stdout("alice ready");
    let mut bob = contend(&scratch, "bob", BOB, &[]);
    let node = scratch.wait_queue(2).remove(1);
    let output = Zklock::at(scratch.chroot()).args(["break", "--force", "--node", &node, LOCK]).env(AUTH, ALICE).run();
    output.expect_code(0);
    bob.wait_stderr("lost our place in the queue for /lock: its node was deleted; queueing again");
    scratch.wait_queue(2);
    finish(&mut alice);
    bob.wait_stdout("bob ready");
    finish(&mut bob);
    scratch.expect_tidy(&["alice", "bob"]);
}

#[test]
fn a_reconnection_logs_in_again() {
    let (scratch, proxy) = Scratch::proxied();
    let options = [&LASTING_VERBOSE[..], &["--acl", "creator"]].concat();
    let job = scratch.job(&proxy.address(), "holder", &options, &["--exit-on", "TERM"]);
    let mut holder = job.env(AUTH, ALICE).spawn();
    holder.wait_stdout("holder ready");
    proxy.reset();
    holder.wait_stderr("connection to ZooKeeper restored");
    // The beats of this connection check a node that others may not read.
    let beats = proxy.count(Op::Multi);
    proxy.wait_count(Op::Multi, beats + 2);
    assert!(!holder.has_ended());
    finish(&mut holder);
    scratch.wait_queue(0);
}

#[test]
fn others_and_wrong_passwords() {
    // Its nodes stay, and are not to be read by others.
    let chroot = Server::shared().chroot();
    silent(run(&chroot, &["--acl", "creator"]).env(AUTH, ALICE).run()).expect_code(0);
    let missing = format!("an ACL forbids to create children of {LOCK}: the permission c is missing; ");
    let nobody = run(&chroot, &[]).run().expect_code(77);
    assert_eq!(only_line(&nobody), format!("{missing}give it to anyone, or log in (--auth-file)"));
    let wrong = run(&chroot, &[]).env(AUTH, "digest:alice:hidden-3").run().expect_code(77);
    let hint = "give it to this login; or its password is wrong, which makes another identity of it";
    assert_eq!(only_line(&wrong), format!("{missing}{hint}"));
    silent(run(&chroot, &[]).env(AUTH, ALICE).run()).expect_code(0);
    let check = |login| Zklock::at(&chroot).args(["check", "-q", LOCK]).env(AUTH, login).run();
    check(ALICE).expect_code(0);
    check(BOB).expect_code(77);
    for subcommand in [&["status"][..], &["break", "--node", "x"]] {
        let output = Zklock::at(&chroot).args(subcommand).arg(LOCK).env(AUTH, BOB).run().expect_code(77);
        let denied = format!("an ACL forbids to list the children of {LOCK}: the permission r is missing; {hint}");
        assert_eq!(only_line(&output), denied);
    }
}

/// No event tells of the end of a node that may not be read.
#[test]
fn predecessor_that_may_not_be_read() {
    let (scratch, proxy) = Scratch::proxied();
    let mut alice = contend(&scratch, "alice", ALICE, &["--acl", "creator"]);
    alice.wait_stdout("alice ready");
    let busy = run(scratch.chroot(), &["-n"]).run().expect_code(75);
    assert!(only_line(&busy).starts_with(&format!("{LOCK} is not free: held by _c_")), "{busy}");
    let mut next = scratch.start(&proxy.address(), "next", &LASTING, &["--exit-on", "TERM"]);
    // It has seen that it may not read the node, and watches the lock.
    proxy.wait_count(Op::GetData, 2);
    let lists = proxy.count(Op::GetChildren);
    proxy.wait_count(Op::GetChildren, lists.max(2));
    finish(&mut alice);
    // Not only when it asks the leader the next time.
    next.wait_stdout_at_most(SOON, "next ready");
    finish(&mut next);
    scratch.expect_tidy(&["alice", "next"]);
}

/// Several credentials are several identities at once.
#[test]
fn file_with_credentials() {
    let scratch = Scratch::new();
    let zklock = |file: &PathBuf, args: &[&str]| {
        Zklock::at(scratch.chroot()).args(args).arg("--auth-file").arg(file).args([LOCK, "true"])
    };
    let file = credentials(&scratch, &format!("# users\n\n{ALICE}\n  {BOB}\r\n"), 0o600);
    silent(zklock(&file, &[]).run()).expect_code(0);
    for login in [ALICE, BOB] {
        silent(run(scratch.chroot(), &[]).env(AUTH, login).run()).expect_code(0);
    }
    let shown = file.display().to_string();
    let file = credentials(&scratch, ALICE, 0o644);
    let exposed = zklock(&file, &[]).run().expect_code(0);
    assert_eq!(only_line(&exposed), format!("warning: every user can read {shown}: chmod o-r {shown}"));
    silent(zklock(&file, &["-q"]).run()).expect_code(0);
    for (text, why) in [
        ("digest:alice:x\nhidden\n", "line 2: write digest:USER:PASSWORD"),
        ("digest:hidden", "line 1: a user or a password is missing; write digest:USER:PASSWORD"),
        ("# nothing\n", "no line in it; write digest:USER:PASSWORD"),
    ] {
        let output = zklock(&credentials(&scratch, text, 0o600), &["-z", "127.0.0.1:1"]).run().expect_code(64);
        assert_eq!(only_line(&output), format!("{shown}: {why}"));
    }
    let output = zklock(&scratch.file("nowhere"), &[]).run().expect_code(64);
    assert_eq!(only_line(&output), format!("{}: No such file or directory", scratch.file("nowhere").display()));
    let seen = run(scratch.chroot(), &["--auth", ALICE]).run().expect_code(0);
    assert_eq!(only_line(&seen), "warning: every user can see the password with ps: use --auth-file or ZKLOCK_AUTH");
}

#[test]
fn secrets_are_told_nowhere() {
    let scratch = Scratch::new();
    let file = credentials(&scratch, ALICE, 0o600);
    let job = scratch.job(&direct(), "holder", &["-vvv", "--publish-command"], &["--exit-on", "TERM"]);
    let mut holder = job.env("ZKLOCK_LOG", "trace").env(AUTH, BOB).spawn();
    holder.wait_stdout("holder ready");
    let card = scratch.card(&scratch.wait_queue(1)[0]).to_string();
    let mut said = finish(&mut holder).stderr();
    let status = Zklock::at(scratch.chroot()).args(["status", "-vvv", LOCK, "--auth-file"]).arg(&file);
    said += &status.env("ZKLOCK_LOG", "trace").run().expect_code(0).stderr();
    assert!(said.contains("bytes to ZooKeeper"), "{said}");
    for text in [&said, &card] {
        assert!(!text.contains("hidden"), "{text}");
    }
}

/// A scheme that the server does not know, and a server that wants a login.
#[test]
fn server_that_refuses_a_login() {
    let why = "ZooKeeper does not let us in: they refuse the login, or want one (--auth-file)";
    let refused = |output: Output| assert_eq!(only_line(&output.expect_code(77)), why);
    let scratch = Scratch::new();
    refused(run(scratch.chroot(), &[]).env(AUTH, "unheard:of").run());
    refused(Zklock::at(scratch.chroot()).args(["status", LOCK]).env(AUTH, "unheard:of").run());
    Zklock::at(scratch.chroot()).args(["check", "-q"]).env(AUTH, "unheard:of").run().expect_code(77);
    if lacks(Feature::EnforcedLogin) {
        return;
    }
    let strict = Settings::default().property("zookeeper.enforce.auth.enabled=true");
    let strict = strict.property("zookeeper.enforce.auth.schemes=digest").server();
    refused(run_at(&strict).run());
    silent(run_at(&strict).env(AUTH, ALICE).run()).expect_code(0);
}

fn run_at(server: &Server) -> Zklock {
    Zklock::at(server.address()).args([LOCK, "true"])
}
