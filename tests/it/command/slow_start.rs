//! A program that takes long to be executed, as one on a file server that does not answer. Until it runs, the child
//! that is to become the command is treated as the command is.
//!
//! It is made slow by a file lease (fcntl(2)): opening the file waits until the lease is given back.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::harness::poll;
use crate::harness::process;
use crate::harness::running::finish;
use crate::harness::scratch::{LASTING, LOCK, Scratch, direct};

/// fcntl(2): which signal tells of an attempt. libc has no name for it.
const F_SETSIG: i32 = 10;

/// A program that cannot be executed for now.
struct Slow {
    directory: TempDir,
    file: File,
}

impl Slow {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("program");
        fs::write(&path, "#!/bin/sh\necho ran\n").expect("a file can be written");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("a mode can be set");
        let slow = Self { file: File::open(path).expect("the file can be opened"), directory };
        // The signal that tells us of an attempt; the usual one, SIGIO, would end the tests.
        slow.control(F_SETSIG, libc::SIGURG).expect("a signal can be chosen");
        // Not while a child of another test, which has not executed anything yet, has it open for writing.
        poll::until("a lease on the file", || slow.control(libc::F_SETLEASE, libc::F_WRLCK).ok());
        slow
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("program")
    }

    #[expect(unsafe_code, reason = "nix knows no file leases")]
    fn control(&self, what: i32, value: i32) -> io::Result<i32> {
        // SAFETY: these operations of fcntl(2) take a number and touch no memory.
        let result = unsafe { libc::fcntl(self.file.as_raw_fd(), what, value) };
        Ok(Errno::result(result)?)
    }

    /// Waits until a process tries to execute it.
    #[track_caller]
    fn wait_tried(&self) {
        let is_tried = || self.control(libc::F_GETLEASE, 0).expect("the file is open") != libc::F_WRLCK;
        poll::until("a process opens the program", || is_tried().then_some(()));
    }

    /// How long the kernel lets an attempt wait.
    fn limit() -> Duration {
        let text = fs::read_to_string("/proc/sys/fs/lease-break-time").expect("the kernel has file leases");
        Duration::from_secs(text.trim().parse().expect("seconds"))
    }
}

/// The supervisor cannot do anything meanwhile.
#[test]
fn lock_lost_and_supervisor_stopped() {
    let (scratch, proxy) = Scratch::proxied();
    let slow = Slow::new();
    let mut holder = scratch.program(&proxy.address(), &[], &slow.path()).spawn();
    slow.wait_tried();
    // The child that tries to execute the program.
    let attempt = process::below_guard(holder.pid()).first().expect("an attempt").pid;
    let mut next = scratch.queue("next", 1);
    process::stop(holder.pid());
    proxy.hold();
    next.wait_stdout("ready");
    let state = process::look(attempt).map(|process| process.state);
    assert!(matches!(state, None | Some('Z')), "{state:?}\n{holder}");
    holder.signal(Signal::SIGCONT);
    let output = holder.wait().expect_code(76);
    assert!(output.stderr().starts_with(&format!("zklock: lost the lock {LOCK}: ")), "{output}");
    assert!(output.stdout().is_empty(), "{output}");
    finish(&mut next);
    scratch.expect_tidy(&["next"]);
}

#[test]
fn signal_or_max_run_ends_it() {
    for max_run in ["1h", "5s"] {
        let scratch = Scratch::new().with_lock();
        let slow = Slow::new();
        let options = [&LASTING[..], &["--max-run", max_run]].concat();
        let mut job = scratch.program(&direct(), &options, &slow.path()).spawn();
        slow.wait_tried();
        if max_run == "1h" {
            job.signal(Signal::SIGTERM);
        }
        let output = job.wait();
        // Long before the program could be executed.
        assert!(job.elapsed() < Slow::limit() && output.stdout().is_empty(), "{output}");
        drop(if max_run == "1h" { output.expect_signal(Signal::SIGTERM) } else { output.expect_code(124) });
        scratch.expect_tidy(&[]);
    }
}
