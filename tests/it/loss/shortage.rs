//! A system that is short of something: the run ends in good order, with the status of an internal error.

use crate::harness::running::silent;
use crate::harness::scratch::{LOCK, Scratch};

/// Whatever it is that there is no descriptor for, the command runs or the status says that it did not, and the lock is
/// free afterwards.
#[test]
fn few_descriptors() {
    let scratch = Scratch::new();
    let (mut ran, mut failed) = (0, 0);
    for limit in 6..40 {
        let limited = ["prlimit".to_owned(), format!("--nofile={limit}")];
        let output = scratch.zklock().args([LOCK, "--connect-timeout=1s", "--", "echo", "ran"]).run_by(limited).run();
        match output.status.code() {
            Some(0) => ran += 1,
            Some(69 | 70) => failed += 1,
            _ => panic!("{limit} descriptors: {output}"),
        }
        assert_eq!(output.stdout() == "ran\n", output.status.code() == Some(0), "{limit} descriptors: {output}");
        silent(scratch.zklock().args(["-n", LOCK, "--", "true"]).run().expect_code(0));
    }
    assert!(ran > 0 && failed > 0, "{ran} ran, {failed} failed");
}

/// timer_create(2) takes one of the signals that a user may have queued. Without the timer the command would outlive the
/// lease if all processes were stopped.
#[test]
fn no_room_for_the_timer() {
    let scratch = Scratch::new();
    let limited = ["prlimit", "--sigpending=0"];
    let output = scratch.zklock().args(["-q", LOCK, "--", "echo", "ran"]).run_by(limited).run().expect_code(70);
    assert_eq!(output.stdout(), "");
    assert_eq!(output.stderr(), "zklock: echo: Resource temporarily unavailable (os error 11)\n");
    scratch.wait_queue(0);
}
