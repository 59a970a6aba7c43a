//! Logging in by Kerberos, with a key distribution center and a server in its realm, on loopback.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::harness::jaas::class;
use crate::harness::poll::until;
use crate::harness::release::Feature;
use crate::harness::running::{Running, only_line, silent};
use crate::harness::scratch::direct;
use crate::harness::server::{Data, Server, Settings, free_port};
use crate::harness::zklock::Zklock;

const GSSAPI: &str = "gssapi:zookeeper";
const NAMES: [&str; 2] = ["KRB5_CONFIG", "KRB5CCNAME"];

/// A realm of Kerberos with a user.
struct Realm {
    directory: TempDir,
    port: u16,
}

impl Realm {
    fn new() -> Self {
        let this = Self { directory: tempfile::tempdir().unwrap(), port: free_port() };
        let (at, port) = (this.directory.path().display(), this.port);
        // Whatever other names this machine has.
        let defaults = "[libdefaults]\ndefault_realm = TEST\nrdns = false\ndns_canonicalize_hostname = false\n\
                        dns_lookup_kdc = false\nudp_preference_limit = 1\n";
        let client = |port: u16| format!("{defaults}[realms]\nTEST = {{\n kdc = 127.0.0.1:{port}\n}}\n");
        this.write("krb5.conf", &client(port));
        this.write("unreachable.conf", &client(1));
        this.write("unknown.conf", defaults);
        let center = format!(
            "[kdcdefaults]\nkdc_listen = 127.0.0.1:{port}\nkdc_tcp_listen = 127.0.0.1:{port}\n\
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
        this
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).unwrap();
    }

    /// The values of [`NAMES`].
    fn values(&self) -> [String; 2] {
        [self.file("krb5.conf").display().to_string(), format!("FILE:{}", self.file("cache").display())]
    }

    fn run(&self, program: &str, arguments: &str) {
        let mut command = Command::new(program);
        command.args(arguments.split(' ')).envs(NAMES.into_iter().zip(self.values()));
        let output = command.env("KRB5_KDC_PROFILE", self.file("kdc.conf")).output();
        let output = output.unwrap_or_else(|error| panic!("{program} ({error}): apt-get install krb5-kdc krb5-user"));
        assert!(output.status.success(), "{program} {arguments}: {output:?}");
    }

    fn start_center(&self) -> Running {
        let center = Zklock::bare().program("/usr/sbin/krb5kdc").args(["-n", "-r", "TEST"]);
        let center =
            center.env(NAMES[0], self.values()[0].clone()).env("KRB5_KDC_PROFILE", self.file("kdc.conf")).spawn();
        until("a key distribution center", || std::net::TcpStream::connect(("127.0.0.1", self.port)).ok());
        center
    }

    fn start_server(&self) -> Server {
        Settings::default()
            .property(format_args!("java.security.auth.login.config={}", self.file("jaas.conf").display()))
            .property(format_args!("java.security.krb5.conf={}", self.file("krb5.conf").display()))
            .line(format!("authProvider.sasl={}", class("SASLAuthenticationProvider")))
            .server()
    }

    /// Runs zklock with a login on this server.
    fn zklock(&self, login: &str, server: &str, arguments: &[&str]) -> Zklock {
        let [config, cache] = self.values();
        let zklock = Zklock::at(server).plain().args(arguments).env("ZKLOCK_AUTH", login);
        zklock.env(NAMES[0], config).env(NAMES[1], cache)
    }

    /// The same with the key of the user.
    fn by_key(&self, login: &str, server: &str, arguments: &[&str]) -> Zklock {
        self.zklock(login, server, arguments).env("KRB5_CLIENT_KTNAME", self.file("alice.keytab"))
    }
}

#[track_caller]
fn succeeds(zklock: Zklock) {
    silent(zklock.run()).expect_code(0);
}

/// Ends with this status, and one line on standard error.
#[track_caller]
fn fails(zklock: Zklock, code: i32) -> String {
    only_line(&zklock.run().expect_code(code))
}

/// One test, because all of it needs the same servers.
#[test]
fn by_ticket_and_by_key() {
    let realm = Realm::new();
    let center = realm.start_center();
    let server = realm.start_server();
    let address = server.address();
    let named = &address.replace("127.0.0.1", "localhost");

    // No ticket, and no key.
    let said = fails(realm.zklock(GSSAPI, named, &["/l", "true"]), 77);
    assert!(
        said.contains("ZooKeeper does not accept this client: ") && said.contains("Kerberos: No Kerberos credentials"),
        "{said}"
    );

    // By a key; the library puts the tickets into the cache.
    succeeds(realm.by_key(GSSAPI, named, &["--acl", "creator", "/l", "true"]));
    fs::remove_file(realm.file("cache")).unwrap();
    succeeds(realm.by_key(GSSAPI, named, &["check", "-q", "/l"]));
    succeeds(realm.by_key("gssapi:zookeeper/localhost@TEST", &address, &["/l", "true"]));
    assert!(fails(realm.by_key("", named, &["/l", "true"]), 77).contains("the permission c is missing"));

    // By a ticket.
    fs::remove_file(realm.file("cache")).unwrap();
    realm.run("kinit", &format!("-k -t {} alice", realm.file("alice.keytab").display()));
    succeeds(realm.zklock(GSSAPI, named, &["/l", "true"]));

    // The option shows no secret, so there is no warning.
    succeeds(realm.by_key("", named, &["--auth", GSSAPI, "/l", "true"]));

    // A ticket is for a service on a host.
    let said = fails(realm.zklock(GSSAPI, &address, &["/l", "true"]), 77);
    assert!(said.contains("Kerberos: Server zookeeper/127.0.0.1@TEST not found in Kerberos database"), "{said}");

    // The mechanisms of the two sides differ.
    if Feature::EnforcedSasl.is_there() {
        let said = fails(realm.zklock("sasl:alice:hidden", named, &["/l", "true"]), 77);
        assert!(said.contains("it refuses a login by DIGEST-MD5 (AuthFailed)"), "{said}");
    }

    // A reconnection logs in again.
    let options = ["-v", "--session-timeout", "60s", "--acl", "creator", "/m", "sleep", "1000"];
    let mut holder = realm.by_key(GSSAPI, named, &options).spawn();
    holder.wait_stderr("by SASL");
    holder.command();
    server.restart(Data::Kept);
    holder.wait_stderr("connection to ZooKeeper restored");
    assert_eq!(holder.stderr().matches("by SASL").count(), 2, "{holder}");
    holder.end();

    // No key distribution center, or nobody who knows where one is: that may change.
    fs::remove_file(realm.file("cache")).unwrap();
    for (file, why) in [
        ("unreachable.conf", "Kerberos: Cannot contact any KDC for realm 'TEST'"),
        ("unknown.conf", "Kerberos: Cannot find KDC for realm \"TEST\""),
    ] {
        let lost = realm.by_key(GSSAPI, named, &["--connect-timeout", "2s", "/l", "true"]);
        let said = fails(lost.env(NAMES[0], realm.file(file)), 69);
        assert!(said.contains(why), "{said}");
    }
    center.end();
}

#[test]
fn without_the_library() {
    // dlopen(3) finds this first, and it is no library.
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("libgssapi_krb5.so.2");
    fs::write(&library, "").unwrap();
    let why = format!(
        "Kerberos needs the package libgssapi-krb5-2 (Debian) or krb5-libs (Fedora): dlopen failed: {}: file too short",
        library.display()
    );
    for arguments in [["/l", "true"], ["status", "/l"], ["check", "/l"]] {
        let zklock = Zklock::at(direct()).plain().args(arguments).env("ZKLOCK_AUTH", GSSAPI);
        let output = zklock.env("LD_LIBRARY_PATH", directory.path()).run().expect_code(78);
        assert!(format!("{}{}", output.stdout(), output.stderr()).contains(&why), "{output}");
    }
}
