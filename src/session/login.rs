//! Who we are to the servers: a file with credentials, and the ACLs that follow from `--acl`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::servers::brief;
use crate::plan::credential;
use crate::rules::login::{Credential, Login, Protection};
use crate::rules::text::legible;
use crate::zookeeper::request::Acl;

/// What others may do with our nodes, and with the parents that we create.
const OTHERS_READ: Acl<'_> = Acl { permissions: Acl::READ, ..Acl::ANYONE };
const OTHERS_QUEUE: Acl<'_> = Acl { permissions: Acl::READ | Acl::CREATE, ..Acl::ANYONE };

/// Adds the credentials in the file of a login, once. Returns what the user is to be warned of. Fails with the reason why the
/// file is of no use.
pub fn load(login: &mut Login) -> Result<Option<String>, String> {
    if login.in_sight {
        let warning = "warning: every user can see the password with ps: use --auth-file or ZKLOCK_AUTH";
        return Ok(Some(warning.to_owned()));
    }
    let Some(path) = login.file.take() else { return Ok(None) };
    let shown = legible(&path.to_string_lossy());
    login.credentials = credentials(&path).map_err(|why| format!("{shown}: {why}"))?;
    let mode = fs::metadata(&path).map_or(0, |file| file.permissions().mode());
    Ok((mode & 0o004 != 0).then(|| format!("warning: every user can read {shown}: chmod o-r {shown}")))
}

fn credentials(path: &Path) -> Result<Vec<Credential>, String> {
    let text = fs::read(path).map_err(|error| brief(&error))?;
    let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).enumerate();
    let used = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with(b"#"));
    let read = |(number, line)| credential(line).map_err(|why| format!("line {}: {why}", number + 1));
    let credentials: Vec<_> = used.map(read).collect::<Result<_, _>>()?;
    if credentials.is_empty() {
        return Err("no line in it; write digest:USER:PASSWORD".to_owned());
    }
    Ok(credentials)
}

/// Who may do what with a node of ours.
pub(super) const fn of_node(protection: Protection) -> &'static [Acl<'static>] {
    match protection {
        Protection::Open => &[Acl::ANYONE],
        Protection::Creator => &[Acl::CREATOR],
        Protection::Read => &[Acl::CREATOR, OTHERS_READ],
    }
}

/// Who may do what with a missing parent that we create. Contenders of other users queue there.
pub(super) const fn of_parent(protection: Protection) -> &'static [Acl<'static>] {
    match protection {
        Protection::Read => &[Acl::CREATOR, OTHERS_QUEUE],
        protection => of_node(protection),
    }
}
