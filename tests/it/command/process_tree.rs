//! The whole tree of the command goes when the lock is lost.

use nix::unistd::Pid;

use crate::harness::joblog::JobLog;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::proxy::Proxy;
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::zklock::{Zklock, child};

/// A command with descendants of every kind that is hard to stop, seven processes that write to a log, and a shell.
const UNRULY: &str = r#"
    child=$0 log=$1
    job() { name=$1; shift; "$child" --name "$name" --log "$log" "$@"; }
    job left --ignore TERM --wait | job right --exit-on TERM &
    job session --setsid --ignore TERM --wait &
    job parent --spawn-daemon -- --name daemon --log "$log" --ignore TERM --wait
    env -i ZKLOCK_TEST="$ZKLOCK_TEST" "$child" --name nameless --log "$log" --setsid --wait &
    job last --wait"#;

/// Runs [`UNRULY`] and loses its lock by `lose`. When zklock has exited, no process of it is left; returns the log.
fn lose_the_lock_of_the_unruly(scratch: &Scratch, zklock: Zklock, lose: impl FnOnce()) -> JobLog {
    let mut job = zklock.args(["--", "sh", "-c", UNRULY]).arg(child()).arg("log").spawn();
    poll::until("all are there", || (scratch.log().runs().len() == 7).then_some(()));
    lose();
    job.wait().expect_code(76);
    let log = scratch.log();
    for run in log.runs() {
        let left = process::look(Pid::from_raw(run.pid.cast_signed())).filter(|process| process.name == "child");
        assert_eq!(left, None, "{} was left\n{job}", run.name);
    }
    log
}

/// Whether the command of this name came to its own end, rather than being killed.
fn ended_itself(log: &JobLog, name: &str) -> bool {
    log.runs().iter().any(|run| run.name == name && run.ended)
}

#[test]
fn killed_when_the_node_is_deleted() {
    let scratch = Scratch::new();
    let log = lose_the_lock_of_the_unruly(&scratch, scratch.zklock().arg(LOCK), || scratch.delete_holder());
    assert!(!ended_itself(&log, "right"), "the next holder may run already: there is no time for TERM");
}

#[test]
fn stopped_when_the_servers_fall_silent() {
    let scratch = Scratch::new();
    let proxy = Proxy::zookeeper(&direct());
    // The lease survives a pause of three seconds while they start, and the grace gives five seconds to the
    // one that ends by itself.
    let zklock =
        scratch.zklock_by(proxy.address()).args([LOCK, "--session-timeout", "16"]).args(["--kill-after", "5s"]);
    let log = lose_the_lock_of_the_unruly(&scratch, zklock, || proxy.hold());
    assert!(ended_itself(&log, "right"), "TERM comes before SIGKILL");
    assert!(!ended_itself(&log, "last"));
    scratch.wait_queue(0);
}
