//! The wall clock goes ahead of the boot clock, as after a pause that no other clock has counted: a beat goes out with the
//! next ping. Where the kernel tells that the clock was set, it goes out at once; a library cannot imitate that.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::harness::creation::connections;
use crate::harness::frames::Op;
use crate::harness::moment::Moment;
use crate::harness::running::finish;
use crate::harness::scratch::Scratch;
use crate::harness::times::AT_ONCE;

/// A library for `LD_PRELOAD`: the wall clock is a minute fast once there is a file at `CLOCK_STEP`.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    const char *file = getenv("CLOCK_STEP");
    if (result == 0 && clock == CLOCK_REALTIME && file != NULL && access(file, F_OK) == 0) {
        now->tv_sec += 60;
    }
    return result;
}
"#;

/// The time from one ping to the next with a session timeout of 100 s.
const PING: Duration = Duration::from_millis(6250);

#[test]
fn is_answered_by_one_beat() {
    let (scratch, proxy) = Scratch::proxied();
    let (source, shim, step) = (scratch.file("shim.c"), scratch.file("shim.so"), scratch.file("step"));
    fs::write(&source, SHIM).unwrap();
    // Rust links with cc, so it is there.
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&shim, &source]).status();
    assert!(compiled.expect("cc can be started").success());
    // A beat every 20 s.
    let job = scratch.job(&proxy.address(), "job", &["-v", "--session-timeout", "100"], &["--exit-on", "TERM"]);
    let mut job = job.env("LD_PRELOAD", &shim).env("CLOCK_STEP", &step).spawn();
    job.wait_stdout("ready");
    let before = proxy.count(Op::Multi);
    assert_eq!(before, connections() - 1, "the creation of the node is as good as a beat");
    let stepped = Moment::now();
    scratch.touch("step");
    proxy.wait_count(Op::Multi, before + 1);
    Moment::now().expect_within(PING + AT_ONCE, stepped, "a beat has been sent");
    job.wait_stderr("the wall clock went forward by ");
    proxy.wait_count(Op::Ping, proxy.count(Op::Ping) + 2);
    assert_eq!(proxy.count(Op::Multi), before + 1, "one beat, and then no more than usual");
    assert_eq!(job.stderr().matches("the wall clock").count(), 1, "{job}");
    finish(&mut job);
    scratch.expect_tidy(&["job"]);
}
