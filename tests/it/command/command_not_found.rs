//! 126 and 127: a command that cannot be run.

use std::process::Command;

use crate::harness::proxy::Proxy;
use crate::harness::running::{finish, only_line};
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::zklock::copy_program;

#[test]
fn refused_before_a_server_is_asked() {
    let scratch = Scratch::new();
    let proxy = Proxy::zookeeper(&direct());
    let plain = scratch.file("plain");
    std::fs::write(&plain, "#!/bin/sh\n").unwrap();
    let plain = plain.to_str().unwrap();
    for (command, code) in
        [("no-such-command", 127), ("./no-such-file", 127), ("/etc/passwd/x", 127), (plain, 126), ("/etc", 126)]
    {
        let output = scratch.zklock_by(proxy.address()).args([LOCK, command]).run().expect_code(code);
        assert!(only_line(&output).starts_with(command), "{output}");
    }
    let output = scratch.zklock_by(proxy.address()).args([LOCK, "no\n\u{1b}[2J\u{202e}"]).run().expect_code(127);
    assert!(only_line(&output).starts_with("no<U+000A><U+001B>[2J<U+202E>: command not found"), "{output}");
    assert_eq!(proxy.accepted(), 0);
    assert!(!scratch.client().exists(LOCK));
}

#[test]
fn gone_while_zklock_waits() {
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    let command = scratch.file("command");
    copy_program("/bin/true", &command);
    let mut waiter = scratch.zklock().arg(LOCK).arg(&command).spawn();
    scratch.wait_queue(2);
    std::fs::remove_file(&command).unwrap();
    finish(&mut holder);
    only_line(&waiter.wait().expect_code(127));
    assert!(scratch.client().children(LOCK).is_empty());
}

/// As with CR LF at the end of its first line.
#[test]
fn a_script_whose_interpreter_is_missing() {
    let scratch = Scratch::new();
    let script = scratch.file("script");
    copy_program("/bin/sh", &script);
    std::fs::write(&script, "#!/bin/sh\r\n").unwrap();
    let output = scratch.zklock().arg(LOCK).arg(&script).run().expect_code(127);
    assert!(only_line(&output).contains("script: its interpreter is missing"), "{output}");
}

/// As with a binary for another C library.
#[test]
fn a_binary_whose_loader_is_missing() {
    let scratch = Scratch::new();
    let (source, program) = (scratch.file("source.c"), scratch.file("program"));
    std::fs::write(&source, "int main(void) { return 0; }").unwrap();
    let compiler =
        Command::new("cc").args(["-Wl,--dynamic-linker=/no/loader", "-o"]).args([&program, &source]).status();
    assert!(compiler.unwrap().success());
    let output = scratch.zklock().arg(LOCK).arg(&program).run().expect_code(127);
    assert!(only_line(&output).ends_with("the loader of the system that it was built for"), "{output}");
}
