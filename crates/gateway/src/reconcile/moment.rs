//! When a provider says that something was made.
//!
//! **Invariant:** a moment is as long as its last digit says: a whole second that contains a life's beginning is not before it.

use std::time::UNIX_EPOCH;

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
        if is_number { Self::whole_second(text.parse().ok()?) } else { Self::rfc3339(text) }
    }

    /// `2026-11-16T10:33:17.25+01:00`; not before 1970.
    #[must_use]
    pub fn rfc3339(text: &str) -> Option<Self> {
        let (local, rest) = text.split_at_checked("2026-11-16T10:33:17".len())?;
        let (fraction, zone) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count()),
            None => ("", rest),
        };
        if fraction.is_empty() && rest.starts_with('.') {
            return None;
        }
        // Zones are not for the crate, nor is how fine a moment is said.
        let local = humantime::parse_rfc3339_weak(&local.to_ascii_uppercase()).ok()?;
        let local = i64::try_from(local.duration_since(UNIX_EPOCH).ok()?.as_micros()).ok()?;
        // What is finer than a microsecond is within one.
        let digits = &fraction[..fraction.len().min(6)];
        let unit = SECOND / 10_i64.pow(u32::try_from(digits.len()).ok()?);
        let within = if digits.is_empty() { 0 } else { digits.parse::<i64>().ok()? * unit };
        let first = local - offset(zone)? * SECOND + within;
        Some(Self { first, last: first + unit - 1 })
    }

    pub(super) fn of(part: Part<'_>) -> Result<Option<Self>, NotJson> {
        Ok(part.name()?.and_then(|text| Self::read(&text)))
    }

    fn whole_second(seconds: i64) -> Option<Self> {
        let first = seconds.checked_mul(SECOND)?;
        Some(Self { first, last: first.checked_add(SECOND - 1)? })
    }

    /// Its first microsecond.
    #[must_use]
    pub const fn earliest(self) -> Timestamp {
        Timestamp::from_micros(self.first)
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
            ("1970-01-01T00:00:00.000+00:01", -60 * SECOND, 1_000),
            ("2000-02-29T12:00:00Z", 951_825_600 * SECOND, SECOND),
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
            "0001-01-01T00:00:00Z",
            "2025-11-16T10:33:17+24:00",
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
