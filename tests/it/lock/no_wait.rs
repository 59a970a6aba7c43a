//! `-n`: a lock that is not free is given up at once, with status 75 or that of `-E`.

use std::time::Duration;

use crate::harness::client::Kind;
use crate::harness::frames::Op;
use crate::harness::proxy::Fate;
use crate::harness::running::{finish, only_line};
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::times::AT_ONCE;

#[test]
fn gives_75_and_names_the_holder() {
    let scratch = Scratch::new();
    let holder = scratch.zklock().args([LOCK, "--describe", "nightly dump"]);
    let mut holder = holder.child(scratch.logged("holder")).spawn();
    holder.wait_stdout("ready");
    for (give_up, status) in [
        (&["-n"][..], 75),
        (&["--timeout", "0"], 75),
        (&["-n", "-w", "60"], 75),
        (&["-n", "-E", "0"], 0),
        (&["-n", "-E", "255"], 255),
    ] {
        let output = scratch.zklock().args(give_up).arg(LOCK).child(scratch.logged("loser")).run().expect_code(status);
        let line = only_line(&output);
        let named = format!("pid {}, child: nightly dump)", holder.pid());
        assert!(line.starts_with("/lock is not free: held by ") && line.contains(&named), "{output}");
        assert_eq!(scratch.client().children(LOCK).len(), 1, "no node is left");
    }
    finish(&mut holder);
    assert_eq!(scratch.log().order(), ["holder"]);
}

#[test]
fn silent_holder_is_named_by_its_node() {
    let scratch = Scratch::new();
    scratch.client().create(LOCK, b"", Kind::Persistent).unwrap();
    // A megabyte of what is no text, as much as a server takes.
    scratch.client().create(&format!("{LOCK}/x-1-"), &vec![0xac; 1_000_000], Kind::EphemeralSequential).unwrap();
    let output = scratch.zklock().args(["-n", LOCK, "true"]).run().expect_code(75);
    assert_eq!(only_line(&output), "/lock is not free: held by x-1-0000000000");
}

#[test]
fn server_silent_after_the_handshake() {
    let (scratch, proxy) = Scratch::proxied();
    // More than there will be requests: no connection gets a word beyond the greeting.
    let _silence: Vec<_> = (0..200).map(|_| proxy.trap(Fate::Blackhole, |_| true)).collect();
    let limit = Duration::from_secs(4);
    let job = scratch.job(&proxy.address(), "job", &["-n", "--connect-timeout", "4"], &[]);
    let mut run = job.spawn();
    let output = run.wait().expect_code(69);
    // Giving up an unanswered release takes a second and a half more, at most.
    assert!(limit <= output.elapsed && output.elapsed < limit + Duration::from_millis(1500) + AT_ONCE, "{output}");
    assert!(proxy.count(Op::CreateContainer) + proxy.count(Op::Create) + proxy.count(Op::Create2) > 0, "it had begun");
    run.wait_until_nothing_is_left();
    scratch.expect_tidy(&[]);
}
