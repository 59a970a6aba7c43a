//! Numbers of contenders near the end of their range, and past it.

use zklock::rules::queue::SEQUENCE_LIMIT;

use crate::harness::counter;
use crate::harness::running::{finish, only_line, silent};
use crate::harness::scratch::LOCK;

#[test]
fn counter_that_has_run_out() {
    let (_server, scratch) = counter::standing_at(SEQUENCE_LIMIT - 1);
    let mut holder = scratch.hold();
    let node = &scratch.client().children(LOCK)[0];
    assert!(node.ends_with(&(SEQUENCE_LIMIT - 1).to_string()), "{node}");
    let refused = scratch.zklock().args([LOCK, "true"]).run().expect_code(78);
    assert!(only_line(&refused).contains("/lock are used up"), "{refused}");
    assert_eq!(scratch.client().children(LOCK).len(), 1);
    finish(&mut holder);
    scratch.zklock().args([LOCK, "true"]).run().expect_code(78);
    // A node that is created anew counts from 0.
    scratch.delete(LOCK);
    silent(scratch.zklock().args([LOCK, "true"]).run().expect_code(0));
}

/// The last numbers that a server gives. With any number after them nothing is started, and nothing is left.
#[test]
fn beyond_the_last_number() {
    let (_server, scratch) = counter::standing_at(i32::MAX - 1);
    for _ in 0..4 {
        only_line(&scratch.zklock().args([LOCK, "true"]).run().expect_code(78));
        assert_eq!(scratch.client().children(LOCK), Vec::<String>::new());
    }
}
