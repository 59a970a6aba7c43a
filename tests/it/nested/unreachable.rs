//! A run whose outer run it cannot reach would wait for itself: it refuses to.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::unistd::geteuid;
use tempfile::TempDir;

use super::script;
use crate::harness::release::not_tested;
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

/// Runs `WRAPPER zklock OPTIONS /lock -- true` below a holder of the lock, and expects that it is refused.
#[track_caller]
fn expect_refused(wrapper: &str, why: &str) {
    let (_place, copy) = for_all();
    let scratch = Scratch::new();
    let inner = format!(r#"{wrapper} {} -w 20s /lock -- true"#, copy.display());
    // Another user may not read the key of a certificate.
    let output = script(&scratch, &[], &inner).plain().run().expect_code(78);
    let line = format!("zklock: {LOCK} is held by the run that started this one, which cannot be reached: {why}\n");
    assert_eq!((output.stdout(), output.stderr()), (String::new(), line), "{output}");
    assert!(scratch.client().children(LOCK).is_empty());
}

/// Whether a program that is run like this runs here.
fn can_run(wrapper: &str) -> bool {
    let tried = Command::new("sh").args(["-c", &format!("{wrapper} true")]).stderr(Stdio::null()).status();
    tried.is_ok_and(|status| status.success())
}

const FOREIGN: &str = "another user or container";

/// A user who is not root becomes a stranger to the outer run in a user namespace, where there is nothing else to try.
#[test]
fn another_user() {
    if geteuid().is_root() {
        const NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";
        expect_refused(NOBODY, FOREIGN);
        // The processes of other users are not even shown (proc(5)).
        for hidepid in [1, 2] {
            let hide = format!("mount -t proc -o hidepid={hidepid} proc /proc");
            expect_refused(&format!(r#"unshare --mount sh -c '{hide} && exec "$@"' sh {NOBODY}"#), FOREIGN);
        }
    } else {
        eprintln!("NOT RUN as another user: only root can become one");
    }
    if can_run("unshare --user") {
        expect_refused("unshare --user", FOREIGN);
    } else {
        not_tested("the right to make a user namespace, which a chroot takes away");
    }
}

#[test]
fn another_pid_namespace() {
    let user = if geteuid().is_root() { "" } else { "--user --map-root-user" };
    expect_refused(&format!("unshare --pid --fork --mount-proc {user}"), FOREIGN);
}

/// What tells one machine from another cannot be read there, so the outer run may be one of another.
#[test]
fn proc_with_processes_alone() {
    if !geteuid().is_root() {
        return not_tested("root: another user's namespace would be refused for that");
    }
    let part = "mount -t proc -o subset=pid proc /proc";
    let why = "/proc is missing, or a part of it";
    expect_refused(&format!(r#"unshare --mount sh -c '{part} && exec "$@"' sh"#), why);
}

/// It holds another lock than the outer run, but all nodes of this dialect have the same name.
#[test]
fn a_stranger_of_the_dialect_single_is_waited_for() {
    const SINGLE: [&str; 2] = ["--dialect", "single"];
    let scratch = Scratch::new();
    let user: &[&str] = if geteuid().is_root() { &[] } else { &["--user", "--map-root-user"] };
    let unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"].iter().chain(user).copied();
    let stranger = scratch.zklock().args(SINGLE).arg("/other").child(["--until", "end"]);
    let mut stranger = stranger.run_by(unshare).spawn();
    stranger.wait_stdout("ready");
    let inner = r#""$Z" -n --dialect single /other -- true"#;
    script(&scratch, &SINGLE, inner).run().expect_code(75);
    scratch.touch("end");
    stranger.wait().expect_code(0);
}

/// /proc says otherwise there when the outer run started.
#[test]
fn another_time_namespace() {
    let user = if geteuid().is_root() { "" } else { "--user --map-root-user" };
    let unshare = format!("unshare --time --boottime 1000 --fork {user}");
    if can_run(&unshare) {
        expect_refused(&unshare, FOREIGN);
    } else {
        not_tested("Linux 5.6, and the right to make namespaces");
    }
}

#[test]
fn variable_removed() {
    expect_refused("env -u ZKLOCK_LENDER", "ZKLOCK_LENDER does not name it");
}

/// An offer that is not that of the outer run: it counts as one that has ended.
#[test]
fn offer_that_does_not_stand() {
    let scratch = Scratch::new();
    for change in ["$4 += 500", "$5 += 1", "$6 += 500", "$7 += 1", "$9 += 1", "$10 += 500", "$11 += 1"] {
        let forged =
            format!(r#"ZKLOCK_LENDER=$(echo "$ZKLOCK_LENDER" | awk '{{ {change}; print }}') "$Z" -n /lock -- true"#);
        script(&scratch, &[], &forged).run().expect_code(75);
    }
}
