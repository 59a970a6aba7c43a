//! Configuration files: for cron, sudo and systemd, which drop the environment.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};

use crate::harness::rights::{AS_NOBODY, Copies, Right, mounted, refused};
use crate::harness::running::{Output, only_line, silent};
use crate::harness::schema::expect_valid;
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::zklock::{MARK, Zklock, binary};

/// A user that owns nothing, and another one.
const NOBODY: u32 = 65534;
const OTHER: u32 = 65533;

/// A line of a configuration file that names the servers.
fn servers(scratch: &Scratch) -> String {
    format!("zookeeper = '{}'\n", scratch.chroot())
}

/// Writes a file that nobody else can write, with the directories above it.
fn write(scratch: &Scratch, name: &str, text: &str) -> PathBuf {
    let path = scratch.file(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    set_mode(&path, 0o644);
    path
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// zklock as cron starts it, with home in the directory of the test: nothing of the environment is left, and no variable
/// names a configuration file.
fn from_cron(scratch: &Scratch) -> Zklock {
    let home = scratch.file("home");
    let script =
        format!(r#"exec env -i HOME="$HOME" LOGNAME=ops SHELL=/bin/sh PATH=/usr/bin:/bin {MARK}="${MARK}" "$@""#);
    Zklock::bare().directory(scratch.file("")).env("HOME", home).run_by(["sh", "-c", &script, "sh"])
}

/// In a mount namespace in which the directory `etc` of the test is /etc.
fn with_etc(scratch: &Scratch, zklock: Zklock) -> Zklock {
    zklock.run_by(mounted(&format!("mount --bind '{}' /etc", scratch.file("etc").display())))
}

/// With this file alone.
fn with(path: &Path) -> Zklock {
    Zklock::bare().env("ZKLOCK_CONFIG", path)
}

/// The one line of a refusal, without the name of the file.
#[track_caller]
fn refusal(path: &Path, zklock: Zklock) -> String {
    let line = only_line(&zklock.run().expect_code(64));
    let why = line.strip_prefix("ZKLOCK_CONFIG: ").unwrap_or(&line);
    let why = why.strip_prefix(&format!("{}: ", path.display()));
    why.unwrap_or_else(|| panic!("{} is not named: {line}", path.display())).to_owned()
}

#[test]
fn cron_needs_no_environment() {
    let scratch = Scratch::new();
    write(&scratch, "home/.config/zklock.toml", &servers(&scratch));
    let job = || from_cron(&scratch).arg(LOCK).args(["-c", "echo $ZKLOCK_PATH"]);
    assert_eq!(silent(job().run().expect_code(0)).stdout(), format!("{LOCK}\n"));
    fs::remove_file(scratch.file("home/.config/zklock.toml")).unwrap();
    let named = write(&scratch, "own.toml", &servers(&scratch));
    let by_option = from_cron(&scratch).args(["--config", "own.toml"]).args([LOCK, "true"]).run();
    silent(by_option.expect_code(0));
    let nested = format!("exec {} /lock -- printenv ZKLOCK_PATH", binary().display());
    let output = with(&named).args([LOCK, "--", "sh", "-c", &nested]).run().expect_code(0);
    assert_eq!(silent(output).stdout(), format!("{LOCK}\n"), "a nested run inherits the variable");
}

#[test]
fn the_users_file_beats_the_systems() {
    if refused([Right::Mounts]) {
        return;
    }
    let scratch = Scratch::new();
    write(&scratch, "etc/zklock.toml", &format!("{}session-timeout = 40\n", servers(&scratch)));
    let settings = || {
        let check = with_etc(&scratch, from_cron(&scratch).args(["check", "--json"]));
        let output = silent(check.run().expect_code(0));
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        expect_valid("check", &json);
        json["settings"].as_array().unwrap().clone()
    };
    let named = |name: &str| settings().into_iter().find(|setting| setting["name"] == name).unwrap();
    assert_eq!(named("zookeeper")["source"], "/etc/zklock.toml: line 1");
    assert_eq!(named("zookeeper")["value"], scratch.chroot().to_string());
    assert_eq!(named("session-timeout")["source"], "/etc/zklock.toml: line 2");
    let user = write(&scratch, "home/.config/zklock.toml", "\nsession-timeout = '50s'\n");
    let timeout = named("session-timeout");
    assert_eq!(timeout["value"], "50s");
    assert_eq!(timeout["source"], format!("{}: line 2", user.display()));
    assert_eq!(named("zookeeper")["source"], "/etc/zklock.toml: line 1");
    assert_eq!(named("config")["value"], json!(user), "the stronger one comes first");
    // Where XDG says otherwise, the home is not looked at.
    let xdg = Zklock::bare().env("ZKLOCK_CONFIG", "").env("HOME", scratch.file("home"));
    let xdg = with_etc(&scratch, xdg.env("XDG_CONFIG_HOME", scratch.file("no")).arg("check"));
    let text = xdg.run().expect_code(0).stdout();
    let timeout = text.lines().find(|line| line.trim().starts_with("session-timeout"));
    assert!(timeout.is_some_and(|line| line.contains("40s ") && line.ends_with("/etc/zklock.toml: line 2")), "{text}");
    // No file at all.
    let none = from_cron(&scratch).args(["check", "--config", "/dev/null", "--connect-timeout", "0"]);
    assert!(none.run().stdout().contains("zookeeper        localhost:2181  default"));
}

#[test]
fn every_command_that_connects_uses_it() {
    let scratch = Scratch::new();
    let file = write(&scratch, "zklock.toml", &servers(&scratch));
    let zklock = |args: &[&str]| with(&file).args(args);
    let mut holder = zklock(&["hold", LOCK]).open_stdin().spawn();
    holder.wait_stdout("ZKLOCK_HELD=");
    assert_eq!(zklock(&[LOCK, "-n", "-q", "true"]).run().expect_code(75).stderr(), "");
    assert!(silent(zklock(&["status", LOCK]).run().expect_code(0)).stdout().contains("1 holds"));
    assert!(silent(zklock(&["list"]).run().expect_code(0)).stdout().contains(LOCK));
    assert_eq!(silent(zklock(&["list", "--complete", "/lo"]).run().expect_code(0)).stdout(), format!("{LOCK}\n"));
    silent(zklock(&["check", LOCK]).run().expect_code(0));
    let node = scratch.client().children(LOCK).remove(0);
    zklock(&["break", "--node", &node, LOCK]).run().expect_code(0);
    holder.wait().expect_code(76);
    scratch.wait_queue(0);
}

#[test]
fn what_is_wrong_is_told_in_one_line() {
    let scratch = Scratch::new();
    let file = write(&scratch, "zklock.toml", "auth = 'digest:ops:hidden'\n");
    for args in [&[LOCK, "true"][..], &["check"], &["status", LOCK], &["list", "-z", "127.0.0.1:1"]] {
        let refused = refusal(&file, with(&file).args(args));
        let why = "line 1: auth: no password belongs in this file";
        assert!(refused.starts_with(why) && !refused.contains("hidden"), "{args:?}: {refused}");
    }
    let gone = scratch.file("gone.toml");
    assert_eq!(refusal(&gone, with(&gone).args([LOCK, "true"])), "No such file or directory");
}

#[test]
fn a_file_that_others_can_write_is_refused() {
    let scratch = Scratch::new();
    let file = write(&scratch, "zklock.toml", &servers(&scratch));
    let run = || with(&file).args([LOCK, "true"]);
    for mode in [0o664, 0o646, 0o666, 0o602] {
        set_mode(&file, mode);
        let why = format!("other users can write to it; chmod go-w {}", file.display());
        assert_eq!(refusal(&file, run()), why, "{mode:o}");
    }
    for mode in [0o644, 0o400, 0o755] {
        set_mode(&file, mode);
        silent(run().run().expect_code(0));
    }
    // What counts is what is read, not the way to it.
    let link = scratch.file("link.toml");
    symlink(&file, &link).unwrap();
    silent(with(&link).args([LOCK, "true"]).run().expect_code(0));
    set_mode(&file, 0o666);
    assert!(refusal(&link, with(&link).args([LOCK, "true"])).starts_with("other users can write to it; "));
    // That of the home as well.
    set_mode(&write(&scratch, "home/.config/zklock.toml", ""), 0o666);
    let line = only_line(&from_cron(&scratch).args([LOCK, "true"]).run().expect_code(64));
    assert!(line.contains("home/.config/zklock.toml: other users can write to it; "), "{line}");
}

#[test]
fn a_file_of_another_user_is_refused() {
    if refused([Right::Root]) {
        return;
    }
    let scratch = Scratch::new();
    set_mode(&scratch.file(""), 0o755);
    let file = write(&scratch, "zklock.toml", &servers(&scratch));
    // Where others may not go, they find a copy.
    let copies = Copies::new();
    let copy = copies.add(binary(), 0o755);
    // The user may not read the key of a certificate.
    let as_root = || with(&file).plain().program(&copy).args([LOCK, "true"]);
    let as_nobody = || as_root().directory("/").run_by(AS_NOBODY);
    let run = |output: Output| silent(output.expect_code(0));
    run(as_root().run());
    run(as_nobody().run());
    chown(&file, Some(NOBODY), None).unwrap();
    run(as_nobody().run());
    let why = |owner: u32, user: u32| {
        format!(
            "it belongs to the user {owner}, so neither to root nor to the user {user}, whose run this is; chown it, or \
             name another one with --config"
        )
    };
    assert_eq!(refusal(&file, as_root()), why(NOBODY, 0));
    chown(&file, Some(OTHER), None).unwrap();
    assert_eq!(refusal(&file, as_nobody()), why(OTHER, NOBODY));
    assert_eq!(refusal(&file, as_root()), why(OTHER, 0));

    // root may become another user and keep its home (setpriv, a container): that user cannot look there.
    write(&scratch, "home/.config/zklock.toml", "frobnicate");
    let home = || as_nobody().env("ZKLOCK_CONFIG", "").env("ZKLOCK_ZOOKEEPER", scratch.chroot().to_string());
    let home = || home().env("HOME", scratch.file("home"));
    set_mode(&scratch.file("home"), 0o700);
    run(home().run());
    set_mode(&scratch.file("home"), 0o755);
    home().run().expect_code(64);
    // A file that is there is not passed over.
    set_mode(&scratch.file("home/.config/zklock.toml"), 0o600);
    let line = only_line(&home().run().expect_code(64));
    let file = scratch.file("home/.config/zklock.toml");
    assert!(line.ends_with(&format!("{}: Permission denied", file.display())), "{line}");
}

#[test]
fn only_a_regular_file_is_read() {
    let scratch = Scratch::new();
    let run = |path: &Path| with(path).args(["-z", &scratch.chroot().to_string(), LOCK, "true"]);
    let no_file = "no regular file; write the path of one, or /dev/null for none";
    let pipe = scratch.file("pipe");
    mkfifo(&pipe, Mode::from_bits_truncate(0o600)).unwrap();
    let socket = scratch.file("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    for (path, why) in [
        (pipe, no_file),
        (scratch.file(""), no_file),
        ("/dev/zero".into(), no_file),
        (socket, "No such device or address"),
        (scratch.file("not/there"), "No such file or directory"),
        (write(&scratch, "large", &"#".repeat(64 * 1024 + 1)), "larger than 64 KiB; write settings only"),
    ] {
        assert_eq!(refusal(&path, run(&path)), why, "{}", path.display());
    }
    for path in [PathBuf::from("/dev/null"), write(&scratch, "longest", &"#".repeat(64 * 1024))] {
        silent(run(&path).run().expect_code(0));
    }
}

#[test]
fn a_home_is_not_needed() {
    let scratch = Scratch::new();
    let run = || Zklock::at(scratch.chroot()).cleared().env("ZKLOCK_CONFIG", "").args([LOCK, "/bin/true"]);
    for home in [None, Some(""), Some("relative"), Some("/nonexistent"), Some("/dev/null")] {
        let run = home.map_or_else(run, |home| run().env("HOME", home));
        silent(run.run().expect_code(0));
    }
}
