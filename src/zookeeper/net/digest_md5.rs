//! DIGEST-MD5, a mechanism of SASL (RFC 2831): each side proves to the other that it knows the password, which never
//! leaves it. As much of it as ZooKeeper's servers use, which is that of Java: always with a realm and in UTF-8.

/// How often this nonce was used. A connection uses it once.
const NONCE_COUNT: &str = "00000001";

/// The user has authenticated, and nothing is signed or encrypted after that.
const QOP: &str = "auth";

/// Our answer to a challenge. It has no `Debug`: a password could be guessed from it.
pub(super) struct Response {
    pub token: Vec<u8>,
    /// What a server answers that knows the password.
    confirmation: String,
}

impl Response {
    /// Answers a challenge. `nonce`: ours, never used before. `uri`: the service and the host that are meant, as in
    /// `imap/example.org`. `None`: it is no challenge of DIGEST-MD5.
    pub(super) fn to(challenge: &[u8], user: &str, password: &str, nonce: &str, uri: &str) -> Option<Self> {
        let directives = directives(std::str::from_utf8(challenge).ok()?)?;
        let value = |wanted| directives.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
        let (theirs, realm) = (value("nonce")?, value("realm")?);
        if value("algorithm") != Some("md5-sess") {
            return None;
        }
        let secret = md5::compute([user, realm, password].map(hashed).join(&b':'));
        let session = hex(&[&*secret, theirs.as_bytes(), nonce.as_bytes()].join(&b':'));
        let proof = |of: &str| {
            let of = hex(format!("{of}:{uri}").as_bytes());
            hex(format!("{session}:{theirs}:{NONCE_COUNT}:{nonce}:{QOP}:{of}").as_bytes())
        };
        let (user, response) = (user.replace('\\', r"\\").replace('"', "\\\""), proof("AUTHENTICATE"));
        let token = format!(
            "charset=utf-8,username=\"{user}\",realm=\"{realm}\",nonce=\"{theirs}\",nc={NONCE_COUNT},cnonce=\"{nonce}\",\
             digest-uri=\"{uri}\",response={response},qop={QOP}"
        );
        Some(Self { token: token.into_bytes(), confirmation: format!("rspauth={}", proof("")) })
    }

    /// Whether the server knows the password as well, by its answer.
    pub(super) fn is_confirmed_by(&self, answer: &[u8]) -> bool {
        answer == self.confirmation.as_bytes()
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

/// The names and the values in a list such as `nonce="x",algorithm=md5-sess`. `None`: it is no such list.
fn directives(mut list: &str) -> Option<Vec<(&str, &str)>> {
    let mut directives = vec![];
    while !list.is_empty() {
        let (name, rest) = list.split_once('=')?;
        let (value, rest) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => rest.split_at(rest.find(',').unwrap_or(rest.len())),
        };
        directives.push((name, value));
        list = rest.strip_prefix(',').unwrap_or(rest);
    }
    Some(directives)
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

    fn token(response: Option<Response>) -> Option<String> {
        response.map(|response| String::from_utf8(response.token).unwrap())
    }

    #[test]
    fn the_example_of_the_standard() {
        let expected = r#"charset=utf-8,username="chris",realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",nc=00000001,cnonce="OA6MHXh6VqTrRk",digest-uri="imap/elwood.innosoft.com",response=d388dad90d4bbd760a152321f2143af7,qop=auth"#;
        assert_eq!(token(respond(CHALLENGE)).as_deref(), Some(expected));
        let response = respond(CHALLENGE).unwrap();
        assert!(response.is_confirmed_by(b"rspauth=ea40f60335c427b5527b84dbabcdfffd"));
        for other in
            ["", "rspauth=", "rspauth=ea40f60335c427b5527b84dbabcdfffe", "ea40f60335c427b5527b84dbabcdfffd", "rspauth"]
        {
            assert!(!response.is_confirmed_by(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn what_a_challenge_may_look_like() {
        // As ZooKeeper's servers send it.
        let servers = r#"realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",charset=utf-8,algorithm=md5-sess"#;
        assert_eq!(token(respond(servers)), token(respond(CHALLENGE)));
        for unknown in [
            "",
            "realm=\"r\",nonce=\"x\"",
            "realm=\"r\",algorithm=md5-sess",
            "nonce=\"x\",algorithm=md5-sess",
            "realm=\"r\",nonce=\"x\",algorithm=md5",
            "realm=\"r\",nonce=\"x,algorithm=md5-sess",
            "\u{1}nonce",
        ] {
            assert_eq!(token(respond(unknown)), None, "{unknown}");
        }
    }

    #[test]
    fn users_of_any_kind() {
        let sent = |user| token(Response::to(CHALLENGE.as_bytes(), user, "x", "y", "u/h")).unwrap();
        assert!(sent(r#"o"p\s"#).starts_with(r#"charset=utf-8,username="o\"p\\s",realm="#));
        // Sent in UTF-8, and hashed in ISO 8859-1 if possible.
        assert!(sent("b\u{e9}").starts_with("charset=utf-8,username=\"b\u{e9}\","));
        assert_eq!(hashed("b\u{e9}"), b"b\xe9");
        assert_eq!(hashed("b\u{e9}\u{20ac}"), "b\u{e9}\u{20ac}".as_bytes());
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
