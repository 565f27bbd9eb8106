//! When a provider says that something was made.
//!
//! **Invariant:** a moment is as long as its last digit says: a whole second that contains a life's beginning is not before it.

use oncegate_core::time::Timestamp;

use super::document::{NotJson, Part};

/// A moment, from its first microsecond to its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    first: i64,
    last: i64,
}

const SECOND: i64 = 1_000_000;

impl Moment {
    /// Seconds since 1970, or RFC 3339.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let is_number = text.strip_prefix('-').unwrap_or(text).bytes().all(|byte| byte.is_ascii_digit());
        if is_number { Self::whole_second(text.parse().ok()?) } else { rfc3339(text) }
    }

    pub(super) fn of(part: Part<'_>) -> Result<Option<Self>, NotJson> {
        Ok(part.name()?.and_then(|text| Self::read(&text)))
    }

    fn whole_second(seconds: i64) -> Option<Self> {
        let first = seconds.checked_mul(SECOND)?;
        Some(Self { first, last: first.checked_add(SECOND - 1)? })
    }

    /// Its last microsecond.
    #[must_use]
    pub const fn latest(self) -> Timestamp {
        Timestamp::from_micros(self.last)
    }

    /// Whether all of it is before `moment`.
    #[must_use]
    pub const fn is_before(self, moment: Timestamp) -> bool {
        self.last < moment.as_micros()
    }
}

/// `2026-11-16T10:33:17.25+01:00`
fn rfc3339(text: &str) -> Option<Moment> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| {
        let digits = text.get(from..to)?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<i64>().ok())?
    };
    let is = |at: usize, letters: &[u8]| bytes.get(at).is_some_and(|byte| letters.contains(byte));
    let fits = is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":");
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    // A leap second is the one before it, as in Unix time.
    let is_time = hour < 24 && minute < 60 && second <= 60;
    if !fits || !is_time || !(1..=12).contains(&month) || !(1..=days_in(year, month)).contains(&day) {
        return None;
    }
    let (fraction, zone) = match text.get(19..)?.strip_prefix('.') {
        Some(rest) => rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count()),
        None => ("", text.get(19..)?),
    };
    if fraction.is_empty() && text.as_bytes().get(19) == Some(&b'.') {
        return None;
    }
    let seconds =
        days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second.min(59) - offset(zone)?;
    // What is finer than a microsecond is within one.
    let digits = &fraction[..fraction.len().min(6)];
    let unit = SECOND / 10_i64.pow(u32::try_from(digits.len()).ok()?);
    let first = seconds * SECOND + if digits.is_empty() { 0 } else { digits.parse::<i64>().ok()? * unit };
    Some(Moment { first, last: first + unit - 1 })
}

/// How far a zone is ahead, in seconds.
fn offset(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let sign = match zone.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let two = |text: &str| {
        (text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| text.parse::<i64>().ok())?
    };
    let (hours, minutes) = (two(hours)?, two(minutes)?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3_600 + minutes * 60))
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970, by the usual counting of years from March.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Expected by python3: `int(datetime.fromisoformat(t).timestamp() * 1e6)`.
    #[test]
    fn moments_are_read() {
        for (text, first, unit) in [
            ("0", 0, SECOND),
            ("1763289197", 1_763_289_197 * SECOND, SECOND),
            ("1970-01-01T00:00:00Z", 0, SECOND),
            ("2025-11-16T10:33:17Z", 1_763_289_197 * SECOND, SECOND),
            ("2025-11-16t11:33:17.5+01:00", 1_763_289_197 * SECOND + 500_000, 100_000),
            ("2025-11-15 23:03:17.123456789-11:30", 1_763_289_197 * SECOND + 123_456, 1),
            ("2024-02-29T23:59:60Z", 1_709_251_199 * SECOND, SECOND),
            ("1969-12-31T23:59:59.000Z", -SECOND, 1_000),
        ] {
            assert_eq!(Moment::read(text), Some(Moment { first, last: first + unit - 1 }), "{text}");
        }
        for text in [
            "",
            "-",
            "now",
            "1.5",
            "2025-11-16",
            "2025-11-16T10:33:17",
            "2025-02-29T00:00:00Z",
            "2025-13-01T00:00:00Z",
            "2025-11-16T24:00:00Z",
            "2025-11-16T10:33:17.Z",
            "2025-11-16T10:33:17+1:00",
            "2025-11-16T10:33:17Z ",
            "99999999999999999999",
            "9223372036854775807",
            "+5",
            "２０25-11-16T10:33:17Z",
        ] {
            assert_eq!(Moment::read(text), None, "{text}");
        }
    }

    #[test]
    fn a_second_that_contains_the_beginning_is_not_before_it() {
        let moment = Moment::read("100").unwrap();
        assert!(!moment.is_before(Timestamp::from_micros(100 * SECOND + 999_999)));
        assert!(moment.is_before(Timestamp::from_micros(101 * SECOND)));
        let exact = Moment::read("1970-01-01T00:01:40.000000Z").unwrap();
        assert!(exact.is_before(Timestamp::from_micros(100 * SECOND + 1)));
        assert!(!exact.is_before(Timestamp::from_micros(100 * SECOND)));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,40}", digits in "[-+0-9:TZ. ]{0,40}") {
            let _ = (Moment::read(&text), Moment::read(&digits));
        }
    }
}
