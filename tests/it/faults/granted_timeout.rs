//! The servers grant another session timeout than was asked for, at once or with a reconnection.

use std::time::Duration;

use crate::harness::frames::Op;
use crate::harness::moment::Moment;
use crate::harness::process;
use crate::harness::proxy::Fate;
use crate::harness::running::{Running, finish, silent};
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::server::Settings;
use crate::harness::terminal::Terminal;
use crate::harness::times::{LEASE, LONG_SESSION, SHORT_SESSION};

#[test]
fn told_with_verbose() {
    // Under the shortest one that servers grant here, a loaded machine might lose the lock.
    let server = Settings::default().line("minSessionTimeout=20000").server();
    let scratch = Scratch::on(server.chroot());
    for (asked, granted, limit) in [("100ms", "20s", "minSessionTimeout"), ("10m", "2m", "maxSessionTimeout")] {
        let zklock = || scratch.zklock().args(["--session-timeout", asked]);
        silent(zklock().args([LOCK, "true"]).run().expect_code(0));
        let output = zklock().args(["-v", LOCK, "true"]).run().expect_code(0);
        let line = format!(
            "zklock: the servers granted a session timeout of {granted}, not {asked}: their {limit} is the limit\n"
        );
        assert!(output.stderr().contains(&line), "{output}");
    }
}

#[test]
fn told_at_a_terminal() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(120);
    let mut job = terminal.spawn(scratch.zklock().arg(LOCK).args(["--session-timeout", "10m"]).bare_child());
    job.wait().expect_code(0);
    let line = "zklock: the servers granted a session timeout of 2m, not 10m: their maxSessionTimeout is the limit";
    // Two processes write to it.
    terminal.wait(line, |lines| lines == [line, "ready"] || lines == ["ready", line]);
}

/// The session timeout that a holder asks for.
const ASKED: Duration = Duration::from_secs(30);

/// A holder that asks for [`ASKED`] and is granted `first`, and a waiter behind it. When the command has run for
/// `begun`, the connection breaks, and the holder is granted `second`.
fn regrant(
    first: Duration,
    begun: Duration,
    second: Duration,
    then: impl FnOnce(&Scratch, &mut Running, &mut Running),
) {
    let (scratch, proxy) = Scratch::proxied();
    // As if the server's configuration changed later; restarting the server would take longer than some leases last.
    proxy.ask_for(first);
    let asked = ASKED.as_secs().to_string();
    let options = ["-v", "--session-timeout", &asked, "--kill-after", "0"];
    let (mut holder, mut next) = scratch.holder_and_next(&proxy.address(), &options);
    scratch.begin("holder").after(begun).wait_past();
    proxy.ask_for(second);
    let watches = proxy.count(Op::GetData);
    proxy.reset();
    holder.wait_stderr("connection to ZooKeeper restored");
    proxy.wait_count(Op::GetData, watches + 1);
    then(&scratch, &mut holder, &mut next);
}

/// The keeper is frozen. The command is dead within `lease`, and the next one starts after it.
#[track_caller]
fn expect_dead_within(scratch: &Scratch, holder: &mut Running, next: &mut Running, lease: Duration) {
    process::stop(holder.keeper());
    let frozen = Moment::now();
    holder.wait().expect_code(76);
    scratch.last_alive("holder").expect_within(lease, frozen, "the command is dead");
    finish(next);
    holder.wait_until_nothing_is_left();
    scratch.expect_tidy(&["holder", "next"]);
}

#[test]
fn shorter_one_shortens_the_lease() {
    // The last beat is older than a lease of [`SHORT_SESSION`] then.
    regrant(ASKED, Duration::from_millis(5500), SHORT_SESSION, |scratch, holder, next| {
        // The change alone ends nothing.
        scratch.wait_alive_at("holder", Moment::now().after(LEASE));
        expect_dead_within(scratch, holder, next, LEASE);
    });
}

#[test]
fn longer_one_does_not_prolong_it() {
    // A new leader would count with the first one.
    regrant(SHORT_SESSION, Duration::ZERO, LONG_SESSION, |scratch, holder, next| {
        scratch.wait_alive_at("holder", Moment::now().after(LEASE));
        expect_dead_within(scratch, holder, next, LEASE);
    });
}

/// The servers count with the shorter one from the moment they grant it, not from the first beat.
#[test]
fn shorter_one_and_then_silence() {
    let (scratch, proxy) = Scratch::proxied();
    let asked = ASKED.as_secs().to_string();
    let options = ["--session-timeout", &asked, "--kill-after", "0"];
    let (mut holder, mut next) = scratch.holder_and_next(&proxy.address(), &options);
    scratch.begin("holder").after(Duration::from_millis(100)).wait_past();
    // All that follows the first request of the next connection is lost.
    proxy.ask_for(SHORT_SESSION);
    let cut = proxy.trap_ops(Fate::ResetAndHold, &[Op::Sync]);
    proxy.reset();
    cut.wait();
    holder.wait().expect_code(76);
    finish(&mut next);
    proxy.pass();
    holder.wait_until_nothing_is_left();
    scratch.expect_tidy(&["holder", "next"]);
}
