//! Certificates by openssl.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;
use zklock::rules::rfc3339::rfc3339;

use super::server::scratch;

/// `openssl ca` is the one command that takes the dates of a certificate.
const CONFIG: &str = "[ca]\ndefault_ca = d\n[d]\ndatabase = index\nnew_certs_dir = .\nrand_serial = yes\npolicy = p\n\
                      unique_subject = no\ndefault_md = sha256\n[p]\ncommonName = supplied\n[req]\n\
                      distinguished_name = dn\n[dn]\n";

/// A certificate for this machine.
pub(crate) const LOCAL: &str = "subjectAltName=DNS:localhost,IP:127.0.0.1";

/// A CA, and what it has signed, in a directory.
#[derive(Debug)]
pub(crate) struct Authority {
    directory: TempDir,
}

/// What a certificate is to say beyond a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Good {
    /// From now on, for this number of days and an hour: so many whole days are left for as long as a test lasts.
    Days(u32),
    /// In the year 2020.
    Past,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let this = Self { directory: tempfile::tempdir_in(scratch()).expect("a temporary directory") };
        fs::write(this.path("cnf"), CONFIG).expect("a file can be written");
        fs::write(this.path("index"), "").expect("a file can be written");
        this.openssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -days 30 -subj /CN=ca");
        this
    }

    /// The one that most tests use.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Authority> = OnceLock::new();
        SHARED.get_or_init(Self::new)
    }

    /// The path of a file in the directory: `ca.pem`, `NAME.pem`, `NAME.key`, and `NAME-both.pem` with both.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    pub(crate) fn file(&self, file: &str) -> String {
        self.path(file).into_os_string().into_string().expect("a path in UTF-8")
    }

    #[track_caller]
    pub(crate) fn openssl(&self, arguments: &str) -> String {
        let mut command = Command::new("openssl");
        let output = command.args(arguments.split(' ')).current_dir(self.directory.path()).output();
        let output = output.unwrap_or_else(|error| panic!("cannot run openssl ({error}): apt-get install openssl"));
        assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Signs a certificate with an extension as openssl writes it, such as [`LOCAL`]. Without one it is of version 1.
    pub(crate) fn issue(&self, name: &str, extensions: &str, good: Good) {
        self.openssl(&format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}"
        ));
        fs::write(self.path("extensions"), extensions).expect("a file can be written");
        let time = match good {
            Good::Days(days) => format!("-enddate {}", in_days(days)),
            Good::Past => "-startdate 20200101000000Z -enddate 20201231235959Z".to_owned(),
        };
        self.openssl(&format!(
            "ca -batch -notext -config cnf -cert ca.pem -keyfile ca.key -in {name}.csr -out {name}.pem -extfile extensions {time}"
        ));
        let both = [".key", ".pem"].map(|end| fs::read(self.path(&format!("{name}{end}"))).expect("it was written"));
        let file = self.path(&format!("{name}-both.pem"));
        fs::write(&file, both.concat()).expect("a file can be written");
        fs::set_permissions(file, Permissions::from_mode(0o600)).expect("and made private");
    }
}

/// An hour after the time that is so many days from now, as openssl wants it: `20261222173428Z`.
fn in_days(days: u32) -> String {
    let hours = u64::from(days) * 24 + 1;
    let end = SystemTime::now() + Duration::from_secs(hours * 3600);
    let since_epoch = end.duration_since(UNIX_EPOCH).expect("a clock that is set");
    let end = rfc3339(since_epoch.as_millis().try_into().expect("a time")).expect("a year of four digits");
    end[..19].chars().filter(char::is_ascii_digit).chain(['Z']).collect()
}
