use super::*;

fn der(tag: u8, contents: &[u8]) -> Vec<u8> {
    let length = contents.len();
    let long = u16::try_from(length).unwrap().to_be_bytes();
    match length {
        0..128 => [&[tag, long[1]], contents].concat(),
        128..256 => [&[tag, 0x81, long[1]], contents].concat(),
        _ => [&[tag, 0x82, long[0], long[1]], contents].concat(),
    }
}

/// As much of a certificate as is looked at, and some bytes behind it.
fn certificate(version: &[u8], tag: u8, end: &str) -> Vec<u8> {
    let validity = [der(UTC_TIME, b"200101000000Z"), der(tag, end.as_bytes())].concat();
    let issuer = der(SEQUENCE, &[0; 200]);
    let fields = [
        version.to_vec(),
        der(INTEGER, &[7; 20]),
        der(SEQUENCE, b"algorithm"),
        issuer,
        der(SEQUENCE, &validity),
        der(SEQUENCE, b"subject"),
        der(SEQUENCE, &[0; 300]),
    ];
    der(SEQUENCE, &[der(SEQUENCE, &fields.concat()), der(SEQUENCE, b"algorithm"), der(0x03, &[0; 70])].concat())
}

#[test]
fn ends_that_date_1_knows() {
    let version = der(VERSION, &[2, 1, 2]);
    for (tag, end, expected) in [
        (UTC_TIME, "700101000000Z", Some(0)),
        (UTC_TIME, "261222173428Z", Some(1_797_960_868)),
        (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
        (UTC_TIME, "500101000000Z", Some(-631_152_000)),
        (GENERALIZED_TIME, "20500101000000Z", Some(2_524_608_000)),
        (GENERALIZED_TIME, "20000229120000Z", Some(951_825_600)),
        (GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799)),
        (UTC_TIME, "20500101000000Z", None),
        (GENERALIZED_TIME, "500101000000Z", None),
        (UTC_TIME, "261322173428Z", None),
        (UTC_TIME, "26122217342Z", None),
        (UTC_TIME, "2612221734281", None),
        (UTC_TIME, "26122217342éZ", None),
        (INTEGER, "261222173428Z", None),
    ] {
        assert_eq!(not_after(&certificate(&version, tag, end)), expected, "{end}");
        assert_eq!(not_after(&certificate(&[], tag, end)), expected, "{end}, version 1");
    }
}

#[test]
fn keys() {
    for version in [&der(VERSION, &[2, 1, 2])[..], &[]] {
        let certificate = certificate(version, UTC_TIME, "261222173428Z");
        assert_eq!(public_key(&certificate), Some(&der(SEQUENCE, &[0; 300])[..]));
    }
}

#[test]
fn what_is_no_certificate_has_no_end() {
    let whole = certificate(&der(VERSION, &[2, 1, 2]), UTC_TIME, "261222173428Z");
    for length in 0..whole.len() {
        assert_eq!((not_after(&whole[..length]), public_key(&whole[..length])), (None, None));
    }
    for odd in
        [&b"-----BEGIN CERTIFICATE-----"[..], &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff], &[0x30, 0x89], &[0x30, 0x80]]
    {
        assert_eq!(not_after(odd), None);
    }
}
