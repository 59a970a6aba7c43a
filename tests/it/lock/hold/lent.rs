//! What runs below the process that the lock is held for uses the lock, and dies with it.

use std::os::unix::fs::FileExt as _;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::{LOOP, bash, hold, taken};
use crate::harness::process::{self, Process};
use crate::harness::running::{Running, finish};
use crate::harness::scratch::Scratch;
use crate::harness::times::{BRIEF_SESSION, SOON};
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

/// The pipe tells: nobody waits for the end of the lease.
#[test]
fn a_lender_that_is_killed_is_missed_at_once() {
    let scratch = Scratch::new();
    let nested = "\"$Z\" -n /lock -- \"$C\" --name inner --wait; echo inner, $?";
    let mut script = taken(bash(&scratch, nested).env("ZKLOCK_SESSION_TIMEOUT", "60"));
    script.wait_stdout("inner ready");
    process::send(processes(&script)[0], Signal::SIGKILL);
    script.wait_stdout_at_most(SOON, "inner, 76");
    script.wait_until_nothing_is_left();
    scratch.wait_queue(0);
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

/// A step of the script needs no server, and dies with the lease, whoever else is suspended.
#[test]
fn the_servers_are_silent_and_the_lender_is_suspended() {
    let (scratch, proxy) = Scratch::proxied();
    let servers = scratch.chroot().by(proxy.address()).to_string();
    let script = "\"$C\" --until go; \"$Z\" -n /lock -- \"$C\" --name inner --log log --beat --wait; echo inner, $?
        \"$C\" --until end";
    let script = bash(&scratch, script).env("ZKLOCK_ZOOKEEPER", servers).env("OPTIONS", "--no-signal");
    let mut script = taken(script.env("ZKLOCK_SESSION_TIMEOUT", "10"));
    let next = scratch.queue("next", 1);
    proxy.hold();
    let processes = processes(&script);
    processes.into_iter().for_each(process::stop);
    scratch.touch("go");
    script.wait_stdout("inner ready");
    expect_next(&scratch, next);
    script.wait_stdout("inner, 76");
    processes.into_iter().for_each(|process| process::send(process, Signal::SIGKILL));
    scratch.touch("end");
    script.wait_until_nothing_is_left();
}

/// A page of a version that this one does not understand: the step says so, and does not wait.
#[test]
fn a_holder_of_another_version() {
    let scratch = Scratch::new();
    let script = "\"$C\" --until go; \"$Z\" -w 20s /lock true; echo step, $?; kill $ZK_PID";
    let mut script = taken(bash(&scratch, script));
    let [hold, ..] = processes(&script);
    let pages = std::fs::read_dir(format!("/proc/{hold}/fd")).unwrap().flatten();
    let is_page = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|there| there.to_string_lossy().starts_with("/memfd:lease"))
    };
    let page = pages.map(|entry| entry.path()).find(is_page).expect("its page");
    let page = std::fs::File::options().write(true).open(page).expect("its page");
    page.set_len(0).expect_err("nobody makes it shorter");
    page.write_all_at(&2_u64.to_ne_bytes(), 0).expect("a number");
    scratch.touch("go");
    script.wait_stdout("step, 78");
    let line = script.wait_stderr("/lock is held by");
    assert!(line.ends_with("which cannot be reached: it is another version of zklock"), "{line}");
    script.wait();
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
