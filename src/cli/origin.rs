//! Where the value of a setting comes from: an option beats its variable, which beats the files.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use super::option::Opt;
use super::options::ZOOKEEPER;
use super::refusal::quoted;
use crate::zookeeper::net::tls::UnfitFile;

/// The system's configuration file, which is weaker than the others.
pub const SYSTEMS: &str = "/etc/zklock.toml";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    /// A configuration file, and the number of the line, from 1.
    File {
        path: PathBuf,
        line: usize,
    },
    Variable(&'static str),
    Option(&'static str),
}

impl Origin {
    /// The setting with the greater strength counts.
    pub(super) fn strength(&self) -> u8 {
        match self {
            Self::Default => 0,
            Self::File { path, .. } if path == Path::new(SYSTEMS) => 1,
            Self::File { .. } => 2,
            Self::Variable(_) => 3,
            Self::Option(_) => 4,
        }
    }

    pub(super) const fn is_file(&self) -> bool {
        matches!(self, Self::File { .. })
    }

    /// What to name when the value of the setting `name` cannot be used.
    fn what(&self, name: &str) -> String {
        match self {
            Self::File { .. } => format!("{self}: {name}"),
            origin => origin.to_string(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}: line {line}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Option(name) => write!(f, "--{name}"),
        }
    }
}

impl Serialize for Origin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The name of its option, without the dashes.
    pub name: &'static str,
    /// `None`: it is a secret.
    pub value: Option<String>,
    #[serde(rename = "source")]
    pub origin: Origin,
}

/// What to say when a file cannot be used, with the place that named it.
pub fn unfit(origins: &[Setting], unfit: UnfitFile) -> String {
    match origins.iter().find(|setting| Some(setting.name) == unfit.setting) {
        Some(setting) => format!("{}: {}", setting.origin.what(setting.name), unfit.why),
        None => unfit.why,
    }
}

/// A value as it was written, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) origin: Origin,
    /// The name of its option, without the dashes.
    pub(super) name: &'static str,
    pub(super) text: OsString,
}

impl Given {
    pub(super) fn new(option: &Opt, origin: Origin, text: impl Into<OsString>) -> Self {
        Self { origin, name: option.long, text: text.into() }
    }

    /// What `zklock check` shows of it.
    pub(super) fn setting(&self, value: impl Into<Option<String>>) -> Setting {
        Setting { name: self.name, value: value.into(), origin: self.origin.clone() }
    }

    pub(super) fn path(&self) -> Result<PathBuf, String> {
        if self.text.is_empty() {
            return Err(self.refused("write the path of a file"));
        }
        Ok(PathBuf::from(&self.text))
    }

    /// Its path, which is noted among the origins.
    pub(super) fn file(&self, origins: &mut Vec<Setting>) -> Result<PathBuf, String> {
        let path = self.path()?;
        origins.push(self.setting(path.to_string_lossy().into_owned()));
        Ok(path)
    }

    pub(super) fn read<T>(&self, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<T, String> {
        self.text
            .to_str()
            .ok_or_else(|| "not UTF-8; write it in UTF-8".to_owned())
            .and_then(parse)
            .map_err(|why| self.refused(&why))
    }

    pub(super) fn refused(&self, why: &str) -> String {
        // As in a URL: what stands before it may be a password.
        if self.name == ZOOKEEPER.long && self.text.as_encoded_bytes().contains(&b'@') {
            return format!(
                "{}: no user and no password before an @; write HOST:PORT, and log in by --auth-file",
                self.what()
            );
        }
        format!("{} {}: {why}", self.what(), quoted(&self.text))
    }

    /// What to name when it makes no sense.
    pub(super) fn what(&self) -> String {
        self.origin.what(self.name)
    }

    /// How a user who has written this would write another setting.
    pub(super) fn spelling(&self, option: &Opt) -> String {
        if self.origin.is_file() { option.long.to_owned() } else { format!("--{}", option.long) }
    }
}
