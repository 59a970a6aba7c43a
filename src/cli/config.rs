//! Configuration files: which there are, and what may be in them. [`Surroundings`] reads them.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue, Error};

use super::environment;
use super::option::KeyKind;
use super::options::{self, CONFIG};
use super::origin::{Given, Origin, SYSTEMS, Setting};
use super::refusal::{nearest, quoted};

/// The user's file, in the directory for such files.
const USERS: &str = "zklock.toml";

/// What there is besides the arguments.
pub trait Surroundings {
    fn variable(&self, name: &str) -> Option<OsString>;

    fn file(&self, path: &Path) -> Result<Vec<u8>, Unread>;
}

/// Variables, and no files.
impl<E: Fn(&str) -> Option<OsString>> Surroundings for E {
    fn variable(&self, name: &str) -> Option<OsString> {
        self(name)
    }

    fn file(&self, _: &Path) -> Result<Vec<u8>, Unread> {
        Err(Unread::Missing("no such file".to_owned()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It is not there, as far as can be seen.
    Missing(String),
    /// It is there, but must not or cannot be used.
    Unusable(String),
}

/// The names of the keys, for documents and tests.
pub fn keys() -> impl Iterator<Item = &'static str> {
    options::file_options().map(|option| option.long)
}

#[derive(Debug, Default)]
pub(super) struct Config {
    /// The files that were read, and why these.
    pub(super) files: Vec<Setting>,
    /// What is in them, the strongest file first.
    given: Vec<Given>,
}

impl Config {
    /// Reads the file that is named, or else those that there are.
    pub(super) fn read(named: Option<Given>, surroundings: &dyn Surroundings) -> Result<Self, String> {
        let mut config = Self::default();
        if let Some(named) = named {
            if named.text.is_empty() {
                return Err(named.refused("write the path of a file, or /dev/null for none"));
            }
            let path = PathBuf::from(&named.text);
            let content = surroundings.file(&path).map_err(|(Unread::Missing(why) | Unread::Unusable(why))| {
                format!("{}: {}: {why}", named.what(), path.display())
            })?;
            config.add(&path, named.origin, &content)?;
            return Ok(config);
        }
        for path in users_file(surroundings).into_iter().chain([SYSTEMS.into()]) {
            match surroundings.file(&path) {
                Ok(content) => config.add(&path, Origin::Default, &content)?,
                Err(Unread::Missing(_)) => {}
                Err(Unread::Unusable(why)) => return Err(format!("{}: {why}", path.display())),
            }
        }
        Ok(config)
    }

    pub(super) fn get(&self, key: &str) -> Option<&Given> {
        self.given.iter().find(|given| given.name == key)
    }

    fn add(&mut self, path: &Path, origin: Origin, content: &[u8]) -> Result<(), String> {
        self.given.extend(entries(path, content)?);
        self.files.push(Setting { name: CONFIG.long, value: Some(path.to_string_lossy().into_owned()), origin });
        Ok(())
    }
}

/// Where the user's file would be. Without a home there is none: a service of systemd may have no HOME.
fn users_file(surroundings: &dyn Surroundings) -> Option<PathBuf> {
    // The specification of XDG has a relative path ignored.
    let folder = |name| surroundings.variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = folder(environment::XDG_CONFIG_HOME).or_else(|| Some(folder(environment::HOME)?.join(".config")));
    folder.map(|folder| folder.join(USERS))
}

fn entries(path: &Path, content: &[u8]) -> Result<Vec<Given>, String> {
    let line_of = |at: usize| content[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
    let refused = |at: usize, why: &str| format!("{}: line {}: {why}", path.display(), line_of(at));
    let text = std::str::from_utf8(content)
        .map_err(|error| refused(error.valid_up_to(), "not UTF-8; write the file in UTF-8"))?;
    let (table, errors) = DeTable::parse_recoverable(text);
    // The first line that is wrong is the one to tell.
    let at = |error: &Error| error.span().map_or(0, |span| span.start);
    if let Some(error) = errors.iter().min_by_key(|error| at(error)) {
        let how = "write each key once, in lines such as zookeeper = \"zk1,zk2\"";
        return Err(refused(at(error), &format!("not TOML: {}; {how}", error.message())));
    }
    let mut lines: Vec<_> = table.get_ref().iter().collect();
    lines.sort_by_key(|(name, _)| name.span().start);
    let entry = |(name, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
        let at = name.span().start;
        let option = options::file_options().find(|option| option.long == name.get_ref());
        let (option, kind) = option
            .and_then(|option| Some((option, option.key?)))
            .ok_or_else(|| refused(at, &unknown(name.get_ref())))?;
        let origin = Origin::File { path: path.to_owned(), line: line_of(at) };
        let text = text_of(kind, value.get_ref());
        let text = text.map_err(|why| refused(at, &format!("{}: {why}", option.long)))?;
        let given = Given::new(option, origin, text);
        match kind {
            KeyKind::Text(check) | KeyKind::Duration(check) => given.read(check)?,
            KeyKind::Switch => {}
            KeyKind::Path if given.text.as_encoded_bytes().starts_with(b"~") => {
                return Err(given.refused("no shell expands ~ here; write the whole path"));
            }
            KeyKind::Path => {
                let file = path.parent().unwrap_or(Path::new("")).join(given.path()?);
                return Ok(Given { text: file.into(), ..given });
            }
        }
        Ok(given)
    };
    lines.into_iter().map(entry).collect()
}

/// A value as it would be written as an option. An error: what to write instead.
fn text_of(kind: KeyKind, value: &DeValue<'_>) -> Result<String, &'static str> {
    match (kind, value) {
        (KeyKind::Text(_) | KeyKind::Path | KeyKind::Duration(_), DeValue::String(text)) => Ok(text.to_string()),
        (KeyKind::Duration(_), DeValue::Integer(number)) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        (KeyKind::Duration(_), DeValue::Float(number)) => Ok(number.as_str().to_owned()),
        (KeyKind::Switch, DeValue::Boolean(is_on)) => Ok(is_on.to_string()),
        (KeyKind::Switch, _) => Err("write true or false"),
        (KeyKind::Duration(_), _) => Err("write a duration such as \"30s\""),
        (KeyKind::Text(_) | KeyKind::Path, _) => Err("write a text, in quotes"),
    }
}

fn unknown(key: &str) -> String {
    if key == "auth" {
        return "auth: no password belongs in this file; write it into a file of its own, and name that with auth-file"
            .to_owned();
    }
    if super::forms::JOB.has(key) {
        return format!("{key} does not belong in this file, but to a single run; write --{key} there");
    }
    let how = match nearest(key, keys()) {
        Some(meant) => format!("did you mean {meant}?"),
        None => format!("write one of {}", keys().collect::<Vec<_>>().join(", ")),
    };
    format!("unknown key {}; {how}", quoted(OsStr::new(key)))
}

#[cfg(test)]
mod tests;
