//! Times as programs read them: RFC 3339, in UTC.

/// The time that is `millis` milliseconds after the Unix epoch, such as `2026-11-22T13:54:03.120Z`. `None` if RFC 3339,
/// whose years have four digits, cannot express it, or if it is before the epoch: then it was made up.
pub fn rfc3339(millis: i64) -> Option<String> {
    const DAY: i64 = 86_400_000;
    const YEAR_10000: i64 = 2_932_897 * DAY;
    if !(0..YEAR_10000).contains(&millis) {
        return None;
    }
    let (year, month, day) = date(millis / DAY);
    let rest = millis % DAY;
    let (seconds, thousandths) = (rest / 1000, rest % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    Some(format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{thousandths:03}Z"))
}

/// Year, month and day of the date that is `day` days after 1970-01-01.
fn date(mut day: i64) -> (i64, i64, i64) {
    let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_of = |year| 365 + i64::from(is_leap(year));
    let mut year = 1970;
    while day >= days_of(year) {
        day -= days_of(year);
        year += 1;
    }
    let mut month = 1;
    for days in [31, 28 + i64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    (year, month, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_date_1_knows() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_735_689_599_001, "2024-12-31T23:59:59.001Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(rfc3339(millis).as_deref(), Some(text));
        }
    }

    #[test]
    fn times_that_cannot_be() {
        for millis in [-1, i64::MIN, 253_402_300_800_000, i64::MAX] {
            assert_eq!(rfc3339(millis), None);
        }
    }
}
