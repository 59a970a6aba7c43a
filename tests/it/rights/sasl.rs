//! Logging in by SASL.

use std::fmt;
use std::sync::OnceLock;

use crate::harness::frames::Op;
use crate::harness::jaas::Users;
use crate::harness::proxy::{Fate, Proxy};
use crate::harness::release::{Feature, lacks};
use crate::harness::running::{Output, finish, only_line, silent};
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::server::{Data, Server};
use crate::harness::stub::Stub;
use crate::harness::zklock::Zklock;
use crate::rights::login::expect_login_again;

const AUTH: &str = "ZKLOCK_AUTH";
const USERS: [(&str, &str); 3] = [("alice", "hidden-1"), ("bob", "hidden, =:\u{f6}"), ("eve", "hidden\u{f6}\u{20ac}")];
const ALICE: &str = "sasl:alice:hidden-1";
/// With characters that must be quoted, and others that have no byte in ISO 8859-1, or another one than in UTF-8.
const BOB: &str = "sasl:bob:hidden, =:\u{f6}";
const EVE: &str = "sasl:eve:hidden\u{f6}\u{20ac}";
const WRONG: &str = "sasl:alice:hidden-3";

const REFUSED: &str = "it refuses the login: no such user, or another password";
const CLOSED: &str = "it closes the connection at the login, as ZooKeeper 3.4 does if the password is wrong";

/// Users of most tests.
fn users() -> Users {
    Users::new(&USERS)
}

/// The server of the tests that do it no harm.
fn shared() -> &'static Server {
    static SHARED: OnceLock<(Users, Server)> = OnceLock::new();
    let start = || {
        let users = users();
        let server = users.settings().server();
        (users, server)
    };
    &SHARED.get_or_init(start).1
}

/// Runs `true` under a lock.
fn run(servers: impl fmt::Display, login: &str, options: &[&str]) -> Zklock {
    Zklock::at(servers).args(options).args([LOCK, "true"]).env(AUTH, login)
}

/// Fails unless this server has refused the login.
#[track_caller]
fn expect_refused(output: Output, server: &str) {
    let why = if Feature::EnforcedSasl.is_there() { REFUSED } else { CLOSED };
    assert_eq!(only_line(&output.expect_code(77)), format!("ZooKeeper does not accept this client: {server}: {why}"));
}

#[test]
fn what_is_created_is_the_users() {
    let chroot = shared().chroot();
    silent(run(&chroot, ALICE, &["--acl", "creator"]).run()).expect_code(0);
    silent(run(&chroot, ALICE, &[]).run()).expect_code(0);
    let stranger = Zklock::at(&chroot).plain().args([LOCK, "true"]).run().expect_code(77);
    // Where it takes two connections to create a node, the lock is listed between them.
    let first = if Feature::Create2.is_there() { 'c' } else { 'r' };
    let ask = format!("is missing; log in (--auth-file), or ask for {first} on /lock");
    assert!(only_line(&stranger).ends_with(&ask), "{stranger}");
    // The certificate of the suite would be an identity that both have.
    let other = run(&chroot, BOB, &[]).plain().run().expect_code(77);
    assert!(only_line(&other).contains(&format!("is missing; ask for {first} on /lock for this login")), "{other}");
    Zklock::at(&chroot).args(["check", "-q", LOCK]).env(AUTH, ALICE).run().expect_code(0);
    silent(run(shared().chroot(), EVE, &[]).run()).expect_code(0);
    // It is free.
    let status = |login| Zklock::at(&chroot).plain().args(["status", "-q", LOCK]).env(AUTH, login).run();
    silent(status(ALICE)).expect_code(1);
    status(BOB).expect_code(77);
}

#[test]
fn a_reconnection_logs_in_again() {
    let scratch = Scratch::on(shared().chroot()).with_lock();
    let proxy = Proxy::zookeeper(&shared().address());
    expect_login_again(&scratch, &proxy, ALICE);
}

#[test]
fn wrong_users_and_passwords() {
    let server = shared();
    for login in [WRONG, "sasl:mallory:hidden-0"] {
        expect_refused(run(server.address(), login, &[]).run(), &server.address());
    }
    let status = |login| Zklock::at(server.address()).args(["status", LOCK]).env(AUTH, login).run();
    expect_refused(status(WRONG), &server.address());
    let check = Zklock::at(server.address()).arg("check").env(AUTH, WRONG).run().expect_code(77);
    assert!([REFUSED, CLOSED].iter().any(|why| check.stdout().contains(why)), "{check}");
}

/// It would let us in, and is asked to close the session that it has opened.
#[test]
fn server_without_sasl() {
    let proxy = Proxy::zookeeper(&direct());
    let why = "SASL is not set up there, so it would ignore the login";
    let output = run(proxy.address(), ALICE, &[]).run().expect_code(77);
    let said = only_line(&output);
    assert!(said.starts_with(&format!("ZooKeeper does not accept this client: {}: {why}", proxy.address())), "{said}");
    assert_eq!((proxy.count(Op::Sasl), proxy.count(Op::CloseSession)), (1, 1));
    let check = Zklock::at(direct()).arg("check").env(AUTH, ALICE).run().expect_code(77);
    assert!(check.stdout().contains(why), "{check}");
}

/// So does one that keeps clients whose login has failed.
#[test]
fn server_that_goes_on_without_a_login() {
    let users = users();
    let server = users.settings().property("zookeeper.allowSaslFailedClients=true").server();
    let output = run(server.address(), WRONG, &[]).run().expect_code(77);
    assert_eq!(only_line(&output), format!("ZooKeeper does not accept this client: {}: {REFUSED}", server.address()));
    silent(run(server.address(), ALICE, &[]).run()).expect_code(0);
}

/// It closes the connection if anything else comes before the login, such as a ping.
#[test]
fn slow_server_that_demands_sasl() {
    if lacks(Feature::EnforcedSasl) {
        return;
    }
    let users = users();
    let server = users.settings().property("zookeeper.sessionRequireClientSASLAuth=true").server();
    let proxy = Proxy::zookeeper(&server.address());
    let refused = Zklock::at(server.address()).args([LOCK, "true"]).run().expect_code(77);
    let why = "ZooKeeper does not accept this client: they refuse the login, or want one (--auth-file)";
    assert_eq!(only_line(&refused), why);
    expect_refused(run(server.address(), WRONG, &[]).run(), &server.address());
    let slow = proxy.trap_ops(Fate::Wait, &[Op::Sasl]);
    let mut job = run(proxy.address(), ALICE, &["--session-timeout", "4s"]).spawn();
    slow.wait();
    // The server is given up, and the next attempt succeeds.
    proxy.wait_count(Op::Sasl, 3);
    slow.release();
    silent(job.wait()).expect_code(0);
    let on_first: Vec<_> = proxy.requests().into_iter().filter(|request| request.connection == 0).collect();
    // Nothing comes after the token but the end.
    let ops: Vec<_> = on_first.iter().map(|request| request.op).collect();
    assert_eq!(ops, [Op::Sasl, Op::CloseSession]);
}

/// The servers of 3.9.6 and later do not know DIGEST-MD5 by default. Where there is none, their answers are played.
#[test]
fn server_in_fips_mode() {
    let cure = "servers do so from 3.9.6 on, unless -Dzookeeper.fips-mode=false is set there; use a client certificate, \
                Kerberos or digest: instead";
    let auth_failed = packet(&[&1_u32.to_be_bytes(), &[0; 8], &(-115_i32).to_be_bytes()]);
    for (tolerates, played, why) in [
        (false, auth_failed, "it refuses a login by DIGEST-MD5 (AuthFailed): "),
        (true, answer(1, ""), "SASL is not set up there, so it would ignore the login; or it refuses DIGEST-MD5: "),
    ] {
        let users = users();
        let settings = users.settings().property("zookeeper.fips-mode=true");
        let settings = settings.property(format_args!("zookeeper.allowSaslFailedClients={tolerates}"));
        let server = Feature::FipsMode.is_there().then(|| settings.server());
        let address =
            server.as_ref().map_or_else(|| Stub::answering([session(), played].concat()).address(), Server::address);
        let output = run(&address, ALICE, &[]).plain().run().expect_code(77);
        assert_eq!(only_line(&output), format!("ZooKeeper does not accept this client: {address}: {why}{cure}"));
        let check = Zklock::at(&address).plain().arg("check").env(AUTH, ALICE).run().expect_code(77);
        assert!(check.stdout().contains(&format!("{why}{cure}")), "{check}");
    }
}

fn packet(parts: &[&[u8]]) -> Vec<u8> {
    let packet = parts.concat();
    [&u32::try_from(packet.len()).unwrap().to_be_bytes()[..], &packet].concat()
}

/// A session that a server has opened.
fn session() -> Vec<u8> {
    packet(&[&[0; 4], &20_000_u32.to_be_bytes(), &5_u64.to_be_bytes(), &packet(&[&[7; 16]]), &[0]])
}

/// The answer to a token.
fn answer(xid: u32, token: &str) -> Vec<u8> {
    packet(&[&xid.to_be_bytes(), &[0; 12], &packet(&[token.as_bytes()])])
}

/// A server that does not know the password can let us in, but cannot prove it.
#[test]
fn server_that_does_not_know_the_password() {
    let challenge = answer(1, "realm=\"zk-sasl-md5\",nonce=\"x\",algorithm=md5-sess,charset=utf-8");
    let proof = answer(2, "rspauth=00000000000000000000000000000000");
    let stub = Stub::answering([session(), challenge, proof].concat());
    // It never answers the request to close the session.
    let output = run(stub.address(), ALICE, &["--session-timeout", "4s"]).plain().run().expect_code(77);
    let why = "it does not know the password itself";
    assert_eq!(only_line(&output), format!("ZooKeeper does not accept this client: {}: {why}", stub.address()));
}

/// The login may be taken again, or by another server. But a waiter that is not let in must not keep its place for
/// ever.
#[test]
fn password_that_is_changed_meanwhile() {
    let users = users();
    let server = users.settings().server();
    let scratch = Scratch::on(server.chroot()).with_lock();
    let contend = |name, timeout, login| {
        let options = ["-v", "--session-timeout", timeout];
        scratch.job(&server.address(), name, &options, &["--exit-on", "TERM"]).env(AUTH, login).spawn()
    };
    let mut holder = contend("holder", "60s", BOB);
    holder.wait_stdout("holder ready");
    let mut waiter = contend("waiter", "8s", ALICE);
    scratch.wait_queue(2);
    users.write(&[("alice", "changed"), ("bob", "changed")]);
    server.restart(Data::Kept);
    let why = if Feature::EnforcedSasl.is_there() { REFUSED } else { CLOSED };
    let why = format!("{}: {why}", server.address());
    holder.wait_stderr(&why);
    let output = waiter.wait().expect_code(77);
    assert!(output.stderr().contains(&format!("ZooKeeper does not accept this client: {why}")), "{output}");
    users.write(&USERS);
    server.restart(Data::Kept);
    holder.wait_stderr("connection to ZooKeeper restored");
    finish(&mut holder);
}

#[test]
fn secrets_are_told_nowhere() {
    let scratch = Scratch::on(shared().chroot());
    let job = scratch.job(&shared().address(), "holder", &["-vvv", "--publish-command"], &["--exit-on", "TERM"]);
    let mut holder = job.env(AUTH, BOB).spawn();
    holder.wait_stdout("holder ready");
    let mut said = finish(&mut holder).stderr();
    let mut other = run(scratch.chroot(), WRONG, &["-vvv"]).spawn();
    said += &other.wait().expect_code(77).stderr();
    assert!(said.contains("by SASL"), "{said}");
    assert!(!said.contains("hidden"), "{said}");
}
