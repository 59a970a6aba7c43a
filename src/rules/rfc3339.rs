//! Times as programs read them: RFC 3339, in UTC; and the calendar behind them.

/// The time that is so many milliseconds after the Unix epoch, such as `2026-11-22T13:54:03.120Z`. `None` if RFC 3339,
/// whose years have four digits, cannot express it, or if it is before the epoch: then it was made up.
pub fn rfc3339(millis: i64) -> Option<String> {
    const DAY: i64 = 86_400_000;
    let (day, rest) = (millis.div_euclid(DAY), millis.rem_euclid(DAY));
    let (year, month, day) = date(day);
    let (seconds, thousandths) = (rest / 1000, rest % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    (millis >= 0 && year <= 9999)
        .then(|| format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{thousandths:03}Z"))
}

/// Year, month and day of the day that is so many days after 1970-01-01.
fn date(day: i64) -> (i64, i64, i64) {
    // By their average length, four centuries of which have 146,097 days; the year before and the one after may be right.
    let year = 1970 + day * 400 / 146_097;
    let months = (year - 1..=year + 1).flat_map(|year| (1..=12).map(move |month| (year, month)));
    let (year, month) = months.take_while(|(year, month)| days(*year, *month, 1) <= day).last().unwrap_or((year, 1));
    (year, month, day - days(year, month, 1) + 1)
}

/// How many days this day is after 1970-01-01. The years are counted from March, so that the leap day is the last of its
/// year.
pub fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + (153 * month + 2) / 5 + day
        - 719_469
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
