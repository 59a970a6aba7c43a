//! Conversations with servers as text: written while they happen, and held again without a server.
//!
//! A line begins with `>` for bytes that we send, `<` for bytes from the server, or `=` if the server closes the
//! connection. The number of the connection and the bytes follow.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::net::TcpStream;
use std::path::PathBuf;
use std::rc::Rc;

use super::talk::Line;

/// Where connections come from.
pub(super) trait Network {
    type Line: Line;

    /// Another connection.
    fn connect(&self) -> Self::Line;
}

/// A server, and what is said to it and by it.
pub(super) struct Recorder {
    address: String,
    text: Rc<RefCell<String>>,
    connections: RefCell<usize>,
}

impl Recorder {
    pub(super) fn new(address: String) -> Self {
        Self { address, text: Rc::default(), connections: RefCell::default() }
    }

    /// What was said so far.
    pub(super) fn text(&self) -> String {
        self.text.borrow().clone()
    }
}

impl Network for Recorder {
    type Line = Recorded;

    fn connect(&self) -> Recorded {
        let number = self.connections.replace_with(|number| *number + 1);
        let stream = TcpStream::connect(&self.address).expect("a server");
        Recorded { stream, number, text: Rc::clone(&self.text) }
    }
}

/// A connection that is recorded.
pub(super) struct Recorded {
    stream: TcpStream,
    number: usize,
    text: Rc<RefCell<String>>,
}

impl Recorded {
    fn note(&self, speaker: char, bytes: &[u8]) {
        let mut line = format!("{speaker} {} ", self.number);
        for byte in bytes {
            write!(line, "{byte:02x}").expect("memory");
        }
        *self.text.borrow_mut() += &(line.trim_end().to_owned() + "\n");
    }
}

impl Line for Recorded {
    fn send(&mut self, bytes: &[u8]) {
        self.stream.send(bytes);
        self.note('>', bytes);
    }

    fn receive(&mut self) -> Vec<u8> {
        let bytes = self.stream.receive();
        self.note(if bytes.is_empty() { '=' } else { '<' }, &bytes);
        bytes
    }
}

/// A line of a conversation.
#[derive(Clone, Debug)]
struct Said {
    speaker: String,
    connection: usize,
    bytes: Vec<u8>,
}

/// A recorded conversation.
#[derive(Clone, Debug)]
pub(super) struct Conversation {
    /// The version of the server.
    pub(super) version: String,
    /// Where it took place.
    pub(super) chroot: String,
    said: Vec<Said>,
}

impl Conversation {
    /// The directory of the recorded ones.
    pub(super) fn directory() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/protocol/recorded")
    }

    /// All that were recorded.
    pub(super) fn all() -> Vec<Self> {
        let files = std::fs::read_dir(Self::directory()).expect("the directory of conversations");
        let mut files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
        files.sort();
        let all: Vec<_> = files.iter().map(|file| Self::read(file)).collect();
        assert!(!all.is_empty());
        all
    }

    fn read(path: &std::path::Path) -> Self {
        let text = std::fs::read_to_string(path).expect("a conversation");
        let mut lines = text.lines();
        let mut header = |name: &str| {
            let value = lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value.unwrap_or_else(|| panic!("{} has no {name}", path.display())).to_owned()
        };
        let (version, chroot) = (header("version"), header("chroot"));
        let said = lines.map(|line| {
            let mut words = line.split(' ');
            let mut word = || words.next().unwrap_or_default();
            let (speaker, connection, hex) = (word(), word(), word());
            let bytes = hex.as_bytes().chunks(2).map(|digits| {
                let digits = std::str::from_utf8(digits).expect("ASCII");
                u8::from_str_radix(digits, 16).expect("two digits")
            });
            Said {
                speaker: speaker.to_owned(),
                connection: connection.parse().expect("a number"),
                bytes: bytes.collect(),
            }
        });
        Self { version, chroot, said: said.collect() }
    }

    /// The packets that the server sent, without their lengths, each with the opcode of the request that it answers;
    /// `None` for an event. The packet that opens a session begins with a zero, as no xid does.
    pub(super) fn answers(&self) -> Vec<(Option<i32>, Vec<u8>)> {
        let mut asked = BTreeMap::new();
        let mut answers = vec![];
        for said in &self.said {
            for packet in packets(&said.bytes) {
                let about = (said.connection, int(packet));
                if said.speaker == ">" {
                    asked.insert(about, int(&packet[4..]));
                } else {
                    answers.push((asked.get(&about).copied(), packet.to_vec()));
                }
            }
        }
        answers
    }

    /// A network on which the server says the same again. It insists that we do as well.
    pub(super) fn replay(&self) -> Replay {
        Replay { left: Rc::new(RefCell::new(self.said.iter().cloned().collect())), connections: RefCell::default() }
    }
}

fn int(bytes: &[u8]) -> i32 {
    i32::from_be_bytes(*bytes.first_chunk().expect("four bytes"))
}

fn packets(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut packets = vec![];
    while !bytes.is_empty() {
        let length = usize::try_from(int(bytes)).expect("a length");
        let (packet, rest) = bytes[4..].split_at(length);
        packets.push(packet);
        bytes = rest;
    }
    packets
}

/// A conversation that is held again.
pub(super) struct Replay {
    left: Rc<RefCell<VecDeque<Said>>>,
    connections: RefCell<usize>,
}

impl Replay {
    /// How many lines of it are left.
    pub(super) fn left(&self) -> usize {
        self.left.borrow().len()
    }
}

impl Network for Replay {
    type Line = Replayed;

    fn connect(&self) -> Replayed {
        Replayed { number: self.connections.replace_with(|number| *number + 1), left: Rc::clone(&self.left) }
    }
}

/// A connection to it.
pub(super) struct Replayed {
    number: usize,
    left: Rc<RefCell<VecDeque<Said>>>,
}

impl Replayed {
    fn next(&self) -> Said {
        let said = self.left.borrow_mut().pop_front().expect("the conversation goes on");
        assert_eq!(said.connection, self.number);
        said
    }
}

impl Line for Replayed {
    fn send(&mut self, bytes: &[u8]) {
        let said = self.next();
        assert_eq!((said.speaker.as_str(), said.bytes.as_slice()), (">", bytes));
    }

    fn receive(&mut self) -> Vec<u8> {
        let said = self.next();
        assert_ne!(said.speaker, ">");
        said.bytes
    }
}
