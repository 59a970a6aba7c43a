//! A run whose outer run it cannot reach would wait for itself: it refuses to.

use super::script;
use crate::harness::rights::{AS_NOBODY, Copies, IN_ANOTHER_TIME, Right, as_pid_1, mounted, refused, unshare};
use crate::harness::running::silent;
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::zklock::binary;

/// Runs `BY zklock OPTIONS /lock -- true` below a holder of the lock, and expects that it is refused.
#[track_caller]
fn expect_refused<W: AsRef<str>>(by: impl IntoIterator<Item = W>, why: &str) {
    let copies = Copies::new();
    let copy = copies.add(binary(), 0o755);
    let scratch = Scratch::new();
    let by: String = by.into_iter().map(|word| format!("'{}' ", word.as_ref())).collect();
    let inner = format!("{by} {} -w 20s /lock -- true", copy.display());
    // Another user may not read the key of a certificate.
    let output = script(&scratch, &[], &inner).plain().run().expect_code(78);
    let line = format!("zklock: {LOCK} is held by the run that started this one, which cannot be reached: {why}\n");
    assert_eq!((output.stdout(), output.stderr()), (String::new(), line), "{by}: {output}");
    assert!(scratch.client().children(LOCK).is_empty());
}

const FOREIGN: &str = "another user or container";

#[test]
fn another_user() {
    if refused([Right::Root]) {
        return;
    }
    expect_refused(AS_NOBODY, FOREIGN);
    if refused([Right::Mounts]) {
        return;
    }
    // The processes of other users are not even shown (proc(5)).
    for hidepid in [1, 2] {
        let hide = format!("mount -t proc -o hidepid={hidepid} proc /proc");
        expect_refused(mounted(&hide).iter().map(String::as_str).chain(AS_NOBODY), FOREIGN);
    }
}

/// What tells one machine from another cannot be read there. The process, its pipe and its page can.
#[test]
fn part_of_proc() {
    if refused([Right::Mounts]) {
        return;
    }
    let by: String =
        mounted("mount -t proc -o subset=pid proc /proc").iter().map(|word| format!("'{word}' ")).collect();
    let scratch = Scratch::new();
    let inner = format!("{by} {} -n {LOCK} -- true", binary().display());
    silent(script(&scratch, &[], &inner).run().expect_code(0));
}

#[test]
fn another_namespace() {
    for (right, by) in [
        (Right::UserNamespaces, vec!["unshare", "--user"]),
        (Right::PidNamespaces, as_pid_1()),
        // /proc says otherwise there when the outer run started.
        (Right::TimeNamespaces, unshare(&IN_ANOTHER_TIME)),
    ] {
        if !refused([right]) {
            expect_refused(by, FOREIGN);
        }
    }
}

#[test]
fn variable_removed() {
    let unnamed = "ZKLOCK_LENDER does not name it";
    expect_refused(["env", "-u", "ZKLOCK_LENDER"], unnamed);
    expect_refused(["env", "-u", "ZKLOCK_LENDER", "-u", "ZKLOCK_HELD"], unnamed);
}
