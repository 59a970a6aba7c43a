//! The connect string: `HOST[:PORT][,HOST[:PORT]]...[/CHROOT]`, as ZooKeeper's own clients read it.
//!
//! Stricter than they are in one way: it refuses what they guess at or skip (`a,,b`, `::1:2181`).

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use rustls::pki_types::ServerName;

use crate::rules::lock_path;
use crate::rules::text::decimal;

/// The port where none is given. ZooKeeper's documentation uses it.
const DEFAULT_PORT: u16 = 2181;

/// The longest connect string, in bytes: a bound on the messages that quote parts of it.
const LONGEST_CONNECT_STRING: usize = 4096;

/// Where the servers are, and below which node everything happens.
///
/// `Display` gives the canonical form, with every port; `FromStr` reads it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectString {
    /// At least one, in the order given.
    pub hosts: Vec<HostPort>,
    /// Absolute path that every other path is relative to; empty when there is none.
    pub chroot: String,
}

/// A name or an address, unresolved, and a port that is not 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// Host name, IPv4 address, or IPv6 address without brackets.
    pub host: String,
    pub port: u16,
}

impl HostPort {
    /// The host as a certificate names it: without the zone of an IPv6 address. `None`: no certificate can name it.
    pub fn name_in_certificate(&self) -> Option<ServerName<'static>> {
        let host = self.host.split('%').next().unwrap_or(&self.host);
        ServerName::try_from(host).ok().map(|name| name.to_owned())
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for ConnectString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<_> = self.hosts.iter().map(HostPort::to_string).collect();
        write!(f, "{}{}", hosts.join(","), self.chroot)
    }
}

impl FromStr for ConnectString {
    type Err = String;

    /// White space around the string and around each host is ignored, as by Java's client. A chroot of
    /// `/` counts as no chroot.
    ///
    /// The error says what to write.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.len() > LONGEST_CONNECT_STRING {
            return Err(format!("{} bytes long; write at most {LONGEST_CONNECT_STRING}", text.len()));
        }
        let (hosts, chroot) = text.split_at(text.find('/').unwrap_or(text.len()));
        let hosts = hosts.split(',').map(|host| host.trim().parse()).collect::<Result<_, _>>()?;
        let chroot = if chroot == "/" { "" } else { chroot };
        if !chroot.is_empty() {
            check_chroot(chroot)?;
        }
        Ok(Self { hosts, chroot: chroot.to_owned() })
    }
}

fn check_chroot(chroot: &str) -> Result<(), String> {
    if chroot.contains(',') {
        return Err("write the chroot once, after the last host: HOST:PORT,HOST:PORT/CHROOT".to_owned());
    }
    lock_path::check(chroot).map_err(|why| format!("the chroot {chroot} {why}"))?;
    if lock_path::is_servers_own(chroot, "") {
        return Err(format!("the chroot {chroot} belongs to ZooKeeper itself; write another one"));
    }
    Ok(())
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text).ok_or_else(|| {
            let what = if text.is_empty() { "a server is missing".to_owned() } else { format!("{text} is no server") };
            format!("{what}; write HOST:PORT,HOST:PORT, and IPv6 addresses in brackets: [ADDRESS]:PORT")
        })
    }
}

impl HostPort {
    fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(bracketed) => bracketed.split_once(']').filter(|(address, _)| is_ipv6(address))?,
            None => {
                let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
                let is_name = !name.is_empty() && name.chars().all(is_name_character);
                is_name.then_some((name, port))?
            }
        };
        let port = match port.strip_prefix(':') {
            Some(port) => decimal(port).filter(|port| *port > 0)?,
            None => port.is_empty().then_some(DEFAULT_PORT)?,
        };
        Some(Self { host: host.to_owned(), port })
    }
}

/// An IPv6 address, with a zone for link-local ones: `fe80::1%eth0`.
fn is_ipv6(text: &str) -> bool {
    let (address, zone) = text.split_once('%').unwrap_or((text, "none"));
    address.parse::<Ipv6Addr>().is_ok() && !zone.is_empty() && zone.chars().all(is_name_character)
}

/// Letters, digits, `-`, `.`, and `_`, which DNS allows and many a container's name has.
fn is_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn connect_strings_that_are_understood() {
        for (text, canonical) in [
            ("localhost", "localhost:2181"),
            ("zk1:2182", "zk1:2182"),
            ("zk1,zk2:2182,zk3", "zk1:2181,zk2:2182,zk3:2181"),
            ("zk1:2181,zk2:2181/app", "zk1:2181,zk2:2181/app"),
            ("zk1/app/jobs", "zk1:2181/app/jobs"),
            ("zk1/", "zk1:2181"),
            ("zk1:1,zk2:65535/", "zk1:1,zk2:65535"),
            ("127.0.0.1:2181", "127.0.0.1:2181"),
            ("[::1]", "[::1]:2181"),
            ("[::1]:2182/a", "[::1]:2182/a"),
            ("[fe80::1%eth0]:2181,b", "[fe80::1%eth0]:2181,b:2181"),
            ("[::ffff:127.0.0.1]", "[::ffff:127.0.0.1]:2181"),
            (" zk1 , zk2:2182 /app \n", "zk1:2181,zk2:2182/app"),
            ("zk_1.example.com.", "zk_1.example.com.:2181"),
            ("zk1/with space", "zk1:2181/with space"),
            ("zk1:02181", "zk1:2181"),
        ] {
            let parsed: ConnectString = text.parse().unwrap();
            assert_eq!(parsed.to_string(), canonical, "{text:?}");
            assert_eq!(parsed.to_string().parse(), Ok(parsed), "{text:?}");
        }
    }

    #[test]
    fn refusals_say_what_to_write() {
        let how = "write HOST:PORT,HOST:PORT, and IPv6 addresses in brackets: [ADDRESS]:PORT";
        for text in ["", "  ", "/app", "/", ",", "a,,b", "a,b,", ",a"] {
            assert_eq!(text.parse::<ConnectString>(), Err(format!("a server is missing; {how}")), "{text:?}");
        }
        for text in [
            ":2181",
            "a:0",
            "a:99999",
            "a:x",
            "a:",
            "a:+1",
            "a:-1",
            "[::1]:",
            "::1:2181",
            "::1",
            "[::1",
            "[zz]",
            "[]",
            "[127.0.0.1]",
            "[fe80::1%]",
            "[::1]2181",
            "a b",
            "a:1 b:2",
            "a:1;b:2",
            "a;b",
            "zoö",
            "a\tb",
        ] {
            assert_eq!(format!("x,{text}/y").parse::<ConnectString>(), Err(format!("{text} is no server; {how}")));
        }
        assert_eq!("tcp://a:1".parse::<ConnectString>(), Err(format!("tcp: is no server; {how}")));
        let once = "write the chroot once, after the last host: HOST:PORT,HOST:PORT/CHROOT";
        for (text, message) in [
            ("a/x/", "the chroot /x/ has a slash at its end, or two in a row; leave one out"),
            ("a//x", "the chroot //x has a slash at its end, or two in a row; leave one out"),
            ("a/x/../y", "the chroot /x/../y has the component ..; write the path without it, as in /jobs/backup"),
            ("a/zookeeper", "the chroot /zookeeper belongs to ZooKeeper itself; write another one"),
            ("a/x,b", once),
            ("a/x,b/x", once),
        ] {
            assert_eq!(text.parse::<ConnectString>(), Err(message.to_owned()), "{text:?}");
        }
        assert!("a/b\u{7f}".parse::<ConnectString>().is_err());
    }

    #[test]
    fn an_endless_connect_string_is_refused() {
        let text = vec!["host"; 1000].join(",");
        assert_eq!(text.parse::<ConnectString>(), Err("4999 bytes long; write at most 4096".to_owned()));
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd(text in "(\\PC|[\\[\\]:,/%. ]){0,20}") {
            if let Ok(parsed) = text.parse::<ConnectString>() {
                prop_assert!(!parsed.hosts.is_empty());
                prop_assert_eq!(parsed.to_string().parse(), Ok(parsed));
            }
        }

        #[test]
        fn what_is_printed_is_read_back(
            hosts in prop::collection::vec(("[a-z0-9][a-z0-9._-]{0,10}", 1u16..), 1..5),
            address in any::<u128>(),
            chroot in "(/[a-z][a-z.]{0,5}){0,3}",
        ) {
            prop_assume!(!lock_path::is_servers_own(&chroot, ""));
            let mut hosts: Vec<_> = hosts.into_iter().map(|(host, port)| HostPort { host, port }).collect();
            hosts.push(HostPort { host: Ipv6Addr::from(address).to_string(), port: 1 });
            let servers = ConnectString { hosts, chroot };
            prop_assert_eq!(servers.to_string().parse(), Ok(servers));
        }
    }
}
