//! Packets: each begins with its length, in four bytes.
//!
//! Some packets have passwords in them, so what holds their bytes has no `Debug`.

use super::error::Malformed;

/// The longest reply that is believed. A list of 100,000 children has some 6 MB.
pub const LONGEST_REPLY: usize = 64 << 20;

/// The longest request that servers accept, without its length: `jute.maxbuffer` where it is not configured.
pub const LONGEST_REQUEST: usize = 0xf_ffff;

/// How much memory is kept for the next packets after a long one.
const KEPT: usize = 16 << 10;

/// The bytes that came, cut into packets. It grows with them, and with nothing else.
#[derive(Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    /// How many of the bytes belong to packets that were taken.
    taken: usize,
}

impl Inbox {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next packet, without its length. `None`: it has not come as a whole. `longest`: the longest that
    /// is believed.
    pub fn next_packet(&mut self, longest: usize) -> Result<Option<&[u8]>, Malformed> {
        if let Some(end) = self.end_of_packet(longest)? {
            let begin = self.taken + 4;
            self.taken = end;
            return Ok(self.bytes.get(begin..end));
        }
        self.bytes.drain(..self.taken);
        self.taken = 0;
        if self.bytes.len() < KEPT {
            self.bytes.shrink_to(KEPT);
        }
        Ok(None)
    }

    fn end_of_packet(&self, longest: usize) -> Result<Option<usize>, Malformed> {
        let Some(length) = self.bytes[self.taken..].first_chunk() else { return Ok(None) };
        let claimed = i32::from_be_bytes(*length);
        let length = usize::try_from(claimed).ok().filter(|length| *length <= longest);
        let end = self.taken + 4 + length.ok_or(Malformed::PacketLength(claimed))?;
        Ok((end <= self.bytes.len()).then_some(end))
    }
}

/// The bytes that are to be sent.
#[derive(Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    /// How many of the bytes were sent.
    sent: usize,
    /// How many bytes were sent before these.
    before: u64,
}

impl Outbox {
    /// Adds the packet that `write` appends to the bytes. Fails with its length, and adds nothing, if servers would
    /// not take it.
    pub fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), usize> {
        let begin = self.bytes.len();
        write(&mut self.bytes);
        let length = self.bytes.len() - begin - 4;
        if length > LONGEST_REQUEST {
            self.bytes.truncate(begin);
            return Err(length);
        }
        Ok(())
    }

    pub fn to_send(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    pub fn sent(&mut self, count: usize) {
        self.sent = self.bytes.len().min(self.sent.saturating_add(count));
        if self.sent == self.bytes.len() {
            self.before = self.total_sent();
            self.sent = 0;
            self.bytes = vec![];
        }
    }

    /// How many bytes were sent since the beginning.
    pub const fn total_sent(&self) -> u64 {
        self.before + self.sent as u64
    }

    /// The same, once all is sent that is to be sent now.
    pub const fn total(&self) -> u64 {
        self.before + self.bytes.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(payload: &[u8]) -> Vec<u8> {
        [&u32::try_from(payload.len()).unwrap().to_be_bytes(), payload].concat()
    }

    #[test]
    fn packets_come_whole_however_they_are_cut() {
        let stream = [packet(b"one"), packet(b""), packet(b"three")].concat();
        for size in 1..=stream.len() {
            let mut inbox = Inbox::default();
            let mut taken = vec![];
            for piece in stream.chunks(size) {
                inbox.push(piece);
                while let Some(packet) = inbox.next_packet(5).unwrap() {
                    taken.push(packet.to_vec());
                }
            }
            assert_eq!(taken, [b"one".as_slice(), b"", b"three"]);
        }
    }

    #[test]
    fn a_length_that_is_too_long_is_refused_before_anything_else_comes() {
        for (claimed, believed) in [(5, true), (6, false), (i32::MAX, false), (-1, false), (i32::MIN, false)] {
            let mut inbox = Inbox::default();
            inbox.push(&claimed.to_be_bytes());
            let expected = if believed { Ok(None) } else { Err(Malformed::PacketLength(claimed)) };
            assert_eq!(inbox.next_packet(5), expected);
        }
    }

    #[test]
    fn a_long_packet_leaves_no_memory_behind() {
        let mut inbox = Inbox::default();
        inbox.push(&packet(&vec![0; 1 << 20]));
        inbox.push(&packet(b"next")[..5]);
        assert_eq!(inbox.next_packet(LONGEST_REPLY).unwrap().map(<[u8]>::len), Some(1 << 20));
        assert_eq!(inbox.next_packet(LONGEST_REPLY).unwrap(), None);
        assert!(inbox.bytes.capacity() <= KEPT, "{}", inbox.bytes.capacity());
        inbox.push(b"ext");
        assert_eq!(inbox.next_packet(LONGEST_REPLY).unwrap(), Some(b"next".as_slice()));
    }

    #[test]
    fn a_claim_costs_no_memory() {
        let mut inbox = Inbox::default();
        inbox.push(&u32::try_from(LONGEST_REPLY).unwrap().to_be_bytes());
        assert_eq!(inbox.next_packet(LONGEST_REPLY), Ok(None));
        assert!(inbox.bytes.capacity() <= KEPT);
    }
}
