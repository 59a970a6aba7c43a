//! `-q` and `-v`: saying less, and saying more.

use crate::harness::running::count_own_lines;
use crate::harness::scratch::{HELD_BY_DB3, LOCK, Scratch, ageless};
use crate::harness::server::free_port;
use crate::harness::zklock::Zklock;

#[test]
fn quiet_is_silent_of_a_busy_lock() {
    let scratch = Scratch::new();
    let holder = scratch.occupy("");
    for option in ["-n", "--timeout=2s"] {
        assert_eq!(scratch.zklock().arg(LOCK).args(["-q", option]).bare_child().run().expect_code(75).stderr(), "");
    }
    scratch.delete(&holder);
    let servers = format!("127.0.0.1:{}", free_port());
    let output =
        Zklock::at(servers).args(["-q", "--connect-timeout=200ms", "/lock"]).bare_child().run().expect_code(69);
    assert_eq!(count_own_lines(&output.stderr()), 1, "{output}");
}

#[test]
fn verbose_tells_the_course_of_things() {
    let scratch = Scratch::new();
    let mut counts = vec![];
    for option in ["-v", "-vv", "-vvv"] {
        let holder = scratch.occupy_as_db3();
        let mut job = scratch.zklock().arg(LOCK).arg(option).bare_child().spawn();
        let waiting = job.wait_stderr("waiting for /lock");
        assert!(ageless(&waiting).ends_with(HELD_BY_DB3), "{waiting}");
        scratch.delete(&holder);
        let output = job.wait().expect_code(0);
        assert!(output.stderr().contains(", token "), "{output}");
        assert_eq!(output.stdout(), "ready\n");
        let told = ["session ", "event ", "bytes to ZooKeeper"].map(|word| output.stderr().contains(word));
        assert_eq!(told, [true, option != "-v", option == "-vvv"], "{output}");
        counts.push(count_own_lines(&output.stderr()));
    }
    assert!(counts.is_sorted_by(|less, more| less < more), "{counts:?}");
}
