//! Times as programs read them: RFC 3339, in UTC.

/// The time that is so many milliseconds after the Unix epoch, such as `2026-11-22T13:54:03.120Z`. `None` if RFC 3339,
/// whose years have four digits, cannot express it, or if it is before the epoch: then it was made up.
pub fn rfc3339(millis: i64) -> Option<String> {
    const DAY: i64 = 86_400_000;
    let (days, rest) = (millis.div_euclid(DAY), millis.rem_euclid(DAY));
    let (year, month, day) = civil(days);
    let (seconds, thousandths) = (rest / 1000, rest % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    (millis >= 0 && year <= 9999)
        .then(|| format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{thousandths:03}Z"))
}

/// Year, month and day of the day that is so many days after 1970-01-01. The years are counted from March here, so that
/// the leap day is the last of its year.
fn civil(days: i64) -> (i64, i64, i64) {
    /// From the first of March of year 0 to 1970-01-01.
    const EPOCH: i64 = 719_468;
    const FOUR_CENTURIES: i64 = 146_097;
    let days = days + EPOCH;
    let (era, day_of_era) = (days.div_euclid(FOUR_CENTURIES), days.rem_euclid(FOUR_CENTURIES));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
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
