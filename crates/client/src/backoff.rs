//! How long to ask, and how long to wait before asking again. Pure: time and dice come in.
//!
//! **Invariant:** never sooner than the server asks, within a bound. On top of that comes capped exponential backoff with full jitter, so
//! that those who were sent away together do not come back together.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{DATE, HeaderName, RETRY_AFTER};

/// How long and how often to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For the whole operation. 2 minutes.
    pub deadline: Duration,
    /// Requests sent for one operation, questions about accepted work included. 100.
    pub attempts_max: u32,
    /// For one try, from the connection to the last byte of the answer. 30 seconds.
    pub try_timeout: Duration,
    /// Of an answer that is longer nobody looks at what it says. 16 MiB.
    pub answer_bytes_max: usize,
    /// The first step of the ladder of waits. 200 milliseconds.
    pub backoff: Duration,
    /// Its last. 10 seconds.
    pub backoff_max: Duration,
    /// What a server may ask for at most, by `Retry-After`. 1 minute.
    pub retry_after_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            deadline: Duration::from_mins(2),
            attempts_max: 100,
            try_timeout: Duration::from_secs(30),
            answer_bytes_max: 16 * 1024 * 1024,
            backoff: Duration::from_millis(200),
            backoff_max: Duration::from_secs(10),
            retry_after_max: Duration::from_mins(1),
        }
    }
}

/// The wait after so many attempts. `dice` is in [0, 1).
pub(crate) fn delay(
    attempts: u32,
    headers: Option<&HeaderMap>,
    limits: &Limits,
    now: SystemTime,
    dice: f64,
) -> Duration {
    let doublings = attempts.saturating_sub(1).min(30);
    let step = limits.backoff.saturating_mul(1 << doublings).min(limits.backoff_max);
    let asked = headers.map_or(Duration::ZERO, |headers| retry_after(headers, now));
    asked.min(limits.retry_after_max).saturating_add(part(step, dice))
}

/// Never more than the whole, whatever the dice are.
fn part(step: Duration, dice: f64) -> Duration {
    Duration::try_from_secs_f64(step.as_secs_f64() * dice).map_or(step, |part| part.min(step))
}

/// `Retry-After` as seconds or as an HTTP date; nothing if there is none, or none that can be read.
pub(crate) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Duration {
    let value = text(headers, &RETRY_AFTER).trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Duration::from_secs(value.parse().unwrap_or(u64::MAX));
    }
    let Ok(until) = httpdate::parse_http_date(value) else { return Duration::ZERO };
    // A date is by the clock of whoever wrote it, which also dated the answer.
    let from = httpdate::parse_http_date(text(headers, &DATE)).unwrap_or(now);
    until.duration_since(from).unwrap_or(Duration::ZERO)
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits {
        deadline: Duration::ZERO,
        attempts_max: 0,
        try_timeout: Duration::ZERO,
        answer_bytes_max: 0,
        backoff: Duration::from_millis(100),
        backoff_max: Duration::from_secs(1),
        retry_after_max: Duration::from_secs(5),
    };

    fn now() -> SystemTime {
        httpdate::parse_http_date("Fri, 01 Jan 2038 00:00:00 GMT").unwrap()
    }

    fn headers(lines: &[(HeaderName, &str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    fn asked(lines: &[(HeaderName, &str)]) -> Duration {
        retry_after(&headers(lines), now())
    }

    fn wait_ms(attempts: u32, after: Option<&str>, dice: f64) -> u128 {
        let headers = after.map(|after| headers(&[(RETRY_AFTER, after)]));
        delay(attempts, headers.as_ref(), &LIMITS, now(), dice).as_millis()
    }

    #[test]
    fn a_ladder_of_waits_doubles_up_to_its_bound() {
        let waits = [1, 2, 3, 4, 5, 6, 5000, u32::MAX].map(|attempts| wait_ms(attempts, None, 0.5));
        assert_eq!(waits, [50, 100, 200, 400, 500, 500, 500, 500]);
        assert_eq!(wait_ms(5, None, 0.0), 0, "full jitter reaches down to nothing");
    }

    #[test]
    fn what_the_server_asks_for_comes_first_and_the_jitter_on_top() {
        assert_eq!([0.0, 0.5].map(|dice| wait_ms(1, Some("2"), dice)), [2000, 2050]);
        assert_eq!(wait_ms(1, Some("3600"), 0.0), 5000, "up to a bound");
        assert_eq!(wait_ms(1, Some("99999999999999999999999999"), 0.0), 5000);
    }

    #[test]
    fn a_date_is_read_by_the_clock_of_whoever_wrote_it() {
        let seconds = Duration::from_secs;
        assert_eq!(asked(&[(RETRY_AFTER, " 7 ")]), seconds(7));
        assert_eq!(asked(&[(RETRY_AFTER, "Fri, 01 Jan 2038 00:00:03 GMT")]), seconds(3));
        assert_eq!(asked(&[(RETRY_AFTER, "Thu, 31 Dec 2037 23:59:59 GMT")]), seconds(0), "it has passed");
        let date = (DATE, "Fri, 01 Jan 2038 01:00:00 GMT");
        assert_eq!(asked(&[(RETRY_AFTER, "Fri, 01 Jan 2038 01:00:03 GMT"), date]), seconds(3));
    }

    #[test]
    fn what_cannot_be_read_asks_for_nothing() {
        for junk in ["", "soon", "-1", "1.5", "1.5x", "+1", "0x10", "Fri, 99 Jan 2038 00:00:03 GMT"] {
            assert_eq!(asked(&[(RETRY_AFTER, junk)]), Duration::ZERO, "{junk:?}");
        }
        let bytes = HeaderValue::from_bytes(b"\xb2").unwrap();
        assert_eq!(retry_after(&[(RETRY_AFTER, bytes)].into_iter().collect(), now()), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn a_wait_is_never_shorter_than_asked_and_never_longer_than_the_bounds(
            attempts: u32,
            asked_s in 0_u64..200_000,
            backoff_ms in 0_u64..100_000,
            backoff_max_ms in 0_u64..1_000_000,
            retry_after_max_ms in 0_u64..1_000_000,
            dice in 0.0_f64..1.0,
        ) {
            let limits = Limits {
                backoff: Duration::from_millis(backoff_ms),
                backoff_max: Duration::from_millis(backoff_max_ms),
                retry_after_max: Duration::from_millis(retry_after_max_ms),
                ..LIMITS
            };
            let headers = headers(&[(RETRY_AFTER, &asked_s.to_string())]);
            let asked = Duration::from_secs(asked_s).min(limits.retry_after_max);
            let wait = delay(attempts, Some(&headers), &limits, now(), dice);
            prop_assert!(wait >= asked, "{wait:?} is shorter than {asked:?}");
            prop_assert!(wait <= asked + limits.backoff_max);
        }

        #[test]
        fn no_limits_and_no_dice_make_it_panic(
            attempts: u32,
            backoff in any::<Duration>(),
            backoff_max in any::<Duration>(),
            retry_after_max in any::<Duration>(),
            dice: f64,
            after in "[ -~]{0,40}",
        ) {
            let limits = Limits { backoff, backoff_max, retry_after_max, ..LIMITS };
            let wait = delay(attempts, Some(&headers(&[(RETRY_AFTER, &after)])), &limits, now(), dice);
            prop_assert!(wait <= retry_after_max.saturating_add(backoff_max));
        }
    }
}
