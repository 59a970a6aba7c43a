//! What one connection through the proxy does with the bytes of its two directions.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};

use super::super::frames::{Frame, Frames, Op, Request, answered_xid};
use super::side::{self, Side};
use super::{Fate, Flow, Shared, Stage, State, TrapState};

/// One of the two directions of a connection.
#[derive(Debug)]
struct Lane {
    frames: Frames,
    /// The bytes that were read and may not be written yet.
    queue: VecDeque<Queued>,
    /// The bytes that may be written and were not taken yet.
    pending: Vec<u8>,
    at_end: bool,
    end_is_passed: bool,
}

/// Some bytes on their way.
#[derive(Debug)]
struct Queued {
    bytes: Vec<u8>,
    /// The time from which they may pass.
    due: Instant,
    /// The trap that must release them first.
    trap: Option<Arc<TrapState>>,
}

impl Queued {
    /// When they may pass; `None` while a trap holds them.
    fn due(&self) -> Option<Instant> {
        self.trap.as_ref().is_none_or(|trap| trap.stage() == Stage::Released).then_some(self.due)
    }
}

impl Lane {
    fn new(frames: Frames) -> Self {
        Self { frames, queue: VecDeque::new(), pending: Vec::new(), at_end: false, end_is_passed: false }
    }

    /// Queues what was read.
    fn push(&mut self, bytes: Vec<u8>, flow: Flow, trap: Option<Arc<TrapState>>) {
        const PIECES: u32 = 20;
        let now = Instant::now();
        match flow {
            Flow::Pass | Flow::Hold => self.queue.push_back(Queued { bytes, due: now, trap }),
            Flow::Delay(delay) => self.queue.push_back(Queued { bytes, due: now + delay, trap }),
            Flow::Slow(rate) => {
                let mut due = self.queue.back().map_or(now, |last| last.due.max(now));
                for piece in bytes.chunks(rate / PIECES as usize) {
                    due += Duration::from_secs(1) / PIECES;
                    self.queue.push_back(Queued { bytes: piece.to_vec(), due, trap: trap.clone() });
                }
            }
        }
    }

    fn wants_to_read(&self, flow: Flow) -> bool {
        flow != Flow::Hold && !self.at_end
    }

    /// When `advance` has something to do next, unless something else happens first.
    fn due(&self, flow: Flow) -> Option<Instant> {
        if flow == Flow::Hold { None } else { self.queue.front()?.due() }
    }

    /// Moves what is due to `pending`.
    fn advance(&mut self, flow: Flow) {
        let now = Instant::now();
        while self.due(flow).is_some_and(|due| due <= now || flow == Flow::Pass) {
            self.pending.extend(self.queue.pop_front().expect("something is due").bytes);
        }
    }

    fn wants_to_write(&self, flow: Flow) -> bool {
        flow != Flow::Hold && !self.pending.is_empty()
    }

    /// Passes the end of the stream on, when everything before it has been.
    fn finish(&mut self, flow: Flow, end: impl FnOnce()) {
        if flow != Flow::Hold && self.at_end && !self.end_is_passed && self.queue.is_empty() && self.pending.is_empty()
        {
            self.end_is_passed = true;
            end();
        }
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    number: usize,
    pub(super) client: Side,
    pub(super) server: TcpStream,
    word: UnixStream,
    up: Lane,
    down: Lane,
    is_dead: bool,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Both,
    Reset,
}

impl Connection {
    pub(super) fn open(shared: &Shared, number: usize, client: TcpStream, word: UnixStream) -> io::Result<Self> {
        let server = TcpStream::connect(shared.target).inspect_err(|_| linger_never(&client))?;
        for stream in [&client, &server] {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
        }
        let frames = || if shared.reads_frames { Frames::default() } else { Frames::bytes() };
        let (up, down) = (Lane::new(frames()), Lane::new(frames()));
        let client = Side::new(client, shared.reads_frames);
        Ok(Self { number, client, server, word, up, down, is_dead: false })
    }

    pub(super) fn serve(&mut self, shared: &Shared) -> io::Result<End> {
        loop {
            let (mut up, mut down) = {
                let state = shared.lock();
                if state.connections.get(&self.number).is_none_or(|control| control.reset) {
                    return Ok(End::Reset);
                }
                (state.up, state.down)
            };
            if self.is_dead {
                (up, down) = (Flow::Hold, Flow::Hold);
            }
            self.up.advance(up);
            self.down.advance(down);
            // The other side may have closed at the same time.
            self.up.finish(up, || drop(self.server.shutdown(Shutdown::Write)));
            self.down.finish(down, || self.client.finish());
            if self.up.end_is_passed && self.down.end_is_passed {
                return Ok(End::Both);
            }
            let (client, server) = self.wait(up, down);
            if client.contains(PollFlags::POLLOUT) {
                self.client.write(&mut self.down.pending)?;
            }
            if server.contains(PollFlags::POLLOUT) {
                side::write(&mut self.up.pending, &mut self.server)?;
            }
            if self.up.wants_to_read(up) && client.intersects(READABLE) {
                self.read_requests(shared, up)?;
            }
            if self.down.wants_to_read(down)
                && server.intersects(READABLE)
                && let Some(end) = self.read_replies(shared, down)?
            {
                return Ok(end);
            }
        }
    }

    /// Waits for what there is to do, and tells what the client's and the server's sockets are ready for.
    fn wait(&mut self, up: Flow, down: Flow) -> (PollFlags, PollFlags) {
        let flags = |reads: bool, writes: bool| {
            let read = if reads { PollFlags::POLLIN } else { PollFlags::empty() };
            if writes { read | PollFlags::POLLOUT } else { read }
        };
        // TLS has words of its own, such as those of a handshake.
        let tells_client = self.down.wants_to_write(down) || down != Flow::Hold && self.client.wants_to_write();
        let client = flags(self.up.wants_to_read(up), tells_client);
        let server = flags(self.down.wants_to_read(down), self.up.wants_to_write(up));
        // A socket of which nothing is wanted must not be polled: poll(2) reports a hang-up unasked, again and again.
        let mut interests = vec![interest(&self.word, PollFlags::POLLIN)];
        interests.extend((!client.is_empty()).then(|| interest(&self.client.stream, client)));
        interests.extend((!server.is_empty()).then(|| interest(&self.server, server)));
        let due = self.up.due(up).into_iter().chain(self.down.due(down)).min();
        wait_for(&mut interests, due);
        let mut results = interests[1..].iter().map(|interest| interest.revents().unwrap_or(PollFlags::empty()));
        let mut result = |asked: PollFlags| if asked.is_empty() { asked } else { results.next().unwrap_or(asked) };
        let ready = (result(client), result(server));
        if (&self.word).read(&mut [0; 64]).is_ok_and(|length| length > 0) {
            // The test has changed something. What was read now would be treated by the old rules.
            return (PollFlags::empty(), PollFlags::empty());
        }
        ready
    }

    fn read_requests(&mut self, shared: &Shared, flow: Flow) -> io::Result<()> {
        let Some(bytes) = self.client.read()? else {
            self.up.at_end = true;
            return Ok(());
        };
        for mut frame in self.up.frames.split(&bytes) {
            if let Some(timeout) = shared.lock().timeout {
                frame.set_timeout(timeout);
            }
            if let Some(request) = Request::parse(self.number, &frame) {
                shared.change(|state| {
                    if state.unknown.contains(&request.op) {
                        frame.set_op(Op::Unknown);
                    }
                    let armed =
                        state.traps.iter().find(|trap| trap.stage() == Stage::Armed && (trap.matches)(&request));
                    if let Some(trap) = armed {
                        trap.set(Stage::Expecting { connection: self.number, xid: request.xid });
                    }
                    state.requests.push(request);
                });
            }
            self.up.push(frame.bytes, flow, None);
        }
        Ok(())
    }

    fn read_replies(&mut self, shared: &Shared, flow: Flow) -> io::Result<Option<End>> {
        let Some(bytes) = side::read(&mut self.server)? else {
            self.down.at_end = true;
            return Ok(None);
        };
        for mut frame in self.down.frames.split(&bytes) {
            if !self.record_reply(shared, &mut frame) {
                continue;
            }
            let trap = answered_xid(&frame).and_then(|xid| self.sprung(shared, xid));
            match trap.as_ref().map(|trap| trap.fate) {
                None | Some(Fate::Wait) => self.down.push(frame.bytes, flow, trap),
                Some(Fate::Reset | Fate::ResetAndHold) => return Ok(Some(End::Reset)),
                Some(Fate::Blackhole) => {
                    self.is_dead = true;
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }

    /// Marks the request that a reply answers, and changes what the server says by its mistakes. Returns whether the frame
    /// passes.
    fn record_reply(&self, shared: &Shared, frame: &mut Frame) -> bool {
        let mut state = shared.lock();
        let State { requests, mistakes, .. } = &mut *state;
        let asked =
            |request: &&mut Request| request.connection == self.number && Some(request.xid) == answered_xid(frame);
        let request = requests.iter_mut().rfind(asked).map(|request| {
            request.is_answered = true;
            request.clone()
        });
        mistakes.iter_mut().all(|mistake| mistake.change_reply(request.as_ref(), frame))
    }

    /// The trap that waited for the reply with this xid.
    fn sprung(&self, shared: &Shared, xid: i32) -> Option<Arc<TrapState>> {
        let expected = Stage::Expecting { connection: self.number, xid };
        let trap = shared.lock().traps.iter().find(|trap| trap.stage() == expected)?.clone();
        // In one step, because a test that has seen the trap spring may let everything pass again.
        shared.change(|state| {
            if trap.fate == Fate::ResetAndHold {
                (state.up, state.down) = (Flow::Hold, Flow::Hold);
            }
            trap.set(Stage::Sprung);
        });
        Some(trap)
    }
}

const READABLE: PollFlags = PollFlags::POLLIN.union(PollFlags::POLLHUP).union(PollFlags::POLLERR);

/// Makes the coming close(2) send a reset: socket(7), SO_LINGER with a time of zero.
pub(crate) fn linger_never(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    setsockopt(stream, sockopt::Linger, &linger).expect("SO_LINGER can be set on a socket");
}

pub(crate) fn interest<'fd>(source: &'fd impl AsFd, flags: PollFlags) -> PollFd<'fd> {
    let descriptor: BorrowedFd<'fd> = source.as_fd();
    PollFd::new(descriptor, flags)
}

pub(crate) fn is_ready(interest: &PollFd<'_>) -> bool {
    interest.any().unwrap_or(true)
}

/// poll(2) until something is ready, until `due`, or until a signal comes.
pub(crate) fn wait_for(interests: &mut [PollFd<'_>], due: Option<Instant>) {
    let timeout = due.map_or(PollTimeout::NONE, |due| {
        // Rounded up, or the last part of a millisecond would be spent in a busy loop.
        let milliseconds = due.saturating_duration_since(Instant::now()).as_millis() + 1;
        PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX)
    });
    match poll(interests, timeout) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => {}
        Err(error) => panic!("poll: {error}"),
    }
}
