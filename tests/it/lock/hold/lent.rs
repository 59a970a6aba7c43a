//! What runs below the process that the lock is held for uses the lock, and dies with it.

use std::fs;
use std::path::PathBuf;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::{LOOP, bash, hold, taken};
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process::{self, Process};
use crate::harness::proxy::Proxy;
use crate::harness::running::{Running, finish};
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::times::BRIEF_SESSION;
use crate::harness::zklock::{binary, child};

/// A script with a nested run that beats under [`BRIEF_SESSION`], and the next in the queue.
fn nested(scratch: &Scratch) -> (Running, Running) {
    let timeout = BRIEF_SESSION.as_secs().to_string();
    let nested = format!("\"$Z\" -n /lock -- \"$C\" --name inner --log log --beat --wait &\n{LOOP}");
    let mut script = taken(bash(scratch, &nested).env("ZKLOCK_SESSION_TIMEOUT", timeout));
    script.wait_stdout("inner ready");
    let next = scratch.zklock().arg(LOCK).child(scratch.logged("next")).spawn();
    scratch.wait_queue(2);
    (script, next)
}

/// The supervisor, the guard and the keeper of the child of the script whose guard has a child of this name.
fn processes(script: &Running, guarded: &str) -> [Pid; 3] {
    let child = |parent, name: &str| process::children(parent).into_iter().find(|child| child.name == name);
    let guard_of = |run: &Process| child(run.pid, "lock-guard").filter(|guard| child(guard.pid, guarded).is_some());
    let runs = process::children(script.pid());
    let run = runs.iter().find(|run| guard_of(run).is_some()).expect("a run");
    let [guard, keeper] = ["lock-guard", "lock-keeper"].map(|name| child(run.pid, name).expect("it has one").pid);
    [run.pid, guard, keeper]
}

/// The inner command is dead before the next holder's runs.
fn expect_next(scratch: &Scratch, script: &mut Running, mut next: Running) {
    finish(&mut next);
    assert_eq!(scratch.log().expect_no_overlap().order(), ["inner", "next"]);
    script.signal(Signal::SIGKILL);
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
    let script = "env | grep ^ZKLOCK_LENDER
        \"$Z\" -n /lock -- \"$C\" --name inner --log log --beat --until end & inner=$!
        \"$C\" --until go; kill $ZK_PID; wait $inner; echo end, $?; wait $ZK_PID";
    let mut script = taken(bash(&scratch, script));
    script.wait_stdout("inner ready");
    let mut next = scratch.queue("next", 1);
    scratch.touch("go");
    let offer = script.variable("ZKLOCK_LENDER");
    let numbers: Vec<_> = offer.split(' ').collect();
    let door = format!("/proc/{}/fd/{}", numbers[1], numbers[5]);
    let pipe = PathBuf::from(format!("pipe:[{}]", numbers[6]));
    poll::until("it lends no more", || fs::read_link(&door).map_or(true, |to| to != pipe).then_some(()));
    assert!(!next.stdout().contains("ready"), "{next}");
    scratch.touch("end");
    script.wait_stdout("end, 0");
    finish(&mut next);
    script.wait();
    assert_eq!(scratch.log().expect_no_overlap().order(), ["inner", "next"]);
}

/// Each of the processes, and all of them.
#[test]
fn a_process_of_the_lender_is_killed() {
    for killed in [&[0][..], &[1], &[2], &[0, 1], &[0, 2], &[1, 2], &[0, 1, 2]] {
        let scratch = Scratch::new();
        let (mut script, next) = nested(&scratch);
        let processes = processes(&script, "lock-hold");
        for index in killed {
            process::send(processes[*index], Signal::SIGKILL);
        }
        expect_next(&scratch, &mut script, next);
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
        let timeout = BRIEF_SESSION.as_secs().to_string();
        let mut script = taken(bash(&scratch, nested).env("ZKLOCK_SESSION_TIMEOUT", timeout));
        script.wait_stdout_all(&["inner ready", "outer ready"]);
        let mut next = scratch.zklock().arg(LOCK).child(scratch.logged("next")).spawn();
        scratch.wait_queue(2);
        let [hold, guard, keeper] = processes(&script, "lock-hold");
        let stand_in = process::children(guard)[0].pid;
        process::send([hold, guard, keeper, stand_in][killed], Signal::SIGKILL);
        finish(&mut next);
        assert_eq!(scratch.log().expect_no_overlap().order(), ["inner", "next"]);
        script.wait_stdout("inner, 76");
        scratch.touch("end");
        script.wait_until_nothing_is_left();
    }
}

/// The lender waits until all that it has lent is given back; so a borrower that waits for another lock gives it back.
#[test]
fn the_lender_dies_before_the_borrower_runs() {
    let scratch = Scratch::new();
    let mut busy = scratch.zklock().arg("/other").child(["--exit-on", "TERM"]).spawn();
    busy.wait_stdout("ready");
    let script = "trap 'echo told' TERM; \"$Z\" --and /other /lock -- \"$C\" --name inner --log log & wait; wait";
    let mut script = taken(bash(&scratch, script));
    let before = scratch.client().wait_count("/other", 2);
    let [hold, ..] = processes(&script, "lock-hold");
    process::send(hold, Signal::SIGKILL);
    scratch.client().wait_children("/other", "it queues anew", |now| now.iter().any(|node| !before.contains(node)));
    finish(&mut busy);
    script.wait_stdout("inner ready");
    script.wait();
}

/// The same while the borrower is cut off from all servers.
#[test]
fn the_lender_dies_while_the_borrower_is_cut_off() {
    let scratch = Scratch::new();
    let proxy = Proxy::zookeeper(&direct());
    let mut busy = scratch.zklock().arg("/other").child(["--exit-on", "TERM"]).spawn();
    busy.wait_stdout("ready");
    let inner = format!("\"$Z\" -v -z {} --and /other /lock", scratch.chroot().by(proxy.address()));
    let script = format!("trap 'echo told' TERM; {inner} -- \"$C\" --name inner & wait; wait");
    let mut script = taken(bash(&scratch, &script));
    scratch.client().wait_count("/other", 2);
    proxy.refuse();
    proxy.reset();
    script.wait_stderr("connecting to ZooKeeper: ");
    let [hold, ..] = processes(&script, "lock-hold");
    process::send(hold, Signal::SIGKILL);
    scratch.client().wait_children("/lock", "it is released", <[_]>::is_empty);
    proxy.accept();
    finish(&mut busy);
    script.wait_stdout("inner ready");
    script.wait();
}

/// A script that holds two locks, each by a zklock of its own.
fn two_held(scratch: &Scratch, then: &str) -> Running {
    let script = "coproc A { exec \"$Z\" hold /a; }; set -a; source /dev/fd/\"${A[0]}\"
        \"$Z\" hold --while $$ /b >b & b=$!; until grep -q HELD b; do sleep 0.01; done; . ./b; set +a; echo taken\n";
    let script = scratch.zklock().program("/bin/bash").args(["-c", &format!("{script}{then}")]);
    taken(script.env("Z", binary()).env("C", child()))
}

/// The other lock can be released, and lost, without it.
#[test]
fn only_what_is_used_is_borrowed() {
    let scratch = Scratch::new();
    let mut script = two_held(
        &scratch,
        "\"$Z\" -n /a -- \"$C\" --name inner --until end & inner=$!
        \"$C\" --until go; kill $b; wait $b; echo b, $?; \"$C\" --until on; wait $inner; echo inner, $?",
    );
    script.wait_stdout("inner ready");
    scratch.touch("go");
    script.wait_stdout("b, 0");
    scratch.touch("end");
    scratch.touch("on");
    script.wait_stdout("inner, 0");
    script.wait();
}

/// One of two lenders dies while the borrower waits for a third lock.
#[test]
fn one_of_several_lenders_dies_before_the_borrower_runs() {
    let scratch = Scratch::new();
    let mut busy = scratch.zklock().arg("/c").child(["--exit-on", "TERM"]).spawn();
    busy.wait_stdout("ready");
    let mut script = two_held(
        &scratch,
        "trap : TERM; \"$Z\" --and /a --and /b /c -- \"$C\" --name inner & inner=$!
        \"$C\" --until go; kill -9 $b; wait $inner; echo inner, $?",
    );
    scratch.client().wait_count("/c", 2);
    scratch.touch("go");
    // Its lender has released it, and it is taken for ourselves.
    poll::until("the lock changes hands", || {
        scratch.client().children("/b").iter().any(|name| name.ends_with("1")).then_some(())
    });
    finish(&mut busy);
    script.wait_stdout("inner, 0");
    script.wait();
}

/// The borrower's command has ended, and its guard and its keeper are stopped. Its supervisor kills what is waited for.
#[test]
fn what_the_borrowers_command_has_left_behind() {
    let scratch = Scratch::new();
    let nested = format!(
        "trap : TERM; \"$Z\" -n --wait-descendants /lock -- \"$C\" --name outer --spawn -- --name inner --log log --beat --setsid --wait
        echo inner, $?; {LOOP}"
    );
    let timeout = BRIEF_SESSION.as_secs().to_string();
    let mut script = taken(bash(&scratch, &nested).env("ZKLOCK_SESSION_TIMEOUT", timeout));
    script.wait_stdout_all(&["inner ready", "outer ready"]);
    let next = scratch.zklock().arg(LOCK).child(scratch.logged("next")).spawn();
    scratch.wait_queue(2);
    let [_, guard, keeper] = processes(&script, "child");
    poll::until("the end of the command", || {
        let left = process::children(guard);
        (left.len() == 1 && process::children(left[0].pid).is_empty()).then_some(())
    });
    [guard, keeper].into_iter().for_each(process::stop);
    let [_, holds, _] = processes(&script, "lock-hold");
    let killed = Moment::now();
    process::send(process::children(holds)[0].pid, Signal::SIGKILL);
    script.wait_stdout("inner, 76");
    assert!(scratch.last_alive("inner") < killed.after(BRIEF_SESSION / 4), "{:?}", scratch.log());
    process::send(keeper, Signal::SIGCONT);
    expect_next(&scratch, &mut script, next);
    script.wait_until_nothing_is_left();
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
