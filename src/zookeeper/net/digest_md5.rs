//! DIGEST-MD5, a mechanism of SASL (RFC 2831): each side proves to the other that it knows the password, which never
//! leaves it.

use std::fmt;

/// How often this nonce was used. A connection uses it once.
const NONCE_COUNT: &str = "00000001";

/// The user has authenticated, and nothing is signed or encrypted after that.
const QOP: &str = "auth";

/// Our answer to a challenge.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Response {
    pub token: Vec<u8>,
    /// What a server answers that knows the password.
    confirmation: String,
}

impl fmt::Debug for Response {
    /// Without what a password could be guessed from.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a response")
    }
}

impl Response {
    /// Answers a challenge. `nonce`: ours, never used before. `uri`: the service and the host that are meant, as in
    /// `imap/example.org`. `None`: it is no challenge of DIGEST-MD5, or asks for what is not known here.
    pub(super) fn to(challenge: &[u8], user: &str, password: &str, nonce: &str, uri: &str) -> Option<Self> {
        let directives = directives(challenge)?;
        let value = |wanted: &str| {
            directives.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| &value[..])
        };
        let theirs = value("nonce")?;
        // Without this directive, it is the one that each server has.
        let knows_qop = value("qop")
            .is_none_or(|known| known.split(|byte| *byte == b',').any(|one| one.trim_ascii() == QOP.as_bytes()));
        if value("algorithm") != Some(b"md5-sess") || !knows_qop {
            return None;
        }
        let realm = value("realm");
        let is_utf8 = value("charset").is_some_and(|charset| charset.eq_ignore_ascii_case(b"utf-8"));

        let secret = [hashed(user), realm.map(latin).unwrap_or_default(), hashed(password)].join(&b':');
        let session = hex(&[&*md5::compute(secret), theirs, nonce.as_bytes()].join(&b':'));
        let proof = |of: &str| {
            let of = hex(format!("{of}:{uri}").as_bytes());
            let parts: [&[u8]; 6] =
                [session.as_bytes(), theirs, NONCE_COUNT.as_bytes(), nonce.as_bytes(), QOP.as_bytes(), of.as_bytes()];
            hex(&parts.join(&b':'))
        };

        let mut token = if is_utf8 { b"charset=utf-8,".to_vec() } else { vec![] };
        token.extend_from_slice(b"username=");
        quote(&mut token, &if is_utf8 { user.as_bytes().to_vec() } else { hashed(user) });
        if let Some(realm) = realm {
            token.extend_from_slice(b",realm=");
            quote(&mut token, realm);
        }
        token.extend_from_slice(b",nonce=");
        quote(&mut token, theirs);
        let response = proof("AUTHENTICATE");
        let rest = format!(",nc={NONCE_COUNT},cnonce=\"{nonce}\",digest-uri=\"{uri}\",response={response},qop={QOP}");
        token.extend_from_slice(rest.as_bytes());
        Some(Self { token, confirmation: proof("") })
    }

    /// Whether the server knows the password as well, by its answer.
    pub(super) fn is_confirmed_by(&self, answer: &[u8]) -> bool {
        let directives = directives(answer).unwrap_or_default();
        directives.iter().any(|(name, value)| {
            name.eq_ignore_ascii_case("rspauth") && value.eq_ignore_ascii_case(self.confirmation.as_bytes())
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    format!("{:x}", md5::compute(bytes))
}

/// A text as it is hashed: in ISO 8859-1 if that has all its characters, in UTF-8 otherwise.
fn hashed(text: &str) -> Vec<u8> {
    let latin: Option<Vec<u8>> = text.chars().map(|character| u8::try_from(character).ok()).collect();
    latin.unwrap_or_else(|| text.as_bytes().to_vec())
}

/// The same for a text that came.
fn latin(bytes: &[u8]) -> Vec<u8> {
    std::str::from_utf8(bytes).map_or_else(|_| bytes.to_vec(), hashed)
}

/// Appends a quoted string.
fn quote(to: &mut Vec<u8>, value: &[u8]) {
    to.push(b'"');
    for byte in value {
        if matches!(byte, b'"' | b'\\') {
            to.push(b'\\');
        }
        to.push(*byte);
    }
    to.push(b'"');
}

/// The names and the values in a list such as `nonce="x",algorithm=md5-sess`. `None`: it is no such list.
fn directives(mut list: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let mut directives = vec![];
    loop {
        while let [b',' | b' ' | b'\t' | b'\r' | b'\n', rest @ ..] = list {
            list = rest;
        }
        if list.is_empty() {
            return Some(directives);
        }
        let (name, rest) = split_at(list, |byte| byte == b'=')?;
        let (value, rest) = match rest.trim_ascii_start() {
            [b'"', quoted @ ..] => unquoted(quoted)?,
            plain => {
                let (value, rest) = split_at(plain, |byte| byte == b',').unwrap_or((plain, &[]));
                (value.trim_ascii().to_vec(), rest)
            }
        };
        list = rest;
        directives.push((String::from_utf8(name.trim_ascii().to_vec()).ok()?, value));
    }
}

/// What is before the first of these bytes, and what is behind it.
fn split_at(list: &[u8], is_it: impl Fn(u8) -> bool) -> Option<(&[u8], &[u8])> {
    let end = list.iter().position(|byte| is_it(*byte))?;
    Some((&list[..end], &list[end + 1..]))
}

/// The value of a quoted string whose first quotation mark was read, and what is behind it.
fn unquoted(list: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let (mut value, mut bytes) = (vec![], list.iter());
    loop {
        match bytes.next()? {
            b'"' => return Some((value, bytes.as_slice())),
            b'\\' => value.push(*bytes.next()?),
            byte => value.push(*byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// The example of RFC 2831.
    const CHALLENGE: &str =
        r#"realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8"#;
    const NONCE: &str = "OA6MHXh6VqTrRk";
    const URI: &str = "imap/elwood.innosoft.com";

    fn respond(challenge: &str) -> Option<Response> {
        Response::to(challenge.as_bytes(), "chris", "secret", NONCE, URI)
    }

    fn token(response: &Response) -> &str {
        std::str::from_utf8(&response.token).unwrap()
    }

    #[test]
    fn the_example_of_the_standard() {
        let response = respond(CHALLENGE).unwrap();
        let expected = r#"charset=utf-8,username="chris",realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",nc=00000001,cnonce="OA6MHXh6VqTrRk",digest-uri="imap/elwood.innosoft.com",response=d388dad90d4bbd760a152321f2143af7,qop=auth"#;
        assert_eq!(token(&response), expected);
        assert!(response.is_confirmed_by(b"rspauth=ea40f60335c427b5527b84dbabcdfffd"));
        for other in
            ["", "rspauth=", "rspauth=ea40f60335c427b5527b84dbabcdfffe", "ea40f60335c427b5527b84dbabcdfffd", "rspauth"]
        {
            assert!(!response.is_confirmed_by(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn what_a_challenge_may_look_like() {
        let same = |challenge: &str| assert_eq!(respond(challenge), respond(CHALLENGE), "{challenge}");
        same(
            r#" , algorithm = md5-sess ,Nonce="OA6MG9\tEQGm2hh",qop="auth-int, auth",realm="elwood.innosoft.com",maxbuf=65536,Charset=UTF-8,"#,
        );
        // As ZooKeeper's servers send it.
        same(r#"realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",charset=utf-8,algorithm=md5-sess"#);
        for unknown in [
            "",
            "nonce=\"x\"",
            "algorithm=md5-sess",
            "nonce=\"x\",algorithm=md5",
            "nonce=\"x\",algorithm=md5-sess,qop=\"auth-conf\"",
            "nonce=\"x,algorithm=md5-sess",
            "\u{1}nonce",
        ] {
            assert_eq!(respond(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn users_and_realms_of_any_kind() {
        let response =
            Response::to(br#"realm="a\"b\\",nonce=x,algorithm=md5-sess"#, r#"o"p\s"#, "x", "y", "u/h").unwrap();
        assert!(token(&response).starts_with(r#"username="o\"p\\s",realm="a\"b\\",nonce="x",nc="#), "{response:?}");
        let response = Response::to(b"nonce=x,algorithm=md5-sess", "b", "x", "y", "u/h").unwrap();
        assert!(token(&response).starts_with(r#"username="b",nonce="x",nc="#), "{response:?}");
        // Sent in UTF-8, and hashed in ISO 8859-1 if possible.
        let sent = |challenge: &[u8]| Response::to(challenge, "b\u{e9}", "x", "y", "u/h").unwrap().token;
        assert!(
            sent(b"nonce=x,algorithm=md5-sess,charset=utf-8")
                .starts_with("charset=utf-8,username=\"b\u{e9}\"".as_bytes())
        );
        assert!(sent(b"nonce=x,algorithm=md5-sess").starts_with(b"username=\"b\xe9\""));
        assert_eq!(hashed("b\u{e9}"), b"b\xe9");
        assert_eq!(hashed("b\u{e9}\u{20ac}"), "b\u{e9}\u{20ac}".as_bytes());
    }

    #[test]
    fn nothing_of_it_is_shown() {
        assert_eq!(format!("{:?}", respond(CHALLENGE).unwrap()), "a response");
    }

    proptest! {
        #[test]
        fn no_challenge_does_harm(bytes in vec(any::<u8>(), 0..60), begin in 0..CHALLENGE.len()) {
            let challenge = [&CHALLENGE.as_bytes()[..begin], &bytes].concat();
            let response = Response::to(&challenge, "chris", "secret", NONCE, URI);
            prop_assert!(!response.is_some_and(|response| response.is_confirmed_by(&bytes)));
        }
    }
}
