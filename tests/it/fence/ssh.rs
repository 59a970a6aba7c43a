//! What a holder has started by `ssh`, through a real sshd.

use std::fs;

use nix::sys::signal::Signal;

use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::proxy::Proxy;
use crate::harness::running::Running;
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::sshd::Sshd;
use crate::harness::zklock::{Zklock, binary, child};

/// A holder whose command works at the other end of an `ssh` through this port, as in the README. What is said there goes
/// to a file.
fn holder(scratch: &Scratch, sshd: &Sshd, port: u16, name: &str) -> Running {
    let [directory, zklock, child] = [&scratch.file(""), binary(), child()].map(|path| path.display().to_string());
    let work = format!("'{child}' --name {name} --log log --beat --until end --exit-on TERM");
    let fence = format!("'{zklock}' fence --token $ZKLOCK_TOKEN -k 50s file {work}");
    let ssh = sshd.ssh(port);
    let script = format!("echo $ZKLOCK_TOKEN; exec {ssh} \"cd '{directory}' && exec {fence} >>said 2>&1\"");
    scratch.zklock().args([LOCK, "-c", &script]).spawn()
}

/// Waits until this is said at the other end.
#[track_caller]
fn wait_said(scratch: &Scratch, part: &str) {
    let said = || fs::read_to_string(scratch.file("said")).unwrap_or_default();
    poll::until(format_args!("{part:?} at the other end"), || said().contains(part).then_some(()));
}

/// `cut` ends the first holder, but not what it has started at the other end. That goes on until the next holder's work
/// comes, which begins when it has ended.
#[track_caller]
fn goes_on_until_the_next_comes(cut: fn(&Scratch, &Proxy, &mut Running)) {
    let (scratch, sshd) = (Scratch::new().with_lock(), Sshd::start());
    let network = Proxy::plain(sshd.address());
    let mut first = holder(&scratch, &sshd, network.port(), "first");
    wait_said(&scratch, "first ready");
    cut(&scratch, &network, &mut first);
    first.wait_until_nothing_is_left();
    scratch.wait_queue(0);
    scratch.wait_alive_at("first", Moment::now());

    let mut second = holder(&scratch, &sshd, sshd.address().port(), "second");
    wait_said(&scratch, "second ready");
    let token = second.stdout();
    wait_said(&scratch, &format!("a later holder has come, with the token {} for file", token.trim_end()));
    wait_said(&scratch, "first signal TERM");
    let late = Zklock::bare().directory(scratch.file("")).args(["fence", "--token", first.stdout().trim_end()]);
    late.args(["file", "true"]).run().expect_code(76);
    scratch.touch("end");
    second.wait().expect_code(0);
    scratch.expect_tidy(&["first", "second"]);
}

#[test]
fn zklock_is_killed() {
    goes_on_until_the_next_comes(|_, _, first| {
        first.signal(Signal::SIGKILL);
        first.wait().expect_signal(Signal::SIGKILL);
    });
}

#[test]
fn the_connection_breaks() {
    goes_on_until_the_next_comes(|_, network, first| {
        network.reset();
        // That of ssh.
        first.wait().expect_code(255);
    });
}

/// The network between the two hosts is cut without a word, and the holder loses the lock.
#[test]
fn the_connection_falls_silent() {
    goes_on_until_the_next_comes(|scratch, network, first| {
        network.hold();
        scratch.delete_holder();
        first.wait().expect_code(76);
    });
}
