//! Many waiters in one process, for the server's side of a long queue: each has its own session and connection, one
//! node, and a watch on the node before it. scripts/bench -s measures the server meanwhile.
//!
//! ```text
//! waiters HOST:PORT LOCK COUNT
//! ```
//!
//! When all wait it prints `waiting`. Then it obeys lines on stdin:
//!
//! - `ping COUNT MILLISECONDS`: each session pings so often, once in so many milliseconds; prints how many seconds that
//!   took.
//! - `pass COUNT`: the lock passes so often from one to the next; prints the median and the longest time from a deletion
//!   to its event, in microseconds.

mod bare;

use std::env;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use bare::Bare;
use zklock::zookeeper::wire::reply::{Change, Reply};
use zklock::zookeeper::wire::request::{Acl, NewNode, NodeKind, Request};

/// So long that none has to ping by itself.
const SESSION: Duration = Duration::from_secs(3600);

/// How many sessions are opened at the same time.
const THREADS: usize = 16;

struct Waiter {
    node: String,
    session: Bare,
}

fn main() -> io::Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let usage = || io::Error::other("usage: waiters HOST:PORT LOCK COUNT");
    let [server, lock, count] = words.as_slice() else { return Err(usage()) };
    let mut waiters = enter(server, lock, count.parse().map_err(|_| usage())?)?;
    println!("waiting");
    for line in io::stdin().lines() {
        let line = line?;
        let numbers: Vec<u64> = line.split(' ').skip(1).filter_map(|word| word.parse().ok()).collect();
        match (line.split(' ').next(), numbers.as_slice()) {
            (Some("ping"), [count, millis]) => {
                let time = ping(&mut waiters, *count, Duration::from_millis(*millis))?;
                println!("{:.3}", time.as_secs_f64());
            }
            (Some("pass"), [count]) => {
                let mut times = pass(&mut waiters, *count)?;
                times.sort_unstable();
                let at = |place: usize| times.get(place).copied().unwrap_or_default().as_micros();
                println!("{} {}", at(times.len() / 2), at(times.len().saturating_sub(1)));
            }
            _ => return Err(io::Error::other(format!("{line:?}: unknown"))),
        }
    }
    Ok(())
}

/// Queues so many waiters, the first of which holds.
fn enter(server: &str, lock: &str, count: usize) -> io::Result<Vec<Waiter>> {
    let join = |count| (0..count).map(|_| join(server, lock)).collect::<io::Result<Vec<Waiter>>>();
    let mut waiters = vec![];
    thread::scope(|scope| {
        let shares = (0..THREADS).map(|thread| (count + thread) / THREADS);
        let threads: Vec<_> = shares.map(|share| scope.spawn(move || join(share))).collect();
        for thread in threads {
            waiters.extend(thread.join().map_err(|_| io::Error::other("a thread has panicked"))??);
        }
        io::Result::Ok(())
    })?;
    waiters.sort_by(|one, other| one.node.cmp(&other.node));
    for place in 1..waiters.len() {
        let path = waiters[place - 1].node.clone();
        let session = &mut waiters[place].session;
        session.ask(&[Request::GetData { path: &path, watch: true }])?;
        session.answer()?.map_err(|code| io::Error::other(code.to_string()))?;
    }
    Ok(waiters)
}

fn join(server: &str, lock: &str) -> io::Result<Waiter> {
    let mut session = Bare::open(server, SESSION)?;
    let parent = NewNode { path: lock, data: &[], acl: &[Acl::ANYONE] };
    let node = NewNode { path: &format!("{lock}/waiter-"), ..parent };
    session.ask(&[
        Request::Create { node: parent, kind: NodeKind::Persistent },
        Request::Create { node, kind: NodeKind::EphemeralSequential },
    ])?;
    // The parent exists already, except for the first.
    let _ = session.answer()?;
    match session.answer()?.map_err(|code| io::Error::other(code.to_string()))? {
        Reply::Created { path, .. } => Ok(Waiter { node: path, session }),
        other => Err(io::Error::other(format!("unexpected {other:?}"))),
    }
}

/// Each session pings `count` times, once in each `period`, one after the other in even steps. Returns how long that took.
fn ping(waiters: &mut [Waiter], count: u64, period: Duration) -> io::Result<Duration> {
    let begin = Instant::now();
    let step = period / u32::try_from(waiters.len()).unwrap_or(u32::MAX);
    let mut due = begin;
    for _ in 0..count {
        // The answer to the ping before, which has come as a rule.
        let mut unanswered: Option<&mut Waiter> = None;
        for waiter in &mut *waiters {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            due += step;
            waiter.session.ask(&[Request::Ping])?;
            if let Some(before) = unanswered.replace(waiter) {
                before.session.answer()?.map_err(|code| io::Error::other(code.to_string()))?;
            }
        }
        if let Some(last) = unanswered {
            last.session.answer()?.map_err(|code| io::Error::other(code.to_string()))?;
        }
    }
    Ok(begin.elapsed())
}

/// The lock passes `count` times, as long as a contender is left. Returns how long each took.
fn pass(waiters: &mut Vec<Waiter>, count: u64) -> io::Result<Vec<Duration>> {
    let mut times = vec![];
    for _ in 0..count {
        let [holder, next, ..] = waiters.as_mut_slice() else { break };
        let begin = Instant::now();
        holder.session.ask(&[Request::Delete { path: &holder.node, version: None }, Request::Close])?;
        let event = next.session.change()?;
        times.push(begin.elapsed());
        if event.change != Change::Deleted {
            return Err(io::Error::other(format!("unexpected {event:?}")));
        }
        waiters.remove(0);
    }
    Ok(times)
}
