//! A system that is short of something: the run ends in good order, with the status of an internal error.

use crate::harness::running::silent;
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::seccomp::filtering;
use crate::harness::zklock::child;

/// Rules by which nothing of a length from `from` to `to` can be sent to another process of the run.
fn no_room(from: usize, to: usize, error: &str) -> String {
    format!(
        "UNLESS(JEQ, SYS_sendto, 7), LOAD(args[3]), UNLESS(JEQ, MSG_NOSIGNAL | MSG_DONTWAIT, 5), \
         LOAD(args[2]), UNLESS(JGE, {from}, 3), UNLESS(JGT, {to}, 1), ALLOW, FAIL({error}),"
    )
}

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

/// To open the gate, the supervisor sends the environment to the command's process, and three bytes to the guard.
#[test]
fn no_room_for_what_opens_the_gate() {
    let scratch = Scratch::new();
    // So long is no other message.
    let long = format!("{LOCK}/x\n").repeat(4000);
    for (from, to) in [(20_000, 200_000), (3, 3)] {
        for (error, said) in [
            ("ENOBUFS", "No buffer space available (os error 105)"),
            ("EAGAIN", "Resource temporarily unavailable (os error 11)"),
        ] {
            let filtered = filtering(&scratch, &no_room(from, to, error));
            let zklock = scratch.zklock().env("ZKLOCK_HELD", &long).args([LOCK, "--", "echo", "ran"]);
            let output = zklock.run_by([filtered]).run().expect_code(70);
            assert_eq!((output.stdout(), output.stderr()), (String::new(), format!("zklock: echo: {said}\n")));
            scratch.wait_queue(0);
        }
    }
}

/// The guard wakes the supervisor by one byte. What it wakes it for is in shared memory.
#[test]
fn no_room_for_the_guard_to_wake_the_supervisor() {
    let scratch = Scratch::new();
    let filtered = filtering(&scratch, &no_room(1, 1, "ENOBUFS"));
    let output = scratch.zklock().args([LOCK, "--", "sh", "-c", "echo ran; exit 3"]).run_by([filtered]).run();
    assert_eq!(silent(output.expect_code(3)).stdout(), "ran\n");
    scratch.wait_queue(0);
}

/// The command has left a process behind, so without the order the keeper would go on with its beats.
#[test]
fn no_room_for_the_order_to_release() {
    let scratch = Scratch::new();
    let length = r#""Release""#.len();
    let filtered = filtering(&scratch, &no_room(length, length, "ENOBUFS"));
    let script = r#"setsid "$C" --until end & exit 3"#;
    let zklock = scratch.zklock().args([LOCK, "--", "sh", "-c", script]).env("C", child());
    let mut job = zklock.run_by([filtered]).spawn();
    let output = job.wait().expect_code(3);
    assert_eq!(output.stderr(), "zklock: a process that the command left behind goes on without the lock\n");
    scratch.wait_queue(0);
    scratch.touch("end");
    job.wait_until_nothing_is_left();
}

/// The same if the run is to be recorded.
#[test]
fn no_room_for_the_order_to_record() {
    let scratch = Scratch::new();
    let length = r#""Release""#.len();
    let filtered = filtering(&scratch, &no_room(length, length, "ENOBUFS"));
    let once = || scratch.zklock().args(["--once-per", "1h", LOCK, "echo", "ran"]);
    let first = silent(once().run_by([filtered]).run()).expect_code(0);
    assert_eq!(first.stdout(), "ran\n");
    scratch.wait_queue(0);
    assert_eq!(once().run().expect_code(0).stdout(), "", "it was recorded");
}
