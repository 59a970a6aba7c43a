//! 64: what users write wrong is refused with one line that says what to write instead, before any server is asked. The
//! unit tests of `src/cli/`, and of what it parses, have all such lines.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::harness::running::only_line;
use crate::harness::zklock::Zklock;

#[test]
fn one_line_says_what_to_write() {
    let once_per = "--once-per is for an exclusive lock alone";
    // Arguments, the beginning of the line and what it says to write instead.
    for (args, beginning, instead) in [
        (&b"-n"[..], "no lock; ", "zklock /jobs/backup ./backup.sh"),
        (b"/lock", "no command; ", "write zklock /lock COMMAND [ARG]..."),
        (b"jobs/backup true", "LOCK 'jobs/backup' does not begin", "write an absolute path such as /jobs/backup"),
        (b"/a\nzklock:b true", "LOCK '/a<U+000A>zklock:b' contains U+000A", "leave it out"),
        (b"/\xe2\x80\xaegnp/ true", "LOCK '/<U+202E>gnp/' has a slash at its end", "leave one out"),
        (b"/caf\xe9 true", "LOCK '/caf\u{fffd}' is not UTF-8", "write it in UTF-8"),
        (b"--\xff /lock true", "unexpected argument '--\u{fffd}' found", "zklock --help"),
        (b"-z::1:1 /lock true", "--zookeeper '::1:1': ", "IPv6 addresses in brackets"),
        (b"-w5x /lock true", "--timeout '5x': ", "such as 30, 1.5, 500ms"),
        (b"--once-per=0 /lock true", "--once-per '0': ", "write a longer time"),
        (b"-s --once-per=1h /lock true", once_per, ""),
        (b"-p3 --once-per=1h /lock true", once_per, ""),
    ] {
        let args: Vec<_> = args.split(|&byte| byte == b' ').map(OsStr::from_bytes).collect();
        let line = only_line(&Zklock::bare().args(&args).run().expect_code(64));
        assert!(line.starts_with(beginning) && line.contains(instead), "{args:?} gave: {line}");
    }
    for (variable, value) in [("ZKLOCK_ZOOKEEPER", "a,,b"), ("ZKLOCK_SESSION_TIMEOUT", "-1")] {
        let output = Zklock::bare().env(variable, value).args(["/lock", "true"]).run().expect_code(64);
        assert!(only_line(&output).starts_with(&format!("{variable} '{value}': ")), "{output}");
    }
}
