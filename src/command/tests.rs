use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::unistd::getppid;

use super::*;

#[test]
fn names_in_proc_may_hold_anything() {
    let stat = b"42 (a) Z 1 (b) R 7 9 9 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 3 0 12345 1 1 1";
    let process = Process::parse(42, stat).unwrap();
    let expected = Process { pid: 42, parent: 7, group: 9, started: 12345, alive: true, name: b"a) Z 1 (b".to_vec() };
    assert_eq!(process, expected);
    assert_eq!(Process::parse(42, b"42 (cut of"), None);
}

#[test]
fn we_find_ourselves_in_proc() {
    let this = Process::read(getpid().as_raw()).unwrap();
    assert_eq!(this.parent, getppid().as_raw());
    assert!(this.alive);
    assert!(processes().unwrap().iter().any(|process| process.is_same(&this)));
}

#[test]
fn a_process_that_executes_programs_carries_its_mark_at_every_moment() {
    let script = "n=$(($1 - 1)); [ $n -lt 0 ] || exec sh -c \"$0\" \"$0\" $n";
    let mut sh = std::process::Command::new("sh");
    let mut child = sh.args(["-c", script, script, "500"]).env(environment::RUN, "outer\nmark").spawn().unwrap();
    let process = Process::read(child.id().cast_signed()).unwrap();
    let directory = PathBuf::from(format!("/proc/{}", process.pid));
    let (mut seen, mut unseen) = (0, 0);
    while child.try_wait().unwrap().is_none() {
        match process.carries("mark") {
            Some(true) => seen += 1,
            // One that exits has no memory any more before it has ended.
            Some(false) if environment_size(&directory) != Some(0) => unseen += 1,
            _ => {}
        }
    }
    assert!(seen > 0);
    assert_eq!(unseen, 0, "{seen} times it was seen");
}

#[test]
fn a_process_with_an_empty_environment_carries_no_mark() {
    let mut child = std::process::Command::new("/bin/sleep").arg("60").env_clear().spawn().unwrap();
    let process = Process::read(child.id().cast_signed()).unwrap();
    while process.carries("mark").is_none() {}
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_subreaper_is_above_what_it_has_started_whoever_ends_in_between() {
    prctl::set_child_subreaper(true).unwrap();
    for _ in 0..100 {
        let mut sh = std::process::Command::new("sh");
        sh.args(["-c", "sleep 60 >/dev/null & echo $!"]).stdout(Stdio::piped());
        let mut shell = sh.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let sleeper: i32 = line.trim().parse().unwrap();
        let reaped = AtomicBool::new(false);
        let is_always_above = thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let mut is_always_above = true;
                while !reaped.load(Ordering::Relaxed) {
                    is_always_above &= is_above(std::process::id(), sleeper.cast_unsigned());
                }
                is_always_above
            });
            shell.wait().unwrap();
            reaped.store(true, Ordering::Relaxed);
            looking.join().unwrap()
        });
        signals::send(sleeper, Signal::KILL).unwrap();
        nix::sys::wait::waitpid(Pid::from_raw(sleeper), None).unwrap();
        assert!(is_always_above);
    }
}

#[test]
fn programs_are_found_as_execvp_finds_them() {
    let located = |program| locate(OsStr::new(program)).map_err(|error| unstarted(&error));
    for program in ["sh", "/bin/sh"] {
        assert_eq!(located(program), Ok(()), "{program}");
    }
    for program in ["", "no-such-program-anywhere", "/no/such/program", "/etc/passwd/x"] {
        assert_eq!(located(program), Err(Unstarted::NotFound), "{program}");
    }
    for program in ["/etc", "/etc/passwd"] {
        assert_eq!(located(program), Err(Unstarted::CannotExecute), "{program}");
    }
}
