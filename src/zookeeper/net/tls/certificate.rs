//! What rustls does not tell of a certificate: as much of X.509 as that takes.

use crate::rules::rfc3339::days;

/// The tags of DER that are met on the way.
const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// The end of a certificate's validity, in seconds since the Unix epoch. `None`: it is no certificate.
pub(super) fn not_after(der: &[u8]) -> Option<i64> {
    let (validity, _) = expect(from_validity(der)?, SEQUENCE)?;
    let (_, _, end) = element(validity)?;
    let (tag, end, _) = element(end)?;
    seconds(tag, std::str::from_utf8(end).ok()?)
}

/// A certificate's public key: the whole element (`SubjectPublicKeyInfo`).
pub(super) fn public_key(der: &[u8]) -> Option<&[u8]> {
    let (_validity, rest) = expect(from_validity(der)?, SEQUENCE)?;
    let (_subject, key) = expect(rest, SEQUENCE)?;
    let (_, rest) = expect(key, SEQUENCE)?;
    Some(&key[..key.len() - rest.len()])
}

/// The fields of a certificate from the validity on.
fn from_validity(der: &[u8]) -> Option<&[u8]> {
    let (certificate, _) = expect(der, SEQUENCE)?;
    let (mut rest, _) = expect(certificate, SEQUENCE)?;
    // Certificates of version 1 have none.
    if let Some((_, behind)) = expect(rest, VERSION) {
        rest = behind;
    }
    let (_serial, rest) = expect(rest, INTEGER)?;
    let (_algorithm, rest) = expect(rest, SEQUENCE)?;
    let (_issuer, rest) = expect(rest, SEQUENCE)?;
    Some(rest)
}

/// The contents of the first element, which must have this tag, and what comes behind it.
fn expect(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    element(der).filter(|(found, ..)| *found == tag).map(|(_, contents, rest)| (contents, rest))
}

/// The tag of the first element, its contents, and what comes behind it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (digits, rest) =
            rest.split_at_checked(usize::from(first & 0x7f)).filter(|(digits, _)| digits.len() <= 4)?;
        (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
    };
    let (contents, rest) = rest.split_at_checked(length)?;
    Some((tag, contents, rest))
}

/// `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ` (RFC 5280, 4.1.2.5).
fn seconds(tag: u8, text: &str) -> Option<i64> {
    let digits = text.strip_suffix('Z').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    let (year, rest) = match tag {
        UTC_TIME if digits.len() == 12 => {
            let year: i64 = digits[..2].parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, &digits[2..])
        }
        GENERALIZED_TIME if digits.len() == 14 => (digits[..4].parse().ok()?, &digits[4..]),
        _ => return None,
    };
    let mut numbers = (0..5).map(|index| rest[2 * index..2 * index + 2].parse::<i64>().ok());
    let mut next = || numbers.next().flatten();
    let (month, day, hour, minute, second) = (next()?, next()?, next()?, next()?, next()?);
    (1..=12).contains(&month).then(|| days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests;
