//! What a service manager is told (sd_notify(3)). Here, the tests listen in its place.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use nix::sys::signal::Signal;

use crate::harness::poll;
use crate::harness::running::finish;
use crate::harness::scratch::{LOCK, Scratch};

/// A service manager, and the name of its socket.
fn manager(scratch: &Scratch) -> (UnixDatagram, String) {
    let path = scratch.file("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_nonblocking(true).expect("a socket");
    (socket, path.to_str().expect("UTF-8").to_owned())
}

fn next(socket: &UnixDatagram) -> Option<String> {
    let mut bytes = [0; 1024];
    let count = socket.recv(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes[..count]).into_owned())
}

/// The next message that begins with `part`.
#[track_caller]
fn wait_for(socket: &UnixDatagram, part: &str) -> String {
    poll::until(part, || next(socket).filter(|text| text.starts_with(part)))
}

#[test]
fn a_job() {
    let scratch = Scratch::new();
    let (socket, name) = manager(&scratch);
    let mut holder = scratch.hold();
    let job = scratch.zklock().env("NOTIFY_SOCKET", &name).arg(LOCK).child(["--env", "--exit-on", "TERM"]);
    let mut job = job.spawn();
    scratch.wait_queue(2);
    // Asked for at once, before the time to start is over.
    assert_eq!(wait_for(&socket, "EXTEND_TIMEOUT_USEC"), "EXTEND_TIMEOUT_USEC=30000000");
    assert!(wait_for(&socket, "STATUS").starts_with(&format!("STATUS=waiting for {LOCK}: 2nd of 2, held by ")));
    finish(&mut holder);
    wait_for(&socket, "READY=1");
    wait_for(&socket, &format!("STATUS=holding {LOCK}"));
    job.wait_stdout("ready");
    finish(&mut job);
    let rest: Vec<_> = std::iter::from_fn(|| next(&socket)).collect();
    assert_eq!(rest, ["STOPPING=1\nSTATUS=ended"]);
}

/// `systemctl status` shows it after the end, too.
#[test]
fn the_loss_is_the_last_status() {
    let scratch = Scratch::new();
    let (socket, name) = manager(&scratch);
    let mut job = scratch.zklock().env("NOTIFY_SOCKET", &name).arg(LOCK).child(["--wait"]).spawn();
    job.wait_stdout("ready");
    scratch.delete_holder();
    job.wait();
    let told: Vec<_> = std::iter::from_fn(|| next(&socket)).collect();
    let [.., status, stopping] = &told[..] else { panic!("{told:?}") };
    assert!(status.starts_with("STATUS=lost the lock /lock: ") && stopping == "STOPPING=1", "{told:?}");
}

/// A host that takes over after hours is to be found in its journal (systemd.exec(5)). Elsewhere, a line would be a mail.
#[test]
fn the_end_of_a_wait_is_told_to_the_journal() {
    let journal = "export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2); exec \"$@\"";
    for (stream, told) in [("true; exec \"$@\"", false), (journal, true)] {
        let scratch = Scratch::new();
        let mut holder = scratch.hold();
        let mut job = scratch.zklock().arg(LOCK).bare_child().run_by(["sh", "-c", stream, "sh"]).spawn();
        poll::until("the run and the holder watch the holder's node", || {
            scratch.watchers().into_values().any(|count| count == 2).then_some(())
        });
        finish(&mut holder);
        let output = job.wait().expect_code(0);
        assert_eq!(output.stderr().starts_with("zklock: holding /lock after "), told, "{output}");
        assert_eq!(output.stderr().lines().count(), usize::from(told), "{output}");
    }
}

#[test]
fn hold() {
    let scratch = Scratch::new();
    let name = format!("zklock-{}-{:x}", std::process::id(), fastrand::u64(..));
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    let socket = UnixDatagram::bind_addr(&address).expect("a socket");
    socket.set_nonblocking(true).expect("a socket");
    let hold = scratch.zklock().env("NOTIFY_SOCKET", format!("@{name}")).arg("hold").arg(LOCK);
    let mut hold = hold.spawn();
    wait_for(&socket, "READY=1");
    hold.wait_stdout("ZKLOCK_HELD=");
    hold.signal(Signal::SIGTERM);
    hold.wait().expect_code(0);
}

/// The manager waits for another process to be ready, which runs this one. And a socket that is not there is no error.
#[test]
fn what_is_not_to_be_told() {
    let scratch = Scratch::new();
    let (socket, name) = manager(&scratch);
    let other = scratch.zklock().env("NOTIFY_SOCKET", &name).env("SYSTEMD_EXEC_PID", "1");
    other.arg(LOCK).bare_child().run().expect_code(0);
    assert_eq!(next(&socket), None);
    for name in ["", "relative", "/nowhere/at/all", "@"] {
        let output = scratch.zklock().env("NOTIFY_SOCKET", name).arg(LOCK).bare_child().run().expect_code(0);
        assert_eq!(output.stderr(), "", "{name}");
    }
}
