//! The first request and its reply.

use super::*;

const ASKED: Duration = Duration::from_secs(30);
const SENT: Instant = Instant::from_boot(Duration::from_secs(1));

fn reply(timeout: i32, id: i64, read_only: Option<bool>) -> Vec<u8> {
    reply_with(&[9; 16], 0, timeout, id, read_only)
}

fn reply_with(password: &[u8], protocol: i32, timeout: i32, id: i64, read_only: Option<bool>) -> Vec<u8> {
    let mut record = vec![];
    let mut to = JuteWriter::new(&mut record);
    to.int(protocol);
    to.int(timeout);
    to.long(id);
    to.buffer(password);
    if let Some(read_only) = read_only {
        to.boolean(read_only);
    }
    let mut packet = vec![];
    JuteWriter::new(&mut packet).buffer(&record);
    packet
}

fn identity(id: i64) -> Identity {
    Identity { id, password: vec![9; 16] }
}

fn sent(mut attempt: Attempt) -> Attempt {
    attempt.sent(usize::MAX, SENT);
    attempt
}

#[test]
fn a_new_session_is_asked_for_with_zeros() {
    let attempt = Attempt::open(ASKED);
    let mut from = JuteReader::new(attempt.to_send());
    assert_eq!(from.int(), Ok(45));
    assert_eq!(from.int(), Ok(0));
    assert_eq!(from.long(), Ok(0));
    assert_eq!(from.int(), Ok(30_000));
    assert_eq!(from.long(), Ok(0));
    assert_eq!(from.buffer(), Ok([0; 16].as_slice()));
    assert_eq!(from.boolean(), Ok(false));
    assert!(from.is_empty());
}

#[test]
fn a_session_is_resumed_by_id_and_password() {
    let attempt = Attempt::resume(identity(5), ASKED);
    let mut from = JuteReader::new(attempt.to_send());
    assert_eq!((from.int(), from.int()), (Ok(45), Ok(0)));
    assert_eq!(from.long(), Ok(0), "any server may go on with it, also one that lags");
    assert_eq!(from.int(), Ok(30_000));
    assert_eq!(from.long(), Ok(5));
    assert_eq!(from.buffer(), Ok([9; 16].as_slice()));
}

#[test]
fn the_last_byte_of_the_reply_may_be_missing() {
    for read_only in [None, Some(false)] {
        let granted = sent(Attempt::open(ASKED)).receive(&reply(4000, 5, read_only)).unwrap().unwrap();
        assert!(granted.identity == identity(5));
        assert_eq!((granted.timeout, granted.asked_at), (Duration::from_secs(4), SENT));
    }
}

#[test]
fn a_reply_may_come_in_pieces() {
    let mut attempt = sent(Attempt::resume(identity(5), ASKED));
    let reply = reply(4000, 5, Some(false));
    let (last, before) = reply.split_last().unwrap();
    for byte in before {
        assert!(attempt.receive(&[*byte]).unwrap().is_none());
    }
    assert!(attempt.receive(&[*last]).unwrap().unwrap().identity == identity(5));
}

#[test]
fn why_there_is_no_session() {
    let answer = |attempt, reply: &[u8]| sent(attempt).receive(reply).err().unwrap();
    assert_eq!(answer(Attempt::resume(identity(5), ASKED), &reply(0, 0, Some(false))), Broken::Expired);
    assert_eq!(answer(Attempt::resume(identity(5), ASKED), &reply(-1, 5, None)), Broken::Expired);
    assert_eq!(answer(Attempt::resume(identity(5), ASKED), &reply(4000, 6, None)), Broken::Expired);
    assert_eq!(answer(Attempt::open(ASKED), &reply(4000, 6, Some(true))), Broken::ReadOnly);
    let http = i32::from_be_bytes(*b"HTTP");
    assert_eq!(answer(Attempt::open(ASKED), b"HTTP/1.1 400"), Malformed::PacketLength(http).into());
    assert_eq!(answer(Attempt::open(ASKED), &[0, 0, 0, 2, 0, 0]), Malformed::Truncated.into());
}

#[test]
fn clickhouse_keeper_is_known_by_its_password() {
    let answer = |attempt, reply: &[u8]| sent(attempt).receive(reply).err().unwrap();
    let zeros = |protocol, timeout, id, read_only| reply_with(&[0; 16], protocol, timeout, id, read_only);
    // With a leader and without one; and a session that it would not resume.
    assert_eq!(answer(Attempt::open(ASKED), &zeros(0, 4000, 5, None)), Broken::ClickHouseKeeper);
    assert_eq!(answer(Attempt::open(ASKED), &zeros(42, 4000, 0, None)), Broken::ClickHouseKeeper);
    assert_eq!(answer(Attempt::resume(identity(5), ASKED), &zeros(0, 4000, 6, None)), Broken::Expired);
    // What ZooKeeper says of a session that is over, or of one for reads.
    assert_eq!(answer(Attempt::open(ASKED), &zeros(0, 0, 0, Some(false))), Broken::Expired);
    assert_eq!(answer(Attempt::open(ASKED), &zeros(0, 4000, 5, Some(true))), Broken::ReadOnly);
}

#[test]
fn an_answer_before_the_question_is_none() {
    let mut attempt = Attempt::open(ASKED);
    attempt.sent(48, SENT);
    assert_eq!(attempt.to_send(), [0]);
    assert_eq!(attempt.receive(&reply(4000, 5, None)).err().unwrap(), Malformed::UnexpectedReply(0).into());
}
