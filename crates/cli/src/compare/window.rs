//! Moments as people and exports write them, and the stretch of time that is compared.

use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oncegate_core::time::Timestamp;
use oncegate_gateway::reconcile::Moment;

/// A moment on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    At(Timestamp),
    /// Before now.
    Ago(Duration),
}

impl FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(at) = rfc3339(text) {
            return Ok(Self::At(at));
        }
        humantime::parse_duration(text)
            .map(Self::Ago)
            .map_err(|_| "expected the like of 2026-11-16T00:00:00Z, or of 24h, so long ago".to_owned())
    }
}

impl When {
    pub(crate) fn moment(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::Ago(span) => now.minus(span),
        }
    }
}

/// What is compared: from `since` on, before `until`. Who began just outside may have a counterpart inside, so both sides are read for
/// `slack` more at either end; what is there explains, and is not reported itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) since: Timestamp,
    pub(crate) until: Timestamp,
    pub(crate) slack: Duration,
}

/// Where a moment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lies {
    Inside,
    /// Within the slack.
    Near,
    Outside,
}

impl Window {
    pub(crate) fn of(&self, at: Timestamp) -> Lies {
        if (self.since..self.until).contains(&at) {
            Lies::Inside
        } else if (self.first()..self.end()).contains(&at) {
            Lies::Near
        } else {
            Lies::Outside
        }
    }

    /// From when on both sides are read.
    pub(crate) fn first(&self) -> Timestamp {
        self.since.minus(self.slack)
    }

    /// Before when both sides are read.
    pub(crate) fn end(&self) -> Timestamp {
        self.until.plus(self.slack)
    }
}

/// This machine's clock.
pub(crate) fn now() -> Timestamp {
    from_system(SystemTime::now()).unwrap_or(Timestamp::from_micros(0))
}

/// A moment in an export: RFC 3339, or seconds since 1970.
pub(crate) fn moment(text: &str) -> Result<Timestamp, String> {
    if let Some(at) = rfc3339(text) {
        return Ok(at);
    }
    let expected = "expected the like of 2026-11-16T09:30:00Z, or seconds since 1970";
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number =
        !seconds.is_empty() && [seconds, fraction].concat().bytes().all(|byte| byte.is_ascii_digit());
    if !is_number {
        return Err(format!("{text:?} is not a moment; {expected}"));
    }
    if seconds.len() > 11 {
        return Err(format!(
            "{text:?} is too large for seconds since 1970: are these milliseconds? {expected}"
        ));
    }
    let micros: String = fraction.chars().chain("000000".chars()).take(6).collect();
    let micros =
        [seconds, &micros].concat().parse().map_err(|_| format!("{text:?} is not a moment; {expected}"))?;
    Ok(Timestamp::from_micros(micros))
}

/// Without an offset it is UTC.
fn rfc3339(text: &str) -> Option<Timestamp> {
    let moment = Moment::rfc3339(text).or_else(|| Moment::rfc3339(&format!("{text}Z")));
    moment.map(Moment::earliest)
}

fn from_system(time: SystemTime) -> Option<Timestamp> {
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    Some(Timestamp::from_micros(i64::try_from(since.as_micros()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_exports() {
        let noon = Timestamp::from_micros(1_763_294_400_000_000);
        for text in [
            "2025-11-16T12:00:00Z",
            "2025-11-16T12:00:00.000Z",
            "2025-11-16 12:00:00",
            "2025-11-16T13:00:00+01:00",
            "2025-11-16T06:30:00-05:30",
            "2025-11-16T12:00:00+00:00",
            "1763294400",
            "1763294400.0",
        ] {
            assert_eq!(moment(text), Ok(noon), "{text}");
        }
        assert_eq!(moment("1763294400.0000019"), Ok(Timestamp::from_micros(1_763_294_400_000_001)));
        for bad in [
            "",
            "noon",
            "-1",
            "1763294400000",
            "16.11.2025 12:00",
            "2025-11-16T13:00:00+1:000",
            "2025-11-16T13:00:00+99:00",
            "24h",
        ] {
            assert!(moment(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn moments_on_the_command_line() {
        let now = Timestamp::from_micros(1_763_294_400_000_000);
        let moment = |text: &str| text.parse::<When>().map(|when| when.moment(now).as_micros());
        assert_eq!(moment("2025-11-16T11:00:00Z"), Ok(1_763_290_800_000_000));
        assert_eq!(moment("1h"), Ok(1_763_290_800_000_000));
        // A bare number could be either: refused.
        assert!(moment("1763290800").is_err());
        assert!(moment("yesterday").is_err());
    }

    #[test]
    fn the_ends_of_a_window() {
        let at = Timestamp::from_micros;
        let window = Window { since: at(100), until: at(200), slack: Duration::from_micros(10) };
        let lies = [89, 90, 99, 100, 199, 200, 209, 210].map(|moment| window.of(at(moment)));
        let (outside, near, inside) = (Lies::Outside, Lies::Near, Lies::Inside);
        assert_eq!(lies, [outside, near, near, inside, inside, near, near, outside]);
    }
}
