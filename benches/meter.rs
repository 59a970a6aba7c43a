//! Passes connections on to a server, and counts the bytes. scripts/bench -c puts it between zklock and ZooKeeper. With
//! scripts/bench -d it is the network: a round trip through it takes so many milliseconds.
//!
//! ```text
//! meter HOST:PORT MILLISECONDS
//! ```
//!
//! Prints the port at which it listens; then, for each line on stdin, how many bytes have gone to the server and how many
//! have come from it.

use std::env;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

static TO_SERVER: AtomicU64 = AtomicU64::new(0);
static FROM_SERVER: AtomicU64 = AtomicU64::new(0);

fn main() -> io::Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [server, milliseconds] =
        words.try_into().map_err(|_| io::Error::other("usage: meter HOST:PORT MILLISECONDS"))?;
    let one_way = Duration::from_millis(milliseconds.parse().map_err(io::Error::other)?) / 2;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    thread::spawn(move || {
        listener.incoming().flatten().try_for_each(|client| {
            let server = server.clone();
            spawn(move || connect(client, &server, one_way))
        })
    });
    for line in io::stdin().lines() {
        line?;
        println!("{} {}", TO_SERVER.load(Ordering::Relaxed), FROM_SERVER.load(Ordering::Relaxed));
    }
    Ok(())
}

fn spawn(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    thread::Builder::new().stack_size(128 << 10).spawn(work).map(drop)
}

fn connect(client: TcpStream, server: &str, one_way: Duration) -> io::Result<()> {
    // TCP's handshake: the client may send after a round trip, and the server half a round trip later.
    thread::sleep(one_way * 2);
    let server = TcpStream::connect(server)?;
    for socket in [&client, &server] {
        socket.set_nodelay(true)?;
    }
    let (up, down) = ((client.try_clone()?, server.try_clone()?), (server, client));
    spawn(move || pass(up, &TO_SERVER, one_way))?;
    thread::sleep(one_way);
    pass(down, &FROM_SERVER, one_way)
}

/// An end of the one side, whatever its reason, is one for the other.
fn pass((mut from, mut to): (TcpStream, TcpStream), count: &AtomicU64, one_way: Duration) -> io::Result<()> {
    let (send, receive) = mpsc::channel::<(Instant, Vec<u8>)>();
    spawn(move || {
        for (due, bytes) in receive {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            to.write_all(&bytes)?;
        }
        to.shutdown(Shutdown::Write)
    })?;
    let mut bytes = [0; 16 * 1024];
    loop {
        let read = from.read(&mut bytes).unwrap_or(0);
        if read == 0 {
            return Ok(());
        }
        count.fetch_add(read as u64, Ordering::Relaxed);
        send.send((Instant::now() + one_way, bytes[..read].to_vec())).map_err(io::Error::other)?;
    }
}
