//! The variables that the command finds: the `ZKLOCK_*` of zklock, and those of the caller.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use crate::harness::compare::assert_same;
use crate::harness::running::finish;
use crate::harness::scratch::Scratch;

#[test]
fn command_is_told_what_it_holds() {
    let scratch = Scratch::new();
    let outer = "/elsewhere/_c_00000000-0000-0000-0000-000000000000-lock-0000000003";
    let zklock = scratch.zklock().env("ZKLOCK_TOKEN", "7").env("ZKLOCK_NODE", outer).env("ZKLOCK_SESSION", "0x1");
    let zklock = zklock.env("ZKLOCK_HELD", outer);
    let mut holder = zklock.arg("/a/lock").child(["--env", "--exit-on", "TERM"]).spawn();
    holder.wait_stdout("ready");
    let node = format!("/a/lock/{}", scratch.client().wait_count("/a/lock", 1)[0]);
    let (_, stat) = scratch.client().get(&node).unwrap();
    let expected = [
        ("ZKLOCK_PATH", "/a/lock".to_owned()),
        ("ZKLOCK_NODE", node.clone()),
        ("ZKLOCK_TOKEN", stat.czxid.to_string()),
        ("ZKLOCK_SESSION", format!("{:#x}", stat.owner)),
        ("ZKLOCK_MODE", "exclusive".to_owned()),
    ];
    for (name, value) in expected {
        assert_eq!(holder.variable(name), value, "{name}");
    }
    assert!(holder.stdout().contains(&format!("ZKLOCK_HELD={outer}\n{node}\n")), "{holder}");
    finish(&mut holder);
}

#[test]
fn callers_variables_arrive() {
    let odd = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let sorted = r"env -0 | LC_ALL=C sort -z | grep -zav ^ZKLOCK_";
    let output = assert_same(["bash", "-c", sorted], |zklock| {
        zklock
            .env("EMPTY", "")
            .env("LINES_OF_TEXT", "one\ntwo")
            .env(odd(b"NAME_\xff"), odd(b"\x80 \xfe"))
            .env("PATH", "/usr/bin:/bin")
    });
    assert!(output.stdout.windows(11).any(|bytes| bytes == b"NAME_\xff=\x80 \xfe\0"), "{output}");
}
