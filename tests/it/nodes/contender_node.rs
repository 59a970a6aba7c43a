//! A contender's node: its name, and what it tells others (`--describe`, `--publish-command`).

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::harness::poll;
use crate::harness::running::{finish, silent};
use crate::harness::scratch::{LOCK, Scratch};

#[test]
fn data_tells_who_holds_since_when() {
    let scratch = Scratch::new();
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().map(|user| user.name);
    // The user is left out when the lookup takes long, as it may on a loaded machine. Then this is no proof, and is
    // done once more.
    let (mut holder, node) = poll::until("the node names the user", || {
        let mut holder = scratch.zklock().arg(LOCK).child(["--name", "hunter2", "--exit-on", "TERM"]).spawn();
        holder.wait_stdout("ready");
        let node = scratch.wait_queue(1).remove(0);
        if scratch.card(&node)["user"].as_str() == user.as_deref() {
            return Some((holder, node));
        }
        finish(&mut holder);
        None
    });
    // It is published with the first beat.
    let card = poll::until("since when it holds", || {
        let card = scratch.card(&node);
        card["held_since"].is_u64().then_some(card)
    });
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let expected = [
        ("v", Value::from(1)),
        ("host", host.into()),
        ("pid", holder.pid().as_raw().into()),
        ("command", "child".into()),
        ("mode", "exclusive".into()),
        ("describe", Value::Null),
    ];
    for (field, value) in expected {
        assert_eq!(card[field], value, "{field} of {card}");
    }
    assert!(!card.to_string().contains("hunter2"), "{card}");
    finish(&mut holder);
}

/// As when the directory service that has the users is down.
#[test]
fn user_lookup_that_hangs() {
    let scratch = Scratch::new();
    let (source, library) = (scratch.file("hang.c"), scratch.file("hang.so"));
    // A user that is not in /etc/passwd.
    let hangs =
        "#include <unistd.h>\nuid_t getuid(void) { return 54321; }\nint getpwuid_r(void) { for (;;) pause(); }\n";
    fs::write(&source, hangs).expect("a file can be written");
    let compiler = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(compiler.expect("a C compiler").success());
    let zklock = scratch.zklock().env("LD_PRELOAD", library).args([LOCK, "--connect-timeout", "10s"]);
    let mut holder = zklock.child(scratch.logged("holder")).spawn();
    holder.wait_stdout("ready");
    let card = scratch.card(&scratch.wait_queue(1)[0]);
    assert!(card["user"].is_null() && card["pid"].is_number(), "{card}");
    silent(finish(&mut holder));
}

#[test]
fn description_and_command() {
    let scratch = Scratch::new();
    let zklock = scratch.zklock().args([LOCK, "--describe", "nightly \"dump\"", "--publish-command"]);
    let mut holder = zklock.child(["--name", "öffentlich", "--exit-on", "TERM"]).spawn();
    holder.wait_stdout("ready");
    let card = scratch.card(&scratch.wait_queue(1)[0]);
    assert_eq!(card["describe"], "nightly \"dump\"");
    assert!(card["command"].as_str().unwrap().ends_with("child --name öffentlich --exit-on TERM"), "{card}");
    finish(&mut holder);
}
