//! Logging in, and the ACLs of what is created.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::Value;

use crate::harness::client::{Kind, Refusal};
use crate::harness::ensemble::Chroot;
use crate::harness::frames::Op;
use crate::harness::poll;
use crate::harness::process::Process;
use crate::harness::proxy::Proxy;
use crate::harness::release::{Feature, lacks};
use crate::harness::running::{Output, Running, finish, only_line, silent};
use crate::harness::scratch::{Contender, LASTING, LASTING_VERBOSE, LOCK, Scratch, direct};
use crate::harness::server::{Server, Settings};
use crate::harness::times::SOON;
use crate::harness::zklock::Zklock;

const AUTH: &str = "ZKLOCK_AUTH";
const ALICE: &str = "digest:alice:hidden-1";
const BOB: &str = "digest:bob:hidden-2";

/// A contender that has logged in.
fn contend(scratch: &Scratch, name: &str, login: &str, options: &[&str]) -> Running {
    scratch.job(&direct(), name, options, &["--exit-on", "TERM"]).anonymous().env(AUTH, login).spawn()
}

/// Without the login of the harness.
fn at(servers: impl fmt::Display) -> Zklock {
    Zklock::at(servers).anonymous()
}

/// Runs `true` under a lock.
fn run(chroot: &Chroot, args: &[&str]) -> Zklock {
    at(chroot).args(args).args([LOCK, "true"])
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
    let output = at(scratch.chroot()).args(["break", "--force", "--node", &node, LOCK]).env(AUTH, ALICE).run();
    output.expect_code(0);
    bob.wait_stderr("lost the place in the queue for /lock: its node was deleted; queueing again");
    scratch.wait_queue(2);
    finish(&mut alice);
    bob.wait_stdout("bob ready");
    finish(&mut bob);
    scratch.expect_tidy(&["alice", "bob"]);
}

/// The other one of its nodes goes with its session.
#[test]
fn one_of_the_nodes_of_a_waiter_that_may_delete_none() {
    const BOTH: [&str; 2] = ["--dialect", "curator,kazoo"];
    let scratch = Scratch::new();
    let mut alice = contend(&scratch, "alice", ALICE, &BOTH);
    alice.wait_stdout("alice ready");
    let mut bob = contend(&scratch, "bob", BOB, &BOTH);
    let node = scratch.wait_queue(4).remove(2);
    let session = scratch.contenders()[2].stat.owner;
    let node = format!("{LOCK}/{node}");
    scratch.wait_watched(&node);
    scratch.client().log_in(ALICE);
    scratch.delete(&node);
    bob.wait_stderr("lost the place in the queue for /lock: its node was deleted; queueing again");
    let others = |nodes: &[Contender]| nodes.len() == 4 && nodes.iter().all(|node| node.stat.owner != session);
    poll::until("it queues in another session", || others(&scratch.contenders()).then_some(()));
    finish(&mut alice);
    bob.wait_stdout("bob ready");
    finish(&mut bob);
    scratch.expect_tidy(&["alice", "bob"]);
}

/// An administrator lets everyone queue, and lets no one delete a node.
#[test]
fn users_who_cannot_hurt_each_other() {
    let (scratch, proxy) = Scratch::proxied();
    let (read, create) = (1, 4);
    scratch.client().allow(LOCK, read + create).unwrap();
    let mut alice = contend(&scratch, "alice", ALICE, &[]);
    alice.wait_stdout("alice ready");
    let bob = scratch.job(&proxy.address(), "bob", &LASTING, &["--exit-on", "TERM"]).anonymous();
    let mut bob = bob.env(AUTH, BOB).spawn();
    let nodes = scratch.wait_queue(2).into_iter().map(|node| format!("{LOCK}/{node}")).collect::<Vec<_>>();
    for (node, other) in [(&nodes[0], BOB), (&nodes[1], ALICE)] {
        for how in [&["break"][..], &["break", "--force"]] {
            let output = at(scratch.chroot()).args(how).args(["--node", node, LOCK]).env(AUTH, other).run();
            assert_eq!(only_line(&output.expect_code(77)), format!("access to {node} denied by its ACL"));
        }
        assert_eq!(scratch.client().set(node, b"{}"), Err(Refusal::NO_AUTH));
        assert_eq!(scratch.client().delete(node), Err(Refusal::NO_AUTH));
    }
    // A node that has the name of bob's, but for the number, and that bob cannot delete either.
    let prefix = &nodes[1][..nodes[1].len() - "0000000001".len()];
    scratch.client().create(prefix, b"", Kind::EphemeralSequential).unwrap();
    // It lists the queue again.
    let lists = proxy.count(Op::GetChildren);
    proxy.reset();
    proxy.wait_count(Op::GetChildren, lists + 1);
    // Without d, only the end of its session deletes the node.
    finish(&mut alice);
    bob.wait_stdout("bob ready");
    silent(finish(&mut bob));
    let log = scratch.log();
    assert_eq!(log.expect_no_overlap().order(), ["alice", "bob"]);
    scratch.wait_queue(1);
}

#[test]
fn a_reconnection_logs_in_again() {
    let (scratch, proxy) = Scratch::proxied();
    expect_login_again(&scratch, &proxy, ALICE);
}

/// A holder with this login, whose nodes others may not read, holds on when the connection was lost.
#[track_caller]
pub(crate) fn expect_login_again(scratch: &Scratch, proxy: &Proxy, login: &str) {
    let options = [&LASTING_VERBOSE[..], &["--acl", "creator"]].concat();
    let job = scratch.job(&proxy.address(), "holder", &options, &["--exit-on", "TERM"]);
    let mut holder = job.env(AUTH, login).spawn();
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
    // Where it takes two connections to create a node, the lock is listed between them.
    let create = ("creating", 'c');
    let first = if Feature::Create2.is_there() { create } else { ("listing the", 'r') };
    let missing = |(what, letter)| {
        let what = format!("{what} children of {LOCK}");
        format!("an ACL forbids {what}: the permission {letter} is missing; ")
    };
    let to_log_in =
        |(what, letter)| format!("{}log in (--auth-file), or ask for {letter} on {LOCK}", missing((what, letter)));
    let nobody = run(&chroot, &[]).run().expect_code(77);
    assert_eq!(only_line(&nobody), to_log_in(first));
    // The deepest node that is there is the one that forbids it.
    let below = at(&chroot).args([&format!("{LOCK}/a/b"), "true"]).run().expect_code(77);
    assert_eq!(only_line(&below), to_log_in(create));
    let wrong = run(&chroot, &[]).env(AUTH, "digest:alice:hidden-3").run().expect_code(77);
    let hint = "for this login; with digest, a wrong password makes another identity";
    assert_eq!(only_line(&wrong), format!("{}ask for {} on {LOCK} {hint}", missing(first), first.1));
    silent(run(&chroot, &[]).env(AUTH, ALICE).run()).expect_code(0);
    let check = |login| at(&chroot).args(["check", "-q", LOCK]).env(AUTH, login).run();
    check(ALICE).expect_code(0);
    check(BOB).expect_code(77);
    let remedy = |login: Option<&str>| {
        let check = at(&chroot).args(["check", "--json", LOCK]);
        let check = if let Some(login) = login { check.env(AUTH, login) } else { check };
        let json: Value = serde_json::from_slice(&check.run().expect_code(77).stdout).unwrap();
        let acl = json["findings"].as_array().unwrap().iter().find(|finding| finding["code"] == "acl");
        acl.expect("it is found")["text"].as_str().unwrap().to_owned()
    };
    assert!(remedy(None).ends_with("log in (--auth-file), or ask for r on /lock"));
    assert!(remedy(Some(BOB)).ends_with(hint));
    for subcommand in [&["status"][..], &["break", "--node", "x"]] {
        let output = at(&chroot).args(subcommand).arg(LOCK).env(AUTH, BOB).run().expect_code(77);
        let denied = format!(
            "an ACL forbids listing the children of {LOCK}: the permission r is missing; ask for r on {LOCK} {hint}"
        );
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
        at(scratch.chroot()).args(args).arg("--auth-file").arg(file).args([LOCK, "true"])
    };
    for text in [format!("\u{feff}{ALICE}"), format!("\u{feff}# users\n\n{ALICE}\n  {BOB}\r\n")] {
        let file = credentials(&scratch, &text, 0o600);
        silent(zklock(&file, &[]).run()).expect_code(0);
    }
    for login in [ALICE, BOB] {
        silent(run(scratch.chroot(), &[]).env(AUTH, login).run()).expect_code(0);
    }
    let file = credentials(&scratch, ALICE, 0o644);
    let shown = file.display().to_string();
    let exposed = zklock(&file, &[]).run().expect_code(0);
    assert_eq!(only_line(&exposed), format!("warning: every user can read {shown}: chmod 600 {shown}"));
    let file = credentials(&scratch, ALICE, 0o602);
    let exposed = zklock(&file, &[]).run().expect_code(0);
    assert_eq!(only_line(&exposed), format!("warning: every user can write to {shown}: chmod 600 {shown}"));
    silent(zklock(&file, &["-q"]).run()).expect_code(0);
    let file = credentials(&scratch, &format!("# users\n{ALICE} \r\n"), 0o600);
    let cut = zklock(&file, &[]).run().expect_code(0);
    assert_eq!(only_line(&cut), format!("warning: {shown}: line 2 ends in a blank, which does not count"));
    for (text, why) in [
        ("digest:alice:x\nhidden\n", "line 2: write digest:USER:PASSWORD or sasl:USER:PASSWORD"),
        ("digest:hidden", "line 1: a user or a password is missing; write digest:USER:PASSWORD"),
        ("# nothing\n", "no line in it; write digest:USER:PASSWORD or sasl:USER:PASSWORD"),
        ("sasl:a:x\nsasl:b:hidden", "several lines are for SASL; a connection takes one"),
    ] {
        let output = zklock(&credentials(&scratch, text, 0o600), &["-z", "127.0.0.1:1"]).run().expect_code(64);
        assert_eq!(only_line(&output), format!("--auth-file: {shown}: {why}"));
    }
    let output = zklock(&scratch.file("nowhere"), &[]).run().expect_code(64);
    let nowhere = scratch.file("nowhere").display().to_string();
    assert_eq!(only_line(&output), format!("--auth-file: {nowhere}: No such file or directory"));
    let config = scratch.file("zklock.toml");
    fs::write(&config, "# login\nauth-file = 'nowhere'\n").unwrap();
    let output = run(scratch.chroot(), &["--config", config.to_str().unwrap()]).run().expect_code(64);
    let from = format!("{}: line 2: auth-file", config.display());
    assert_eq!(only_line(&output), format!("{from}: {nowhere}: No such file or directory"));
    silent(run(scratch.chroot(), &["--config", config.to_str().unwrap(), "--auth-file", "/dev/null"]).run())
        .expect_code(0);
    let seen = run(scratch.chroot(), &["--auth", ALICE]).run().expect_code(0);
    assert_eq!(only_line(&seen), "warning: every user can see the password with ps: use --auth-file or ZKLOCK_AUTH");
}

#[test]
fn secrets_are_told_nowhere() {
    let scratch = Scratch::new();
    let file = credentials(&scratch, ALICE, 0o600);
    let file = file.to_str().unwrap();
    for login in [&["-v", "--auth-file", file][..], &["-v"]] {
        let options = [&["-vvv", "--publish-command"], login].concat();
        let job = scratch.job(&direct(), "holder", &options, &["--exit-on", "TERM"]);
        let mut holder = job.env(AUTH, BOB).spawn();
        holder.wait_stdout("holder ready");
        let card = scratch.card(&scratch.wait_queue(1)[0]).to_string();
        // What ps shows to everyone.
        let arguments = |process: &Process| fs::read_to_string(format!("/proc/{}/cmdline", process.pid)).unwrap();
        let shown: String = holder.processes().iter().map(arguments).collect();
        assert!(shown.contains("--publish-command"), "{shown}");
        let mut said = finish(&mut holder).stderr();
        for subcommand in [&["status", LOCK][..], &["status", "--json", LOCK], &["list"], &["check", "--json", LOCK]] {
            let output = at(scratch.chroot()).args(subcommand).args(login).arg("-vvv").env(AUTH, BOB).run();
            said += &(output.stdout() + &output.stderr());
        }
        assert!(said.contains("bytes to ZooKeeper"), "{said}");
        for text in [&said, &card, &shown] {
            assert!(!text.contains("hidden"), "{text}");
        }
    }
}

/// A scheme that the server does not know, and a server that wants a login.
#[test]
fn server_that_refuses_a_login() {
    let refused = |output: Output, why: &str| {
        let said = only_line(&output.expect_code(77));
        assert_eq!(said, format!("ZooKeeper does not accept this client: they {why}"));
    };
    let scratch = Scratch::new();
    let unknown = "refuse the login: do they know the scheme \"unheard\"? write digest:USER:PASSWORD";
    refused(run(scratch.chroot(), &[]).env(AUTH, "unheard:of").run(), unknown);
    refused(at(scratch.chroot()).args(["status", LOCK]).env(AUTH, "unheard:of").run(), unknown);
    refused(run(scratch.chroot(), &[]).env(AUTH, "x509:me").run(), "refuse the login by x509");
    let check = at(scratch.chroot()).arg("check").env(AUTH, "unheard:of").run().expect_code(77).stdout();
    assert!(check.contains(unknown), "{check}");
    if lacks(Feature::EnforcedLogin) {
        return;
    }
    let strict = Settings::default().property("zookeeper.enforce.auth.enabled=true");
    let strict = strict.property("zookeeper.enforce.auth.schemes=digest").server();
    let check = at(strict.address()).arg("check").run().expect_code(77).stdout();
    assert!(check.contains("they refuse the login, or want one (--auth-file)"), "{check}");
    refused(run_at(&strict).run(), "refuse the login, or want one (--auth-file)");
    silent(run_at(&strict).env(AUTH, ALICE).run()).expect_code(0);
}

fn run_at(server: &Server) -> Zklock {
    at(server.address()).args([LOCK, "true"])
}
