//! `--max-run`: the command is stopped when it has run for that long, with status 124.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::harness::daemon::left_behind;
use crate::harness::moment::Moment;
use crate::harness::process;
use crate::harness::running::{Output, Running, finish, silent};
use crate::harness::scratch::{LASTING, Scratch, direct};
use crate::harness::times::{AT_ONCE, LEASE};

/// The time in which a command starts, however slow the machine.
const MAX_RUN: &str = "3";

/// The run ended with the status and the one line of `--max-run`.
#[track_caller]
fn expect_ran_out(run: &mut Running, max_run: &str) -> Output {
    let output = run.wait().expect_code(124);
    let said = format!("zklock: the time of --max-run, {max_run}, is over; stopping the command\n");
    assert_eq!(output.stderr(), said, "{output}");
    run.wait_until_nothing_is_left();
    output
}

#[test]
fn stop_signal_then_sigkill_then_release() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold_with(&["--max-run", MAX_RUN, "-k", "2500ms"], &["--wait"]);
    let mut next = scratch.queue("next", 1);
    let output = expect_ran_out(&mut holder, "3s");
    assert!(output.stdout().ends_with("holder ready\nholder signal TERM\nholder signal CONT\n"), "{output}");
    // The log begins a little after the time does: what the program takes to start.
    let lived = scratch.last_alive("holder").since(scratch.begin("holder"));
    assert!(lived >= Duration::from_secs(3), "{lived:?}");
    assert!(lived <= Duration::from_millis(5500) + AT_ONCE, "{lived:?}");
    next.wait_stdout("ready");
    scratch.begin("next").expect_within(AT_ONCE, scratch.last_alive("holder"), "the next one begins");
    finish(&mut next);
    scratch.expect_tidy(&["holder", "next"]);
}

/// A grace that a test does not wait for, and in which it can do something.
const LONG_GRACE: [&str; 4] = ["--session-timeout", "60", "-k", "15"];

#[test]
fn tidy_end_by_any_signal_gives_124_at_once() {
    let scratch = Scratch::new().with_lock();
    let options = [&LONG_GRACE[..], &["--max-run", MAX_RUN, "--signal", "USR1"]].concat();
    let mut holder = scratch.hold_with(&options, &["--exit-on", "INT"]);
    holder.wait_stdout("holder signal CONT");
    holder.signal(Signal::SIGINT);
    let output = expect_ran_out(&mut holder, "3s");
    assert!(output.stdout().ends_with("holder signal USR1\nholder signal CONT\nholder signal INT\n"), "{output}");
    assert!(output.elapsed < Duration::from_secs(15), "the grace is not waited for\n{output}");
    assert!(scratch.log().runs()[0].ended);
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn waiting_does_not_count() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold();
    let options = [&LASTING[..], &["--max-run", "6"]].concat();
    let mut next = scratch.start(&direct(), "next", &options, &["--exit-on", "TERM"]);
    scratch.wait_queue(2);
    scratch.wait_alive_at("holder", Moment::now().after(Duration::from_secs(7)));
    finish(&mut holder);
    silent(finish(&mut next));
    scratch.expect_tidy(&["holder", "next"]);
}

#[test]
fn stopped_command() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold_with(&["--max-run", MAX_RUN, "-k", "2"], &["--wait"]);
    process::send(holder.command(), Signal::SIGSTOP);
    let output = expect_ran_out(&mut holder, "3s");
    assert!(output.stdout().contains("holder signal TERM\n"), "it was continued for the stop signal\n{output}");
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn stopped_zklock() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold_with(&["--max-run", MAX_RUN], &["--exit-on", "TERM"]);
    holder.signal(Signal::SIGSTOP);
    scratch.wait_alive_at("holder", scratch.begin("holder").after(Duration::from_millis(3300)));
    holder.signal(Signal::SIGCONT);
    expect_ran_out(&mut holder, "3s");
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn lock_lost_in_the_grace() {
    let scratch = Scratch::new().with_lock();
    let options = [&LONG_GRACE[..], &["--max-run", MAX_RUN]].concat();
    let mut holder = scratch.hold_with(&options, &["--wait"]);
    holder.wait_stdout("holder signal TERM");
    scratch.delete_holder();
    let output = holder.wait().expect_code(76);
    let said = output.stderr();
    let [over, lost] = said.lines().collect::<Vec<_>>()[..] else { panic!("{output}") };
    assert!(over.contains("--max-run") && lost.contains("its node was deleted"), "{output}");
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn silence_does_not_extend_the_lease() {
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = scratch.start(&proxy.address(), "holder", &["--max-run", MAX_RUN, "-k", "1750ms"], &["--wait"]);
    holder.wait_stdout("holder ready");
    proxy.hold();
    let silence = Moment::now();
    let mut next = scratch.queue("next", 1);
    // Whichever of the two came first, the command is dead within the lease.
    let output = holder.wait();
    assert!([Some(76), Some(124)].contains(&output.status.code()), "{output}");
    scratch.last_alive("holder").expect_within(LEASE, silence, "the holder's command is dead");
    finish(&mut next);
    scratch.expect_tidy(&["holder", "next"]);
}

#[test]
fn counts_on_with_wait_descendants() {
    let scratch = Scratch::new().with_lock();
    let mut holder = left_behind(&scratch, &["--wait-descendants", "--max-run", "6", "-k", "2"], &[]);
    let output = expect_ran_out(&mut holder, "6s");
    assert!(output.stdout().contains("daemon signal TERM\n"), "{output}");
    scratch.wait_queue(0);
}
