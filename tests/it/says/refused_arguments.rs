//! 64: what users write wrong is refused with one line that says what to write instead.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use crate::harness::running::only_line;
use crate::harness::scratch::LOCK;
use crate::harness::zklock::Zklock;

/// Refused for what was written: before any server is asked, so there is none.
#[track_caller]
fn refused(zklock: Zklock) -> String {
    let output = zklock.run().expect_code(64);
    let line = only_line(&output);
    assert!(!line.contains("panic") && !line.contains("error:"), "{output}");
    line
}

/// Arguments, the beginning of the one line and what it says to write instead.
type Refusal<'a> = (&'a [&'a str], &'a str, &'a str);

#[track_caller]
fn all_refused(refusals: &[Refusal<'_>]) {
    for (args, beginning, instead) in refusals {
        let line = refused(Zklock::bare().args(*args));
        assert!(line.starts_with(beginning) && line.contains(instead), "{args:?} gave: {line}");
    }
}

#[test]
fn lock_paths() {
    let slash = "write an absolute path such as /jobs/backup";
    all_refused(&[
        (&["", "true"], "LOCK '' is empty", "write a path such as /jobs/backup"),
        (&["jobs/backup", "true"], "LOCK 'jobs/backup' does not begin with a slash", slash),
        (&["./backup", "true"], "LOCK './backup' does not begin with a slash", slash),
        (&["take", "/l"], "LOCK 'take' does not begin with a slash", slash),
        (&["/", "true"], "LOCK '/' is the root", "write a path such as /jobs/backup"),
        (&["/a/", "true"], "LOCK '/a/' ends with a slash", "leave that out"),
        (&["/a//b", "true"], "LOCK '/a//b' has an empty component", "write each slash once"),
        (&["/a/./b", "true"], "LOCK '/a/./b' has the component .", "write the path without it"),
        (&["/a/..", "true"], "LOCK '/a/..' has the component ..", "write the path without it"),
        (&["/a\tb", "true"], "LOCK '/a\\tb' contains U+0009", "leave it out"),
        (&["/a\nzklock: b", "true"], "LOCK '/a\\nzklock: b' contains U+000A", "leave it out"),
        (&["/\u{1b}[31m", "true"], "LOCK '/\\u{1b}[31m' contains U+001B", "leave it out"),
        (&["/🔒", "true"], "LOCK '/🔒' contains U+1F512", "leave it out"),
        (&["/zookeeper", "true"], "LOCK '/zookeeper' belongs to ZooKeeper itself", "such as /locks/NAME"),
        (&["/zookeeper/a", "true"], "LOCK '/zookeeper/a' belongs to ZooKeeper itself", "such as /locks/NAME"),
        (&[&format!("/{}", "a".repeat(5000)), "true"], "LOCK '/aaa", "write at most 4096"),
    ]);
    let line = refused(Zklock::bare().arg(OsString::from_vec(b"/caf\xe9".to_vec())).arg("true"));
    assert_eq!(line, "LOCK '/caf\u{fffd}' is not UTF-8; write it in UTF-8");
}

#[test]
fn connect_strings() {
    let comma = "with one comma between two";
    for (text, instead) in [
        (" ", "write HOST:PORT, such as localhost:2181"),
        ("/app", "write HOST:PORT/app"),
        (":2181", "write HOST:2181"),
        ("a,,b", comma),
        ("a,", comma),
        ("a:0", "a number from 1 to 65535"),
        ("a:65536", "a number from 1 to 65535"),
        ("a:x", "a number from 1 to 65535"),
        ("::1:2181", "write IPv6 in brackets"),
        ("[::1", "write [ADDRESS]:PORT for IPv6"),
        ("[zz]:1", "write one such as [::1]:2181"),
        ("a b", "write a comma between two hosts"),
        ("http://a", "write HOST:PORT without http://"),
        ("a/x/", "leave that out"),
        ("a/../x", "write the path without it"),
        ("a/x,b/x", "write the chroot once"),
        ("zoö", "xn-- form"),
        ("a\nb", "leave it out"),
    ] {
        let option = refused(Zklock::bare().args(["-z", text, LOCK, "true"]));
        assert!(option.starts_with("--zookeeper '") && option.contains(instead), "{text:?} gave: {option}");
        let variable = refused(Zklock::at(text).args([LOCK, "true"]));
        assert!(variable.starts_with("ZKLOCK_ZOOKEEPER '") && variable.contains(instead), "{text:?} gave: {variable}");
    }
}

#[test]
fn durations() {
    const OPTIONS: [&str; 5] = ["--timeout", "--connect-timeout", "--session-timeout", "--kill-after", "--once-per"];
    for option in OPTIONS {
        for (text, instead) in [
            ("", "such as 30, 1.5, 500ms"),
            ("soon", "such as 30, 1.5, 500ms"),
            ("5x", "such as 30, 1.5, 500ms"),
            ("1e3", "such as 30, 1.5, 500ms"),
            ("NaN", "such as 30, 1.5, 500ms"),
            (" 5", "such as 30, 1.5, 500ms"),
            ("-1", "cannot be negative"),
            ("5m1h", "write the longer unit first"),
            ("1h30", "write 1h30m"),
            ("999999999999999999999d", "write at most 36500d"),
        ] {
            let line = refused(Zklock::bare().args([option, text, LOCK, "true"]));
            assert!(
                line.starts_with(&format!("{option} '{text}': ")) && line.contains(instead),
                "{text:?} gave: {line}"
            );
        }
    }
    all_refused(&[
        (&["--connect-timeout", "0", LOCK, "true"], "--connect-timeout '0': ", "such as 15s"),
        (&["--once-per", "0", LOCK, "true"], "--once-per '0': ", "write a longer time"),
        (&["--once-per", "0.1ms", LOCK, "true"], "--once-per '0.1ms': ", "write a longer time"),
        (&["--session-timeout", "0", LOCK, "true"], "--session-timeout '0': ", "write at least 100ms"),
        (&["--session-timeout", "25d", LOCK, "true"], "--session-timeout '25d': ", "write at most 24d"),
        (&["--session-timeout", "6s", "-k", "6s", LOCK, "true"], "--kill-after '6s': ", "lengthen --session-timeout"),
    ]);
    for (variable, option) in [("ZKLOCK_TIMEOUT", "soon"), ("ZKLOCK_SESSION_TIMEOUT", "-1")] {
        let line = refused(Zklock::bare().env(variable, option).args([LOCK, "true"]));
        assert!(line.starts_with(&format!("{variable} '{option}': ")), "{line}");
    }
}

#[test]
fn options_and_commands() {
    let status = "write a number from 0 to 255";
    let signal = "write a signal such as TERM, SIGINT, RTMIN+1 or a number from 1 to 64";
    all_refused(&[
        (&[], "no lock; ", "zklock /jobs/backup ./backup.sh"),
        (&["-n"], "no lock; ", "zklock /jobs/backup ./backup.sh"),
        (&[LOCK], "no command; ", "write zklock /lock COMMAND [ARG]..."),
        (&[LOCK, "--"], "no command; ", "write zklock /lock COMMAND [ARG]..."),
        (&[LOCK, "-c", "a", "b"], "-c and the command 'b' exclude each other; ", "write one of them"),
        (&[LOCK, "-c"], "no value after ", "write "),
        (&["--no-such", LOCK, "true"], "unknown option '--no-such'; ", "zklock --help"),
        (&["--time", "3", LOCK, "true"], "unknown option '--time'; ", "--timeout"),
        (&["--nonblock=yes", LOCK, "true"], "--nonblock takes no value; ", "write --nonblock alone"),
        (&["-w"], "no value after ", "write "),
        (&["-E", "256", LOCK, "true"], "--conflict-exit-code '256': ", status),
        (&["-E", "-1", LOCK, "true"], "--conflict-exit-code '-1': ", status),
        (&["-E", "+1", LOCK, "true"], "--conflict-exit-code '+1': ", status),
        (&["-E", "", LOCK, "true"], "--conflict-exit-code '': ", status),
        (&["-E", "one", LOCK, "true"], "--conflict-exit-code 'one': ", status),
        (&["--signal", "TREM", LOCK, "true"], "--signal 'TREM': ", signal),
        (&["--signal", "0", LOCK, "true"], "--signal '0': ", signal),
        (&["--signal", "65", LOCK, "true"], "--signal '65': ", signal),
        (&["--signal", "", LOCK, "true"], "--signal '': ", signal),
        (&["-s", "--once-per", "1h", LOCK, "true"], "--once-per is for an exclusive lock alone", ""),
        (&["-p", "3", "--once-per", "1h", LOCK, "true"], "--once-per is for an exclusive lock alone", ""),
        (&["--describe", "two\nlines", LOCK, "true"], "--describe 'two\\nlines': ", "write one line of plain text"),
        (&["--describe", &"x".repeat(201), LOCK, "true"], "--describe 'xxx", "write at most 200"),
    ]);
    let odd = OsString::from_vec(b"--\xff".to_vec());
    assert!(refused(Zklock::bare().arg(odd).args([LOCK, "true"])).starts_with("unknown option '--\u{fffd}'"));
}
