//! Tests of the plan as a whole; those of its parts are beside them.

use std::time::Duration;

use crate::rules::lock_path::LockPath;
use crate::rules::offer::{Descriptor, Offer};
use crate::rules::settings::Settings;
use crate::rules::signal::Signal;
use crate::zookeeper::login::Login;
use crate::zookeeper::net::tls::OwnCertificate;
use crate::zookeeper::net::tls::Tls;
use std::ffi::OsStr;
use std::num::NonZeroU32;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use proptest::prelude::*;

use super::*;
use crate::rules::mode::Mode;
use crate::rules::outcome::EXIT_STATUS;
use crate::rules::process_identity::ProcessIdentity;
use crate::rules::queue::Dialect;
use crate::rules::settings::Patience;
use crate::rules::text::is_legible;
use crate::zookeeper::login::{Credential, Protection, Sasl};

/// An empty environment, without files.
fn nothing(_: &str) -> Option<OsString> {
    None
}

/// The plan for the words of `args` after `zklock`, in this environment.
fn plan_in(environment: &[(&str, &str)], args: &[&str]) -> Result<Plan, Exit> {
    let args = std::iter::once("zklock").chain(args.iter().copied()).map(OsString::from);
    job(args, &|name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
}

fn plan(args: &[&str]) -> Plan {
    plan_in(&[], args).unwrap_or_else(|exit| panic!("{args:?}: {exit:?}"))
}

fn refusal(exit: Result<Plan, Exit>) -> String {
    match exit {
        Err(Exit::Usage(error)) => error.as_str().to_owned(),
        other => panic!("not refused: {other:?}"),
    }
}

fn command_line(words: &[&str]) -> CommandLine {
    CommandLine { program: words[0].into(), args: words[1..].iter().map(OsString::from).collect(), found: None }
}

fn to_run(words: &[&str]) -> Option<CommandLine> {
    Some(command_line(words))
}

/// The operation for the words of `args` after `zklock`.
fn operation(args: &[&str]) -> Result<Operation, Exit> {
    match task(std::iter::once("zklock").chain(args.iter().copied()).map(OsString::from), &nothing)? {
        Task::Operation(operation) => Ok(*operation),
        job => panic!("{args:?}: {job:?}"),
    }
}

fn operation_refusal(args: &[&str]) -> String {
    match operation(args) {
        Err(Exit::Usage(error)) => error.as_str().to_owned(),
        other => panic!("{args:?} is not refused: {other:?}"),
    }
}

fn defaults(origins: &[(&'static str, &str)]) -> Vec<Setting> {
    let setting = |(name, value): &(&'static str, &str)| Setting {
        name,
        value: Some((*value).to_owned()),
        origin: Origin::Default,
    };
    origins.iter().map(setting).collect()
}

fn default_access() -> Access {
    Access {
        servers: "localhost:2181".parse().unwrap(),
        servers_given: false,
        connect_timeout: Duration::from_secs(15),
        tls: None,
        login: Login::default(),
        origins: defaults(&[("zookeeper", "localhost:2181"), ("connect-timeout", "15s"), ("tls", "false")]),
    }
}

#[test]
fn everything_in_a_subcommand_has_its_default() {
    let lock = |path| LockPath::parse(path, "").unwrap();
    let access = default_access();
    let verbosity = Verbosity::Normal;
    let status = Status { locks: vec![lock("/a"), lock("/b")], json: false, watch: false };
    let subject = Subject::Status(status);
    assert_eq!(operation(&["status", "/a", "/b", "/a"]), Ok(Operation { access: access.clone(), verbosity, subject }));
    let subject = Subject::List(List { root: "/".to_owned(), json: false });
    assert_eq!(operation(&["list"]), Ok(Operation { access: access.clone(), verbosity, subject }));
    let subject = Subject::Check(Check { lock: None, session_timeout: Duration::from_secs(30), json: false });
    let mut access = access;
    access.origins.extend(defaults(&[("session-timeout", "30s")]));
    assert_eq!(operation(&["check"]), Ok(Operation { access, verbosity, subject }));
}

#[test]
fn every_option_of_a_subcommand_is_understood() {
    let options = ["-z", "zk1:1/app", "--connect-timeout", "2s", "-v", "--json"];
    let status = operation(&[&["status", "--watch", "/a"], &options[..]].concat()).unwrap();
    assert_eq!(status.access.servers, "zk1:1/app".parse().unwrap());
    assert_eq!((status.access.servers_given, status.access.connect_timeout), (true, Duration::from_secs(2)));
    assert_eq!(status.verbosity, Verbosity::Verbose(1));
    let locks = vec![LockPath::parse("/a", "").unwrap()];
    assert_eq!(status.subject, Subject::Status(Status { locks, json: true, watch: true }));
    let list = operation(&[&["list", "/a"], &options[..]].concat()).unwrap();
    assert_eq!(list.subject, Subject::List(List { root: "/a".to_owned(), json: true }));
    let check = operation(&[&["check", "/a", "--session-timeout", "6s"], &options[..]].concat()).unwrap();
    let lock = Some(LockPath::parse("/a", "").unwrap());
    assert_eq!(check.subject, Subject::Check(Check { lock, session_timeout: Duration::from_secs(6), json: true }));
    let at_once = operation(&["check", "--connect-timeout", "0"]).unwrap();
    assert_eq!(at_once.access.connect_timeout, Duration::ZERO);
    operation(&["status", "/a", "--connect-timeout", "0"]).unwrap_err();
}

#[test]
fn what_is_typed_of_a_path_is_cut_at_its_last_slash() {
    for (typed, directory, begun) in [
        ("/", "/", ""),
        ("/jo", "/", "jo"),
        ("/jobs/", "/jobs", ""),
        ("/a/b/.", "/a/b", "."),
        ("/zookeeper", "/", "zookeeper"),
    ] {
        let subject = Subject::Complete(Complete { directory: directory.to_owned(), begun: begun.to_owned() });
        assert_eq!(operation(&["list", "--complete", typed]).unwrap().subject, subject, "{typed}");
    }
    for typed in ["", "jo", "//", "//jo", "/a/./b", "/zookeeper/", "/a\tb"] {
        assert!(operation(&["list", "--complete", typed]).is_err(), "{typed}");
    }
}

#[test]
fn a_subcommand_is_the_first_argument_alone() {
    assert_eq!(plan(&["/l", "status", "/l"]).command, to_run(&["status", "/l"]));
    assert_eq!(plan(&["/l", "--", "list"]).command, to_run(&["list"]));
    let status = "status comes first; write zklock status [OPTIONS] LOCK...";
    for (args, message) in [
        (&["-z", "zk1", "status", "/l"][..], status),
        (&["-n", "status", "/l", "/m"], status),
        (&["-z", "zk1", "status", "--json", "/l"], status),
        (&["-z", "zk1", "list"], "list comes first; write zklock list [OPTIONS] [ROOT]"),
    ] {
        assert_eq!(refusal(plan_in(&[], args)), message, "{args:?}");
    }
}

#[test]
fn refusals_of_subcommands_say_what_to_write() {
    for (args, message) in [
        (&["status"][..], "no lock; write zklock status [OPTIONS] LOCK..."),
        (&["status", "l"], "LOCK 'l' does not begin with a slash; write an absolute path such as /jobs/backup"),
        (&["status", "--jsno", "/l"], "unexpected argument '--jsno' found; did you mean --json?"),
        (
            &["status", "-n", "/l"],
            "unexpected argument '-n' found; write zklock status [OPTIONS] LOCK...; zklock status --help says more",
        ),
        (&["status", "-q", "--watch", "/l"], "--watch and --quiet exclude each other; write one of them"),
        (
            &["list", "/a", "/b"],
            "unexpected argument '/b' found; write zklock list [OPTIONS] [ROOT]; zklock list --help says more",
        ),
        (&["list", "/a/"], "ROOT '/a/' has a slash at its end, or two in a row; leave one out"),
        (&["list", "/zookeeper"], {
            "ROOT '/zookeeper' belongs to ZooKeeper itself, and has no locks; write another path"
        }),
        (
            &["list", "-z"],
            "a value is required for '--zookeeper <SERVERS>' but none was supplied; write zklock list [OPTIONS] [ROOT]; zklock list --help says more",
        ),
    ] {
        assert_eq!(operation_refusal(args), message, "{args:?}");
    }
}

#[test]
fn everything_has_its_default() {
    assert_eq!(
        plan(&["/jobs/backup", "./backup.sh"]),
        Plan {
            access: default_access(),
            verbosity: Verbosity::Normal,
            request: LockRequest {
                lock: LockPath::parse("/jobs/backup", "").unwrap(),
                and: vec![],
                mode: Mode::Exclusive,
                dialects: vec![Dialect::Curator],
                dialects_given: false,
                once_per: None,
                lock_delay: Duration::ZERO,
                held: vec![],
                offers: vec![],
            },
            settings: Settings {
                patience: Patience::Forever,
                connect_timeout: Duration::from_secs(15),
                session_timeout: Duration::from_secs(30),
                kill_after: None,
                stop_signal: Signal::TERM,
                max_run: None,
                wait_descendants: false,
            },
            conflict_exit_code: 75,
            hold: None,
            fence: None,
            command: to_run(&["./backup.sh"]),
            description: None,
            publishes_arguments: false,
        }
    );
}

#[test]
fn every_option_is_understood() {
    let all = [
        "--zookeeper=zk1,zk2:1/app",
        "--connect-timeout=1s",
        "--session-timeout=1m",
        "--exclusive",
        "--and=/b",
        "--and=/a",
        "--and=/l",
        "--and=/b",
        "--dialect=kazoo,curator,kazoo",
        "--timeout=1h30m",
        "--once-per=50m",
        "--conflict-exit-code=0",
        "--describe= nightly ",
        "--publish-command",
        "--signal=int",
        "--kill-after=7",
        "--max-run=2h",
        "--wait-descendants",
        "-vv",
        "/l",
        "job",
    ];
    let origins = vec![
        Setting { origin: Origin::Option("zookeeper"), ..defaults(&[("zookeeper", "zk1:2181,zk2:1/app")]).remove(0) },
        Setting { origin: Origin::Option("connect-timeout"), ..defaults(&[("connect-timeout", "1s")]).remove(0) },
        defaults(&[("tls", "false")]).remove(0),
    ];
    assert_eq!(
        plan(&all),
        Plan {
            access: Access {
                servers: "zk1:2181,zk2:1/app".parse().unwrap(),
                servers_given: true,
                connect_timeout: Duration::from_secs(1),
                origins,
                ..default_access()
            },
            verbosity: Verbosity::Verbose(2),
            request: LockRequest {
                lock: LockPath::parse("/l", "/app").unwrap(),
                and: vec![LockPath::parse("/b", "").unwrap(), LockPath::parse("/a", "").unwrap()],
                mode: Mode::Exclusive,
                dialects: vec![Dialect::Kazoo, Dialect::Curator],
                dialects_given: true,
                once_per: Some(Duration::from_secs(3000)),
                lock_delay: Duration::ZERO,
                held: vec![],
                offers: vec![],
            },
            settings: Settings {
                patience: Patience::AtMost(Duration::from_secs(5400)),
                connect_timeout: Duration::from_secs(1),
                session_timeout: Duration::from_secs(60),
                kill_after: Some(Duration::from_secs(7)),
                stop_signal: Signal::INT,
                max_run: Some(Duration::from_secs(7200)),
                wait_descendants: true,
            },
            conflict_exit_code: 0,
            hold: None,
            fence: None,
            command: to_run(&["job"]),
            description: Some("nightly".to_owned()),
            publishes_arguments: true,
        }
    );
    let short = ["-z", "zk", "-x", "-n", "-E", "1", "-k", "0", "-q", "/l", "-c", "job"];
    let short = plan(&short);
    assert_eq!(short.access.servers.to_string(), "zk:2181");
    assert_eq!(short.settings.patience, Patience::NoWait);
    assert_eq!(short.conflict_exit_code, 1);
    assert_eq!(short.settings.kill_after, Some(Duration::ZERO));
    assert_eq!(short.verbosity, Verbosity::Quiet);
}

#[test]
fn one_mode_is_chosen() {
    let permits = |n| Mode::Permits(NonZeroU32::new(n).unwrap());
    for (args, mode) in [
        (&[][..], Mode::Exclusive),
        (&["-x"], Mode::Exclusive),
        (&["-s"], Mode::Shared),
        (&["-p", "3"], permits(3)),
        (&["--permits=4294967295", "--dialect=curator"], permits(u32::MAX)),
    ] {
        assert_eq!(plan(&[args, &["/l", "job"]].concat()).request.mode, mode, "{args:?}");
    }
    for args in [&["-x", "-s"][..], &["-s", "-p", "1"], &["-p", "1", "-x"]] {
        let refused = refusal(plan_in(&[], &[args, &["/l", "job"]].concat()));
        assert_eq!(refused, "--exclusive, --shared and --permits exclude each other; write one of them");
    }
    for number in ["0", "-1", "+1", "1.5", "x", "", "4294967296"] {
        let refused = refusal(plan_in(&[], &[&format!("--permits={number}"), "/l", "job"]));
        assert_eq!(refused, format!("--permits '{number}': write a number from 1 to 4294967295"));
    }
    for dialect in ["kazoo", "curator,kazoo", "curator-rw"] {
        let refused = refusal(plan_in(&[], &["-p2", &format!("--dialect={dialect}"), "/l", "job"]));
        assert_eq!(refused, "--permits works in the dialect curator alone; leave out one of the two");
    }
    for dialect in ["", "Curator", "curator,", "zookeeper"] {
        let refused = refusal(plan_in(&[], &[&format!("--dialect={dialect}"), "/l", "job"]));
        assert!(
            refused.ends_with("write single, or one or several of curator, curator-rw, kazoo, separated by commas")
        );
    }
}

#[test]
fn further_locks_are_checked_as_the_first_is() {
    assert!(refusal(plan_in(&[], &["/l", "--and", "l", "job"])).starts_with("--and 'l' does not begin with a slash"));
    let many: Vec<_> = (0..500).flat_map(|n| ["--and".to_owned(), format!("/{n}")]).collect();
    let many: Vec<_> = many.iter().map(String::as_str).chain(["/l", "job"]).collect();
    assert!(refusal(plan_in(&[], &many)).starts_with("--and: too many"));
}

#[test]
fn held_locks_are_read_from_the_environment() {
    let held = |text| plan_in(&[("ZKLOCK_HELD", text)], &["/l", "job"]).unwrap().request.held;
    assert_eq!(held("/l/_c_a-lock-0000000001\n/jobs/b/x"), ["/l/_c_a-lock-0000000001", "/jobs/b/x"]);
    assert_eq!(held("\n/\n\n"), Vec::<String>::new());
}

#[test]
fn offers_are_read_from_the_environment() {
    let offers = |text| plan_in(&[("ZKLOCK_LENDER", text)], &["/l", "job"]).unwrap().request.offers;
    let offer = |pid| {
        let lender = ProcessIdentity { pid, started: 2 };
        let (pipe, page) = (Descriptor { number: 3, inode: 4 }, Descriptor { number: 8, inode: 9 });
        Offer { lender, root: ProcessIdentity { pid: 5, started: 2 }, pipe, page }
    };
    assert_eq!(offers("5 1 2 5 2 3 4 8 9\n5 7 2 5 2 3 4 8 9"), [offer(1), offer(7)]);
    assert_eq!(offers("x\n\n1 2 3 4\n5 1 2 5 2 3 4 8 9\n"), [offer(1)]);
}

#[test]
fn options_after_the_command_are_its_own() {
    let three = Patience::AtMost(Duration::from_secs(3));
    for (args, patience, command) in [
        (&["/l", "./job", "--timeout", "3"][..], Patience::Forever, &["./job", "--timeout", "3"][..]),
        (&["/l", "--timeout", "3", "--", "./job"], three, &["./job"]),
        (&["/l", "--timeout", "3", "./job"], three, &["./job"]),
        (&["--timeout", "3", "/l", "./job", "-n"], three, &["./job", "-n"]),
        (&["-w3", "/l", "./job", "--", "-x"], three, &["./job", "--", "-x"]),
        (&["/l", "--", "./job", "--", "-x"], Patience::Forever, &["./job", "--", "-x"]),
        (&["/l", "--", "--", "x"], Patience::Forever, &["--", "x"]),
        (&["/l", "--", "-n", "x"], Patience::Forever, &["-n", "x"]),
        (&["/l", "./job", "--help"], Patience::Forever, &["./job", "--help"]),
        (&["/l", "./job", "-c", "x"], Patience::Forever, &["./job", "-c", "x"]),
        (&["/l", "./job", "--unknown"], Patience::Forever, &["./job", "--unknown"]),
        (&["/l", "./job", ""], Patience::Forever, &["./job", ""]),
        (&["/l", "./job", "-w", "1", "-w", "2"], Patience::Forever, &["./job", "-w", "1", "-w", "2"]),
        (&["--", "/l", "./job"], Patience::Forever, &["./job"]),
    ] {
        let plan = plan(args);
        assert_eq!(plan.settings.patience, patience, "{args:?}");
        assert_eq!(plan.command, to_run(command), "{args:?}");
    }
}

#[test]
fn every_byte_reaches_the_command() {
    let odd: Vec<OsString> = [&b"caf\xe9"[..], b"\xff\xfe", b"a\nb", b"--\xc3\x28", b"\x1b[31m"]
        .into_iter()
        .map(|bytes| OsStr::from_bytes(bytes).to_owned())
        .collect();
    let args = ["zklock", "/l"].into_iter().map(OsString::from).chain(odd.clone());
    let plan = job(args, &nothing).unwrap();
    assert_eq!(plan.command, Some(CommandLine { program: odd[0].clone(), args: odd[1..].to_vec(), found: None }));

    let script = OsStr::from_bytes(b"echo \xff");
    let args = [OsStr::new("zklock"), OsStr::new("/l"), OsStr::new("-c"), script].map(OsStr::to_owned);
    let plan = job(args, &nothing).unwrap();
    assert_eq!(plan.command.unwrap().args, ["-c".into(), script.to_owned()]);
}

#[test]
fn a_shell_command_is_run_by_the_users_shell() {
    for (environment, program) in
        [(&[][..], "/bin/sh"), (&[("SHELL", "")], "/bin/sh"), (&[("SHELL", "/bin/zsh")], "/bin/zsh")]
    {
        for args in [&["/l", "-c", "a | b"][..], &["-c", "a | b", "/l"], &["/l", "--command=a | b"]] {
            let plan = plan_in(environment, args).unwrap();
            assert_eq!(plan.command, to_run(&[program, "-c", "a | b"]), "{args:?}");
        }
    }
    assert_eq!(plan(&["/l", "-c", "-x"]).command, to_run(&["/bin/sh", "-c", "-x"]));
}

#[test]
fn an_option_wins_over_its_variable() {
    let environment = [("ZKLOCK_ZOOKEEPER", "env"), ("ZKLOCK_TIMEOUT", "0"), ("ZKLOCK_SESSION_TIMEOUT", "5s")];
    let from_environment = plan_in(&environment, &["/l", "x"]).unwrap();
    assert_eq!(from_environment.access.servers.to_string(), "env:2181");
    assert!(from_environment.access.servers_given);
    assert_eq!(from_environment.settings.patience, Patience::NoWait);
    assert_eq!(from_environment.settings.session_timeout, Duration::from_secs(5));

    let options = ["-z", "option", "-w", "9", "--session-timeout", "1m", "/l", "x"];
    let from_options = plan_in(&environment, &options).unwrap();
    assert_eq!(from_options.access.servers.to_string(), "option:2181");
    assert_eq!(from_options.settings.patience, Patience::AtMost(Duration::from_secs(9)));
    assert_eq!(from_options.settings.session_timeout, Duration::from_secs(60));

    let empty = [("ZKLOCK_ZOOKEEPER", ""), ("ZKLOCK_TIMEOUT", ""), ("ZKLOCK_SESSION_TIMEOUT", ""), ("SHELL", "")];
    assert_eq!(plan_in(&empty, &["/l", "x"]), plan_in(&[], &["/l", "x"]));
}

#[test]
fn nonblock_wins_over_a_timeout() {
    for args in [&["-n", "-w", "5", "/l", "x"][..], &["-w", "5", "-n", "/l", "x"], &["-w", "0", "/l", "x"]] {
        assert_eq!(plan(args).settings.patience, Patience::NoWait, "{args:?}");
    }
    assert_eq!(plan_in(&[("ZKLOCK_TIMEOUT", "5")], &["-n", "/l", "x"]).unwrap().settings.patience, Patience::NoWait);
}

#[test]
fn all_names_that_flock_has_are_understood() {
    for (ours, flocks) in [(&["-x"][..], &["-e"][..]), (&["-n"], &["--nb"]), (&["-w", "5"], &["--wait", "5"])] {
        // With -s as well, both are refused: so -e really means -x, and is not just ignored.
        for rest in [&["/l", "x"][..], &["-s", "/l", "x"]] {
            let [ours, flocks] = [ours, flocks].map(|option| plan_in(&[], &[option, rest].concat()));
            assert_eq!(ours, flocks);
        }
    }
    assert_eq!(plan(&["--wait=5", "/l", "x"]).settings.patience, Patience::AtMost(Duration::from_secs(5)));
}

#[test]
fn no_time_to_run_is_no_limit() {
    for zero in ["0", "0s", "0.0"] {
        assert_eq!(plan(&["--max-run", zero, "/l", "x"]).settings.max_run, None);
    }
    assert_eq!(plan(&["--max-run", "1ms", "/l", "x"]).settings.max_run, Some(Duration::from_millis(1)));
}

#[test]
fn the_last_of_a_repeated_option_counts() {
    assert_eq!(plan(&["-w", "1", "-w", "2", "/l", "x"]).settings.patience, Patience::AtMost(Duration::from_secs(2)));
    assert_eq!(plan(&["-n", "-n", "-x", "-x", "/l", "x"]).settings.patience, Patience::NoWait);
    for (args, verbosity) in [
        (&["-v", "/l", "x"][..], Verbosity::Verbose(1)),
        (&["-v", "-vv", "/l", "x"], Verbosity::Verbose(3)),
        (&["-v", "-q", "/l", "x"], Verbosity::Quiet),
        (&["-q", "-v", "/l", "x"], Verbosity::Verbose(1)),
        (&["-q", "-q", "/l", "x"], Verbosity::Quiet),
    ] {
        assert_eq!(plan(args).verbosity, verbosity, "{args:?}");
    }
}

#[test]
fn a_slip_is_told_from_a_lock() {
    let slash = "does not begin with a slash; write an absolute path such as /jobs/backup";
    for (args, lock, hint) in [
        (&["stauts", "/l"][..], "stauts", "; did you mean zklock status?"),
        (&["chekc"], "chekc", "; did you mean zklock check?"),
        (&["-n", "chekc"], "chekc", ""),
    ] {
        assert_eq!(refusal(plan_in(&[], args)), format!("LOCK '{lock}' {slash}{hint}"));
    }
}

#[test]
fn refusals_say_what_to_write() {
    let duration = "write a duration such as 30, 1.5, 500ms, 90s, 5m, 1h30m or 2d";
    let status = "write a number from 0 to 255";
    let no_lock =
        "no lock; write zklock LOCK COMMAND [ARG]..., such as zklock /jobs/backup ./backup.sh (zklock -h says more)";
    for (args, message) in [
        (&[][..], no_lock),
        (&["-n"], no_lock),
        (&["/l"], "no command; write zklock /l COMMAND [ARG]... or zklock /l -c 'SHELL COMMAND'"),
        (&["/l", "--"], "no command; write zklock /l COMMAND [ARG]... or zklock /l -c 'SHELL COMMAND'"),
        (&["./job", "x"], "LOCK './job' does not begin with a slash; write an absolute path such as /jobs/backup"),
        (&["/a/", "x"], "LOCK '/a/' has a slash at its end, or two in a row; leave one out"),
        (&["", "x"], "LOCK '' does not begin with a slash; write an absolute path such as /jobs/backup"),
        (&["/a\nb", "x"], "LOCK '/a<U+000A>b' contains U+000A, which ZooKeeper does not allow in a path; leave it out"),
        (&["/l", "-c", "a", "b"], "-c and 'b' exclude each other; write all that is to run in one argument of -c"),
        (
            &["-c", "a", "/l", "-c", "b"],
            "-c and 'b' exclude each other; write all that is to run in one argument of -c",
        ),
        (&["--timout", "3", "/l", "x"], "unexpected argument '--timout' found; did you mean --timeout?"),
        (
            &["--frobnicate", "/l", "x"],
            "unexpected argument '--frobnicate' found; zklock --help lists the options; those of the command go after it",
        ),
        (
            &["-Z", "/l", "x"],
            "unexpected argument '-Z' found; zklock --help lists the options; those of the command go after it",
        ),
        (
            &["/l", "-w"],
            "a value is required for '--timeout <DURATION>' but none was supplied; zklock --help lists the options; those of the command go after it",
        ),
        (
            &["-w", "-n", "/l", "x"],
            "a value is required for '--timeout <DURATION>' but none was supplied; zklock --help lists the options; those of the command go after it",
        ),
        (
            &["--nonblock=yes", "/l", "x"],
            "unexpected value 'yes' for '--nonblock' found; no more were expected; zklock --help lists the options; those of the command go after it",
        ),
        (&["-w", "1x", "/l", "x"], &format!("--timeout '1x': {duration}")),
        (&["-w", "", "/l", "x"], &format!("--timeout '': {duration}")),
        (&["-w", "-5", "/l", "x"], &format!("--timeout '-5': a duration cannot be negative; {duration}")),
        (&["-n", "-w", "x", "/l", "x"], &format!("--timeout 'x': {duration}")),
        (
            &["--connect-timeout", "0", "/l", "x"],
            "--connect-timeout '0': no server can answer in no time; write a longer one, such as 15s",
        ),
        (&["--session-timeout", "0", "/l", "x"], "--session-timeout '0': too short for a lease; write at least 100ms"),
        (
            &["--session-timeout", "25d", "/l", "x"],
            "--session-timeout '25d': longer than ZooKeeper can express; write at most 24d",
        ),
        (
            &["-k", "1m", "/l", "x"],
            "--kill-after '1m': a session timeout of 30s has room for 12.7s at most; shorten --kill-after \
             or lengthen --session-timeout",
        ),
        (
            &["/l", "--signal"],
            "a value is required for '--signal <SIGNAL>' but none was supplied; zklock --help lists the options; those of the command go after it",
        ),
        (&["--max-run", "soon", "/l", "x"], &format!("--max-run 'soon': {duration}")),
        (&["--max-run", "-1", "/l", "x"], &format!("--max-run '-1': a duration cannot be negative; {duration}")),
        // The value was forgotten.
        (&["-w", "/l", "x"], &format!("--timeout '/l': {duration}")),
        (&["-E", "/l", "x"], &format!("--conflict-exit-code '/l': {status}")),
        (&["-E", "256", "/l", "x"], &format!("--conflict-exit-code '256': {status}")),
        (&["-E", "-1", "/l", "x"], &format!("--conflict-exit-code '-1': {status}")),
        (&["-E", "+1", "/l", "x"], &format!("--conflict-exit-code '+1': {status}")),
        (&["-E", "", "/l", "x"], &format!("--conflict-exit-code '': {status}")),
        (&["-E", "busy", "/l", "x"], &format!("--conflict-exit-code 'busy': {status}")),
        (
            &["--signal", "FOO", "/l", "x"],
            "--signal 'FOO': write a signal such as TERM, SIGINT, RTMIN+1 or a number from 1 to 64",
        ),
        (&["-z", "a,,b", "/l", "x"], {
            "--zookeeper 'a,,b': a server is missing; write HOST:PORT,HOST:PORT, and IPv6 addresses in brackets: [ADDRESS]:PORT"
        }),
        (&["-z", "me:hidden@zk1:2181", "/l", "x"], {
            "--zookeeper: no user and no password before an @; write HOST:PORT, and log in by --auth-file"
        }),
        (&["--describe", "a\x1b[2J", "/l", "x"], {
            "--describe 'a<U+001B>[2J': contains U+001B; write one line of plain text"
        }),
    ] {
        assert_eq!(refusal(plan_in(&[], args)), message, "{args:?}");
    }
}

#[test]
fn a_bad_variable_is_blamed_by_its_name() {
    for (name, value, message) in [
        ("ZKLOCK_TIMEOUT", "-1", "ZKLOCK_TIMEOUT '-1': a duration cannot be negative; write a duration such as"),
        ("ZKLOCK_SESSION_TIMEOUT", "1ms", "ZKLOCK_SESSION_TIMEOUT '1ms': too short for a lease; write at least"),
        (
            "ZKLOCK_ZOOKEEPER",
            ":1",
            "ZKLOCK_ZOOKEEPER ':1': :1 is no server; write HOST:PORT,HOST:PORT, and IPv6 addresses in brackets: [ADDRESS]:PORT",
        ),
    ] {
        let message_seen = refusal(plan_in(&[(name, value)], &["/l", "x"]));
        assert!(message_seen.starts_with(message), "{message_seen}");
    }
}

#[test]
fn what_is_not_utf_8_is_refused_by_name() {
    for (args, message) in [
        (&[&b"/\xff"[..], b"x"][..], "LOCK '/\u{fffd}' is not UTF-8; write it in UTF-8"),
        (&[b"-w", b"\xff", b"/l", b"x"], "--timeout '\u{fffd}': not UTF-8; write it in UTF-8"),
        (&[b"--describe=\xff", b"/l", b"x"], "--describe '\u{fffd}': not UTF-8; write it in UTF-8"),
    ] {
        let args =
            std::iter::once(&b"zklock"[..]).chain(args.iter().copied()).map(|arg| OsString::from_vec(arg.into()));
        assert_eq!(refusal(job(args, &nothing)), message);
    }
    let odd = |name: &str| (name == "ZKLOCK_TIMEOUT").then(|| OsString::from_vec(b"\xff".into()));
    let args = ["zklock", "/l", "x"].map(OsString::from);
    assert_eq!(refusal(job(args, &odd)), "ZKLOCK_TIMEOUT '\u{fffd}': not UTF-8; write it in UTF-8");
}

#[test]
fn long_values_are_cut_in_messages() {
    let message = refusal(plan_in(&[], &["-w", &"9x".repeat(5000), "/l", "x"]));
    assert!(message.len() < 300 && message.contains('…'), "{message}");
    let message = refusal(plan_in(&[], &[&"x".repeat(5000), "x"]));
    assert!(message.len() < 300 && message.contains('…'), "{message}");
}

#[test]
fn a_description_is_one_short_line() {
    assert_eq!(plan(&["--describe", "", "/l", "x"]).description, None);
    assert_eq!(plan(&["--describe", "  ", "/l", "x"]).description, None);
    assert!(refusal(plan_in(&[], &["--describe", &"ü".repeat(201), "/l", "x"])).contains("at most 200"));
    // What a reader would not see.
    assert!(refusal(plan_in(&[], &["--describe", "a\u{202e}b", "/l", "x"])).contains("U+202E"));
}

#[test]
fn help_and_version_are_no_errors() {
    let text = |args: &[&str]| match plan_in(&[], args) {
        Err(Exit::Help(text)) => text,
        other => panic!("{other:?}"),
    };
    assert_eq!(text(&["--version"]), concat!("zklock ", env!("CARGO_PKG_VERSION"), "\n"));
    let (short, long) = (text(&["-h"]), text(&["--help"]));
    assert!(short.lines().count() <= 36 && short.lines().all(|line| line.len() <= 80), "{short}");
    for subcommand in Subcommand::ALL {
        let help = task(["zklock", subcommand.name(), "-h"].map(OsString::from), &nothing);
        let Err(Exit::Help(help)) = help else { panic!("{help:?}") };
        assert!(help.lines().all(|line| line.len() <= 80), "{help}");
    }
    assert!(short.len() < long.len());
    let examples = long.lines().filter_map(|line| line.strip_prefix("    "));
    let run_zklock = examples.filter(|example| example.split(' ').next().is_some_and(|word| word.ends_with("zklock")));
    assert_eq!(run_zklock.count(), 4, "four examples");
    assert!(long.contains("Exit status:"));
    // Asked for explicitly, help comes even when the rest makes no sense.
    assert_eq!(text(&["--help", "--frobnicate"]), long);
}

proptest! {
    #[test]
    fn no_arguments_are_too_odd(args in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 0..6)) {
        let args = std::iter::once(b"zklock".to_vec()).chain(args).map(OsString::from_vec);
        if let Err(Exit::Usage(error)) = job(args, &nothing) {
            prop_assert!(!error.as_str().is_empty() && error.as_str().chars().all(is_legible), "{:?}", error);
        }
    }

    #[test]
    fn odd_values_of_options_are_refused_in_one_line(
        option in prop::sample::select(vec![
            "-z", "-w", "-E", "-k", "-c", "--signal", "--describe", "--connect-timeout", "--session-timeout", "--nonblock",
        ]),
        value in "\\PC{0,12}|(.|\n){0,12}",
        glued in any::<bool>(),
    ) {
        let args = if glued { vec![format!("{option}={value}")] } else { vec![option.to_owned(), value] };
        let args = std::iter::once("zklock".to_owned()).chain(args).chain(["/l".to_owned(), "x".to_owned()]);
        if let Err(Exit::Usage(error)) = job(args.map(OsString::from), &nothing) {
            prop_assert!(error.as_str().chars().all(is_legible), "{:?}", error);
        }
    }

    #[test]
    fn the_command_is_passed_on_unchanged(words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..8), 1..6)) {
        let words: Vec<OsString> = words.into_iter().map(OsString::from_vec).collect();
        let args = ["zklock", "/l", "--"].into_iter().map(OsString::from).chain(words.clone());
        let plan = job(args, &nothing).unwrap();
        prop_assert_eq!(
            plan.command,
            Some(CommandLine { program: words[0].clone(), args: words[1..].to_vec(), found: None })
        );
    }
}

#[test]
fn options_of_tls() {
    let tls = |environment: &[(&str, &str)], args: &[&str]| {
        plan_in(environment, &[args, &["/l", "true"]].concat()).unwrap_or_else(|exit| panic!("{exit:?}")).access.tls
    };
    let own = |certificate: &str, key: Option<&str>| {
        Some(OwnCertificate { certificate: certificate.into(), key: key.map(Into::into) })
    };
    let plain = Tls { ca: None, own: None, verify_hostname: true };
    let with_ca = Tls { ca: Some("ca".into()), ..plain.clone() };
    let unverified = Tls { verify_hostname: false, ..plain.clone() };
    assert_eq!(tls(&[], &[]), None);
    assert_eq!(tls(&[], &["--tls"]), Some(plain.clone()));
    assert_eq!(tls(&[("ZKLOCK_TLS", "1")], &[]), Some(plain.clone()));
    assert_eq!(tls(&[("ZKLOCK_TLS", "0")], &["--tls"]), Some(plain.clone()));
    // Each of them implies it.
    assert_eq!(tls(&[], &["--tls-ca", "ca"]), Some(with_ca.clone()));
    assert_eq!(tls(&[("ZKLOCK_TLS_CA", "ca")], &[]), Some(with_ca.clone()));
    assert_eq!(tls(&[], &["--tls-no-verify-hostname"]), Some(unverified.clone()));
    assert_eq!(tls(&[("ZKLOCK_TLS_NO_VERIFY_HOSTNAME", "yes")], &[]), Some(unverified));
    assert_eq!(tls(&[("ZKLOCK_TLS_NO_VERIFY_HOSTNAME", "0")], &[]), None);
    assert_eq!(tls(&[], &["--tls-cert", "both"]), Some(Tls { own: own("both", None), ..plain.clone() }));
    let variables = [("ZKLOCK_TLS_CERT", "c"), ("ZKLOCK_TLS_KEY", "k")];
    assert_eq!(tls(&variables, &[]), Some(Tls { own: own("c", Some("k")), ..plain.clone() }));
    assert_eq!(tls(&variables, &["--tls-key", "k2"]), Some(Tls { own: own("c", Some("k2")), ..plain }));
    // No by a variable is no to other variables, and to no option.
    let no = [("ZKLOCK_TLS", "0"), ("ZKLOCK_TLS_CA", "ca"), ("ZKLOCK_TLS_NO_VERIFY_HOSTNAME", "0")];
    assert_eq!(tls(&no, &[]), None);
    assert_eq!(tls(&no, &["--tls-ca", "ca"]), Some(with_ca));

    let refused = |environment, args: &[&str]| refusal(plan_in(environment, &[args, &["/l", "true"]].concat()));
    assert_eq!(refused(&[("ZKLOCK_TLS", "maybe")], &[]), "ZKLOCK_TLS 'maybe': write 1 or 0");
    assert_eq!(
        refused(&[("ZKLOCK_TLS_KEY", "k")], &[]),
        "--tls-key 'k': a key without a certificate; write --tls-cert as well"
    );
    assert_eq!(
        refused(&[], &["--tls", "-z", "zk1,-zk2"]),
        "'-zk2': no certificate can be for such a name; write another one, or leave out TLS"
    );
    // What a connect string may contain.
    for servers in ["zk_1", "zk1.example.", "10.0.0.1:1", "[::1]:2281", "[fe80::1%eth0]"] {
        assert!(tls(&[], &["--tls", "-z", servers]).is_some());
    }
}

#[test]
fn options_of_logging_in() {
    let login = |environment: &[(&str, &str)], args: &[&str]| {
        plan_in(environment, &[args, &["/l", "true"]].concat()).unwrap_or_else(|exit| panic!("{exit:?}")).access.login
    };
    let bob = || vec![Credential { scheme: "digest".to_owned(), secret: b"bob:a:b".to_vec() }];
    let by_option = Login { credentials: bob(), in_sight: true, protection: Protection::Read, ..Login::default() };
    let by_variable = Login { in_sight: false, ..by_option.clone() };
    let by_file = Login { credentials: vec![], file: Some("f".into()), ..by_variable.clone() };
    let variable = [("ZKLOCK_AUTH", "digest:bob:a:b")];
    assert_eq!(login(&[], &[]), Login::default());
    assert_eq!(login(&[], &["--auth", "digest:bob:a:b"]), by_option);
    assert_eq!(login(&variable, &[]), by_variable);
    assert_eq!(login(&variable, &["--auth-file", "f"]), by_file);
    for (acl, protection) in [("open", Protection::Open), ("creator", Protection::Creator), ("read", Protection::Read)]
    {
        assert_eq!(login(&variable, &["--acl", acl]).protection, protection);
    }
    assert_eq!(login(&[], &["--acl", "open"]), Login::default());
    assert!(!format!("{by_option:?}").contains("bob"), "{by_option:?}");
    assert!(by_option.shown().count() == 1 && by_option.sasl().is_none());
    let by_sasl = login(&[("ZKLOCK_AUTH", "sasl:bob:a:b")], &[]);
    assert!(by_sasl.shown().count() == 0);
    assert!(by_sasl.sasl() == Some(Sasl::DigestMd5 { user: "bob", password: "a:b" }));

    let refused =
        |environment: &[(&str, &str)], args: &[&str]| refusal(plan_in(environment, &[args, &["/l", "true"]].concat()));
    const HOW: &str = "write digest:USER:PASSWORD or sasl:USER:PASSWORD";
    let missing = "a user or a password is missing; write digest:USER:PASSWORD";
    for (text, why) in [
        ("digest:secret", missing),
        ("digest:secret:", missing),
        ("digest::secret", missing),
        ("sasl:secret", "a user or a password is missing; write sasl:USER:PASSWORD"),
        ("sasl:bob:", "a user or a password is missing; write sasl:USER:PASSWORD"),
        ("secret", HOW),
        (":secret", HOW),
        ("", HOW),
        ("digest:bob:secret\n", &format!("it contains a control character; {HOW}")),
    ] {
        assert_eq!(refused(&[], &["--auth", text]), format!("--auth: {why}"));
        if !text.is_empty() {
            assert_eq!(refused(&[("ZKLOCK_AUTH", text)], &[]), format!("ZKLOCK_AUTH: {why}"));
        }
    }
    let both = ["--auth", "digest:bob:secret", "--auth-file", "f"];
    assert_eq!(refused(&[], &both), "--auth and --auth-file exclude each other; write one of them");
    assert_eq!(
        refused(&[], &["--acl", "creator"]),
        "--acl 'creator': for those who log in; write --auth-file or --tls-cert as well"
    );
    let certificate = plan_in(&[], &["--acl", "creator", "--tls-cert", "c", "/l", "true"]).unwrap();
    assert_eq!(certificate.access.login.protection, Protection::Creator);
    assert_eq!(refused(&variable, &["--acl", "all"]), "--acl 'all': write open, creator or read");
    for secret in [&["--auth", "digest:bob:secret"][..], &["--auth=digest:bob:secret"]] {
        let line = refusal(plan_in(&[], &[&["status"], secret, &["/l"]].concat()));
        assert!(!line.contains("secret"), "{line}");
        let line = refusal(plan_in(&[], &[&["-z", "zk", "status"], secret, &["/l"]].concat()));
        assert!(line.contains("comes first") && !line.contains("secret"), "{line}");
    }
}

#[test]
fn the_forms_are_consistent() {
    let help = super::command().render_help().to_string();
    super::command().debug_assert();
    for subcommand in Subcommand::ALL {
        let command = subcommand.command();
        assert_eq!(command.get_name(), format!("zklock {}", subcommand.name()));
        let about = command.get_about().expect("there is one").to_string();
        assert!(help.contains(&format!("\n  {:6}  {about}", subcommand.name())), "{subcommand:?}\n{help}");
        command.debug_assert();
    }
}

#[test]
fn the_long_help_lists_every_exit_status() {
    let help = super::command().render_long_help().to_string();
    for (status, _) in EXIT_STATUS.iter().filter(|(status, _)| status.parse::<u8>().is_ok()) {
        let begins_a_line = |line: &str| line.split_whitespace().next() == Some(status);
        assert!(help.lines().any(begins_a_line), "{status} is missing");
    }
}
