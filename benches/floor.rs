//! The floor: the least that a client can do to run a command under the lock. **Not for use.** It has no lease and no
//! beats, does not notice the loss of its session, leaves the command alone whatever happens, and gives up on the first
//! error. scripts/bench measures what zklock costs beyond this.
//!
//! ```text
//! floor HOST:PORT[,HOST:PORT]... LOCK COMMAND...
//! ```
//!
//! On a free lock it takes three round trips: one for the session, one for the node and the list, and after the command
//! one for the deletion and the end of the session. In a queue the command starts at the event of the predecessor's
//! deletion: a holder that has waited writes to its node, so its successor knows that all the others have gone.

mod bare;

use std::env;
use std::io;
use std::process::{self, Command, ExitCode};
use std::time::Duration;

use bare::{Answer, Bare};
use zklock::rules::child_name::ChildName;
use zklock::zookeeper::wire::error::Code;
use zklock::zookeeper::wire::reply::{Change, Reply};
use zklock::zookeeper::wire::request::{Acl, NewNode, NodeKind, Request};

const SESSION: Duration = Duration::from_secs(120);

fn main() -> io::Result<ExitCode> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [server, lock, program, arguments @ ..] = words.as_slice() else {
        eprintln!("usage: floor HOST:PORT[,HOST:PORT]... LOCK COMMAND...");
        return Ok(ExitCode::from(64));
    };
    let mut session = Bare::open(server, SESSION)?;
    let (own, listed) = enter(&mut session, lock)?;
    let has_waited = wait(&mut session, lock, &own, listed)?;
    let mut command = Command::new(program).args(arguments).spawn()?;
    if has_waited {
        // The answer is read with those of the end.
        session.ask(&[Request::SetData { path: &own, data: b"holds", version: None }])?;
    }
    let status = command.wait()?;
    session.ask(&[Request::Delete { path: &own, version: None }, Request::Close])?;
    for _ in 0..(2 + usize::from(has_waited)) {
        session.answer()?.map_err(|code| io::Error::other(code.to_string()))?;
    }
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}

/// Creates our node. Returns its path, and the names of all.
fn enter(session: &mut Bare, lock: &str) -> io::Result<(String, Vec<ChildName>)> {
    // In the shape of zklock's names, so that both can queue at the same lock.
    let prefix = format!("{lock}/_c_00000000-0000-0000-0000-{:012x}-lock-", process::id());
    let node = NewNode { path: &prefix, data: &[], acl: &[Acl::ANYONE] };
    let create = Request::Create2 { node, kind: NodeKind::EphemeralSequential };
    loop {
        session.ask(&[create, Request::GetChildren { path: lock, watch: false }])?;
        match (session.answer()?, session.answer()?) {
            (Ok(Reply::Created { path, .. }), Ok(Reply::Children { names, .. })) => return Ok((path, names)),
            (Err(Code::NoNode), _) => create_parents(session, lock)?,
            (created, listed) => return Err(io::Error::other(format!("unexpected {created:?}, {listed:?}"))),
        }
    }
}

fn create_parents(session: &mut Bare, lock: &str) -> io::Result<()> {
    for (end, _) in lock.match_indices('/').skip(1).chain([(lock.len(), "")]) {
        session.ask(&[Request::CreateContainer(NewNode { path: &lock[..end], data: &[], acl: &[Acl::ANYONE] })])?;
        // It may exist.
        let _: Answer = session.answer()?;
    }
    Ok(())
}

/// The number that the server has appended.
fn number(name: &str) -> &str {
    &name[name.len().saturating_sub(10)..]
}

/// Waits until no node is before our own. Returns whether there was one.
fn wait(session: &mut Bare, lock: &str, own: &str, mut names: Vec<ChildName>) -> io::Result<bool> {
    let mut has_waited = false;
    loop {
        names.retain(|name| number(name) < number(own));
        let Some(last) = names.iter().max_by_key(|name| number(name)).cloned() else { return Ok(has_waited) };
        has_waited = true;
        let before = format!("{lock}/{last}");
        let exists = match ask_one(session, &Request::GetData { path: &before, watch: true })? {
            Ok(Reply::Data { data, .. }) if data == b"holds" => {
                names = vec![last];
                true
            }
            answer => answer.is_ok(),
        };
        if exists && session.change()?.change != Change::Deleted {
            // It holds now.
            continue;
        }
        if exists && names.len() == 1 {
            return Ok(has_waited);
        }
        names = match ask_one(session, &Request::GetChildren { path: lock, watch: false })? {
            Ok(Reply::Children { names, .. }) => names,
            answer => return Err(io::Error::other(format!("unexpected {answer:?}"))),
        };
    }
}

fn ask_one(session: &mut Bare, request: &Request<'_>) -> io::Result<Answer> {
    session.ask(&[*request])?;
    session.answer()
}
