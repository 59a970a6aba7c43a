//! What runs below the process that the lock is held for uses the lock, and dies with it.

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::{LOOP, bash, hold, taken};
use crate::harness::process::{self, Process};
use crate::harness::running::{Running, finish};
use crate::harness::scratch::Scratch;
use crate::harness::times::BRIEF_SESSION;
use crate::harness::zklock::{binary, child};
use crate::lock::nested::wait_until_it_lends_no_more;

/// A script that holds the lock under [`BRIEF_SESSION`].
fn briefly(scratch: &Scratch, then: &str) -> Running {
    taken(bash(scratch, then).env("ZKLOCK_SESSION_TIMEOUT", BRIEF_SESSION.as_secs().to_string()))
}

/// The supervisor, the guard and the keeper of `zklock hold` below a script, and what stands in for its command.
fn processes(script: &Running) -> [Pid; 4] {
    let child = |parent, name: &str| process::children(parent).into_iter().find(|child| child.name == name);
    let stand_in = |run: &Process| child(child(run.pid, "lock-guard")?.pid, "lock-hold");
    let runs = process::children(script.pid());
    let (hold, stand_in) = runs.iter().find_map(|run| Some((run.pid, stand_in(run)?.pid))).expect("a run that holds");
    let [guard, keeper] = ["lock-guard", "lock-keeper"].map(|name| child(hold, name).expect("it has one").pid);
    [hold, guard, keeper, stand_in]
}

/// The inner command is dead before the next holder's runs.
fn expect_next(scratch: &Scratch, mut next: Running) {
    finish(&mut next);
    assert_eq!(scratch.log().expect_no_overlap().order(), ["inner", "next"]);
}

#[test]
fn at_once() {
    let scratch = Scratch::new();
    let output =
        bash(&scratch, "\"$Z\" -n /lock echo nested; \"$Z\" -n /lock -- \"$Z\" -n /lock echo twice; true").run();
    assert_eq!(output.expect_code(0).stdout(), "taken\nnested\ntwice\n");
}

#[test]
fn the_lock_is_released_after_the_last_of_them() {
    let scratch = Scratch::new();
    let script = "\"$Z\" -n /lock -- \"$C\" --name inner --log log --beat --until end & inner=$!
        \"$C\" --until go; kill $ZK_PID; wait $inner; echo end, $?; wait $ZK_PID";
    let mut script = taken(bash(&scratch, script));
    script.wait_stdout("inner ready");
    let next = scratch.queue("next", 1);
    let [hold, ..] = processes(&script);
    scratch.touch("go");
    wait_until_it_lends_no_more(&script, hold);
    assert!(!next.stdout().contains("ready"), "{next}");
    scratch.touch("end");
    script.wait_stdout("end, 0");
    expect_next(&scratch, next);
    script.wait();
}

/// Each of the processes, and all of them.
#[test]
fn a_process_of_the_lender_is_killed() {
    for killed in [&[0][..], &[1], &[2], &[0, 1], &[0, 2], &[1, 2], &[0, 1, 2]] {
        let scratch = Scratch::new();
        let nested = format!("\"$Z\" -n /lock -- \"$C\" --name inner --log log --beat --wait &\n{LOOP}");
        let mut script = briefly(&scratch, &nested);
        script.wait_stdout("inner ready");
        let next = scratch.queue("next", 1);
        let processes = processes(&script);
        killed.iter().for_each(|&index| process::send(processes[index], Signal::SIGKILL));
        expect_next(&scratch, next);
        script.signal(Signal::SIGKILL);
        script.wait_until_nothing_is_left();
    }
}

/// What has left the command's process group is not in the kernel's reach. The borrower's guard kills it, and does not
/// take the end of the command for one of its own.
#[test]
fn what_has_left_the_group_of_the_borrowers_command() {
    for killed in [0, 1, 2, 3] {
        let scratch = Scratch::new();
        let nested = "trap : TERM; \"$Z\" -n /lock -- \"$C\" --name outer --wait --spawn -- \
            --name inner --log log --beat --setsid --wait; echo inner, $?; \"$C\" --until end";
        let mut script = briefly(&scratch, nested);
        script.wait_stdout_all(&["inner ready", "outer ready"]);
        let next = scratch.queue("next", 1);
        process::send(processes(&script)[killed], Signal::SIGKILL);
        expect_next(&scratch, next);
        script.wait_stdout("inner, 76");
        scratch.touch("end");
        script.wait_until_nothing_is_left();
    }
}

/// The lender waits until all that it has lent is given back; so a borrower that waits for another lock gives it back, and
/// ends.
#[test]
fn the_lender_dies_before_the_borrower_runs() {
    let scratch = Scratch::new();
    let mut busy = scratch.zklock().arg("/other").child(["--exit-on", "TERM"]).spawn();
    busy.wait_stdout("ready");
    let script = "trap 'echo told' TERM; (\"$Z\" --and /other /lock -- true; echo inner, $?) & wait; wait";
    let mut script = taken(bash(&scratch, script));
    scratch.client().wait_count("/other", 2);
    let [hold, ..] = processes(&script);
    process::send(hold, Signal::SIGKILL);
    script.wait_stdout("inner, 76");
    scratch.client().wait_count("/other", 1);
    finish(&mut busy);
    let output = script.wait();
    let why = "an outer zklock that held one of them has gone; the command was not started";
    assert!(output.stderr().contains(why), "{output}");
}

/// The other lock can be released without it.
#[test]
fn only_what_is_used_is_borrowed() {
    let scratch = Scratch::new();
    let script = "coproc A { exec \"$Z\" hold /a; }; set -a; source /dev/fd/\"${A[0]}\"
        \"$Z\" hold --while $$ /b >b & b=$!; until grep -q HELD b; do sleep 0.01; done; . ./b; set +a
        \"$Z\" -n /a -- \"$C\" --name inner --until end & inner=$!
        \"$C\" --until go; kill $b; wait $b; echo b, $?; \"$C\" --until on; wait $inner; echo inner, $?";
    let script = scratch.zklock().program("/bin/bash").args(["-c", script]);
    let mut script = script.env("Z", binary()).env("C", child()).spawn();
    script.wait_stdout("inner ready");
    scratch.touch("go");
    script.wait_stdout("b, 0");
    scratch.touch("end");
    scratch.touch("on");
    script.wait_stdout("inner, 0");
    script.wait();
}

/// The environment alone does not make a process one of those for which the lock is held.
#[test]
fn what_is_not_below_the_caller() {
    let scratch = Scratch::new();
    let mut script = taken(bash(&scratch, &format!("env >environment; echo written; {LOOP}")));
    script.wait_stdout("written");
    let environment = scratch.read("environment");
    let mut stranger = hold(&scratch).arg("-n");
    for line in environment.lines().filter(|line| line.starts_with("ZKLOCK_")) {
        let (name, value) = line.split_once('=').expect("NAME=value");
        stranger = stranger.env(name, value);
    }
    stranger.run().expect_code(75);
    script.signal(Signal::SIGTERM);
    script.wait_until_nothing_is_left();
}
