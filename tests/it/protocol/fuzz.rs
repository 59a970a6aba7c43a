//! Bytes that no server sends, made from what servers have sent.
//!
//! `ZKLOCK_FUZZ_SECONDS=600 cargo test --release --test it protocol::fuzz` goes on for ten minutes.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant as Clock};

use fastrand::Rng;
use zklock::rules::instant::Instant;
use zklock::rules::keep_alive::KeepAlive;
use zklock::zookeeper::wire::connection::{Connection, ServerEvent};
use zklock::zookeeper::wire::error::{Broken, Code};
use zklock::zookeeper::wire::handshake::{Attempt, Granted};
use zklock::zookeeper::wire::reply::Reply;
use zklock::zookeeper::wire::request::{NewNode, NodeKind, Request, Secret};

use super::conversation::Conversation;

const NOW: Instant = Instant::from_boot(Duration::from_secs(1));

/// Requests with their opcodes, and their xids if these are always the same.
const REQUESTS: [(Request<'_>, i32, Option<i32>); 11] = [
    (Request::Exists { path: "/a", watch: true }, 3, None),
    (Request::GetData { path: "/a", watch: true }, 4, None),
    (Request::SetData { path: "/a", data: b"x", version: None }, 5, None),
    (Request::GetChildren { path: "/", watch: true }, 8, None),
    (Request::Sync { path: "/" }, 9, None),
    (Request::Ping, 11, Some(-2)),
    (Request::GetChildren2 { path: "/", watch: true }, 12, None),
    (Request::Multi(&OPERATIONS), 14, None),
    (Request::Create { node: NODE, kind: NodeKind::Persistent }, 1, None),
    (Request::Create2 { node: NODE, kind: NodeKind::Persistent }, 15, None),
    (Request::Auth { scheme: "digest", credentials: Secret(b"bob:secret") }, 100, Some(-4)),
];

const NODE: NewNode<'_> = NewNode { path: "/a", data: b"x", acl: &[] };

/// Those of the recorded multi.
const OPERATIONS: [Request<'_>; 5] = [
    Request::Check { path: "/a", version: None },
    Request::SetData { path: "/a", data: b"x", version: None },
    Request::Create2 { node: NODE, kind: NodeKind::Persistent },
    Request::Create { node: NODE, kind: NodeKind::Persistent },
    Request::Delete { path: "/a", version: None },
];

/// What a server has said.
struct Corpus {
    chroot: String,
    /// The answers that open a session.
    greetings: Vec<Vec<u8>>,
    /// All other packets, with the opcode of the request that they answer.
    packets: Vec<(Option<i32>, Vec<u8>)>,
}

impl Corpus {
    fn new(conversation: Conversation) -> Self {
        let answers = conversation.answers().into_iter();
        let (greetings, packets) = answers.partition::<Vec<_>, _>(|(_, packet)| packet.starts_with(&[0; 4]));
        let greetings = greetings.into_iter().map(|(_, packet)| packet).collect();
        Self { chroot: conversation.chroot, greetings, packets }
    }

    /// Something that the server has said, mostly to a request like this one.
    fn packet(&self, rng: &mut Rng, code: i32) -> Vec<u8> {
        let fits = |packet: &&(Option<i32>, Vec<u8>)| packet.0 == Some(code);
        let fitting: Vec<_> = self.packets.iter().filter(fits).collect();
        let fitting = rng.choice(fitting).filter(|_| rng.u8(..) < 224);
        fitting.or_else(|| rng.choice(&self.packets)).expect("a server that has said something").1.clone()
    }
}

/// Something that looks like an integer of the protocol, or like its edge.
fn number(rng: &mut Rng) -> i32 {
    *rng.choice(&[-2, -1, 0, 1, 2, 16, 1024, 1 << 20, 64 << 20, i32::MAX, i32::MIN, rng.clone().i32(..)]).unwrap()
}

/// Changes a few bytes, cuts some out or doubles some.
pub(crate) fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.usize(0..4) {
        let at = rng.usize(0..=bytes.len());
        match rng.u8(0..5) {
            0 if at < bytes.len() => bytes[at] ^= 1 << rng.u8(0..8),
            1 => bytes.truncate(at),
            2 => bytes.insert(at, rng.u8(..)),
            3 => {
                let end = rng.usize(at..=bytes.len());
                bytes.extend_from_within(at..end);
            }
            _ => {
                if let Some(place) = bytes.get_mut(at..at + 4) {
                    place.copy_from_slice(&number(rng).to_be_bytes());
                }
            }
        }
    }
}

fn framed(rng: &mut Rng, packet: &[u8]) -> Vec<u8> {
    let length = if rng.u8(..) == 0 { number(rng) } else { i32::try_from(packet.len()).unwrap() };
    [&length.to_be_bytes(), packet].concat()
}

/// A session from a greeting that may be changed. `None`: there is none.
fn greeted(rng: &mut Rng, corpus: &Corpus) -> Option<Granted> {
    let mut attempt = Attempt::open(Duration::from_secs(20));
    attempt.sent(usize::MAX, NOW);
    let mut greeting = rng.choice(&corpus.greetings)?.clone();
    if rng.u8(..) < 16 {
        mutate(rng, &mut greeting);
    }
    let bytes = framed(rng, &greeting);
    let (before, after) = bytes.split_at(rng.usize(0..=bytes.len()));
    match attempt.receive(before) {
        Ok(None) => attempt.receive(after).ok()?,
        granted => granted.ok()?,
    }
}

/// What the server might say to these requests: mostly one answer each.
fn stream(rng: &mut Rng, corpus: &Corpus, asked: &[(i32, i32)]) -> Vec<u8> {
    let mut stream = vec![];
    for (xid, code) in asked {
        let mut packet = corpus.packet(rng, *code);
        if rng.u8(..) < 240 && !packet.starts_with(&(-1_i32).to_be_bytes()) {
            packet[..4].copy_from_slice(&xid.to_be_bytes());
        }
        if rng.u8(..) < 64 {
            mutate(rng, &mut packet);
        }
        stream.extend(framed(rng, &packet));
    }
    if rng.u8(..) < 16 {
        mutate(rng, &mut stream);
    }
    stream
}

/// How much memory a result takes that came in so many bytes, at most: a name has a length of four bytes at least, and
/// is held by three words.
fn weight(result: &Result<Reply, Code>) -> usize {
    match result {
        Ok(Reply::Children { names, .. }) => names.iter().map(|name| 4 + name.len() / 3).sum(),
        Ok(Reply::Data { data, .. }) => data.len(),
        Ok(Reply::Multi(results)) => results.len() * 9,
        _ => 0,
    }
}

/// All events of these pieces, and what is left at the end.
fn events(
    granted: Granted,
    chroot: &str,
    asked: &[usize],
    pieces: &[&[u8]],
) -> (Vec<ServerEvent<usize>>, Option<Broken>) {
    let mut connection = Connection::new(granted, chroot, KeepAlive::brisk(Duration::from_secs(24)), NOW);
    for (tag, index) in asked.iter().enumerate() {
        connection.request(&REQUESTS[*index].0, tag, NOW).unwrap();
    }
    connection.sent(connection.to_send().len(), NOW);
    let mut events = vec![];
    let mut came = 0;
    for piece in pieces {
        came += piece.len();
        connection.receive(piece, NOW);
        loop {
            match connection.next_event() {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(broken) => {
                    assert_eq!(connection.next_event(), Err(broken));
                    return (check(events, came, &connection, asked), Some(broken));
                }
            }
        }
    }
    (check(events, came, &connection, asked), None)
}

/// Each request is answered once or left over, and no result is larger than the bytes that came.
fn check(
    events: Vec<ServerEvent<usize>>,
    came: usize,
    connection: &Connection<usize>,
    asked: &[usize],
) -> Vec<ServerEvent<usize>> {
    let mut unanswered: Vec<_> = (0..asked.len()).collect();
    for event in &events {
        if let ServerEvent::Answered { tag, result, .. } = event {
            let place = unanswered.iter().position(|left| left == tag);
            unanswered.remove(place.expect("each request is answered once"));
            assert!(weight(result) <= came, "{result:?} of {came} bytes");
        }
    }
    assert_eq!(connection.is_owed(), !unanswered.is_empty());
    events
}

/// The xids and the opcodes of requests, in their order.
fn headers(asked: &[usize]) -> Vec<(i32, i32)> {
    let mut xids = 1..;
    let mut header = |index: &usize| {
        let (_, code, fixed) = REQUESTS[*index];
        (fixed.or_else(|| xids.next()).unwrap_or_default(), code)
    };
    asked.iter().map(&mut header).collect()
}

/// Returns how many requests were answered.
fn round(rng: &mut Rng, servers: &[Corpus]) -> usize {
    let corpus = rng.choice(servers).unwrap();
    let asked: Vec<usize> = (0..rng.usize(1..6)).map(|_| rng.usize(0..REQUESTS.len())).collect();
    let chroot = if rng.u8(..) < 32 { "" } else { &corpus.chroot };
    let bytes = stream(rng, corpus, &headers(&asked));
    let greeting = rng.clone();
    let granted = |mut rng: Rng| greeted(&mut rng, corpus);
    let (Some(first), Some(second)) = (granted(greeting.clone()), granted(greeting)) else { return 0 };
    let whole = events(first, chroot, &asked, &[&bytes]);
    let size = rng.usize(1..=bytes.len().max(1));
    let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
    assert_eq!(events(second, chroot, &asked, &pieces), whole);
    whole.0.len()
}

/// Makes rounds for as long as `ZKLOCK_FUZZ_SECONDS` says, or this many. Each has a seed, which is printed if it fails.
/// Returns their number.
pub(crate) fn rounds(count: u64, mut round: impl FnMut(&mut Rng)) -> u64 {
    struct Seed(u64);
    impl Drop for Seed {
        fn drop(&mut self) {
            if thread::panicking() {
                eprintln!("in the round with seed {}", self.0);
            }
        }
    }
    let seconds = std::env::var("ZKLOCK_FUZZ_SECONDS").ok().map(|text| text.parse().expect("a number of seconds"));
    let end = seconds.map(|seconds| Clock::now() + Duration::from_secs(seconds));
    let mut done = 0;
    while end.map_or(done < count, |end| Clock::now() < end) {
        let seed = Seed(fastrand::u64(..));
        round(&mut Rng::with_seed(seed.0));
        done += 1;
    }
    println!("{done} rounds");
    done
}

#[test]
fn no_bytes_do_harm() {
    let servers: Vec<_> = Conversation::all().into_iter().map(Corpus::new).collect();
    let mut answered = 0;
    let rounds = rounds(20_000, |rng| answered += round(rng, &servers));
    // Otherwise all bytes would be refused at first sight, and nothing behind that tried.
    assert!(answered as u64 > rounds, "{answered} events in {rounds} rounds");
}

/// Listens for clients, and has `relay` pass what they and the server `target` say. Returns the port, and where the seed of
/// the next connection is.
pub(crate) fn in_between(
    target: impl ToSocketAddrs + Send + 'static,
    relay: fn(TcpStream, TcpStream, Rng) -> io::Result<()>,
) -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let seed = Arc::new(AtomicU64::new(0));
    let next = Arc::clone(&seed);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let rng = Rng::with_seed(next.fetch_add(1, Ordering::Relaxed));
            let Ok(server) = TcpStream::connect(&target) else { return };
            thread::spawn(move || relay(client, server, rng));
        }
    });
    (port, seed)
}
