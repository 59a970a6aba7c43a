//! Which release of ZooKeeper the servers are: that of Debian's package, or the one that the variables in
//! CONTRIBUTING.md name.

use std::env::{self, VarError};
use std::path::Path;
use std::sync::OnceLock;

use super::skipped::skip;

const JAR: &str = "/usr/share/java/zookeeper.jar";
const LOGGER: &str = "/usr/share/java/slf4j-simple.jar";
/// For TLS. The manifest of Debian's jar leaves it out.
const CODEC: &str = "/usr/share/java/netty-codec.jar";
const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

#[derive(Debug)]
pub(super) struct Release {
    /// `None`: that of Debian's package.
    version: Option<String>,
    pub(super) class_path: String,
    pub(super) main: String,
}

impl Release {
    pub(super) fn used() -> &'static Self {
        static USED: OnceLock<Release> = OnceLock::new();
        USED.get_or_init(|| match variable("ZKLOCK_SERVER_VERSION") {
            None => Self::of_debian(),
            version => {
                let needed = |name| variable(name).unwrap_or_else(|| panic!("{name} is not set"));
                let (class_path, main) = (needed("ZKLOCK_SERVER_CLASS_PATH"), needed("ZKLOCK_SERVER_MAIN"));
                Self { version, class_path, main }
            }
        })
    }

    fn of_debian() -> Self {
        for jar in [JAR, LOGGER, CODEC] {
            assert!(
                Path::new(jar).exists(),
                "{jar} is missing: apt-get install libzookeeper-java default-jre-headless"
            );
        }
        Self { version: None, class_path: format!("{JAR}:{LOGGER}:{CODEC}"), main: MAIN.to_owned() }
    }

    /// Panics unless this answer to `srvr` is from a server of this release.
    #[track_caller]
    pub(super) fn expect_in(&self, answer: &str) {
        let Some(version) = &self.version else { return };
        let is_right = answer.starts_with(&format!("Zookeeper version: {version}-"));
        assert!(is_right, "this is no server of release {version}:\n{answer}");
    }
}

/// What older servers lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    /// Nodes that go with their last child.
    Containers,
    /// A request that creates a node and is answered with its stat. Without it, a contender with one node makes a
    /// second connection, because it asks for it once.
    Create2,
    /// Requests that Curator 5 makes.
    Curator,
    /// That a server can demand a login.
    EnforcedLogin,
    /// That a server can enforce quotas.
    EnforcedQuota,
    /// That a server can demand a login by SASL, and says that it refuses one.
    EnforcedSasl,
    /// That a server refuses DIGEST-MD5 unless it is told otherwise.
    FipsMode,
    /// Sessions that only one server of an ensemble knows.
    LocalSessions,
    /// That a server makes no full handshake for a client that it knows.
    ResumedHandshakes,
    /// Connections by TLS. It takes jars that are known for Debian's releases only, and for those that work with them.
    Tls,
}

impl Feature {
    /// Whether the servers have it.
    pub(crate) fn is_there(self) -> bool {
        let Some(version) = &Release::used().version else { return self != Self::FipsMode };
        let mut numbers = version.split('.').map(|number| number.parse::<u32>().expect("a version such as 3.4.14"));
        let (used, patch) = ((numbers.next(), numbers.next()), numbers.next());
        let since = match self {
            Self::Containers | Self::Create2 | Self::Curator | Self::EnforcedSasl | Self::LocalSessions => 5,
            Self::EnforcedLogin | Self::EnforcedQuota => 7,
            Self::FipsMode => return (used, patch) >= ((Some(3), Some(9)), Some(6)),
            Self::ResumedHandshakes => return used < (Some(3), Some(9)),
            Self::Tls => 9,
        };
        used >= (Some(3), Some(since))
    }
}

/// Whether the servers lack what this test needs. Then the test ends, or goes on without it, and a line on standard
/// error says so, which scripts/matrix counts.
#[must_use]
pub(crate) fn lacks(feature: Feature) -> bool {
    if feature.is_there() {
        return false;
    }
    skip(&format!("{feature:?}"));
    true
}

fn variable(name: &str) -> Option<String> {
    match env::var(name) {
        Ok(value) => Some(value),
        Err(VarError::NotPresent) => None,
        Err(VarError::NotUnicode(value)) => panic!("{name} is not UTF-8: {value:?}"),
    }
}
