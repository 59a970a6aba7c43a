//! Text of unknown origin: numbers in it, and the only way for it to a terminal.

use std::fmt::Write as _;
use std::str::FromStr;

use serde::Serialize;
use unicode_width::UnicodeWidthStr as _;

/// What may be sent to a terminal, whoever wrote a part of it: texts without any character that a terminal obeys, that is
/// invisible, or that only looks like a space; and between them what this program has for a terminal.
///
/// A text cannot end its line, so one message is one line. What a reader would not see is shown by its number, as
/// `<U+202E>`: two names that differ in it alone look different.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Legible(String);

impl Legible {
    pub fn new(text: &str) -> Self {
        Self(escaped(text))
    }

    /// A value as one line of JSON, in which escapes mean such characters: another program reads the same.
    pub fn json(value: &impl Serialize) -> Self {
        let json = serde_json::to_string(value).expect("structs of texts and numbers have a JSON form");
        let mut line = String::with_capacity(json.len() + 1);
        for character in json.chars() {
            if is_legible(character) {
                line.push(character);
            } else {
                // They can be in strings only.
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(line, "\\u{unit:04x}");
                }
            }
        }
        Self(line + "\n")
    }

    pub fn push(&mut self, text: &str) -> &mut Self {
        self.0 += &escaped(text);
        self
    }

    pub fn push_line(&mut self, text: &str) -> &mut Self {
        self.push(text).control("\n")
    }

    /// What nobody else can have written: the end of a line, a tab, a sequence that moves the cursor.
    pub fn control(&mut self, ours: &'static str) -> &mut Self {
        self.0 += ours;
        self
    }

    pub fn append(&mut self, other: &Self) -> &mut Self {
        self.0 += &other.0;
        self
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A number in decimal digits alone: `from_str` would take a sign as well.
pub fn decimal<T: FromStr>(text: &str) -> Option<T> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// The longest text, in characters, that [`printable`] returns.
pub const TEXT_LIMIT: usize = 100;

/// A text as it may be sent to a terminal, in one line of at most [`TEXT_LIMIT`] characters. White space becomes single
/// spaces, and a longer text ends in an ellipsis.
pub fn printable(text: &str) -> String {
    let words: Vec<_> = text.split_ascii_whitespace().collect();
    let shown = escaped(&words.join(" "));
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

/// The beginning of a text that fits into this many columns of a terminal.
pub fn fitting(text: &str, columns: usize) -> &str {
    let ends = text.char_indices().map(|(begin, character)| begin + character.len_utf8());
    &text[..ends.take_while(|end| text[..*end].width() <= columns).last().unwrap_or(0)]
}

/// Rows with aligned columns, after `lead`. What is at the end of its line makes no column wide, and a column without a
/// text takes no room.
pub fn table<const N: usize>(lead: &str, rows: &[[String; N]]) -> Legible {
    let rows: Vec<_> = rows.iter().map(|row| row.each_ref().map(|cell| escaped(cell))).collect();
    let is_last = |row: &[String; N], column: usize| row[column + 1..].iter().all(String::is_empty);
    let width = |row: &[String; N], column: usize| if is_last(row, column) { 0 } else { row[column].width() };
    let widths: [Option<usize>; N] = std::array::from_fn(|column| {
        rows.iter().filter(|row| !row[column].is_empty()).map(|row| width(row, column)).max()
    });
    let mut text = Legible::default();
    for row in rows {
        let cells = row.iter().zip(widths).filter_map(|(cell, width)| {
            let padding = width?.saturating_sub(cell.width());
            Some(format!("{cell}{:padding$}", ""))
        });
        text.push_line(format!("{lead}{}", cells.collect::<Vec<_>>().join("  ")).trim_end());
    }
    text
}

/// [`printable`], or `None` when nothing legible is left.
pub(super) fn readable(text: &str) -> Option<String> {
    let tells = |character| is_legible(character) && !matches!(character, ' ' | char::REPLACEMENT_CHARACTER);
    text.contains(tells).then(|| printable(text))
}

fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_legible(character) {
            shown.push(character);
        } else {
            let _ = write!(shown, "<U+{:04X}>", u32::from(character));
        }
    }
    shown
}

/// Whether a reader sees it, and sees it where it stands.
pub fn is_legible(character: char) -> bool {
    // One at least: the first begins with U+0000.
    let begun = ILLEGIBLE.partition_point(|(first, _)| *first <= character);
    character > ILLEGIBLE[begun - 1].1
}

/// By Unicode's properties: Cc, Cf, Zl, Zp, Zs but the space, and Default_Ignorable_Code_Point; and U+2800, a pattern of
/// Braille without dots.
const ILLEGIBLE: [(char, char); 30] = [
    ('\u{0}', '\u{1f}'),
    ('\u{7f}', '\u{a0}'),
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{600}', '\u{605}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{6dd}', '\u{6dd}'),
    ('\u{70f}', '\u{70f}'),
    ('\u{890}', '\u{891}'),
    ('\u{8e2}', '\u{8e2}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{1680}', '\u{1680}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    ('\u{2000}', '\u{200f}'),
    ('\u{2028}', '\u{202f}'),
    ('\u{205f}', '\u{206f}'),
    ('\u{2800}', '\u{2800}'),
    ('\u{3000}', '\u{3000}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fffb}'),
    ('\u{110bd}', '\u{110bd}'),
    ('\u{110cd}', '\u{110cd}'),
    ('\u{13430}', '\u{1343f}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0000}', '\u{e0fff}'),
];

#[cfg(test)]
pub(super) fn is_printable(text: &str) -> bool {
    text.chars().count() <= TEXT_LIMIT && text.chars().all(is_legible)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex_syntax::hir::{Class, HirKind};

    use super::*;

    #[test]
    fn what_is_not_legible_is_what_unicode_says() {
        let class = r"[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Zs}\p{Default_Ignorable_Code_Point}\u{2800}--\x20]";
        let class = regex_syntax::parse(class).unwrap().into_kind();
        let HirKind::Class(Class::Unicode(class)) = class else { panic!("{class:?}") };
        let ranges: Vec<_> = class.iter().map(|range| (range.start(), range.end())).collect();
        assert_eq!(ILLEGIBLE[..], ranges);
    }

    #[test]
    fn what_a_terminal_would_obey_or_hide_is_shown_by_its_number() {
        for (text, shown) in [
            ("a\nzklock: b", "a<U+000A>zklock: b"),
            ("\u{1b}]0;t\u{7}", "<U+001B>]0;t<U+0007>"),
            ("/a\u{202e}b", "/a<U+202E>b"),
            ("/\u{2028}\u{34f}\u{3164}\u{e0041}", "/<U+2028><U+034F><U+3164><U+E0041>"),
            ("/a  b/日本/u\u{308}", "/a  b/日本/u\u{308}"),
        ] {
            assert_eq!(Legible::new(text).as_str(), shown);
        }
    }

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
        assert_eq!(printable(" a\r\n\tb  c "), "a b c");
        assert_eq!(printable("a\u{2028}b\u{3000}c"), "a<U+2028>b<U+3000>c");
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
        assert_eq!(table("> ", &rows).as_str(), "> 1   日本  last\n> 22  ü     x\n> 3   as wide as it likes\n");
    }

    proptest! {
        #[test]
        fn json_means_the_same_when_escaped(text in any::<String>()) {
            let text = text + "\u{9b}31m\u{202e}\u{e0041}";
            let json = Legible::json(&text);
            prop_assert!(json.as_str().strip_suffix('\n').unwrap().chars().all(is_legible));
            prop_assert_eq!(serde_json::from_str::<String>(json.as_str()).unwrap(), text);
        }

        #[test]
        fn any_text_becomes_printable(text in any::<String>()) {
            let shown = printable(&text);
            prop_assert!(is_printable(&shown));
            prop_assert_eq!(printable(&shown), shown.clone());
        }
    }
}
