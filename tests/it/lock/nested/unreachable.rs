//! A run whose outer run it cannot reach would wait for itself: it refuses to.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use tempfile::TempDir;

use super::script;
use crate::harness::rights::{AS_NOBODY, IN_ANOTHER_TIME, Right, as_pid_1, mounted, refused, unshare};
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::zklock::{binary, copy_program};

/// The binary where any user may execute it.
fn for_all() -> (TempDir, PathBuf) {
    let place = tempfile::tempdir_in("/tmp").expect("a temporary directory");
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).expect("a directory of ours");
    let copy = place.path().join("zklock");
    copy_program(binary(), &copy);
    (place, copy)
}

/// Runs `BY zklock OPTIONS /lock -- true` below a holder of the lock, and expects that it is refused.
#[track_caller]
fn expect_refused<W: AsRef<str>>(by: impl IntoIterator<Item = W>, why: &str) {
    let (_place, copy) = for_all();
    let scratch = Scratch::new();
    let by: String = by.into_iter().map(|word| format!("'{}' ", word.as_ref())).collect();
    let inner = format!("{by} {} -w 20s /lock -- true", copy.display());
    // Another user may not read the key of a certificate.
    let output = script(&scratch, &[], &inner).plain().run().expect_code(78);
    let line = format!("zklock: {LOCK} is held by the run that started this one, which cannot be reached: {why}\n");
    assert_eq!((output.stdout(), output.stderr()), (String::new(), line), "{output}");
    assert!(scratch.client().children(LOCK).is_empty());
}

const FOREIGN: &str = "another user or container";

#[test]
fn another_user() {
    if refused([Right::Root]) {
        return;
    }
    expect_refused(AS_NOBODY, FOREIGN);
}

/// The processes of other users are not even shown (proc(5)).
#[test]
fn another_user_without_a_view() {
    if refused([Right::Root, Right::Mounts]) {
        return;
    }
    for hidepid in [1, 2] {
        let hide = format!("mount -t proc -o hidepid={hidepid} proc /proc");
        expect_refused(mounted(&hide).iter().map(String::as_str).chain(AS_NOBODY), FOREIGN);
    }
}

#[test]
fn another_user_namespace() {
    if refused([Right::UserNamespaces]) {
        return;
    }
    expect_refused(["unshare", "--user"], FOREIGN);
}

#[test]
fn another_pid_namespace() {
    if refused([Right::PidNamespaces]) {
        return;
    }
    expect_refused(as_pid_1(), FOREIGN);
}

/// What tells one machine from another cannot be read there, so the outer run may be one of another.
#[test]
fn proc_with_processes_alone() {
    // In a user namespace it would be refused for that.
    if refused([Right::Root, Right::Mounts]) {
        return;
    }
    expect_refused(mounted("mount -t proc -o subset=pid proc /proc"), FOREIGN);
}

/// It holds another lock than the outer run, but all nodes of this dialect have the same name.
#[test]
fn a_stranger_of_the_dialect_single_is_waited_for() {
    const SINGLE: [&str; 2] = ["--dialect", "single"];
    if refused([Right::PidNamespaces]) {
        return;
    }
    let scratch = Scratch::new();
    let stranger = scratch.zklock().args(SINGLE).arg("/other").child(["--until", "end"]);
    let mut stranger = stranger.run_by(as_pid_1()).spawn();
    stranger.wait_stdout("ready");
    let inner = r#""$Z" -n --dialect single /other -- true"#;
    script(&scratch, &SINGLE, inner).run().expect_code(75);
    scratch.touch("end");
    stranger.wait().expect_code(0);
}

/// /proc says otherwise there when the outer run started.
#[test]
fn another_time_namespace() {
    if refused([Right::TimeNamespaces]) {
        return;
    }
    expect_refused(unshare(&IN_ANOTHER_TIME), FOREIGN);
}

#[test]
fn variable_removed() {
    expect_refused(["env", "-u", "ZKLOCK_LENDER"], "ZKLOCK_LENDER does not name it");
}

/// An offer that is not that of the outer run: it counts as one that has ended.
#[test]
fn offer_that_does_not_stand() {
    let scratch = Scratch::new();
    for change in ["$4 += 500", "$5 += 1", "$6 += 500", "$7 += 1"] {
        let forged =
            format!(r#"ZKLOCK_LENDER=$(echo "$ZKLOCK_LENDER" | awk '{{ {change}; print }}') "$Z" -n /lock -- true"#);
        script(&scratch, &[], &forged).run().expect_code(75);
    }
}
