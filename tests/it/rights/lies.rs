//! A real server, and somebody on the wire who cuts in: on the first connection and on each that resumes the session, every
//! answer may be right, be refused, have other bytes, or never come; and lists have names that nobody created.
//!
//! `ZKLOCK_FUZZ_SECONDS=600 cargo test --test it rights::lies` goes on for ten minutes.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;

use fastrand::Rng;

use crate::harness::oracle::{expect_sane, within_memory};
use crate::harness::poll::{self, PATIENCE};
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::protocol::fuzz::{in_between, mutate, rounds};

/// What a name of another client may have in it, or only a server that lies.
const ODD: [&str; 9] =
    ["\u{1b}[31m", "\n", "\nzklock: forged", "\u{202e}", "\u{2028}", "\u{3164}", "\r", "\u{7f}", "\u{9b}2J"];

/// Those of ZooKeeper's `KeeperException.Code`, and two that are none.
const ERRORS: [i32; 12] = [-1, -4, -6, -8, -101, -102, -103, -110, -112, -115, -999, 7];

fn frame(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > 1 << 20 {
        // A word, as `srvr`.
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut frame = vec![0; length];
    from.read_exact(&mut frame)?;
    Ok(frame)
}

fn send(to: &mut impl Write, frame: &[u8]) -> io::Result<()> {
    to.write_all(&[&u32::try_from(frame.len()).expect("a short frame").to_be_bytes()[..], frame].concat())
}

fn int(frame: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(*frame.get(at..)?.first_chunk()?))
}

/// Adds a name to the answer of a list: one that is there, the run's own as well, with something odd in it.
fn add_name(rng: &mut Rng, answer: &mut Vec<u8>) -> Option<()> {
    const COUNT: usize = 16;
    let count = int(answer, COUNT)?;
    let mut names = vec![];
    let mut rest = answer.get(COUNT + 4..)?;
    for _ in 0..count {
        let (name, behind) = rest.get(4..)?.split_at_checked(usize::try_from(int(rest, 0)?).ok()?)?;
        names.push(String::from_utf8(name.to_vec()).ok()?);
        rest = behind;
    }
    let odd = with_something_odd(rng, &rng.clone().choice(names)?);
    let added = [&u32::try_from(odd.len()).ok()?.to_be_bytes()[..], odd.as_bytes()].concat();
    answer.splice(COUNT + 4..COUNT + 4, added);
    answer[COUNT..COUNT + 4].copy_from_slice(&(count + 1).to_be_bytes());
    Some(())
}

fn with_something_odd(rng: &mut Rng, name: &str) -> String {
    let (id, number) = name.split_once("-lock-").unwrap_or((name, "0000000000"));
    let number = if rng.bool() { number } else { "0000000009" };
    format!("{id}-{}-lock-{number}", rng.choice(ODD).unwrap())
}

/// Passes on what a client and a server say, until it cuts in.
fn relay(mut client: TcpStream, mut server: TcpStream, mut rng: Rng) -> io::Result<()> {
    const LISTS: [i32; 2] = [8, 12];
    // The opcodes of the requests by their xids.
    let asked = Arc::new(Mutex::new(HashMap::new()));
    let (mut from_client, mut to_server, asks) = (client.try_clone()?, server.try_clone()?, Arc::clone(&asked));
    thread::spawn(move || {
        let mut pass = || -> io::Result<()> {
            loop {
                let request = frame(&mut from_client)?;
                asks.lock().unwrap().insert(int(&request, 0), int(&request, 4));
                send(&mut to_server, &request)?;
            }
        };
        let _ = pass();
        let _ = to_server.shutdown(Shutdown::Both);
    });
    let mut is_open = false;
    loop {
        let mut answer = frame(&mut server)?;
        let op = asked.lock().unwrap().get(&int(&answer, 0)).copied().flatten();
        match rng.u8(..) {
            0..8 => return client.shutdown(Shutdown::Both),
            8..24 if std::mem::replace(&mut is_open, true) && answer.len() >= 16 => {
                answer.truncate(16);
                answer[12..].copy_from_slice(&rng.choice(ERRORS).unwrap().to_be_bytes());
            }
            24..32 => mutate(&mut rng, &mut answer),
            32.. if op.is_some_and(|op| LISTS.contains(&op)) && rng.bool() => drop(add_name(&mut rng, &mut answer)),
            _ => is_open = true,
        }
        send(&mut client, &answer)?;
    }
}

#[test]
fn nothing_that_is_said_leaves_zklock_as_it_came() {
    let scratch = Scratch::new().with_lock();
    let target = direct();
    let (port, seed) = in_between(target, relay);
    let address = format!("127.0.0.1:{port}");
    let first = scratch.occupy("{\"v\":1,\"host\":\"\\u001b[2Jdb3\\nzklock: forged\"}");
    let node = first.rsplit_once('/').unwrap().1;
    let brief = "--connect-timeout=1s";
    let all: [&[&str]; 10] = [
        &["status", brief, LOCK],
        &["status", brief, "--json", LOCK],
        &["list", brief],
        &["list", brief, "--json"],
        &["check", brief, "--json", LOCK],
        &[brief, "-w", "1s", LOCK, "true"],
        &[brief, "-vvv", "-w", "1s", "/free", "true"],
        &["break", brief, "--timeout", "1s", "--node", node, LOCK],
        &["break", brief, "--timeout", "1s", LOCK, "--node"],
        &["break", brief, "--timeout", "1s", LOCK, "--force", "--node"],
    ];
    rounds(60, |rng| {
        seed.store(rng.u64(..u64::MAX / 2), Ordering::Relaxed);
        let zklock = scratch.zklock_by(&*address).plain().env("ZKLOCK_SESSION_TIMEOUT", "4");
        let args = *rng.choice(&all).unwrap();
        let odd = with_something_odd(rng, node);
        let output = within_memory(zklock.args(args).args(args.ends_with(&["--node"]).then_some(odd))).run();
        expect_sane(&output);
    });
    // Of sessions whose end was not passed on.
    let ended = poll::within(PATIENCE, || scratch.client().children("/free").is_empty().then_some(()));
    assert!(ended.is_some(), "contenders are left");
}
