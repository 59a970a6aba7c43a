//! Durations as users write and read them.

use std::time::Duration;

/// The longest duration that [`parse`] accepts: a hundred years, so that no sum of two overflows any clock.
const LONGEST_DURATION: Duration = Duration::from_secs(36_500 * 24 * 60 * 60);

/// The units in seconds, longest first. A compound such as `1h30m` must keep this order.
const UNITS: [(&str, f64); 5] = [("d", 86_400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0), ("ms", 0.001)];

const HINT: &str = "write a duration such as 30, 1.5, 500ms, 90s, 5m, 1h30m or 2d";

/// Reads `30` and `1.5` (seconds), `500ms`, `90s`, `5m`, `2d`, `1h30m`.
///
/// The error says what to write instead.
pub fn parse(text: &str) -> Result<Duration, String> {
    if text.starts_with('-') {
        return Err(format!("a duration cannot be negative; {HINT}"));
    }
    let is_of_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut units = UNITS.iter();
    let mut total = Duration::ZERO;
    let mut rest = text;
    loop {
        let (number, after) = rest.split_at(rest.find(|c| !is_of_number(c)).unwrap_or(rest.len()));
        let (unit, after) = after.split_at(after.find(is_of_number).unwrap_or(after.len()));
        let unit = if number == text { "s" } else { unit };
        // The iterator has only the units that may still follow.
        let (_, seconds) = units.find(|(known, _)| *known == unit).ok_or(HINT)?;
        total = total.saturating_add(scaled(number, *seconds).ok_or(HINT)?);
        if total > LONGEST_DURATION {
            return Err("that is too long; write at most 36500d".to_owned());
        }
        if after.is_empty() {
            return Ok(total);
        }
        rest = after;
    }
}

/// A decimal number of these `seconds`. A very short time is not zero, because a timeout of zero means something else.
fn scaled(number: &str, seconds: f64) -> Option<Duration> {
    let number: f64 = number.parse().ok()?;
    let shortest = Duration::from_nanos(u64::from(number > 0.0));
    Some(Duration::try_from_secs_f64(number * seconds).unwrap_or(Duration::MAX).max(shortest))
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
            ("1h30", HINT),
            ("5ms3", HINT),
            ("30m1h", HINT),
            ("1h1h", HINT),
            ("1ms1s", HINT),
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
