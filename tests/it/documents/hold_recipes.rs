//! The scripts that hold a lock, as the recipes, the comparison and `--help` show them, in each shell that they are for.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use zklock::cli;

use crate::documents::readme::{COMPARISON, Place, RECIPES, recipe};
use crate::documents::readme_recipes::{PATH, mail};
use crate::harness::proxy::Proxy;
use crate::harness::running::{Output, Running, finish};
use crate::harness::scratch::Scratch;
use crate::harness::server::free_port;
use crate::harness::times::SHORT_SESSION;
use crate::harness::zklock::{binary, child};

/// Words that start the shells that are like sh.
const SHELLS: [&str; 7] = ["dash", "bash", "zsh", "ksh93", "mksh", "busybox sh", "yash"];

/// A script that holds a lock, in one of its shells.
#[derive(Debug)]
struct Script {
    shell: &'static str,
    /// Up to the line that finds out whether it has the lock.
    take: String,
    /// The line behind that.
    work: String,
    /// The line that releases the lock.
    release: &'static str,
}

/// Each script in each of its shells.
fn scripts() -> Vec<Script> {
    let help = cli::Subcommand::Hold.command().render_long_help().to_string();
    let mut scripts = vec![];
    for text in [RECIPES, COMPARISON, &help] {
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        for (begin, _) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("ZKLOCK_TOKEN=")) {
            let tests_it = lines[begin..].iter().position(|line| line.starts_with("[ -n ")).expect("it tests it");
            let (take, rest) = lines[begin..].split_at(tests_it + 1);
            let take = take.join("\n").replace(" -w 10m ", " ").replace(" hold -n ", " hold ") + "\n";
            let (shells, release) = if take.contains("coproc") {
                (&SHELLS[1..2], "exec {ZK[1]}>&-; wait $hold")
            } else {
                (&SHELLS[..], "kill $hold; wait $hold")
            };
            assert!(text != help || text.contains(release), "{text}");
            let script = |&shell| Script { shell, take: take.clone(), work: rest[0].to_owned(), release };
            scripts.extend(shells.iter().map(script));
        }
    }
    assert_eq!(scripts.len(), 3 + SHELLS.len(), "{scripts:?}");
    scripts
}

/// Runs a script, in a shell that stops at errors and at unset variables, and in one that does not.
fn in_both_ways(place: &Place, shell: &str, script: &str) -> [Output; 2] {
    ["-eu", "+e"].map(|how| {
        let mut words = shell.split(' ');
        let shell = place.in_bare_environment(words.next().expect("a program"), PATH).args(words);
        let shell = shell.args([how, "-c", script]).env("ZKLOCK_TOKEN", "1");
        shell.env("ZKLOCK_ZOOKEEPER", place.chroot.to_string()).run()
    })
}

#[test]
fn without_the_lock_they_end_with_the_status_of_hold() {
    let place = Place::new();
    let mut holder = place.hold("/deploy");
    for Script { shell, take, .. } in scripts() {
        let twice =
            take.replace(" /deploy", " /other") + "echo first\n" + &take.replace("zklock hold ", "zklock hold -n ");
        let again = format!("{twice}echo second\n");
        for output in in_both_ways(&place, shell, &take.replace("zklock hold ", "zklock hold -n ")) {
            assert!(mail(&output.expect_code(75)).starts_with("zklock: /deploy is not free"), "{shell}: {take}");
        }
        // The first one has left its token in the environment, and so has an outer zklock.
        let outer = "export ZKLOCK_TOKEN; exec zklock /outer -- ".to_owned() + shell + " -c '" + &again + "'";
        for script in [&again, &outer] {
            for output in in_both_ways(&place, shell, script) {
                assert_eq!(output.expect_code(75).stdout(), "first\n", "{shell}: {script}");
            }
        }
        let unreachable = format!("zklock hold -z 127.0.0.1:{} --connect-timeout 100ms ", free_port());
        for output in in_both_ways(&place, shell, &(take.replace("zklock hold ", &unreachable) + "echo went on\n")) {
            assert_eq!(output.expect_code(69).stdout(), "", "{shell}: {take}");
        }
    }
    finish(&mut holder);
}

#[test]
fn they_release_a_lock_before_they_end() {
    let place = Place::new();
    for Script { shell, take, release, .. } in scripts() {
        let section = format!("{take}zklock -n /deploy echo nested\n{release}\necho released, $?\n");
        let free = "zklock status -q /deploy || echo free\nzklock -n /deploy echo alone\n";
        let script = section.clone() + free + &section;
        for output in in_both_ways(&place, shell, &script) {
            let expected = "nested\nreleased, 0\nfree\nalone\nnested\nreleased, 0\n";
            assert_eq!(mail(&output.expect_code(0)), expected, "{shell}: {script}");
        }
        // With the same lock outside.
        let outer = format!("exec zklock /deploy -- {shell} -c '{section}'");
        for output in in_both_ways(&place, shell, &outer) {
            assert_eq!(mail(&output.expect_code(0)), "nested\nreleased, 0\n", "{shell}: {outer}");
        }
    }
}

#[test]
fn the_recipe_waits_or_gives_up() {
    let place = Place::new();
    let text = place.adapted(&recipe("Hold a lock in a script")[0].text);
    let run = |text: &str| {
        let script = place.in_bare_environment("bash", PATH).args(["-c", text]);
        script.env("ZKLOCK_ZOOKEEPER", place.chroot.to_string()).run()
    };
    assert_eq!(mail(&run(&text).expect_code(0)), "");
    let mut holder = place.hold("/deploy");
    assert!(mail(&run(&text.replace(" -w 10m ", " -n ")).expect_code(75)).contains("/deploy is not free"));
    finish(&mut holder);
    assert_eq!(place.calls(), "deploy.sh under /deploy: \n");
}

/// Starts a script whose work only SIGKILL ends, by a way that can be disturbed, and another contender behind it.
fn begin(script: &Script) -> (Scratch, Proxy, Running, Running) {
    let (scratch, proxy) = Scratch::proxied();
    let work = format!("#!/bin/sh\nexec '{}' --name work --log log --beat --wait\n", child().display());
    fs::write(scratch.file("deploy.sh"), work).expect("a script can be written");
    fs::set_permissions(scratch.file("deploy.sh"), fs::Permissions::from_mode(0o755)).expect("it is ours");
    // A file, as shells execute the last command of -c in their own place.
    let text = format!("{}{}\necho 'went on'\n", script.take, script.work).replace(" /deploy", " /lock");
    fs::write(scratch.file("script"), text).expect("a script can be written");
    let mut words = script.shell.split(' ');
    let shell = scratch.zklock_by(proxy.address()).program(words.next().expect("a program")).args(words);
    let bin = binary().parent().expect("a folder").display();
    let shell = shell.arg("script").env("PATH", format!("{bin}:/usr/bin:/bin"));
    let mut running = shell.env("ZKLOCK_SESSION_TIMEOUT", SHORT_SESSION.as_secs().to_string()).spawn();
    running.wait_stdout("work ready");
    let next = scratch.queue("next", 1);
    (scratch, proxy, running, next)
}

/// The shell ends by SIGTERM. What it has waited for does not, unless zklock sees to it.
#[test]
fn their_work_is_dead_before_the_next_holder_starts() {
    let begun: Vec<_> = scripts().iter().map(begin).collect();
    begun.iter().for_each(|(_, proxy, ..)| proxy.hold());
    for (scratch, _, mut script, mut next) in begun {
        finish(&mut next);
        assert_eq!(scratch.log().expect_no_overlap().order(), ["work", "next"]);
        assert!(script.wait().stderr().contains("lost the lock /lock"), "{script}");
        script.wait_until_nothing_is_left();
    }
}
