//! With as few rights as a container, a service manager or an administrator may leave.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::harness::poll;
use crate::harness::process;
use crate::harness::rights::{AS_NOBODY, Copies, Right, mounted, refused};
use crate::harness::running::{Running, finish, only_line, silent};
use crate::harness::scratch::{GRACE, LOCK, Scratch, direct};
use crate::harness::seccomp::filtering;
use crate::harness::terminal::Terminal;
use crate::harness::times::SOON;
use crate::harness::zklock::{Zklock, binary};

/// A command that starts a process in a session of its own, which writes its number to this file, and then does `then`.
fn with_daemon(scratch: &Scratch, number: &Path, then: &str) -> [String; 4] {
    let script = scratch.file("daemon.sh");
    let daemon = "trap 'echo told >$0.told; exit' TERM; echo $$ >$0.new; mv $0.new $0; while :; do sleep 0.1; done";
    fs::write(&script, daemon.replace("$0", &number.display().to_string())).expect("a file can be written");
    ["--", "sh", "-c", &format!("setsid sh {} & {then}", script.display())].map(str::to_owned)
}

fn number_in(file: &Path) -> Pid {
    poll::until("the number of the daemon", || fs::read_to_string(file).ok()?.trim().parse().ok().map(Pid::from_raw))
}

/// The keeper is killed: the lock is lost.
fn lose(mut job: Running, daemon: Pid) {
    process::send(job.keeper(), Signal::SIGKILL);
    job.wait().expect_code(76);
    assert!(process::look(daemon).is_none_or(|process| process.state == 'Z'), "{daemon} lives");
}

/// /dev has nothing but its null. The command is in the foreground of its terminal all the same, and can read what is typed.
#[test]
fn terminal_without_its_device() {
    if refused([Right::Root, Right::Mounts]) {
        return;
    }
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    let bare = mounted("mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3");
    let job = scratch.zklock().args([LOCK, "--", "sh", "-c", r#"echo ready; read word; echo "<$word>""#]).run_by(bare);
    let mut job = terminal.spawn(job);
    terminal.wait_count("ready", 1);
    terminal.enter("hello");
    job.wait_at_most(SOON).expect_code(0);
    terminal.wait_count("<hello>", 1);
}

#[test]
fn any_user_on_a_read_only_root() {
    if refused([Right::Root, Right::Mounts]) {
        return;
    }
    let copies = Copies::new();
    let copy = copies.add(binary(), 0o755);
    let place = std::env::temp_dir();
    // Where a test may write may be a mount of its own, and where a chroot begins may be none.
    let read_only = format!(
        "mount --rbind / /mnt && mount -o remount,bind,ro /mnt && \
         mount --bind {0} /mnt{0} && mount -o remount,bind,ro /mnt{0}",
        place.display()
    );
    let bare = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"];
    let by = [&["chroot", "/mnt"], &AS_NOBODY[..], &bare].concat();
    let scratch = Scratch::new().with_lock();
    // The user may not read the key of a certificate.
    let zklock = |args: &[&str]| scratch.zklock().plain().program(&copy).args(args).run_by(by.clone());
    let zklock = |args: &[&str]| zklock(args).run_by(mounted(&read_only));
    let script = r#"grep -E "^(Cap|NoNew)" /proc/self/status; touch "$0" 2>&1; exit 3"#;
    let file = place.join(format!("zklock-{}", fastrand::u64(..)));
    let output = zklock(&[LOCK, "--", "sh", "-c", script, file.to_str().unwrap()]).run().expect_code(3);
    assert!(
        output.stdout().contains("CapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\n"),
        "{output}"
    );
    assert!(!file.exists(), "{output}");
    silent(output);
    silent(zklock(&["status", LOCK]).run().expect_code(0));
    let script = "setsid sh -c 'echo $$; exec sleep 1000' & wait";
    let job = zklock(&GRACE).args([LOCK, "--", "sh", "-c", script]).spawn();
    let daemon = poll::until("the daemon", || job.stdout().trim().parse().ok().map(Pid::from_raw));
    lose(job, daemon);
    scratch.wait_queue(0);
}

/// What the profile of Docker denies to a container without further rights (profiles/seccomp/default.json of Moby): with
/// EPERM, and clone3(2) with ENOSYS.
const DENIED: &str = "acct add_key bpf chroot clock_settime delete_module fanotify_init finit_module fsconfig fsmount \
                      fsopen fspick get_mempolicy init_module io_uring_enter io_uring_register io_uring_setup kcmp \
                      kexec_file_load kexec_load keyctl lookup_dcookie mbind migrate_pages mount mount_setattr \
                      move_mount move_pages nfsservctl open_by_handle_at open_tree perf_event_open pidfd_getfd \
                      pivot_root process_madvise quotactl quotactl_fd reboot request_key set_mempolicy \
                      set_mempolicy_home_node setdomainname sethostname setns settimeofday swapoff swapon syslog umount2 \
                      unshare userfaultfd vhangup";

#[test]
fn seccomp_profile_of_docker() {
    let scratch = Scratch::new().with_lock();
    let denied: String = DENIED
        .split_whitespace()
        .map(|name| format!("\n#ifdef SYS_{name}\nDENY(SYS_{name}, EPERM),\n#endif\n"))
        .collect();
    let later = "UNLESS(JGT, 450, 1), FAIL(EPERM),";
    let filtered = filtering(&scratch, &format!("DENY(SYS_clone3, ENOSYS),{denied}{later}"));
    let by = || [filtered.as_os_str()];
    let output =
        scratch.zklock().args(["-v", LOCK, "--", "unshare", "--user", "true"]).run_by(by()).run().expect_code(1);
    assert!(!output.stderr().contains("going on without"), "{output}");
    let number = scratch.file("daemon");
    let job = scratch.zklock().args(GRACE).arg(LOCK).args(with_daemon(&scratch, &number, "wait")).run_by(by()).spawn();
    lose(job, number_in(&number));
    scratch.wait_queue(0);
}

/// As before Linux 5.9. The limit of open files does not tell how high the numbers are that are in use.
#[test]
fn without_close_range_all_descriptors_are_closed() {
    let scratch = Scratch::new();
    let filtered = filtering(&scratch, "DENY(SYS_close_range, ENOSYS),");
    let script = "exec 900</dev/null && ulimit -S -n 100 && exec \"$@\"";
    let by = ["bash".as_ref(), "-c".as_ref(), script.as_ref(), "bash".as_ref(), filtered.as_os_str()];
    let mut job = scratch.zklock().arg(LOCK).child(["--exit-on", "TERM"]).run_by(by).spawn();
    job.wait_stdout("ready");
    for process in [job.keeper(), job.guard()] {
        assert!(!Path::new(&format!("/proc/{process}/fd/900")).exists(), "{process}");
    }
    finish(&mut job);
}

#[test]
fn without_the_adoption_of_orphans_nothing_starts() {
    let scratch = Scratch::new();
    // PR_SET_CHILD_SUBREAPER
    let rules = "UNLESS(JEQ, SYS_prctl, 3), LOAD(args[0]), UNLESS(JEQ, 36, 1), FAIL(EPERM),";
    let filtered = filtering(&scratch, rules);
    let fence = Zklock::bare().args(["fence", "--token", "1"]).arg(scratch.file("fence")).arg("true");
    for run in [scratch.zklock().args([LOCK, "true"]), fence] {
        let line = only_line(&run.run_by([filtered.as_os_str()]).run().expect_code(78));
        let why = "the system refuses the adoption of orphans (PR_SET_CHILD_SUBREAPER)";
        assert!(line.starts_with(&format!("cannot supervise what the command starts: {why}")), "{line}");
    }
}

#[test]
fn without_proc_nothing_starts() {
    if refused([Right::Mounts]) {
        return;
    }
    let scratch = Scratch::new();
    let fence = Zklock::bare().args(["fence", "--token", "1"]).arg(scratch.file("fence")).arg("true");
    for run in [scratch.zklock().args([LOCK, "true"]), scratch.zklock().args(["hold", LOCK]), fence] {
        let output = run.run_by(mounted("mount -t tmpfs none /proc")).run().expect_code(78);
        let why = "cannot supervise what the command starts: /proc is missing: mount it (mount -t proc proc /proc)";
        assert_eq!(only_line(&output), why);
    }
    scratch.wait_queue(0);
}

/// The command is not to blame.
#[test]
fn without_what_ties_the_command_to_the_guard_it_is_not_started() {
    for rules in [
        "DENY(SYS_setpgid, EPERM),",
        "UNLESS(JEQ, SYS_prctl, 3), LOAD(args[0]), UNLESS(JEQ, 1, 1), FAIL(EPERM),",
        "DENY(SYS_timer_create, EPERM),",
    ] {
        let scratch = Scratch::new().with_lock();
        let filtered = filtering(&scratch, rules);
        let output = scratch.zklock().args([LOCK, "--", "echo", "ran"]).run_by([filtered]).run().expect_code(70);
        let line = "zklock: echo: the system refuses what lock-guard needs (setpgid, PR_SET_PDEATHSIG, timer_create, F_SETSIG of \
             fcntl): Operation not permitted (os error 1)\n";
        assert_eq!((output.stdout(), output.stderr()), (String::new(), line.to_owned()));
        scratch.wait_queue(0);
    }
}

/// As `SystemCallFilter=~@resources` of systemd does.
#[test]
fn a_guard_that_a_filter_kills_is_named() {
    let scratch = Scratch::new().with_lock();
    let kills = "UNLESS(JEQ, SYS_sched_setscheduler, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),";
    let filtered = filtering(&scratch, kills);
    let output = scratch.zklock().args([LOCK, "--", "echo", "ran"]).run_by([filtered]).run().expect_code(70);
    assert_eq!(output.stdout(), "");
    let why = "echo: a seccomp filter killed lock-guard (SIGSYS); it must refuse system calls by an error";
    assert!(only_line(&output).starts_with(why), "{output}");
    scratch.wait_queue(0);
}

#[test]
fn set_user_id_is_refused() {
    if refused([Right::SetUserId]) {
        return;
    }
    let copies = Copies::new();
    for mode in [0o4755, 0o2755] {
        let copy = copies.add(binary(), mode);
        for args in [&["-z", &direct(), LOCK, "true"][..], &["--version"]] {
            let zklock = Zklock::bare().program(&copy).args(args);
            let output = zklock.run_by(AS_NOBODY).run().expect_code(70);
            assert_eq!(output.stdout(), "");
            assert!(only_line(&output).starts_with("zklock does not run with the rights of another user"), "{output}");
        }
    }
}
