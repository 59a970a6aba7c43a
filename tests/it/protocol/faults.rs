//! Sessions that end, servers that know too little, and servers that fall silent.

use std::net::TcpStream;
use std::time::Duration;

use zklock::system::clock;
use zklock::zookeeper::wire::error::NoSession;
use zklock::zookeeper::wire::handshake::Attempt;
use zklock::zookeeper::wire::reply::Reply;
use zklock::zookeeper::wire::request::{Acl, NewNode, NodeKind, Request};

use super::talk::{SILENCE, Talk, Unanswered, begin, open, path_of, resume};
use crate::harness::client::Client;
use crate::harness::poll;
use crate::harness::server::{Data, Server};

fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.address()).unwrap()
}

/// Creates an ephemeral node. Returns its path.
fn create(talk: &mut Talk<TcpStream>) -> String {
    let path = format!("/ephemeral-{:016x}", fastrand::u64(..));
    let node = NewNode { path: &path, data: b"", acl: &[Acl::ANYONE] };
    path_of(talk.call(&Request::Create { node, kind: NodeKind::Ephemeral }))
}

#[test]
fn a_session_that_has_expired_is_not_resumed() {
    let server = Server::shared();
    let brief = Attempt::open(Duration::from_millis(1));
    let mut talk = begin(brief, connect(server), "").unwrap();
    // The least that the server grants.
    assert_eq!(talk.connection.timeout(), Duration::from_millis(400));
    let node = create(&mut talk);
    let identity = talk.connection.identity().clone();
    drop(talk);
    let client = Client::connect(&server.address());
    poll::until("the session expires", || client.get(&node).is_err().then_some(()));
    assert_eq!(resume(connect(server), &identity, "").err(), Some(Unanswered::Because(NoSession::Expired)));
}

/// An operator, or a session that expires while its connection stands, closes the connection without a word.
#[test]
fn a_connection_ends_with_its_session() {
    let server = Server::start();
    let mut first = open(connect(&server), "");
    create(&mut first);
    let mut second = resume(connect(&server), first.connection.identity(), "").unwrap();
    // The server closes the connection that the session was on before.
    first.closed();
    assert_eq!(second.call(&Request::Close), Ok(Reply::Done));
    second.closed();
    let late = resume(connect(&server), first.connection.identity(), "").err();
    assert_eq!(late, Some(Unanswered::Because(NoSession::Expired)));
}

#[test]
fn a_server_that_has_lost_its_data_opens_sessions_and_resumes_none() {
    let server = Server::start();
    let mut talk = open(connect(&server), "");
    create(&mut talk);
    let identity = talk.connection.identity().clone();
    server.restart(Data::Wiped);
    assert_eq!(resume(connect(&server), &identity, "").err(), Some(Unanswered::Closed));
    let mut talk = open(connect(&server), "");
    assert_eq!(talk.call(&Request::Sync { path: "/" }), Ok(Reply::Done));
    assert!(talk.connection.identity().last_zxid() < identity.last_zxid());
}

/// The silence is noticed when it is over, and the request that went out in it has an unknown outcome.
#[test]
fn a_frozen_server_is_lost_after_the_silence() {
    let server = Server::start();
    let mut talk = open(connect(&server), "");
    assert_eq!(talk.call(&Request::Ping), Ok(Reply::Done));
    let answered = clock::now();
    server.freeze();
    poll::until("a ping is due", || (clock::now() >= talk.connection.ping_at()?).then_some(()));
    talk.ask(&Request::Ping, "silence");
    assert!(talk.connection.ping_at().is_none());
    talk.flush();
    poll::until("the connection is lost", || (clock::now() >= talk.connection.lost_at()?).then_some(()));
    let silence = clock::now().saturating_since(answered);
    assert!(silence + Duration::from_millis(500) > SILENCE, "lost after {silence:?}");
    assert!(talk.connection.is_owed());
}
