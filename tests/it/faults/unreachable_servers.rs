//! 69: no server answers at the start. One line, in time, and hardly any processor time.

use std::time::Duration;

use crate::harness::client::Client;
use crate::harness::ensemble::Ensemble;
use crate::harness::poll;
use crate::harness::proxy::Proxy;
use crate::harness::running::{Output, finish, only_line};
use crate::harness::scratch::{LASTING, LOCK, Scratch, direct};
use crate::harness::server::{Settings, free_port};
use crate::harness::stub::Stub;
use crate::harness::times::AT_ONCE;
use crate::harness::zklock::Zklock;

/// Has its processor time be told at the end of stdout, with that of everything that it has waited for, keepers included.
pub(super) fn measured(zklock: Zklock) -> Zklock {
    // `times` of a POSIX shell: its own user and system time, then those of its children and theirs.
    zklock.run_by(["sh", "-c", r#""$@"; status=$?; times; exit $status"#, "sh"])
}

/// Takes it from there, as in `0m1.250s 0m0.030s`.
#[track_caller]
pub(super) fn processor_time(output: &mut Output) -> Duration {
    let text = String::from_utf8(std::mem::take(&mut output.stdout)).unwrap();
    let children = text.lines().last().unwrap_or_default();
    let spent = children.split_whitespace().map(|part| {
        let (minutes, seconds) = part.trim_end_matches('s').split_once('m').unwrap_or_else(|| panic!("times: {text}"));
        Duration::from_secs(60) * minutes.parse().unwrap() + Duration::from_secs_f64(seconds.parse().unwrap())
    });
    spent.sum()
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

/// Against this address: gives up with 69 when `--connect-timeout` is over, and has done next to nothing meanwhile.
#[track_caller]
fn unreachable(addresses: &str) -> String {
    let args = ["--connect-timeout", "4s", LOCK, "true"];
    // Without this, the resolver would go on asking a silent name server for longer than the limit:
    // resolv.conf(5).
    let zklock = Zklock::at(addresses).env("RES_OPTIONS", "timeout:1 attempts:1");
    let mut output = measured(zklock.args(args)).run().expect_code(69);
    let spent = processor_time(&mut output);
    let line = only_line(&output);
    assert!(line.starts_with(&format!("no ZooKeeper server of {addresses} answered within 4s: ")), "{output}");
    // As a rule it is late by milliseconds, and by a second and a half when the keeper does not answer any more.
    let late = output.elapsed.checked_sub(CONNECT_TIMEOUT).expect("not before the timeout");
    assert!(late < AT_ONCE, "{late:?} late\n{output}");
    // A loop without a pause would take all of it.
    assert!(spent < CONNECT_TIMEOUT / 4, "{spent:?} of processor time\n{output}");
    line
}

#[test]
fn refused() {
    for count in [1, 2] {
        let servers: Vec<String> = (0..count).map(|_| format!("127.0.0.1:{}", free_port())).collect();
        let all = servers.join(",");
        let why = format!("{}: Connection refused", servers[0]);
        assert_eq!(unreachable(&all), format!("no ZooKeeper server of {all} answered within 4s: {why}"));
    }
}

#[test]
fn never_answers() {
    let address = Stub::silent().address();
    unreachable(&address);
    let args = ["--session-timeout", "4s", "--connect-timeout", "4s", LOCK, "true"];
    let line = only_line(&Zklock::at(&address).args(args).run().expect_code(69));
    assert!(line.ends_with(" accepts connections but does not answer: it hangs, or is no ZooKeeper server"), "{line}");
}

#[test]
fn another_protocol() {
    let greetings: [&[u8]; 3] = [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\0"];
    for greeting in greetings {
        let line = unreachable(&Stub::answering(greeting.to_vec()).address());
        let why =
            ["does not answer as ZooKeeper; if this is its secureClientPort, use --tls", "does not answer with TLS"];
        assert!(why.iter().any(|why| line.contains(why)), "{line}");
    }
}

#[test]
fn closes_at_once() {
    // A proxy without a server behind it accepts, and resets.
    let target = format!("127.0.0.1:{}", free_port());
    let proxy = Proxy::plain(target.parse().unwrap());
    unreachable(&proxy.address());
    // The pauses between the tries grow.
    assert!(proxy.accepted() < 100, "{} connections", proxy.accepted());
}

/// Servers count the connections from one address, and close those beyond maxClientCnxns at once.
#[test]
fn full() {
    let server = Settings::default().line("maxClientCnxns=4").server();
    let connect = || Client::connect(&server.address());
    let mut others = vec![connect(), connect(), connect(), connect()];
    let mut waiter = Zklock::at(server.address()).args(["-v", LOCK]).child(["--exit-on", "TERM"]).spawn();
    waiter.wait_stderr("(maxClientCnxns)");
    let check = Zklock::at(server.address()).args(["check", "--connect-timeout", "0"]).run().expect_code(69).stdout();
    assert!(check.contains("maxClientCnxns"), "{check}");
    others.pop();
    finish(&mut waiter);
}

#[test]
fn several_within_one_timeout() {
    let (silent, garbage) = (Stub::silent(), Stub::garbage());
    unreachable(&format!("{},127.0.0.1:{},{}", silent.address(), free_port(), garbage.address()));
}

#[test]
fn unknown_host() {
    let line = unreachable("no-such-host.invalid:2181/app");
    assert!(line.contains("cannot resolve no-such-host.invalid: "), "{line}");
}

#[test]
fn no_quorum() {
    let ensemble = Ensemble::start();
    let [survivor, other] = ensemble.followers();
    other.kill();
    ensemble.leader().kill();
    poll::until("the survivor serves no client", || {
        survivor.ask("srvr").is_ok_and(|state| state.contains("not currently serving")).then_some(())
    });
    let zklock = Zklock::at(survivor.address()).args(["--connect-timeout", "6s", LOCK, "true"]);
    let line = only_line(&zklock.run().expect_code(69));
    assert!(
        line.ends_with("is a ZooKeeper server that serves no clients now: it is starting, or has no quorum"),
        "{line}"
    );
}

#[test]
fn servers_come_up_in_time() {
    let (scratch, proxy) = Scratch::proxied();
    proxy.refuse();
    let options = [&LASTING[..], &["-v", "--connect-timeout", "60"]].concat();
    let mut job = scratch.start(&proxy.address(), "job", &options, &["--exit-on", "TERM"]);
    job.wait_stderr("no connection");
    proxy.accept();
    finish(&mut job);
    scratch.expect_tidy(&["job"]);
}

#[test]
fn one_that_answers_is_enough() {
    let scratch = Scratch::new();
    let (silent, garbage) = (Stub::silent(), Stub::garbage());
    let unused = free_port();
    let good = direct();
    let servers = format!("{},no-such-host.invalid,127.0.0.1:{unused},{},{good}", silent.address(), garbage.address());
    let output = scratch.zklock_by(servers).args([LOCK, "true"]).run().expect_code(0);
    assert_eq!(output.stderr(), "");
}
