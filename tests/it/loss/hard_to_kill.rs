//! What has kept processes of a command alive: a cgroup that is frozen, a /proc that hides them, processes that fork all
//! the time, and a guard that kept the only processor for itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::harness::fault::{EXPIRY, Fault};
use crate::harness::poll;
use crate::harness::process;
use crate::harness::restless::Restless;
use crate::harness::rights::{AS_NOBODY, Copies, Right, as_pid_1, mounted, refused};
use crate::harness::running::finish;
use crate::harness::scratch::{GRACE, LOCK, Scratch, direct};
use crate::harness::skipped::skip;
use crate::harness::times::expect_once_below;
use crate::harness::traced::Traced;
use crate::harness::zklock::{Zklock, binary, child};

/// A cgroup of version 2, removed when this is dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    /// `None` where the tests may not make one.
    fn new() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/mounts").ok()?;
        let mounted = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let root = mounted.filter(|fields| fields.get(2) == Some(&"cgroup2")).find_map(|fields| {
            fields.get(1).map(|directory| Path::new(directory).join(format!("zklock-test-{}", fastrand::u64(..))))
        })?;
        fs::create_dir(&root).ok()?;
        let group = Self(root);
        // The first process of a namespace of cgroups may be all that is allowed in here.
        group.0.join("cgroup.freeze").exists().then_some(group)
    }

    fn freeze(&self, frozen: bool) {
        fs::write(self.0.join("cgroup.freeze"), if frozen { "1" } else { "0" }).expect("the cgroup can be set");
        let state = format!("frozen {}", u8::from(frozen));
        poll::until(&state, || {
            let events = fs::read_to_string(self.0.join("cgroup.events")).ok()?;
            events.lines().any(|line| line == state).then_some(())
        });
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        let removed = poll::within(poll::PATIENCE, || fs::remove_dir(&self.0).ok());
        assert!(removed.is_some() || std::thread::panicking(), "{} cannot be removed", self.0.display());
    }
}

/// Nothing of zklock can act, as below `docker pause`: the kernel kills the command at the end of the lease.
#[test]
fn frozen_cgroup() {
    let Some(group) = Cgroup::new() else {
        return skip("a cgroup2 file system");
    };
    let scratch = Scratch::new().with_lock();
    let enter = format!(r#"echo $$ >"{}/cgroup.procs" && exec "$@""#, group.0.display());
    let child = ["--wait", "--spawn", "--", "--name", "grandchild", "--wait"];
    let holder = scratch.job(&direct(), "holder", &GRACE, &child).run_by(["sh", "-c", &enter, "sh"]).spawn();
    holder.wait_stdout_all(&["holder ready", "grandchild ready"]);
    let next = scratch.queue("next", 1);
    let mut fault = Fault::of(scratch, holder, next);
    let family = process::children(fault.command);
    assert_eq!(family.len(), 1);
    group.freeze(true);
    fault.strikes();
    // Dead, not only without a sign of life: it is looked at while all is still frozen.
    fault.command_dead(EXPIRY);
    fault.next_starts(EXPIRY);
    process::expect_dead(&family);
    group.freeze(false);
    fault.holder.wait().expect_code(76);
    fault.end();
}

/// zklock runs as a user who is not root, and is shown no processes of other users, nor those of its own user that
/// cannot be traced (proc(5), hidepid). A descendant is one of those: it has become root and has left the group.
#[test]
fn hidden_descendant() {
    if refused([Right::SetUserId, Right::Mounts]) {
        return;
    }
    let copies = Copies::new();
    let (copy, sleep) = (copies.add(binary(), 0o755), copies.add("/bin/sleep", 0o4755));
    let scratch = Scratch::new().with_lock();
    let script = format!(r#"setsid {} 1000 & echo $! >{}; wait"#, sleep.display(), copies.path("pid").display());
    // The user may not read the key of a certificate.
    let zklock = Zklock::at(scratch.chroot()).plain().env("ZKLOCK_SESSION_TIMEOUT", "8").program(&copy);
    let hide = mounted("mount -t proc -o hidepid=2 proc /proc");
    let job = zklock.args(GRACE).args([LOCK, "--", "sh", "-c", &script]).run_by(AS_NOBODY).run_by(hide);
    let mut job = job.spawn();
    let hidden = wait_pid(&copies.path("pid"));
    poll::until("it has become root", || {
        let status = fs::read_to_string(format!("/proc/{hidden}/status")).ok()?;
        status.lines().any(|line| line.starts_with("Uid:\t65534\t0\t")).then_some(())
    });
    job.signal(Signal::SIGKILL);
    job.wait().expect_signal(Signal::SIGKILL);
    process::wait_dead(hidden);
    job.wait_until_nothing_is_left();
    scratch.wait_queue(0);
}

/// zklock runs as a user who is not root. A process of the command has become root for good, so it cannot be killed, and
/// has started another one, which has become the user again: SIGKILL for all children of the guard does not reach that.
#[test]
fn below_a_process_of_another_user() {
    if refused([Right::SetUserId]) {
        return;
    }
    let copies = Copies::new();
    let zklock = copies.add(binary(), 0o755);
    copies.add("/usr/bin/setpriv", 0o4755);
    // Both leave the command's group, which the kernel kills.
    let script = format!(
        r#"cd {} && setsid ./setpriv --reuid=0 --regid=0 --clear-groups sh -c '
            setsid {} sh -c "echo \$\$ >below; exec sleep 1000" &
            echo $$ >above
            while :; do sleep 1; done' & wait"#,
        copies.path("").display(),
        AS_NOBODY.join(" "),
    );
    let scratch = Scratch::new().with_lock();
    // The user may not read the key of a certificate.
    let job = Zklock::at(scratch.chroot()).plain().env("ZKLOCK_SESSION_TIMEOUT", "60").program(&zklock);
    let job = job.args(["--max-run", "2s", "--kill-after", "100ms"]);
    let mut job = job.args([LOCK, "--", "sh", "-c", &script]).run_by(AS_NOBODY).spawn();
    let [above, below] = ["above", "below"].map(|name| wait_pid(&copies.path(name)));
    poll::until("it is the user's", || (process::look(below)?.name == "sleep").then_some(()));
    process::wait_dead(below);
    let named =
        format!("zklock: the system does not let zklock kill process {above}, which is another user's or confined");
    job.wait_stderr(&named);
    job.signal(Signal::SIGKILL);
    assert_eq!(job.wait().expect_signal(Signal::SIGKILL).stderr().matches(&named).count(), 1);
    assert_eq!(scratch.contenders().len(), 1, "the lock is held until nothing is left");
    assert!(process::look(above).is_some_and(|process| process.state != 'Z'), "it cannot be killed");
    process::send(above, Signal::SIGKILL);
    job.wait_until_nothing_is_left();
    scratch.wait_queue(0);
}

fn wait_pid(file: &Path) -> Pid {
    poll::until("a pid in a file", || fs::read_to_string(file).ok()?.trim().parse().ok().map(Pid::from_raw))
}

/// No look at the processes finds them all.
#[test]
fn processes_that_fork_all_the_time() {
    let restless = Restless::build();
    for victim in ["supervisor", "guard"] {
        let scratch = Scratch::new();
        let mut run = scratch.zklock().arg(LOCK).arg("--").arg(restless.program()).spawn();
        run.wait_stdout("restless ready");
        if victim == "supervisor" {
            run.signal(Signal::SIGKILL);
            run.wait().expect_signal(Signal::SIGKILL);
            // The lock passes when nothing is left.
            scratch.wait_left([LOCK], [0]);
        } else {
            process::send(run.guard(), Signal::SIGKILL);
            run.wait().expect_code(70);
        }
        // Each look may miss it.
        assert!((0..50).all(|_| run.processes().iter().all(|process| process.name != "restless")), "{run}");
        run.wait_until_nothing_is_left();
    }
}

/// A process needs the processor to die, and a guard with a real-time priority goes before it.
#[test]
fn hundreds_on_one_processor() {
    let status = fs::read_to_string("/proc/self/status").expect("our own process");
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a list").trim();
    let first = allowed.split([',', '-']).next().expect("a processor");
    let script = "for number in $(seq 200); do setsid sleep 600 & done; wait";
    expect_once_below(Duration::from_millis(400), || {
        let scratch = Scratch::new();
        let job = scratch.zklock().args([LOCK, "--", "sh", "-c", script]).run_by(["taskset", "--cpu-list", first]);
        let mut job = job.spawn();
        let guard = job.guard();
        let sleeps = || process::children(job.command()).iter().filter(|process| process.name == "sleep").count();
        poll::until("all of them", || (sleeps() == 200).then_some(()));
        let killed = Instant::now();
        job.signal(Signal::SIGKILL);
        // It goes when nothing is left.
        process::wait_dead(guard);
        let took = killed.elapsed();
        job.wait().expect_signal(Signal::SIGKILL);
        scratch.wait_left([LOCK], [0]);
        took
    });
}

/// When the last thread of a process ends after the first, waitpid(2) may have to wait for the thread. The guard has the
/// processor that the thread needs, and a daemon to kill.
#[test]
fn a_first_thread_has_ended_beside_busy_processes() {
    if refused([Right::Ptrace]) {
        return;
    }
    let processors = std::thread::available_parallelism().expect("a number").get();
    let busy = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell");
    let busy: Vec<_> = (0..processors).map(|_| Spin(busy())).collect();
    let script = format!("setsid sleep 600 & exec {} --second-thread --wait", child().display());
    for _ in 0..5 {
        let scratch = Scratch::new().with_lock();
        let mut job = scratch.zklock().args([LOCK, "--", "sh", "-c", &script]).spawn();
        job.wait_stdout("ready");
        let daemon = poll::until("the daemon", || {
            process::children(job.command()).pop().filter(|process| process.name == "sleep")
        });
        // As tools that show threads do.
        let threads = fs::read_dir(format!("/proc/{}/task", job.command())).expect("it lives").flatten();
        threads.for_each(|thread| drop(fs::read(thread.path().join("stat"))));
        // The guard is not reaped before its processor time has been read.
        let guard = job.guard();
        let debugger = Traced::hold(job.pid());
        scratch.delete_holder();
        process::wait_state(guard, &['Z']);
        process::expect_dead(&[daemon]);
        let ticks: u32 = stat(guard, 11, 2).iter().map(|ticks| ticks.parse::<u32>().expect("a number")).sum();
        assert!(ticks < 5, "the guard has taken {ticks} hundredths of a second");
        drop(debugger);
        job.wait().expect_code(76);
    }
    drop(busy);
}

/// A process that is killed when this is dropped.
struct Spin(Child);

impl Drop for Spin {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// As `podman exec` does. When such a process dies, what is below it does not come up to the guard, but to the first process of
/// that namespace.
#[test]
fn in_a_pid_namespace_that_was_there_before() {
    if refused([Right::Root, Right::PidNamespaces]) {
        return;
    }
    let mut words = as_pid_1().into_iter();
    let mut namespace = Command::new(words.next().expect("unshare"));
    let namespace = Spin(namespace.args(words).args(["sleep", "1000"]).spawn().expect("unshare"));
    let unshare = Pid::from_raw(namespace.0.id().cast_signed());
    let init =
        poll::until("its first process", || process::children(unshare).pop().filter(|process| process.name == "sleep"));
    let scratch = Scratch::new().with_lock();
    // Outside of the command's process group: in it, all would be killed at the same moment.
    let enter = format!("exec nsenter --target {} --pid setsid --wait", init.pid);
    let script = format!("{enter} sh -c 'setsid sleep 600 & echo ready; wait'");
    let mut job = scratch.zklock().args([LOCK, "--", "sh", "-c", &script]).spawn();
    job.wait_stdout("ready");
    let sleeper = poll::until("the job", || job.processes().into_iter().find(|process| process.name == "sleep"));
    scratch.delete_holder();
    job.wait().expect_code(76);
    process::expect_dead(&[sleeper]);
}

/// Among hundreds of busy processes, or beside one with a real-time priority, a guard that takes its turn would come too
/// late. The command takes its turn.
#[test]
fn goes_before_all_others() {
    if refused([Right::RealTimePriority]) {
        return;
    }
    let scratch = Scratch::new();
    let mut job = scratch.hold_with(&[], &["--exit-on", "TERM"]);
    assert_eq!(priority(job.guard()), format!("98 {}", libc::SCHED_FIFO));
    assert_eq!(priority(job.command()), "0 0");
    finish(&mut job);
}

/// The real-time priority of a process, and its policy (proc_pid_stat(5)).
#[track_caller]
fn priority(pid: Pid) -> String {
    stat(pid, 37, 2).join(" ")
}

/// Fields of proc_pid_stat(5), from the one that is `first` behind the name.
#[track_caller]
fn stat(pid: Pid, first: usize, count: usize) -> Vec<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it has not been reaped");
    let fields = stat.rsplit_once(')').expect("a name").1.split_whitespace();
    fields.skip(first).take(count).map(str::to_owned).collect()
}
