//! The harness does what it says: a test that relies on it proves nothing otherwise.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use nix::sys::signal::Signal;
use nix::unistd::{Pid, getsid};

use super::joblog::JobLog;
use super::poll;
use super::process;
use super::zklock::{Zklock, child};

/// Every file below tests/it is declared by the file above it.
#[test]
fn no_test_file_is_forgotten() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let mut folders = vec![(root.join("main.rs"), root)];
    while let Some((above, folder)) = folders.pop() {
        let declarations = fs::read_to_string(&above).unwrap();
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            // What a protocol test reads is no test.
            if ["main", "mod", "recorded"].contains(&name) {
                continue;
            }
            assert!(declarations.contains(&format!("mod {name};")), "{} does not declare {name}", above.display());
            if path.is_dir() {
                let inside = path.join("mod.rs");
                folders.push((if inside.exists() { inside } else { path.with_extension("rs") }, path));
            }
        }
    }
}

/// The child by itself, without zklock around it.
fn just_child<const N: usize>(args: [&str; N]) -> Zklock {
    Zklock::bare().program(child()).args(args)
}

#[test]
fn descendants_are_found_wherever_they_went() {
    let args = ["--spawn", "--", "--name", "b", "--spawn-daemon", "--", "--name", "c", "--wait"];
    let mut job = just_child(args).spawn();
    job.wait_stdout("c ready");
    job.wait().expect_code(0);
    let left = poll::until("only the daemon is left", || <[_; 1]>::try_from(job.processes()).ok());
    assert_ne!(left[0].session, getsid(None).unwrap());
    process::send(left[0].pid, Signal::SIGKILL);
    job.wait_until_nothing_is_left();
}

#[test]
fn what_is_left_behind_is_killed_and_told() {
    let mut job = just_child(["--wait", "--spawn", "--", "--name", "b", "--wait"]).spawn();
    job.wait_stdout("b ready");
    let grandchild = process::children(job.pid()).first().expect("a grandchild").pid.as_raw();
    let message = catch_unwind(AssertUnwindSafe(|| drop(job))).unwrap_err();
    let message = message.downcast_ref::<String>().unwrap();
    assert!(message.starts_with("left behind and killed: ") && message.contains(&grandchild.to_string()), "{message}");
    assert!(process::look(Pid::from_raw(grandchild)).is_none_or(|process| process.state == 'Z'));
}

#[test]
fn panic_of_a_child_fails_the_test() {
    let mut job = Zklock::bare().program("sh").args(["-c", r#""$0" --unheard-of; true"#]).arg(child()).spawn();
    job.wait().expect_code(0);
    let message = catch_unwind(AssertUnwindSafe(|| drop(job))).unwrap_err();
    let message = message.downcast_ref::<String>().unwrap();
    assert!(message.starts_with("a child panicked: ") && message.contains("what is --unheard-of?"), "{message}");
}

#[test]
fn a_log_tells_overlaps_and_order() {
    let log = JobLog::parse("begin 10 1 a\nend 20 1 a\nbegin 30 2 b\nbegin 40 3 c\nalive 50 2 b\nend 60 3 c\nbegin 7");
    assert_eq!(log.order(), ["a", "b", "c"]);
    assert_eq!(log.most_at_once(), 2);
    let pairs: Vec<_> = log.overlaps().into_iter().map(|(one, two)| (one.pid, two.pid)).collect();
    assert_eq!(pairs, [(2, 3)]);
    assert!(!log.runs()[1].ended && log.runs()[2].ended, "b was killed");
    let parts = |text| catch_unwind(move || JobLog::parse(text).expect_no_overlap()).is_ok();
    assert!(!parts("begin 30 2 b\nbegin 40 3 c\nalive 50 2 b\n"));
    assert!(parts("begin 30 2 b\nalive 35 2 b\nbegin 40 3 c\n"));
    assert!(!parts("") && !parts("begin 30 2 b\n"), "nothing could overlap");
}
