//! What a server says that it has created.

use super::failure::unexpected;
use super::{Created, Failure};
use crate::rules::queue::is_numbered;
use crate::rules::text::printable;
use crate::zookeeper::wire::reply::Reply;

/// Reads the reply to the creation of nodes with these prefixes. Names that were not asked for are refused: they would
/// reach the environment of the command.
pub(super) fn read(reply: Reply, prefixes: &[String], numbered: bool) -> Result<Created, Failure> {
    let (paths, stat) = match reply {
        Reply::Created { path, stat } => (vec![path], stat),
        Reply::Multi(results) => {
            let path = |result| match result {
                Reply::Created { path, .. } => Ok(path),
                other => Err(unexpected(&other)),
            };
            (results.into_iter().map(path).collect::<Result<Vec<_>, _>>()?, None)
        }
        other => return Err(unexpected(&other)),
    };
    if paths.len() != prefixes.len() {
        return Err(Failure::Refused(format!(
            "the server has created {} nodes in place of {}",
            paths.len(),
            prefixes.len()
        )));
    }
    let is_asked =
        |(path, prefix): &(&String, &String)| if numbered { is_numbered(path, prefix) } else { path == prefix };
    if let Some((path, prefix)) = paths.iter().zip(prefixes).find(|pair| !is_asked(pair)) {
        // The server chooses this text, which may be very long.
        let path = printable(path);
        return Err(Failure::Refused(format!("the server has created \"{path}\" in place of \"{prefix}\"")));
    }
    Ok(Created { paths, stat })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_were_not_asked_for() {
        let prefix = "/l/_c_1-lock-".to_owned();
        let created = |path: &str| Reply::Created { path: path.to_owned(), stat: None };
        let read = |replies: &[&str], numbered| {
            let prefixes = vec![prefix.clone(); replies.len()];
            match replies {
                [path] => super::read(created(path), &prefixes, numbered),
                _ => super::read(Reply::Multi(replies.iter().map(|path| created(path)).collect()), &prefixes, numbered),
            }
        };
        assert_eq!(read(&["/l/_c_1-lock-0000000007"], true).unwrap().paths, ["/l/_c_1-lock-0000000007"]);
        assert_eq!(read(&["/l/_c_1-lock-0000000007", "/l/_c_1-lock--000000008"], true).unwrap().paths.len(), 2);
        assert_eq!(read(&["/l/_c_1-lock-"], false).unwrap().paths, ["/l/_c_1-lock-"]);
        for path in ["/", "/l", "/l/_c_1-lock-", "/l/_c_1-lock-7", "/l/_c_1-lock-\u{1b}[31m", "/l/_c_2-lock-0000000007"]
        {
            assert!(matches!(read(&[path], true), Err(Failure::Refused(_))), "{path:?}");
            assert!(matches!(read(&["/l/_c_1-lock-0000000007", path], true), Err(Failure::Refused(_))), "{path:?}");
        }
        assert!(matches!(read(&["/l/_c_1-lock-0000000007"], false), Err(Failure::Refused(_))));
        let Err(Failure::Refused(why)) = read(&[&"/l".repeat(100_000)], true) else { panic!() };
        assert!(why.len() < 200, "{why}");
    }
}
