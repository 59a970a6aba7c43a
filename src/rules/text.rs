//! Text of unknown origin, made safe to print.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthStr as _;

/// The longest text, in characters, that [`printable`] returns.
pub const TEXT_LIMIT: usize = 100;

/// A text of unknown origin, made safe to show on a terminal: one line of at most [`TEXT_LIMIT`]
/// characters.
///
/// White space becomes single spaces. Control characters (every terminal escape has one), and characters
/// that are invisible or change the direction of writing, become U+FFFD. A longer text ends in an
/// ellipsis.
pub fn printable(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    let shown = legible(&words.join(" "));
    if shown.chars().count() <= TEXT_LIMIT {
        return shown;
    }
    shown.chars().take(TEXT_LIMIT - 1).chain(['…']).collect()
}

/// The longest text, in bytes, that is stored in a node: more than [`printable`] shows of it.
pub const STORED_LIMIT: usize = 1000;

/// A text of the user's, as it is stored in a node. Servers close the connection over a request that is too large.
pub fn stored(mut text: String) -> String {
    let end = (0..=text.len().min(STORED_LIMIT)).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
    text
}

/// A name of unknown origin, made safe to show as [`printable`] does, but whole and with its spaces: a path is of no use
/// when it is cut.
pub fn legible(name: &str) -> String {
    name.chars().map(|character| if is_unsafe(character) { char::REPLACEMENT_CHARACTER } else { character }).collect()
}

/// Whether [`legible`] would show the name as it is.
pub fn is_legible(name: &str) -> bool {
    !name.contains(is_unsafe)
}

/// A text in JSON with escapes for the characters that [`printable`] replaces: another program reads the same, and a
/// terminal shows it as it is.
pub fn escaped_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        if is_unsafe(character) {
            // They can be in strings only.
            for unit in character.encode_utf16(&mut [0; 2]) {
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        } else {
            escaped.push(character);
        }
    }
    escaped
}

/// The beginning of a text for which a terminal has room in so many columns.
pub fn fitting(text: &str, columns: usize) -> &str {
    let ends = text.char_indices().map(|(begin, character)| begin + character.len_utf8());
    &text[..ends.take_while(|end| text[..*end].width() <= columns).last().unwrap_or(0)]
}

/// Rows with aligned columns, after `lead`. What is at the end of its line makes no column wide, and a column without a
/// text takes no room.
pub fn table<const N: usize>(lead: &str, rows: &[[String; N]]) -> String {
    let is_last = |row: &[String; N], column: usize| row[column + 1..].iter().all(String::is_empty);
    let width = |row: &[String; N], column: usize| if is_last(row, column) { 0 } else { row[column].width() };
    let widths: [Option<usize>; N] = std::array::from_fn(|column| {
        rows.iter().filter(|row| !row[column].is_empty()).map(|row| width(row, column)).max()
    });
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).filter_map(|(cell, width)| {
            let padding = width?.saturating_sub(cell.width());
            Some(format!("{cell}{:padding$}", ""))
        });
        let _ = writeln!(text, "{}", format!("{lead}{}", cells.collect::<Vec<_>>().join("  ")).trim_end());
    }
    text
}

/// [`printable`], or `None` when nothing legible is left.
pub(super) fn readable(text: &str) -> Option<String> {
    Some(printable(text))
        .filter(|text| text.chars().any(|character| !matches!(character, ' ' | char::REPLACEMENT_CHARACTER)))
}

/// Whether it is a control character (category Cc), or a format character (Cf) that hides or reorders text.
fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{202a}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
pub(super) fn is_printable(text: &str) -> bool {
    text.chars().count() <= TEXT_LIMIT
        && !text.chars().any(|character| character.is_control() || ('\u{202a}'..='\u{202e}').contains(&character))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn long_texts_are_cut() {
        let exact = "ü".repeat(TEXT_LIMIT);
        assert_eq!(printable(&exact), exact);
        assert_eq!(printable(&format!("{exact}ü")), format!("{}…", "ü".repeat(TEXT_LIMIT - 1)));
    }

    #[test]
    fn what_is_stored_ends_with_a_whole_character() {
        let exact = "ü".repeat(STORED_LIMIT / 2);
        assert_eq!(stored(exact.clone()), exact);
        assert_eq!(stored(format!("{exact}ü")), exact);
        assert_eq!(stored(format!("x{exact}")).len(), STORED_LIMIT - 1);
    }

    #[test]
    fn white_space_is_one_space() {
        assert_eq!(printable(" a\r\n\tb\u{2028}c \u{85} "), "a b c");
    }

    #[test]
    fn a_name_stays_whole() {
        let name = "/a  b/\u{202e}".to_owned() + &"ü".repeat(TEXT_LIMIT);
        assert_eq!(legible(&name), name.replace('\u{202e}', "\u{fffd}"));
    }

    #[test]
    fn a_terminal_has_room_for_columns_and_not_for_characters() {
        for (text, columns, shown) in
            [("日本語", 5, "日本"), ("日本語", 6, "日本語"), ("u\u{308}x", 1, "u\u{308}"), ("ab", 0, ""), ("a", 9, "a")]
        {
            assert_eq!(fitting(text, columns), shown);
        }
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [["1", "", "日本", "last"], ["22", "", "ü", "x"], ["3", "", "as wide as it likes", ""]];
        let rows = rows.map(|row| row.map(str::to_owned));
        assert_eq!(table("> ", &rows), "> 1   日本  last\n> 22  ü     x\n> 3   as wide as it likes\n");
    }

    proptest! {
        #[test]
        fn json_means_the_same_when_escaped(text in any::<String>()) {
            let text = text + "\u{9b}31m\u{202e}\u{e0041}";
            let escaped = escaped_json(&serde_json::to_string(&text).unwrap());
            prop_assert!(!escaped.contains(is_unsafe));
            prop_assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), text);
        }

        #[test]
        fn any_text_becomes_printable(text in any::<String>()) {
            let shown = printable(&text);
            prop_assert!(is_printable(&shown));
            prop_assert_eq!(printable(&shown), shown.clone());
        }
    }
}
