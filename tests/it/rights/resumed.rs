//! A hostile server closes the connection over the creation of the node, lets the session go on over the next one, and says
//! that this creation has made nodes which nobody asked for. What the run takes for its node reaches the command.

use std::collections::BTreeSet;
use std::env;
use std::sync::Mutex;

use zklock::cli::environment::{LENDER, OF_A_RUN};

use super::hostile::{Hostile, STAT, children, greeting, packet, reply};
use crate::harness::scratch::LOCK;

/// The session that all of this is about: the owner in [`STAT`].
const SESSION: i64 = 1;

/// What the harness gives to every zklock.
const OF_THE_HARNESS: [&str; 5] =
    ["TERM", "ZKLOCK_CONFIG", "ZKLOCK_SESSION_TIMEOUT", "ZKLOCK_TEST", "ZKLOCK_ZOOKEEPER"];

/// Answers as a server does, but for the first creation, and for the two lists after it, which have `odd`.
fn answer(asked: &Mutex<(u32, String)>, odd: fn(&str) -> String, request: &[u8], code: i32) -> Option<Vec<u8>> {
    let mut asked = asked.lock().unwrap();
    let (flights, prefix) = &mut *asked;
    let own = |prefix: &str| format!("{prefix}0000000002");
    let name = |path: &str| path[LOCK.len() + 1..].to_owned();
    Some(match code {
        15 => {
            *flights += 1;
            let length = u32::from_be_bytes(request[8..12].try_into().unwrap()) as usize;
            *prefix = String::from_utf8(request[12..12 + length].to_vec()).unwrap();
            if *flights == 1 {
                return None;
            }
            reply(request, &[&packet(own(prefix).as_bytes())[..], &STAT].concat())
        }
        8 => {
            *flights += 1;
            let names = if *flights < 4 { vec![name(&odd(prefix))] } else { vec![name(&own(prefix))] };
            let list = children(names);
            reply(request, &list[..list.len() - STAT.len()])
        }
        4 => reply(request, &[&packet(b"{}")[..], &STAT].concat()),
        9 => reply(request, &packet(LOCK.as_bytes())),
        // Of one check.
        14 => reply(request, &[&13_i32.to_be_bytes()[..], &[0; 5], &(-1_i32).to_be_bytes(), &[1], &[0xff; 4]].concat()),
        _ => reply(request, &[]),
    })
}

#[test]
fn nodes_that_nobody_asked_for_do_not_reach_the_command() {
    let cases: [fn(&str) -> String; 6] = [
        |prefix| prefix.replace("-lock-", "-\0INJECTED=1-lock-0000000001"),
        |prefix| prefix.replace("-lock-", "-\nINJECTED=1-lock-0000000001"),
        |prefix| prefix.replace("-lock-", "-\u{1b}]0;owned\u{7}-lock-0000000001"),
        |prefix| prefix.replace("-lock-", "-evil-lock-0000000001"),
        |prefix| prefix.replace("-lock-", "/../../evil-lock-0000000001"),
        |prefix| format!("{prefix}0000000001\n"),
    ];
    std::thread::scope(|scope| {
        for odd in cases {
            scope.spawn(move || {
                let asked = Mutex::<(u32, String)>::default();
                let odd_name = odd("/lock/_c_ID-lock-");
                let server = Hostile::start(false, move |request, code| match request {
                    None => Some(greeting(SESSION)),
                    Some(request) => answer(&asked, odd, request, code),
                });
                let run = server.zklock().args(["-w", "20s", LOCK, "--", "env", "-0"]).run().expect_code(0);
                let shown = run.stdout();
                let entries: Vec<_> =
                    shown.split_terminator('\0').map(|entry| entry.split_once('=').unwrap()).collect();
                let names: BTreeSet<&str> = entries.iter().map(|(name, _)| *name).collect();
                let of_the_caller: Vec<String> = env::vars().map(|(name, _)| name).collect();
                let documented = OF_A_RUN.into_iter().chain([LENDER]).chain(OF_THE_HARNESS);
                let known: BTreeSet<&str> = documented.chain(of_the_caller.iter().map(String::as_str)).collect();
                assert_eq!(names.difference(&known).collect::<Vec<_>>(), Vec::<&&str>::new(), "{odd_name:?}: {run}");
                for name in ["ZKLOCK_NODE", "ZKLOCK_HELD"] {
                    let (_, value) = entries.iter().find(|(other, _)| *other == name).unwrap();
                    let number = value.strip_prefix("/lock/_c_00000000-0000-0001-f").map(|rest| &rest[16..]);
                    assert_eq!(number, Some("-lock-0000000002"), "{odd_name:?}: {value:?}");
                }
                assert!(!run.stderr().contains(|c: char| c.is_control() && c != '\n'), "{odd_name:?}: {run}");
            });
        }
    });
}
