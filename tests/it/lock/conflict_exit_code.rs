//! `-E`: the status of a lock that was not free.

use crate::harness::running::{finish, only_line};
use crate::harness::scratch::{LOCK, Scratch};

#[test]
fn status_that_was_asked_for() {
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    for (status, code) in [("0", 0), ("1", 1), ("255", 255)] {
        only_line(&scratch.zklock().args(["-n", "-E", status, LOCK, "true"]).run().expect_code(code));
    }
    finish(&mut holder);
}
