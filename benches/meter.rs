//! Passes connections on to a server, and counts the bytes. scripts/bench -c puts it between zklock and ZooKeeper.
//!
//! ```text
//! meter HOST:PORT
//! ```
//!
//! Prints the port at which it listens; then, for each line on stdin, how many bytes have gone to the server and how many
//! have come from it.

use std::env;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

static TO_SERVER: AtomicU64 = AtomicU64::new(0);
static FROM_SERVER: AtomicU64 = AtomicU64::new(0);

fn main() -> io::Result<()> {
    let server = env::args().nth(1).ok_or_else(|| io::Error::other("usage: meter HOST:PORT"))?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    thread::spawn(move || listener.incoming().flatten().try_for_each(|client| connect(client, &server)));
    for line in io::stdin().lines() {
        line?;
        println!("{} {}", TO_SERVER.load(Ordering::Relaxed), FROM_SERVER.load(Ordering::Relaxed));
    }
    Ok(())
}

fn connect(client: TcpStream, server: &str) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    for socket in [&client, &server] {
        socket.set_nodelay(true)?;
    }
    let (up, down) = ((client.try_clone()?, server.try_clone()?), (server, client));
    for (pair, count) in [(up, &TO_SERVER), (down, &FROM_SERVER)] {
        // An end of the one side, whatever its reason, is one for the other.
        thread::Builder::new().stack_size(128 << 10).spawn(|| pass(pair, count))?;
    }
    Ok(())
}

fn pass((mut from, mut to): (TcpStream, TcpStream), count: &AtomicU64) -> io::Result<()> {
    let mut bytes = [0; 16 * 1024];
    loop {
        let read = from.read(&mut bytes).unwrap_or(0);
        if read == 0 {
            return to.shutdown(Shutdown::Write);
        }
        count.fetch_add(read as u64, Ordering::Relaxed);
        to.write_all(&bytes[..read])?;
    }
}
