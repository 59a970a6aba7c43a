//! `--signal` and `--kill-after`: how a command is stopped when the lock is lost.

use crate::harness::fault::NO_ANSWER;
use crate::harness::moment::Moment;
use crate::harness::scratch::{LASTING, Scratch};

#[test]
fn tidy_end_gives_76() {
    let (scratch, proxy) = Scratch::proxied();
    let options = [&LASTING[..], &["--signal", "USR1"]].concat();
    let mut holder = scratch.start(&proxy.address(), "holder", &options, &["--exit-on", "USR1"]);
    holder.wait_stdout("ready");
    proxy.hold();
    let output = holder.expect_lost(NO_ANSWER);
    assert!(output.stdout().contains("\nholder signal USR1\n"), "{output}");
    assert!(scratch.log().runs()[0].ended);
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn none_without_a_grace() {
    let (scratch, proxy) = Scratch::proxied();
    let (mut holder, mut next) = scratch.holder_and_next(&proxy.address(), &["--kill-after", "0"]);
    proxy.hold();
    let output = scratch.expect_handover(&mut holder, &mut next, Moment::now(), NO_ANSWER);
    assert!(output.stdout().ends_with("holder ready\n"), "{output}");
}
