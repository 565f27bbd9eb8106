//! The range of the durations that policies and options may have.
//!
//! A timestamp plus a duration must stay a date that can be written. So a duration longer than
//! [`DURATION_MAX`] is refused when it is declared, not when a request first uses it.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// The longest duration of a policy or an option: 100 years.
pub const DURATION_MAX: Duration = Duration::from_hours(24 * 36_525);

/// The shortest interval or timeout that is used in place of an invalid one.
pub const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// A duration outside its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidDuration {
    /// What it is called where it was declared.
    pub field: &'static str,
    /// Its value.
    pub value: Duration,
}

impl fmt::Display for InvalidDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, value } = self;
        if value.is_zero() {
            return write!(f, "`{field}` is 0s; it must be greater than zero");
        }
        let (value, max) = (value.as_secs(), DURATION_MAX.as_secs());
        write!(f, "`{field}` is {value}s; it must be at most {max}s (100 years)")
    }
}

impl Error for InvalidDuration {}

/// At most [`DURATION_MAX`].
pub const fn check_max(field: &'static str, value: Duration) -> Result<(), InvalidDuration> {
    if value.as_nanos() > DURATION_MAX.as_nanos() {
        return Err(InvalidDuration { field, value });
    }
    Ok(())
}

/// Greater than zero, and at most [`DURATION_MAX`].
pub const fn check_positive(field: &'static str, value: Duration) -> Result<(), InvalidDuration> {
    if value.is_zero() {
        return Err(InvalidDuration { field, value });
    }
    check_max(field, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_outside_its_range_is_refused_with_its_name_its_value_and_the_limit() {
        assert_eq!(check_positive("retention", DURATION_MAX), Ok(()));
        assert_eq!(check_max("linger", Duration::ZERO), Ok(()));
        let long = check_positive("retention", DURATION_MAX + Duration::from_secs(1)).unwrap_err();
        let words = "`retention` is 3155760001s; it must be at most 3155760000s (100 years)";
        assert_eq!(long.to_string(), words);
        let zero = check_positive("lease", Duration::ZERO).unwrap_err();
        assert_eq!(zero.to_string(), "`lease` is 0s; it must be greater than zero");
    }
}
