//! Values as bytes, and lengths that are not what they claim.

use super::*;

fn written(write: impl FnOnce(&mut JuteWriter<'_>)) -> Vec<u8> {
    let mut bytes = vec![];
    write(&mut JuteWriter::new(&mut bytes));
    bytes
}

#[test]
fn what_was_written_is_read() {
    let bytes = written(|to| {
        to.boolean(true);
        to.int(-2);
        to.long(i64::MIN);
        to.string("é");
        to.joined("/a", "/b");
        to.buffer(&[]);
        to.vector(&["x", ""], |to, text| to.string(text));
    });
    let mut from = JuteReader::new(&bytes);
    assert_eq!(from.boolean(), Ok(true));
    assert_eq!(from.int(), Ok(-2));
    assert_eq!(from.long(), Ok(i64::MIN));
    assert_eq!(from.string().as_deref(), Ok("é"));
    assert_eq!(from.string().as_deref(), Ok("/a/b"));
    assert_eq!(from.buffer(), Ok([].as_slice()));
    assert_eq!(from.vector(4, JuteReader::string), Ok(vec!["x".to_owned(), String::new()]));
    assert!(from.is_empty());
    assert_eq!(from.boolean(), Err(Malformed::Truncated));
}

#[test]
fn null_is_empty() {
    let null = (-1_i32).to_be_bytes();
    assert_eq!(JuteReader::new(&null).buffer(), Ok([].as_slice()));
    assert_eq!(JuteReader::new(&null).string().as_deref(), Ok(""));
    assert_eq!(JuteReader::new(&null).vector(4, JuteReader::string), Ok(vec![]));
}

#[test]
fn no_length_is_believed_before_the_bytes_are_there() {
    for claimed in [-2, i32::MIN, 3, i32::MAX] {
        let bytes = written(|to| {
            to.int(claimed);
            to.boolean(true);
            to.boolean(true);
        });
        assert_eq!(JuteReader::new(&bytes).buffer(), Err(Malformed::FieldLength(claimed)));
        assert_eq!(JuteReader::new(&bytes).vector(4, JuteReader::string), Err(Malformed::FieldLength(claimed)));
    }
    // Enough bytes for two elements that take none, but not for two strings.
    let two = written(|to| {
        to.int(2);
        to.int(0);
    });
    assert_eq!(JuteReader::new(&two).vector(4, JuteReader::string), Err(Malformed::FieldLength(2)));
}

#[test]
fn a_name_that_is_not_utf_8_is_no_other_name() {
    let bytes = written(|to| to.buffer(b"a\xff"));
    assert_eq!(JuteReader::new(&bytes).string().as_deref(), Ok("a\u{fffd}"));
}
