//! Which reply belongs to which request, when that was sent, and what is left at the end.

use super::super::frames::LONGEST_REQUEST;
use super::super::handshake::Attempt;
use super::super::records::JuteWriter;
use super::super::reply::Change;
use super::super::request::Secret;
use super::super::request::bytes::AUTH;
use super::*;
use crate::zookeeper::wire::request::bytes::PING;

const SILENCE: Duration = Duration::from_secs(8);
const GET: Request<'_> = Request::GetChildren { path: "/", watch: false };
const SYNC: Request<'_> = Request::Sync { path: "/" };

fn at(seconds: u64) -> Instant {
    Instant::from_boot(Duration::from_secs(1000 + seconds))
}

fn packet(write: impl FnOnce(&mut JuteWriter<'_>)) -> Vec<u8> {
    let mut record = vec![];
    write(&mut JuteWriter::new(&mut record));
    let mut packet = vec![];
    JuteWriter::new(&mut packet).buffer(&record);
    packet
}

/// A reply without a record.
fn reply(xid: i32, zxid: i64, error: i32) -> Vec<u8> {
    packet(|to| {
        to.int(xid);
        to.long(zxid);
        to.int(error);
    })
}

fn deleted(path: &str) -> Vec<u8> {
    packet(|to| {
        to.int(NOTIFICATION);
        to.long(-1);
        to.int(0);
        to.int(2);
        to.int(3);
        to.string(path);
    })
}

/// A connection since second 0. Requests are known by letters.
fn connection() -> Connection<char> {
    let mut attempt = Attempt::open(Duration::from_secs(30));
    attempt.sent(usize::MAX, at(0));
    let granted = packet(|to| {
        to.int(0);
        to.int(30_000);
        to.long(5);
        to.buffer(&[9; 16]);
    });
    Connection::new(attempt.receive(&granted).unwrap().unwrap(), "/jobs/", KeepAlive::brisk(SILENCE * 6), at(0))
}

impl Connection<char> {
    fn ask(&mut self, request: &Request<'_>, tag: char, now: Instant) {
        self.request(request, tag, now).unwrap();
    }

    /// Asks, and sends all at once.
    fn send(&mut self, request: &Request<'_>, tag: char, now: Instant) {
        self.ask(request, tag, now);
        self.sent(usize::MAX, now);
    }

    /// What is not answered, and when it was sent.
    fn left(&self) -> Vec<(char, Option<Instant>)> {
        self.pending.iter().map(|request| (request.tag, request.sent)).collect()
    }

    fn come(&mut self, bytes: &[u8]) -> Vec<Result<ServerEvent<char>, Broken>> {
        self.receive(bytes, at(0));
        let mut events = vec![];
        loop {
            match self.next_event() {
                Ok(Some(event)) => events.push(Ok(event)),
                Ok(None) => return events,
                Err(broken) => {
                    events.push(Err(broken));
                    return events;
                }
            }
        }
    }
}

fn done(tag: char, sent: Instant) -> Result<ServerEvent<char>, Broken> {
    Ok(ServerEvent::Answered { tag, sent, result: Ok(Reply::Done) })
}

fn refused(tag: char, sent: Instant, code: Code) -> Result<ServerEvent<char>, Broken> {
    Ok(ServerEvent::Answered { tag, sent, result: Err(code) })
}

fn unexpected(xid: i32) -> Result<ServerEvent<char>, Broken> {
    Err(Broken::Malformed(Malformed::UnexpectedReply(xid)))
}

#[test]
fn replies_belong_to_requests_in_their_order() {
    let mut connection = connection();
    connection.send(&SYNC, 'a', at(1));
    connection.send(&SYNC, 'b', at(2));
    assert_eq!(connection.come(&reply(1, 1, 0)), [done('a', at(1))]);
    assert_eq!(connection.come(&reply(2, 1, -101)), [refused('b', at(2), Code::NoNode)]);
    assert_eq!(connection.come(&reply(2, 1, 0)), [unexpected(2)]);
    assert!(matches!(connection.request(&SYNC, 'c', at(3)), Err(Unsendable::Broken(_))));
}

#[test]
fn a_reply_out_of_turn_breaks_the_connection() {
    let mut connection = connection();
    connection.send(&SYNC, 'a', at(1));
    connection.send(&SYNC, 'b', at(2));
    assert_eq!(connection.come(&reply(2, 1, 0)), [unexpected(2)]);
    assert_eq!(connection.next_event(), Err(Broken::Malformed(Malformed::UnexpectedReply(2))));
    assert_eq!(connection.left(), [('a', Some(at(1))), ('b', Some(at(2)))]);
}

#[test]
fn three_xids_are_out_of_turn_by_nature() {
    let mut connection = connection();
    connection.send(&SYNC, 'a', at(1));
    connection.send(&Request::Ping, 'p', at(2));
    connection.send(&Request::Auth { scheme: "digest", credentials: Secret(b"bob:secret") }, 'u', at(3));
    let came = [reply(AUTH, 0, -115), deleted("/jobs/a"), reply(PING, 1, 0), reply(1, 1, 0)];
    let change = ServerEvent::Changed(WatchEvent { change: Change::Deleted, path: "/a".to_owned() });
    let events = [refused('u', at(3), Code::AuthFailed), Ok(change), done('p', at(2)), done('a', at(1))];
    assert_eq!(connection.come(&came.concat()), events);
    assert_eq!(connection.come(&reply(PING, 1, 0)), [unexpected(PING)]);
}

/// A server that does not know a request says so at once, while the requests before it are under way.
#[test]
fn the_refusal_of_an_unknown_request_overtakes() {
    let mut connection = connection();
    connection.send(&SYNC, 'a', at(1));
    connection.send(&SYNC, 'b', at(2));
    assert_eq!(connection.come(&reply(2, 0, -6)), [refused('b', at(2), Code::Unimplemented)]);
    assert_eq!(connection.come(&reply(1, 1, 0)), [done('a', at(1))]);
}

#[test]
fn a_request_is_sent_with_its_last_byte() {
    let mut connection = connection();
    connection.ask(&SYNC, 'a', at(1));
    let length = connection.to_send().len();
    connection.ask(&SYNC, 'b', at(1));
    connection.sent(length - 1, at(2));
    connection.sent(2, at(3));
    assert_eq!(connection.to_send().len(), length - 1);
    connection.ask(&SYNC, 'c', at(4));
    connection.sent(length - 1, at(5));
    assert_eq!(connection.come(&reply(1, 1, 0)), [done('a', at(3))]);
    assert_eq!(connection.left(), [('b', Some(at(5))), ('c', None)]);
}

#[test]
fn a_reply_to_what_was_not_sent_breaks_the_connection() {
    let mut connection = connection();
    connection.ask(&SYNC, 'a', at(1));
    connection.sent(connection.to_send().len() - 1, at(1));
    assert_eq!(connection.come(&reply(1, 1, 0)), [unexpected(1)]);
}

#[test]
fn xids_begin_again_after_the_last() {
    let mut connection = connection();
    connection.last_xid = i32::MAX - 1;
    connection.send(&SYNC, 'a', at(1));
    connection.send(&SYNC, 'b', at(1));
    let came = [reply(i32::MAX, 1, 0), reply(1, 1, 0)].concat();
    assert_eq!(connection.come(&came), [done('a', at(1)), done('b', at(1))]);
}

#[test]
fn a_moved_session_breaks_the_connection_and_leaves_the_outcome_unknown() {
    let mut connection = connection();
    connection.send(&SYNC, 'a', at(1));
    assert_eq!(connection.come(&reply(1, 1, -118)), [Err(Broken::SessionMoved)]);
    assert_eq!(connection.left(), [('a', Some(at(1)))]);
}

/// As servers before 3.6 say it.
#[test]
fn so_does_an_operation_of_a_multi() {
    let mut connection = connection();
    let checks = ["/a", "/b"].map(|path| Request::Check { path, version: None });
    connection.send(&Request::Multi(&checks), 'm', at(1));
    assert_eq!(connection.come(&refused_multi([-118, -2])), [Err(Broken::SessionMoved)]);
    assert_eq!(connection.left(), [('m', Some(at(1)))]);
}

#[test]
fn what_is_too_large_is_not_sent() {
    let mut connection = connection();
    connection.ask(&SYNC, 'a', at(1));
    let before = connection.to_send().to_vec();
    let data = vec![0; LONGEST_REQUEST];
    let large = Request::SetData { path: "/a", data: &data, version: None };
    // xid, opcode, path and version are 4 bytes each but for the path, and data have a length.
    let length = LONGEST_REQUEST + 8 + 4 + "/jobs/a".len() + 4 + 4;
    assert_eq!(connection.request(&large, 'b', at(1)), Err(Unsendable::TooLarge(length)));
    let fits = Request::SetData { path: "/a", data: &data[length - LONGEST_REQUEST..], version: None };
    assert_eq!(connection.to_send(), before);
    connection.ask(&fits, 'c', at(1));
    assert_eq!(connection.to_send().len(), before.len() + 4 + LONGEST_REQUEST);
    connection.sent(usize::MAX, at(1));
    let came = [reply(1, 1, 0), reply(2, 1, -101)].concat();
    assert_eq!(connection.come(&came), [done('a', at(1)), refused('c', at(1), Code::NoNode)]);
}

#[test]
fn tokens_of_sasl_there_and_back() {
    let mut connection = connection();
    let answer = |xid, token: Option<&[u8]>| {
        packet(|to| {
            to.int(xid);
            to.long(0);
            to.int(0);
            match token {
                Some(token) => to.buffer(token),
                None => to.int(-1),
            }
        })
    };
    for (xid, token, answered) in [(1, &b""[..], Some(&b"challenge"[..])), (2, b"proof", None), (3, b"x", Some(b""))] {
        connection.ask(&Request::Sasl(Secret(token)), 't', at(1));
        let expected = packet(|to| {
            to.int(xid);
            to.int(102);
            to.buffer(token);
        });
        assert_eq!(connection.to_send(), expected);
        connection.sent(usize::MAX, at(1));
        let result = Ok(Reply::Token(answered.unwrap_or_default().to_vec()));
        assert_eq!(
            connection.come(&answer(xid, answered)),
            [Ok(ServerEvent::Answered { tag: 't', sent: at(1), result })]
        );
    }
    connection.send(&Request::Sasl(Secret(b"y")), 'r', at(2));
    assert_eq!(connection.come(&reply(4, 0, -115)), [refused('r', at(2), Code::AuthFailed)]);
    connection.send(&Request::Sasl(Secret(b"z")), 'u', at(2));
    assert_eq!(connection.come(&answer(6, None)), [unexpected(6)]);
    assert_eq!(connection.into_granted().timeout, Duration::from_secs(30));
}

#[test]
fn nothing_comes_after_the_close() {
    let mut connection = connection();
    connection.send(&Request::Close, 'x', at(1));
    assert_eq!(connection.request(&Request::Ping, 'p', at(2)), Err(Unsendable::Closing));
    assert_eq!(connection.ping_at(), None);
    assert_eq!(connection.come(&reply(1, 1, 0)), [done('x', at(1))]);
    assert_eq!(connection.lost_at(), None);
}

#[test]
fn a_ping_is_due_when_nothing_was_sent_for_a_while() {
    let mut connection = connection();
    assert_eq!((connection.ping_at(), connection.lost_at()), (Some(at(3)), None));
    connection.ask(&SYNC, 'a', at(2));
    assert_eq!(connection.ping_at(), None, "there are bytes to be sent");
    connection.sent(usize::MAX, at(2));
    assert_eq!(connection.ping_at(), Some(at(5)));
    connection.send(&Request::Ping, 'p', at(5));
    assert_eq!(connection.ping_at(), Some(at(8)), "although one is under way: a long reply may be before its own");
    assert_eq!(connection.lost_at(), Some(at(8)));
    connection.receive(&reply(1, 1, 0), at(6));
    assert_eq!(connection.next_event(), done('a', at(2)).map(Some));
    assert_eq!(connection.lost_at(), Some(at(14)));
}

/// A socket that takes no bytes is as bad as one that brings none.
#[test]
fn what_cannot_be_sent_is_a_silence() {
    let mut connection = connection();
    connection.ask(&SYNC, 'a', at(1));
    assert_eq!(connection.lost_at(), Some(at(8)));
}

#[test]
fn a_list_of_100_000_children_comes_in_pieces() {
    let names: Vec<String> = (0..100_000).map(|n| format!("_c_{n:032x}-lock-{n:010}")).collect();
    let list = packet(|to| {
        to.int(1);
        to.long(1);
        to.int(0);
        to.vector(&names, |to, name| to.string(name));
    });
    let mut connection = connection();
    connection.send(&GET, 'a', at(1));
    let mut events = vec![];
    for piece in list.chunks(4096) {
        events.extend(connection.come(piece));
    }
    let names = names.iter().map(|name| name.as_str().into()).collect();
    assert_eq!(
        events,
        [Ok(ServerEvent::Answered { tag: 'a', sent: at(1), result: Ok(Reply::Children { names, stat: None }) })]
    );
}

/// The reply to the first request of a connection, a multi of two operations with these errors.
fn refused_multi(errors: [i32; 2]) -> Vec<u8> {
    packet(|to| {
        to.int(1);
        to.long(1);
        to.int(0);
        for error in errors {
            to.int(-1);
            to.boolean(false);
            to.int(error);
            to.int(error);
        }
        to.int(-1);
        to.boolean(true);
        to.int(-1);
    })
}

#[test]
fn a_multi_says_why_it_was_refused() {
    let mut connection = connection();
    let checks = ["/a", "/b"].map(|path| Request::Check { path, version: None });
    connection.send(&Request::Multi(&checks), 'm', at(1));
    let result = Err(Code::NoNode);
    assert_eq!(
        connection.come(&refused_multi([0, -101])),
        [Ok(ServerEvent::Answered { tag: 'm', sent: at(1), result })]
    );
}
