//! The session of a holder is ended by others: the command is killed at once.

use crate::harness::client;
use crate::harness::fault::Fault;
use crate::harness::moment::Moment;
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::times::AT_ONCE;

#[test]
fn closed_by_an_administrator() {
    let mut fault = Fault::minute("session: closed by an administrator");
    let session = fault.scratch.contenders()[0].stat.owner;
    fault.strikes();
    client::expire_session(&direct(), session);
    fault.expect_taken("");
}

#[test]
fn another_one_given_out() {
    let (scratch, proxy) = Scratch::proxied();
    // No lease could end in time for this.
    let mut holder = scratch.start(&proxy.address(), "holder", &["--session-timeout", "60"], &["--wait"]);
    holder.wait_stdout("ready");
    let session = scratch.only_contender().stat.owner;
    proxy.give_out_session(0x7e57);
    let reset = Moment::now();
    proxy.reset();
    let output = holder.wait().expect_code(76);
    scratch.last_alive("holder").expect_within(AT_ONCE, reset, "the command is dead");
    let why = "the session ended before its time; killing the command";
    assert_eq!(output.stderr(), format!("zklock: lost the lock {LOCK}: {why}\n"));
    assert!(output.stdout().ends_with("holder ready\n"), "no stop signal\n{output}");
    holder.wait_until_nothing_is_left();
    // The server behind the proxy still has it.
    client::expire_session(&direct(), session);
    scratch.expect_tidy(&["holder"]);
}
