//! Passwords and private keys are in the memory of no process that does not need them, and in no other place.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::{Pid, geteuid, mkfifo};

use crate::harness::client;
use crate::harness::poll;
use crate::harness::release::{Feature, lacks};
use crate::harness::rights::{AS_NOBODY, Copies, Right, refused};
use crate::harness::running::{Running, finish, silent};
use crate::harness::scratch::{LASTING, LOCK, Scratch, direct};
use crate::harness::server::Server;
use crate::harness::tls::{Authority, server_13};
use crate::harness::zklock::{Zklock, binary};

const PASSWORD: &[u8] = b"hidden-in-a-file";

/// All that can be read of the memory of a process, but what it keeps from core files (`VmFlags` in proc_pid_smaps(5)).
fn memory(pid: Pid) -> Vec<u8> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).expect("a process of ours");
    let memory = File::open(format!("/proc/{pid}/mem")).expect("a process of ours");
    let mut all = vec![];
    let mut range = None;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let number = |text| u64::from_str_radix(text, 16).expect("an address");
            range = words.next().filter(|rights| rights.starts_with('r')).map(|_| (number(start), number(end)));
        } else if first == "VmFlags:"
            && let Some((start, end)) = range
            && !words.any(|flag| flag == "dd")
        {
            let mut page = [0; 4096];
            for address in (start..end).step_by(page.len()) {
                // The kernel's own pages cannot be read, nor can those that were given back since they were listed.
                if memory.read_exact_at(&mut page, address).is_ok() {
                    all.extend(page);
                }
            }
        }
    }
    assert!(!all.is_empty());
    all
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    assert!(part.len() >= 16);
    bytes.windows(part.len()).any(|window| window == part)
}

/// The number that the client's key, of P-256, is made of. Writes a file: for one test only.
fn key_number(authority: &Authority) -> Vec<u8> {
    authority.openssl("pkey -in client.key -outform DER -out client.der");
    let der = fs::read(authority.path("client.der")).expect("it was written");
    // ECPrivateKey: version 1, then an octet string of 32 bytes (RFC 5915).
    let mark = [2, 1, 1, 4, 32];
    let at = der.windows(mark.len()).position(|window| window == mark).expect("a key of P-256") + mark.len();
    der[at..at + 32].to_vec()
}

/// The first line of that key in PEM.
fn key_text(authority: &Authority) -> Vec<u8> {
    let pem = fs::read_to_string(authority.path("client.key")).expect("it was written");
    pem.lines().nth(1).expect("a line").as_bytes().to_vec()
}

fn auth_file(scratch: &Scratch) -> PathBuf {
    let file = scratch.file("credentials");
    let text = [b"digest:ops:", PASSWORD, b"\n"].concat();
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    file
}

fn holder(scratch: &Scratch) -> Running {
    let address = server_13().secure_address("127.0.0.1");
    let options = [&LASTING[..], &["-vvv", "--publish-command", "--auth-file"]].concat();
    let file = auth_file(scratch);
    let options: Vec<&str> = options.into_iter().chain([file.to_str().unwrap()]).collect();
    let job = scratch.job(&address, "holder", &options, &["--exit-on", "TERM"]);
    let mut holder = Authority::shared().known_as("client", job).spawn();
    holder.wait_stdout("holder ready");
    holder
}

#[test]
fn memory_of_the_processes() {
    if lacks(Feature::Tls) || refused([Right::Undumpable]) {
        return;
    }
    let scratch = Scratch::on(server_13().chroot());
    let mut holder = holder(&scratch);
    let authority = Authority::shared();
    let (number, text) = (key_number(authority), key_text(authority));
    // Not at each moment in one piece that is listed.
    poll::until("the keeper's password", || contains(&memory(holder.keeper()), PASSWORD).then_some(()));
    for pid in [holder.pid(), holder.guard(), holder.writer(), holder.command()] {
        let memory = memory(pid);
        for secret in [PASSWORD, &number, &text] {
            assert!(!contains(&memory, secret), "{} is in process {pid}", String::from_utf8_lossy(secret));
        }
    }
    finish(&mut holder);
}

/// What /proc shows of a process that leaves no core belongs to root.
fn is_dumpable(pid: Pid) -> bool {
    fs::metadata(format!("/proc/{pid}/fd")).expect("it lives").uid() != 0
}

#[test]
fn no_core_of_what_has_them() {
    let scratch = Scratch::new();
    let copies = Copies::new();
    let copy = copies.add(binary(), 0o755);
    let as_user = |zklock: Zklock| {
        if geteuid().is_root() { zklock.program(&copy).run_by(AS_NOBODY) } else { zklock }
    };
    let mut holder =
        as_user(scratch.zklock().plain().args([LOCK, "--", "sh", "-c", "echo ready; read line"])).open_stdin().spawn();
    holder.wait_stdout("ready");
    assert!(!is_dumpable(holder.keeper()));
    // A nested run looks at them.
    assert!(is_dumpable(holder.pid()) && is_dumpable(holder.guard()));
    let mut watch = as_user(scratch.zklock().plain().args(["status", "--watch", LOCK])).spawn();
    watch.wait_stdout("holds");
    assert!(!is_dumpable(watch.pid()));
    watch.end();
    holder.close_stdin();
    holder.wait();
}

#[test]
fn neither_messages_nor_nodes_nor_the_command() {
    if lacks(Feature::Tls) {
        return;
    }
    let scratch = Scratch::on(server_13().chroot());
    let mut holder = holder(&scratch);
    let text = key_text(Authority::shared());
    let card = scratch.card(&scratch.wait_queue(1)[0]).to_string();
    let command = holder.command();
    let seen = ["environ", "cmdline"].map(|file| fs::read(format!("/proc/{command}/{file}")).expect("it lives"));
    let descriptors = Command::new("ls").args(["-l", &format!("/proc/{command}/fd")]).output().unwrap().stdout;
    assert!(!String::from_utf8_lossy(&descriptors).contains("memfd"), "{}", String::from_utf8_lossy(&descriptors));
    let said = finish(&mut holder).stderr();
    assert!(said.contains("bytes to ZooKeeper"), "{said}");
    for place in [said.as_bytes(), card.as_bytes(), &seen.concat()] {
        for secret in [PASSWORD, &text] {
            assert!(!contains(place, secret), "{}", String::from_utf8_lossy(place));
        }
    }
}

/// A pipe can be read once, and every session needs what was in it.
#[test]
fn credentials_from_a_pipe() {
    // Its nodes stay, and are not to be read by others.
    let chroot = Server::shared().chroot();
    let by = |zklock: Zklock| zklock.run_by(["sh", "-c", r#"printf 'digest:ops:hidden-in-a-pipe\n' | "$@""#, "sh"]);
    let options = ["--acl", "creator", "--auth-file", "/dev/stdin", LOCK, "true"];
    silent(by(Zklock::at(&chroot).plain().args(options)).run()).expect_code(0);
    Zklock::at(&chroot).plain().args([LOCK, "true"]).run().expect_code(77);
    silent(by(Zklock::at(&chroot).plain().args(options)).run()).expect_code(0);
    let script = r#"exec "$1" --auth-file <(printf 'digest:ops:hidden-in-a-pipe\n') "${@:2}""#;
    let named = Zklock::at(&chroot).plain().args(["--acl", "creator", LOCK, "true"]);
    silent(named.run_by(["bash", "-c", script, "bash"]).run()).expect_code(0);
    let scratch = Scratch::new();
    let before = scratch.occupy("");
    let waiter = scratch.zklock().plain().args(["--session-timeout", "4", LOCK, "true"]);
    let mut waiter = waiter.run_by(["bash", "-c", script, "bash"]).spawn();
    scratch.wait_queue(2);
    client::expire_session(&direct(), scratch.contenders().remove(1).stat.owner);
    waiter.wait_stderr("queueing again");
    scratch.wait_queue(2);
    scratch.delete(&before);
    waiter.wait().expect_code(0);
}

/// Nobody writes to the pipe, so the keeper waits for ever.
#[test]
fn a_file_that_hangs_holds_up_nothing() {
    let scratch = Scratch::new();
    let file = scratch.file("pipe");
    mkfifo(&file, Mode::S_IRWXU).expect("a pipe");
    let zklock = || scratch.zklock().plain().args(["--auth-file", file.to_str().unwrap()]);
    let mut job = zklock().args([LOCK, "true"]).spawn();
    job.keeper();
    job.signal(Signal::SIGTERM);
    job.wait().expect_signal(Signal::SIGTERM);
    zklock().args(["--connect-timeout=100ms", LOCK, "true"]).run().expect_code(69);
}
