//! One conversation about nearly everything that can be asked.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use zklock::rules::child_name::ChildName;
use zklock::zookeeper::wire::error::Code;
use zklock::zookeeper::wire::reply::{Change, Reply, WatchEvent};
use zklock::zookeeper::wire::request::{Acl, NewNode, NodeKind, Request, Secret};

use super::conversation::{Conversation, Network, Recorder};
use super::talk::{Line, Talk, data_of, open, path_of, resume};
use crate::harness::server::Server;

const OWN: &str = "/lock/c-";

fn node<'a>(path: &'a str, data: &'a [u8]) -> NewNode<'a> {
    NewNode { path, data, acl: &[Acl::ANYONE] }
}

fn refused(code: Code) -> Result<Reply, Code> {
    Err(code)
}

fn changed(change: Change, path: &str) -> WatchEvent {
    WatchEvent { change, path: path.to_owned() }
}

/// A server of a known version, or what one has said.
fn take_place<N: Network>(network: &N, chroot: &str) {
    let is_new = knows_containers(network, chroot);
    let mut first = open(network.connect(), chroot);
    let own = queue(&mut first, is_new);
    errors(&mut first);
    multi(&mut first, &own, is_new);
    let second = resumed(network, first, chroot, &own);
    close(network, second, chroot, &own);
}

/// Asks for something that servers before 3.5 do not know. They close the connection over it.
fn knows_containers<N: Network>(network: &N, chroot: &str) -> bool {
    let mut talk = open(network.connect(), chroot);
    assert_eq!(talk.call(&Request::Sync { path: "/" }), Ok(Reply::Done));
    let root = talk.call(&Request::Create { node: node("/", b""), kind: NodeKind::Persistent });
    assert_eq!(path_of(root), "/");
    match talk.call(&Request::CreateContainer(node("/container", b""))) {
        Ok(Reply::Created { path, stat: Some(stat) }) => {
            assert_eq!((path.as_str(), stat.version), ("/container", 0));
            assert_eq!(talk.call(&Request::Delete { path: &path, version: Some(0) }), Ok(Reply::Done));
            true
        }
        refusal => {
            assert_eq!(refusal, refused(Code::Unimplemented));
            talk.closed();
            false
        }
    }
}

/// Creates a contender and looks at the queue, in one flight.
fn queue<L: Line>(talk: &mut Talk<L>, is_new: bool) -> String {
    let lock = talk.call(&Request::Create { node: node("/lock", b""), kind: NodeKind::Persistent });
    assert_eq!(path_of(lock), "/lock");
    let (node, kind) = (node(OWN, b"card"), NodeKind::EphemeralSequential);
    let create = if is_new { Request::Create2 { node, kind } } else { Request::Create { node, kind } };
    talk.ask(&create, "create");
    talk.ask(&Request::GetChildren2 { path: "/lock", watch: true }, "list");
    talk.ask(&Request::GetChildren { path: "/", watch: false }, "root");
    let Ok(Reply::Created { path: own, stat }) = talk.answer("create") else { panic!("not created") };
    assert_eq!(own, "/lock/c-0000000000");
    assert_eq!(stat.map(|stat| stat.owner), is_new.then_some(talk.connection.identity().id()));
    let Ok(Reply::Children { names, stat: Some(_) }) = talk.answer("list") else { panic!("no list") };
    let named = |name: &str| vec![ChildName::parse(name).unwrap()];
    assert_eq!(names, named("c-0000000000"));
    let names = named("lock");
    assert_eq!(talk.answer("root"), Ok(Reply::Children { names, stat: None }));
    let (data, read) = data_of(talk.call(&Request::GetData { path: &own, watch: false }));
    assert_eq!((data, read.version), (b"card".to_vec(), 0));
    assert!(stat.is_none_or(|stat| stat == read), "{read:?}");
    assert_eq!(talk.call(&Request::Ping), Ok(Reply::Done));
    own
}

fn errors<L: Line>(talk: &mut Talk<L>) {
    let again = Request::Create { node: node("/lock", b""), kind: NodeKind::Persistent };
    assert_eq!(talk.call(&again), refused(Code::NodeExists));
    let orphan = Request::Create { node: node("/no/parent", b""), kind: NodeKind::Persistent };
    assert_eq!(talk.call(&orphan), refused(Code::NoNode));
    assert_eq!(talk.call(&Request::Delete { path: "/lock", version: None }), refused(Code::NotEmpty));
    let old = Request::SetData { path: "/lock", data: b"", version: Some(7) };
    assert_eq!(talk.call(&old), refused(Code::BadVersion));
    assert_eq!(talk.call(&Request::GetData { path: "/none", watch: true }), refused(Code::NoNode));
    let no_acl = NewNode { path: "/free", data: b"", acl: &[] };
    assert_eq!(talk.call(&Request::Create { node: no_acl, kind: NodeKind::Persistent }), refused(Code::InvalidAcl));
}

/// A transaction that does all there is, watched, and one that does nothing.
fn multi<L: Line>(talk: &mut Talk<L>, own: &str, is_new: bool) {
    assert_eq!(talk.call(&Request::Exists { path: "/extra", watch: true }), refused(Code::NoNode));
    data_of(talk.call(&Request::GetData { path: own, watch: true }));
    let (extra, kind) = (node("/extra", b"x"), NodeKind::Persistent);
    let create = if is_new { Request::Create2 { node: extra, kind } } else { Request::Create { node: extra, kind } };
    let operations = [
        Request::Check { path: own, version: Some(0) },
        Request::SetData { path: own, data: b"held", version: None },
        create,
        Request::Create { node: node("/brief", b""), kind },
        Request::Delete { path: "/brief", version: None },
    ];
    let Ok(Reply::Multi(results)) = talk.call(&Request::Multi(&operations)) else { panic!("refused") };
    let [Reply::Done, Reply::Stat(stat), Reply::Created { path, .. }, Reply::Created { .. }, Reply::Done] =
        results.as_slice()
    else {
        panic!("{results:?}")
    };
    assert_eq!((stat.version, path.as_str()), (1, "/extra"));
    // The events come before the reply.
    let fired = [changed(Change::Other, own), changed(Change::Other, "/extra")];
    assert_eq!(talk.changes(), fired);
    let operations = [
        Request::Check { path: own, version: None },
        Request::Check { path: "/none", version: None },
        Request::Delete { path: own, version: None },
    ];
    assert_eq!(talk.call(&Request::Multi(&operations)), refused(Code::NoNode));
    let Ok(Reply::Stat(stat)) = talk.call(&Request::Exists { path: own, watch: true }) else { panic!("gone") };
    assert_eq!(stat.version, 1);
}

/// The session goes on over another connection, without the watches of the first, and logs in.
fn resumed<N: Network>(network: &N, first: Talk<N::Line>, chroot: &str, own: &str) -> Talk<N::Line> {
    let identity = first.connection.identity().clone();
    drop(first);
    let mut other = open(network.connect(), chroot);
    let set = other.call(&Request::SetData { path: own, data: b"changed", version: None });
    assert!(matches!(set, Ok(Reply::Stat(stat)) if stat.version == 2), "{set:?}");
    assert_eq!(other.call(&Request::Close), Ok(Reply::Done));
    other.closed();
    let mut talk = resume(network.connect(), &identity, chroot).expect("the session lives");
    assert_eq!(talk.connection.identity().id(), identity.id());
    let login = Request::Auth { scheme: "digest", credentials: Secret(b"bob:secret") };
    assert_eq!(talk.call(&login), Ok(Reply::Done));
    let secret = NewNode { acl: &[Acl::CREATOR], ..node("/secret", b"") };
    assert_eq!(path_of(talk.call(&Request::Create { node: secret, kind: NodeKind::Ephemeral })), "/secret");
    let read = Request::GetData { path: "/secret", watch: false };
    data_of(talk.call(&read));
    let mut stranger = open(network.connect(), chroot);
    assert_eq!(stranger.call(&read), refused(Code::NoAuth));
    assert_eq!(stranger.call(&Request::Delete { path: "/extra", version: None }), Ok(Reply::Done));
    let unknown = stranger.call(&Request::Auth { scheme: "none", credentials: Secret(b"") });
    assert_eq!(unknown, refused(Code::AuthFailed));
    stranger.closed();
    talk
}

/// The ephemeral nodes go with the session, and the other watches fire.
fn close<N: Network>(network: &N, mut talk: Talk<N::Line>, chroot: &str, own: &str) {
    let identity = talk.connection.identity().clone();
    let mut watcher = open(network.connect(), chroot);
    data_of(watcher.call(&Request::GetData { path: own, watch: true }));
    talk.ask(&Request::Close, "close");
    assert_eq!(talk.answer("close"), Ok(Reply::Done));
    talk.closed();
    assert_eq!(talk.changes(), []);
    assert_eq!(watcher.change(), changed(Change::Deleted, own));
    assert!(resume(network.connect(), &identity, chroot).is_none());
    for path in ["/lock", "/"] {
        assert_eq!(watcher.call(&Request::Delete { path, version: None }), Ok(Reply::Done));
    }
    assert_eq!(watcher.call(&Request::Close), Ok(Reply::Done));
    watcher.closed();
}

/// The version that a server says it has.
fn version(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a server");
    stream.write_all(b"srvr").expect("a server");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer to srvr");
    let version = answer.strip_prefix("Zookeeper version: ").and_then(|rest| rest.split(['-', ',']).next());
    version.expect("the version of the server").to_owned()
}

#[test]
fn with_a_server() {
    let wanted = std::env::var("ZKLOCK_RECORD").ok();
    let network = Recorder::new(wanted.clone().unwrap_or_else(|| Server::shared().address()));
    let chroot = format!("/conversation-{:016x}", fastrand::u64(..));
    take_place(&network, &chroot);
    if let Some(address) = wanted {
        let version = version(&address);
        let text = format!("version {version}\nchroot {chroot}\n{}", network.text());
        fs::write(Conversation::directory().join(format!("{version}.txt")), text).expect("a file for it");
    }
}

/// The same requests have the same bytes, and the same bytes mean the same.
#[test]
fn with_what_servers_have_said() {
    for conversation in Conversation::all() {
        println!("with {}", conversation.version);
        let network = conversation.replay();
        take_place(&network, &conversation.chroot);
        assert_eq!(network.left(), 0);
    }
}
