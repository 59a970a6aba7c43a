//! No server answers while zklock waits: it is patient, and does not spin.

use std::time::Duration;

use super::unreachable_servers::{measured, processor_time};
use crate::harness::proxy::Proxy;
use crate::harness::running::finish;
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::times::AT_ONCE;

/// A waiter loses all servers, for longer than its session lasts, until its patience ends.
fn waits_without_an_answer(lose: impl Fn(&Proxy), reason: &str) {
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = scratch.hold();
    let limit = Duration::from_secs(8);
    let options = ["-v", "--timeout", "8", "--session-timeout", "3"];
    let job = scratch.job(&proxy.address(), "job", &options, &[]);
    let mut waiter = measured(job).spawn();
    scratch.wait_queue(2);
    lose(&proxy);
    let mut output = waiter.wait().expect_code(69);
    let used = processor_time(&mut output);
    assert!(limit <= output.elapsed && output.elapsed < limit + 2 * AT_ONCE, "{output}");
    let said = output.stderr();
    // Whether the session is over only the servers can say, so the place in the queue is not given up.
    assert_eq!(said.matches("queueing again").count(), 0, "{output}");
    assert!(
        said.contains(&format!("zklock: gave up waiting for {LOCK} after 8s: no ZooKeeper server answered")),
        "{output}"
    );
    // It had a session there, so the address and --tls are right.
    assert!(said.contains(reason) && !said.contains("--tls"), "{output}");
    // There is no answer for six seconds: about two lines for each.
    assert!(said.lines().count() < 30 && said.len() < 3000, "a flood of {} bytes\n{output}", said.len());
    // It takes some hundredths. A loop that spins uses the six seconds without an answer.
    assert!(used < Duration::from_secs(1), "{used:?} of CPU time\n{output}");
    finish(&mut holder);
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn connections_refused() {
    waits_without_an_answer(Proxy::refuse, "Connection refused");
}

#[test]
fn no_answer() {
    waits_without_an_answer(Proxy::hold, "accepts connections but does not answer: it hangs, or ");
}
