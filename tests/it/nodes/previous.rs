//! zklock of the release before this one, in the same queue. `scripts/matrix 0.2.0` builds it, and names it in
//! `ZKLOCK_TEST_PREVIOUS`.

use std::env;
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::running::{Running, finish, only_line, silent};
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::skipped::say;
use crate::harness::times::SOON;
use crate::harness::zklock::{Zklock, binary};

/// Runs the test with the releases in either order. The line is the same for all tests, so it is counted once, and no
/// right of the machine is missing.
fn both(test: impl Fn(&Scratch, [&Path; 2])) {
    let Some(previous) = env::var_os("ZKLOCK_TEST_PREVIOUS") else {
        return say("skipped: nodes::previous: needs ZKLOCK_TEST_PREVIOUS, see scripts/matrix");
    };
    let previous = Path::new(&previous);
    test(&Scratch::new(), [previous, binary()]);
    test(&Scratch::new(), [binary(), previous]);
}

fn zklock(scratch: &Scratch, release: &Path) -> Zklock {
    scratch.zklock().program(release)
}

/// A contender that holds at once.
#[track_caller]
fn hold(scratch: &Scratch, release: &Path, name: &str, options: &[&str]) -> Running {
    let mut run = zklock(scratch, release).args(options).arg(LOCK).child(scratch.logged(name)).spawn();
    run.wait_stdout("ready");
    run
}

/// A contender that waits, and whose node is the last of `length`.
#[track_caller]
fn queue(scratch: &Scratch, release: &Path, name: &str, options: &[&str], length: usize) -> Running {
    let run = zklock(scratch, release).args(options).arg(LOCK).child(scratch.logged(name)).spawn();
    scratch.wait_queue(length);
    run
}

/// What `zklock status --json` says of the lock.
#[track_caller]
fn status(scratch: &Scratch, release: &Path) -> Value {
    let output = silent(zklock(scratch, release).args(["status", "--json", LOCK]).run().expect_code(0));
    let mut json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    json["locks"][0].take()
}

#[test]
fn each_waits_for_the_other_and_shows_it() {
    both(|scratch, [one, other]| {
        let mut holder = hold(scratch, one, "holder", &["--describe", "dump"]);
        let busy = zklock(scratch, other).args(["-n", LOCK, "true"]).run().expect_code(75);
        assert!(only_line(&busy).contains(&format!(", pid {}, child: dump)", holder.pid())), "{busy}");
        let mut waiter = queue(scratch, other, "waiter", &[], 2);
        for release in [one, other] {
            let shown = &status(scratch, release)["contenders"];
            let brief = |n: usize| {
                ["holds", "client", "mode", "pid", "command", "describe"].map(|field| shown[n][field].clone()).to_vec()
            };
            let zklock = |holds: bool, run: &Running, describe: Value| {
                [json!(holds), json!("zklock"), json!("exclusive"), json!(run.pid().as_raw()), json!("child"), describe]
            };
            assert_eq!(brief(0), zklock(true, &holder, json!("dump")), "{shown}");
            assert_eq!(brief(1), zklock(false, &waiter, Value::Null), "{shown}");
            assert_eq!(shown[0]["host"], scratch.card(shown[0]["node"].as_str().expect("a name"))["host"], "{shown}");
            assert_eq!(shown[0]["token"].to_string(), holder.variable("ZKLOCK_TOKEN"));
        }
        silent(finish(&mut holder));
        waiter.wait_stdout("ready");
        let token = |run: &Running| run.variable("ZKLOCK_TOKEN").parse::<u64>().expect("a number");
        assert!(token(&holder) < token(&waiter));
        silent(finish(&mut waiter));
        scratch.expect_tidy(&["holder", "waiter"]);
    });
}

#[test]
fn four_in_their_order() {
    both(|scratch, [one, other]| {
        let mut runs = vec![hold(scratch, one, "0", &[])];
        for (n, release) in [(1, other), (2, one), (3, other)] {
            runs.push(queue(scratch, release, &n.to_string(), &[], n + 1));
        }
        for run in &mut runs {
            silent(finish(run));
        }
        scratch.expect_tidy(&["0", "1", "2", "3"]);
    });
}

#[test]
fn next_starts_at_once_when_the_holder_is_killed() {
    both(|scratch, [one, other]| {
        let mut holder = hold(scratch, one, "holder", &[]);
        let mut next = queue(scratch, other, "next", &[], 2);
        holder.signal(Signal::SIGKILL);
        next.wait_stdout_at_most(SOON, "ready");
        holder.wait().expect_signal(Signal::SIGKILL);
        holder.wait_until_nothing_is_left();
        silent(finish(&mut next));
        scratch.expect_tidy(&["holder", "next"]);
    });
}

#[test]
fn each_breaks_the_other() {
    both(|scratch, [one, other]| {
        let mut runs = [hold(scratch, one, "holder", &[]), queue(scratch, one, "waiter", &[], 2)];
        // The waiter first.
        for (n, run) in runs.iter_mut().enumerate().rev() {
            let node = scratch.wait_queue(n + 1).remove(n);
            silent(zklock(scratch, other).args(["break", "--node", &node, LOCK]).run().expect_code(0));
            run.wait().expect_code(76);
        }
        scratch.expect_tidy(&["holder"]);
    });
}

#[test]
fn readers_and_permits() {
    for options in [&["--shared"][..], &["--permits=2"]] {
        both(|scratch, [one, other]| {
            let mut runs = vec![hold(scratch, one, "one", options), hold(scratch, other, "other", options)];
            runs.push(queue(scratch, one, "writer", &[], 3));
            runs.push(queue(scratch, other, "last", options, 4));
            assert_eq!(scratch.log().order(), ["one", "other"]);
            for run in &mut runs {
                silent(finish(run));
            }
            let log =
                scratch.log().expect_apart(|one, other| [&one.name, &other.name].iter().any(|name| *name == "writer"));
            assert_eq!(log.order(), ["one", "other", "writer", "last"]);
        });
    }
}

#[test]
fn other_dialects() {
    for options in [&["--dialect=curator,curator-rw,kazoo"][..], &["--dialect=single"]] {
        both(|scratch, [one, other]| {
            let mut holder = hold(scratch, one, "holder", options);
            zklock(scratch, other).args(options).args(["-n", LOCK, "true"]).run().expect_code(75);
            silent(finish(&mut holder));
            silent(finish(&mut hold(scratch, other, "next", options)));
            scratch.expect_tidy(&["holder", "next"]);
        });
    }
}

#[test]
fn each_reads_the_record_of_the_other() {
    both(|scratch, [one, other]| {
        let run = |release| {
            let run = zklock(scratch, release).args(["--once-per", "1h", LOCK]).bare_child().run();
            silent(run.expect_code(0)).stdout()
        };
        assert_eq!(run(one), "ready\n");
        assert_eq!(run(other), "");
        let last = [one, other].map(|release| status(scratch, release)["last"].take());
        assert!(last[0]["started"].is_string() && last[0] == last[1], "{last:?}");
    });
}

/// docs/operations.md says so. Otherwise the run would wait for itself.
#[test]
fn nested_run_is_refused() {
    both(|scratch, [one, other]| {
        let nested = |lock| zklock(scratch, one).args([LOCK, "--"]).arg(other).args([lock, "true"]).run();
        let output = nested(LOCK).expect_code(78);
        assert!(only_line(&output).contains("ZKLOCK_LENDER"), "{output}");
        silent(nested("/another").expect_code(0));
    });
}

/// Version 0.2.0 does not read FILE.lock of a later version, and refuses it.
#[test]
fn lower_token_is_fenced() {
    both(|scratch, [one, other]| {
        let fence = |release, token| {
            let run = zklock(scratch, release).args(["fence", "--token", token]).arg(scratch.file("fence"));
            run.args(["--", "true"]).run()
        };
        silent(fence(one, "7").expect_code(0));
        fence(other, "6").expect_code(if other == binary() { 76 } else { 64 });
    });
}
