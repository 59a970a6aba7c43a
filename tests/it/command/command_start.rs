//! Signals, kills and losses in the instant in which the command starts.

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::harness::client::Kind;
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::running::{Running, finish};
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::zklock::{child, is_guard};

#[test]
fn signal_before_the_lock_is_seen() {
    let scratch = Scratch::new();
    let holder = scratch.occupy("");
    let mut job = scratch.zklock().arg(LOCK).arg("-v").bare_child().spawn();
    let contender = format!("{}/{}", LOCK, scratch.wait_queue(2)[1]);
    process::stop(job.pid());
    scratch.delete(&holder);
    // The keeper writes into its node when it began to hold, after it has told zklock.
    poll::until("the lock is held", || scratch.client().get(&contender).ok().filter(|(_, stat)| stat.version > 0));
    job.signal(Signal::SIGTERM);
    job.signal(Signal::SIGCONT);
    let output = job.wait().expect_signal(Signal::SIGTERM);
    // A command that the signal hit at once would have written nothing: zklock says when it starts one.
    assert!(output.stdout().is_empty() && !output.stderr().contains("holding"), "{output}");
}

/// A waiter whose turn has just come. It may or may not start its command; `tell` decides when it gets TERM.
fn signal_as_the_lock_comes(tell: impl FnOnce(&Scratch, &mut Running)) {
    let scratch = Scratch::new();
    let holder = scratch.occupy("");
    let mut job = scratch.zklock().arg(LOCK).arg("-v").child(["--exit-on", "TERM"]).spawn();
    scratch.wait_queue(2);
    scratch.delete(&holder);
    tell(&scratch, &mut job);
    let output = job.wait();
    assert_eq!(job.processes(), [], "{output}");
    // A command that was hit before it could catch signals has died of it, and zklock after it.
    match output.stdout().as_str() {
        "" => drop(output.expect_signal(Signal::SIGTERM)),
        "ready\nsignal TERM\n" => drop(output.expect_code(0)),
        _ => panic!("neither of the two\n{output}"),
    }
}

#[test]
fn signal_in_the_instant_of_the_lock() {
    for delay in 0..30 {
        signal_as_the_lock_comes(|scratch, job| {
            (0..delay).for_each(|_| drop(scratch.client().children(LOCK)));
            job.signal(Signal::SIGTERM);
        });
    }
}

/// The child that is to become the command is stopped before it executes the program. As a rule this
/// succeeds; if not, the test tries again.
#[test]
fn signal_between_fork_and_exec() {
    poll::until("a child is stopped between fork and exec", || {
        let mut is_between = false;
        signal_as_the_lock_comes(|_, job| {
            let forked = job.stop_forked();
            is_between = process::look(forked).is_some_and(|process| is_guard(&process));
            job.wait_stderr("holding");
            job.signal(Signal::SIGTERM);
            // It was taken back, or it had passed the gate: then it has to be continued.
            poll::until("the signal has had its effect", || {
                let is_dead = process::look(forked).is_none_or(|process| process.state == 'Z');
                (is_dead || process::is_pending(forked, Signal::SIGTERM)).then_some(())
            });
            process::send(forked, Signal::SIGCONT);
        });
        is_between.then_some(())
    });
}

/// Kills a supervisor about when it starts its command, which starts a process in a session of its own. The next one
/// gets the lock, and has it to itself.
#[track_caller]
fn kill_while_starting(scratch: &Scratch, aim: impl FnOnce(&mut Running)) {
    let options = ["--session-timeout", "60"];
    // What leads a process group, as the command does, cannot make a session (setsid(2)).
    let session = ["--spawn", "--", "--name", "session", "--setsid", "--beat", "--log", "log", "--wait"];
    let mut victim = scratch.start(&direct(), "victim", &options, &[&["--wait"], &session[..]].concat());
    aim(&mut victim);
    victim.signal(Signal::SIGKILL);
    let options = ["-w", "25s", "--session-timeout", "20"];
    let mut next = scratch.start(&direct(), "next", &options, &["--exit-on", "TERM"]);
    next.wait_stdout("next ready");
    let beside: Vec<_> = victim.processes().into_iter().filter(|process| process.name == "child").collect();
    assert_eq!(beside, [], "beside the next command");
    finish(&mut next);
    victim.wait().expect_signal(Signal::SIGKILL);
    victim.wait_until_nothing_is_left();
    next.wait_until_nothing_is_left();
    scratch.wait_queue(0);
}

#[test]
fn supervisor_killed_at_any_instant() {
    let scratch = Scratch::new().with_lock();
    let mut random = fastrand::Rng::with_seed(7);
    let rounds = 20;
    for _ in 0..rounds {
        let started = Moment::now();
        let delay = Duration::from_micros(random.u64(..30_000));
        kill_while_starting(&scratch, |_| started.after(delay).wait_past());
        // Closer: the command starts some milliseconds after its node is there.
        let delay = Duration::from_micros(random.u64(..12_000));
        kill_while_starting(&scratch, |_| {
            scratch.wait_queue(1);
            Moment::now().after(delay).wait_past();
        });
        // And as soon as there is the other session.
        kill_while_starting(&scratch, |victim| drop(victim.wait_stdout("session ready")));
    }
    let log = scratch.log().expect_apart(|one, two| one.name == "next" || two.name == "next");
    assert_eq!(log.count("next"), 3 * rounds);
}

/// The number of a processor that we may use (`Cpus_allowed_list` of proc_pid_status(5)).
fn one_processor() -> String {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a list of processors");
    list.trim().chars().take_while(char::is_ascii_digit).collect()
}

/// The command stops the supervisor, its guard's parent, as its first act; all are on one processor, and none is
/// interrupted for another's sake (SCHED_BATCH, sched(7)). Then it starts a process that has nothing of its environment,
/// and leaves a daemon.
#[test]
fn supervisor_stopped_and_killed_at_the_start() {
    let scratch = Scratch::new();
    for _ in 0..5 {
        let script = r#"kill -STOP "$(cut -d " " -f 4 </proc/$PPID/stat)"; env -i ZKLOCK_TEST="$ZKLOCK_TEST" "$1" --wait & "$@""#;
        let mut job = scratch.zklock().env("ZKLOCK_SESSION_TIMEOUT", "60").args([LOCK, "--", "sh", "-c", script, "sh"]);
        job = job.arg(child()).args(["--wait", "--spawn-daemon", "--", "--wait"]);
        let mut victim = job.run_by(["taskset", "-c", &one_processor(), "chrt", "-b", "0"]).spawn();
        for _ in ["the one in the group", "the command", "what is between", "the daemon"] {
            victim.wait_stdout("ready");
        }
        let (_, family) = victim.family(4);
        process::wait_state(victim.pid(), &['T']);
        let mut next = scratch.zklock().arg(LOCK).child(scratch.logged("next")).spawn();
        scratch.wait_queue(2);
        victim.signal(Signal::SIGKILL);
        next.wait_stdout("ready");
        process::expect_dead(&family);
        victim.wait().expect_signal(Signal::SIGKILL);
        victim.wait_until_nothing_is_left();
        finish(&mut next);
    }
}

/// The lock is taken away while the process that is to become the command is stopped at the gate, and the supervisor as
/// well. The guard ends it; it never becomes the command.
#[test]
fn lock_lost_before_exec() {
    poll::until("a process is stopped at the gate", || {
        let scratch = Scratch::new().with_lock();
        let prefix = format!("{LOCK}/_c_{:032x}-lock-", 1);
        let holder = scratch.client().create(&prefix, b"", Kind::EphemeralSequential).unwrap();
        let mut victim = scratch.start(&direct(), "victim", &["-v", "--session-timeout", "60"], &["--wait"]);
        scratch.wait_queue(2);
        let mut next = scratch.queue("next", 2);
        let forked = victim.stop_forked();
        let is_forked = process::look(forked).is_some_and(|process| is_guard(&process));
        scratch.delete(&holder);
        victim.wait_stderr("holding");
        process::stop(victim.pid());
        scratch.delete_holder();
        next.wait_stdout("next ready");
        process::wait_dead(forked);
        victim.signal(Signal::SIGCONT);
        victim.wait().expect_code(76);
        victim.wait_until_nothing_is_left();
        finish(&mut next);
        is_forked.then(|| scratch.expect_tidy(&["next"]))
    });
}
