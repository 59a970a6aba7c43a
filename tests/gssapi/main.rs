//! Logging in by Kerberos, with a key distribution center and a server in its realm, on loopback.
//!
//! The other tests are without the feature `gssapi`, so this is a program of its own:
//! `cargo test --features gssapi --test gssapi`. It takes Debian's packages krb5-kdc and krb5-user.

#[path = "../it/harness/poll.rs"]
mod poll;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::prctl;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::poll::until;

const GSSAPI: &str = "gssapi:zookeeper";
const JARS: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar:/usr/share/java/netty-codec.jar";

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A process that ends with this one, and with the thread that has started it.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        #[expect(unsafe_code, reason = "the process is to end with this one")]
        // SAFETY: the call may be made in a fork.
        unsafe {
            command.pre_exec(|| Ok(prctl::set_pdeathsig(Signal::SIGKILL)?));
        }
        Self(command.stdin(Stdio::null()).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A realm of Kerberos with a user and a ZooKeeper server.
struct Realm {
    directory: TempDir,
    center: u16,
    server: u16,
}

impl Realm {
    fn new() -> Self {
        let this = Self { directory: tempfile::tempdir().unwrap(), center: free_port(), server: free_port() };
        let (at, center) = (this.directory.path().display(), this.center);
        // Whatever other names this machine has.
        let defaults = "[libdefaults]\ndefault_realm = TEST\nrdns = false\ndns_canonicalize_hostname = false\n\
                        dns_lookup_kdc = false\nudp_preference_limit = 1\n";
        let client = |port: u16| format!("{defaults}[realms]\nTEST = {{\n kdc = 127.0.0.1:{port}\n}}\n");
        this.write("krb5.conf", &client(center));
        this.write("unreachable.conf", &client(1));
        this.write("unknown.conf", defaults);
        let center = format!(
            "[kdcdefaults]\nkdc_listen = 127.0.0.1:{center}\nkdc_tcp_listen = 127.0.0.1:{center}\n\
             [realms]\nTEST = {{\n database_name = {at}/database\n key_stash_file = {at}/stash\n}}\n"
        );
        this.write("kdc.conf", &center);
        this.run("/usr/sbin/kdb5_util", "create -s -r TEST -P master");
        for (principal, table) in [("zookeeper/localhost", "server"), ("alice", "alice")] {
            this.run("/usr/sbin/kadmin.local", &format!("addprinc -randkey {principal}"));
            this.run("/usr/sbin/kadmin.local", &format!("ktadd -k {at}/{table}.keytab {principal}"));
        }
        let jaas = format!(
            "Server {{\n  com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true\n  \
             keyTab=\"{at}/server.keytab\" useTicketCache=false principal=\"zookeeper/localhost@TEST\";\n}};\n"
        );
        this.write("jaas.conf", &jaas);
        let zoo = format!(
            "tickTime=500\nmaxSessionTimeout=120000\ndataDir={at}\nclientPort={}\nclientPortAddress=127.0.0.1\n\
             admin.enableServer=false\n4lw.commands.whitelist=srvr\n\
             authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n",
            this.server
        );
        this.write("zoo.cfg", &zoo);
        this
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).unwrap();
    }

    /// A program that knows the realm.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/bin:/bin");
        command.env("KRB5_CONFIG", self.file("krb5.conf")).env("KRB5_KDC_PROFILE", self.file("kdc.conf"));
        command.env("KRB5CCNAME", format!("FILE:{}", self.file("cache").display()));
        command
    }

    fn run(&self, program: &str, arguments: &str) {
        let output = self.command(program).args(arguments.split(' ')).stdin(Stdio::null()).output();
        let output = output.unwrap_or_else(|error| panic!("{program} ({error}): apt-get install krb5-kdc krb5-user"));
        assert!(output.status.success(), "{program} {arguments}: {output:?}");
    }

    fn start_center(&self) -> Process {
        let center = Process::start(self.command("/usr/sbin/krb5kdc").args(["-n", "-r", "TEST"]).stderr(Stdio::null()));
        until("a key distribution center", || TcpStream::connect(("127.0.0.1", self.center)).ok());
        center
    }

    fn start_server(&self) -> Process {
        let log = fs::File::options().create(true).append(true).open(self.file("log")).unwrap();
        let mut java = Command::new("java");
        java.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"])
            .arg(format!("-Djava.security.auth.login.config={}", self.file("jaas.conf").display()))
            .arg(format!("-Djava.security.krb5.conf={}", self.file("krb5.conf").display()))
            .args(["-cp", JARS, "org.apache.zookeeper.server.quorum.QuorumPeerMain"])
            .arg(self.file("zoo.cfg"))
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let server = Process::start(&mut java);
        until("a server", || {
            let mut connection = TcpStream::connect(("127.0.0.1", self.server)).ok()?;
            connection.write_all(b"srvr").ok()?;
            let mut answer = String::new();
            connection.read_to_string(&mut answer).ok()?;
            answer.contains("Mode:").then_some(())
        });
        server
    }

    /// Runs zklock with a login on this host.
    fn zklock(&self, login: &str, host: &str, arguments: &[&str]) -> Command {
        let mut zklock = self.command(env!("CARGO_BIN_EXE_zklock"));
        zklock.env("ZKLOCK_ZOOKEEPER", format!("{host}:{}", self.server)).env("ZKLOCK_AUTH", login).args(arguments);
        zklock
    }

    /// The same with the key of the user.
    fn by_key(&self, arguments: &[&str]) -> Command {
        let mut zklock = self.zklock(GSSAPI, "localhost", arguments);
        zklock.env("KRB5_CLIENT_KTNAME", self.file("alice.keytab"));
        zklock
    }
}

#[track_caller]
fn succeeds(mut zklock: Command) {
    let output = zklock.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{zklock:?}: {output:?}");
}

/// Ends with this status, and one line on standard error.
#[track_caller]
fn fails(mut zklock: Command, code: i32) -> String {
    let output: Output = zklock.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(code) && said.lines().count() == 1, "{zklock:?}: {}: {said}", output.status);
    said
}

/// One test, because all of it needs the same servers.
#[test]
fn kerberos() {
    let realm = Realm::new();
    let center = realm.start_center();
    let server = realm.start_server();

    // No ticket, and no key.
    let said = fails(realm.zklock(GSSAPI, "localhost", &["/l", "true"]), 77);
    assert!(
        said.contains("ZooKeeper does not accept this client: ") && said.contains("Kerberos: No Kerberos credentials"),
        "{said}"
    );

    // By a key; the library puts the tickets into the cache.
    succeeds(realm.by_key(&["--acl", "creator", "/l", "true"]));
    fs::remove_file(realm.file("cache")).unwrap();
    succeeds(realm.by_key(&["check", "-q", "/l"]));
    succeeds({
        let mut zklock = realm.zklock("gssapi:zookeeper/localhost@TEST", "127.0.0.1", &["/l", "true"]);
        zklock.env("KRB5_CLIENT_KTNAME", realm.file("alice.keytab"));
        zklock
    });
    let mut stranger = realm.by_key(&["/l", "true"]);
    stranger.env_remove("ZKLOCK_AUTH");
    assert!(fails(stranger, 77).contains("the permission c is missing"));

    // By a ticket.
    fs::remove_file(realm.file("cache")).unwrap();
    realm.run("kinit", &format!("-k -t {} alice", realm.file("alice.keytab").display()));
    succeeds(realm.zklock(GSSAPI, "localhost", &["/l", "true"]));

    // The option shows no secret, so there is no warning.
    let mut option = realm.by_key(&["--auth", GSSAPI, "/l", "true"]);
    option.env_remove("ZKLOCK_AUTH");
    succeeds(option);

    // A ticket is for a service on a host.
    let said = fails(realm.zklock(GSSAPI, "127.0.0.1", &["/l", "true"]), 77);
    assert!(said.contains("Kerberos: Server zookeeper/127.0.0.1@TEST not found in Kerberos database"), "{said}");

    // The mechanisms of the two sides differ.
    let said = fails(realm.zklock("sasl:alice:hidden", "localhost", &["/l", "true"]), 77);
    assert!(said.contains("it refuses a login by DIGEST-MD5 (AuthFailed)"), "{said}");

    // A reconnection logs in again.
    let begun = realm.file("begun");
    let script = format!("touch {}; exec sleep 1000", begun.display());
    let log = fs::File::create(realm.file("holder")).unwrap();
    let mut holder = realm.by_key(&["-v", "--session-timeout", "60s", "--acl", "creator", "/m", "sh", "-c", &script]);
    let holder = Process::start(holder.stderr(log));
    until("the command", || begun.exists().then_some(()));
    drop(server);
    let server = realm.start_server();
    until("a reconnection", || {
        let said = fs::read_to_string(realm.file("holder")).unwrap();
        (said.contains("connection to ZooKeeper restored") && said.matches("by SASL").count() == 2).then_some(())
    });
    drop(holder);

    // No key distribution center, or nobody who knows where one is: that may change.
    fs::remove_file(realm.file("cache")).unwrap();
    for (file, why) in [
        ("unreachable.conf", "Kerberos: Cannot contact any KDC for realm 'TEST'"),
        ("unknown.conf", "Kerberos: Cannot find KDC for realm \"TEST\""),
    ] {
        let mut lost = realm.by_key(&["--connect-timeout", "2s", "/l", "true"]);
        lost.env("KRB5_CONFIG", realm.file(file));
        let said = fails(lost, 69);
        assert!(said.contains(why), "{said}");
    }
    drop((server, center));
}
