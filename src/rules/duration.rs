//! Durations as users write and read them.

use std::time::Duration;

/// The longest duration that [`parse`] accepts: a hundred years, so that no sum of two overflows any clock.
const LONGEST_DURATION: Duration = Duration::from_secs(36_500 * 24 * 60 * 60);

/// The units, longest first, in nanoseconds. A compound such as `1h30m` must keep this order.
const UNITS: [(&str, u128); 5] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
];

const HINT: &str = "write a duration such as 30, 1.5, 500ms, 90s, 5m, 1h30m or 2d";

const ORDER: &str = "write the longer unit first and each unit once, such as 1h30m";

/// Reads `30` and `1.5` (seconds), `500ms`, `90s`, `5m`, `2d`, `1h30m`.
///
/// The error says what to write instead.
pub fn parse(text: &str) -> Result<Duration, String> {
    if text.starts_with('-') {
        return Err(format!("a duration cannot be negative; {HINT}"));
    }
    let mut rest = text;
    let mut total: u128 = 0;
    let mut smallest = None;
    loop {
        let Some((number, after)) = split_at_first(rest, |c| !c.is_ascii_digit() && c != '.') else {
            return Err(HINT.to_owned());
        };
        let (unit, after) = split_at_first(after, |c| !c.is_ascii_alphabetic()).unwrap_or(("", after));
        let rank = match (unit, smallest) {
            ("", None) if after.is_empty() => 3,
            ("", Some(before)) if after.is_empty() => match UNITS.get(before + 1) {
                Some((next, _)) => {
                    return Err(format!("the last number has no unit; write {text}{next} or the like"));
                }
                None => return Err(ORDER.to_owned()),
            },
            _ => UNITS.iter().position(|(known, _)| *known == unit).ok_or(HINT)?,
        };
        if smallest.is_some_and(|before| rank <= before) {
            return Err(ORDER.to_owned());
        }
        let nanos = scaled(number, UNITS[rank].1).ok_or(HINT)?;
        total = total.saturating_add(nanos);
        if total > LONGEST_DURATION.as_nanos() {
            return Err("that is too long; write at most 36500d".to_owned());
        }
        if after.is_empty() {
            break;
        }
        smallest = Some(rank);
        rest = after;
    }
    Ok(Duration::from_nanos(u64::try_from(total).map_err(|_| HINT)?))
}

/// Splits before the first character that `ends`; `None` when nothing comes before it.
fn split_at_first(text: &str, ends: impl Fn(char) -> bool) -> Option<(&str, &str)> {
    let at = text.find(ends).unwrap_or(text.len());
    (at > 0).then(|| text.split_at(at))
}

/// `number` (digits with at most one point) times `unit`. It is rounded up because a timeout of zero means
/// something else than a very short one.
fn scaled(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return None;
    }
    // More digits than these are beyond LONGEST_DURATION, or beyond a nanosecond.
    let whole: u128 = match whole.trim_start_matches('0') {
        "" => 0,
        digits if digits.len() > 20 => u128::from(u64::MAX),
        digits => digits.parse().ok()?,
    };
    let (kept, dropped) = fraction.split_at(fraction.len().min(18));
    let scale = 10u128.pow(u32::try_from(kept.len()).ok()?);
    let kept: u128 = if kept.is_empty() { 0 } else { kept.parse().ok()? };
    let kept = kept * 10 + u128::from(dropped.bytes().any(|digit| digit != b'0'));
    Some(whole.saturating_mul(unit).saturating_add((kept * unit).div_ceil(scale * 10)))
}

/// Prints a duration, to the millisecond, so that [`parse`] reads it back: `150ms`, `2.5s`, `1m30s`, `2h`.
pub fn show(duration: Duration) -> String {
    let (mut seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    if seconds == 0 && millis > 0 {
        return format!("{millis}ms");
    }
    let mut text = String::new();
    for (unit, length) in [("d", 86_400), ("h", 3600), ("m", 60)] {
        if seconds >= length {
            text.push_str(&format!("{}{unit}", seconds / length));
            seconds %= length;
        }
    }
    if seconds > 0 || millis > 0 || text.is_empty() {
        let decimal = format!("{seconds}.{millis:03}");
        text.push_str(decimal.trim_end_matches('0').trim_end_matches('.'));
        text.push('s');
    }
    text
}

/// Prints for how long something has lasted, as coarsely as people say it: `40s`, `12m`, `3h5m`, `2d4h`.
pub fn show_age(age: Duration) -> String {
    let seconds = age.as_secs();
    let grain = match seconds {
        0..60 => 1,
        60..86_400 => 60,
        _ => 3600,
    };
    show(Duration::from_secs(seconds / grain * grain))
}

/// Prints what was measured, to the nearest tenth of a second: the rest is chance.
pub fn show_measured(duration: Duration) -> String {
    show_tenths(duration + Duration::from_millis(50))
}

/// Prints a limit, rounded down: to the tenth of a second from one second on, to the millisecond below that.
pub fn show_limit(duration: Duration) -> String {
    if duration.as_secs() == 0 { show(duration) } else { show_tenths(duration) }
}

fn show_tenths(duration: Duration) -> String {
    show(duration.saturating_sub(Duration::from_nanos(u64::from(duration.subsec_nanos()) % 100_000_000)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_that_are_understood() {
        for (text, millis) in [
            ("0", 0),
            ("30", 30_000),
            ("1.5", 1500),
            (".5", 500),
            ("5.", 5000),
            ("0.001", 1),
            ("500ms", 500),
            ("90s", 90_000),
            ("5m", 300_000),
            ("1.5h", 5_400_000),
            ("1h30m", 5_400_000),
            ("1m500ms", 60_500),
            ("2d", 172_800_000),
            ("1d2h3m4s5ms", 93_784_005),
            ("007", 7000),
            ("36500d", 3_153_600_000_000),
            ("00000000000000000000000000000000000000000001", 1000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text:?}");
        }
        assert_eq!(parse("0.0000000001"), Ok(Duration::from_nanos(1)));
        assert_eq!(parse(&format!("0.{}1", "0".repeat(100))), Ok(Duration::from_nanos(1)));
    }

    #[test]
    fn lengths_and_ages_read_well() {
        for (millis, shown) in [
            (0, "0s"),
            (150, "150ms"),
            (2500, "2.5s"),
            (12_750, "12.75s"),
            (15_000, "15s"),
            (90_000, "1m30s"),
            (60_001, "1m0.001s"),
            (300_000, "5m"),
            (7_200_000, "2h"),
            (90_061_000, "1d1h1m1s"),
        ] {
            assert_eq!(show(Duration::from_millis(millis)), shown);
        }
        for (seconds, shown) in
            [(0, "0s"), (59, "59s"), (60, "1m"), (12 * 60 + 5, "12m"), (3900, "1h5m"), (100_000, "1d3h")]
        {
            assert_eq!(show_age(Duration::from_secs(seconds)), shown);
        }
        for (millis, measured, limit) in
            [(19_949, "19.9s", "19.9s"), (19_951, "20s", "19.9s"), (60, "100ms", "60ms"), (20, "0s", "20ms")]
        {
            let duration = Duration::from_millis(millis);
            assert_eq!((show_measured(duration).as_str(), show_limit(duration).as_str()), (measured, limit));
        }
    }

    #[test]
    fn refusals_say_what_to_write() {
        let too_long = "that is too long; write at most 36500d";
        for (text, message) in [
            ("", HINT),
            (" ", HINT),
            ("1x", HINT),
            ("x", HINT),
            ("s", HINT),
            (".", HINT),
            (".s", HINT),
            ("1..5", HINT),
            ("1.2.3", HINT),
            ("1 h", HINT),
            (" 1", HINT),
            ("1h ", HINT),
            ("+1", HINT),
            ("1e3", HINT),
            ("0x10", HINT),
            ("5M", HINT),
            ("5min", HINT),
            ("NaN", HINT),
            ("inf", HINT),
            ("infinity", HINT),
            ("１s", HINT),
            ("1µs", HINT),
            ("1,5", HINT),
            ("1h,30m", HINT),
            ("-1", &format!("a duration cannot be negative; {HINT}")),
            ("-0", &format!("a duration cannot be negative; {HINT}")),
            ("1h30", "the last number has no unit; write 1h30m or the like"),
            ("1m30", "the last number has no unit; write 1m30s or the like"),
            ("5ms3", ORDER),
            ("30m1h", ORDER),
            ("1h1h", ORDER),
            ("1ms1s", ORDER),
            ("36501d", too_long),
            ("99999999999999999999999999999999999999999999999999d", too_long),
            ("18446744073709551616", too_long),
            ("36500d1ms", too_long),
        ] {
            assert_eq!(parse(text), Err(message.to_owned()), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(millis in 0u64..3_153_600_000_000) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(parse(&show(duration)), Ok(duration));
        }

        #[test]
        fn no_text_is_too_odd(text in "\\PC*") {
            let _ = parse(&text);
        }

        #[test]
        fn nearly_durations(text in "[-+.0-9dhmsx ]{0,40}") {
            if let Ok(duration) = parse(&text) {
                prop_assert!(duration <= LONGEST_DURATION);
            }
        }
    }
}
