//! Amounts as exact decimals: `12.50` is `12.5` is `1250e-2`, and no amount passes through a floating-point number.

use std::fmt;
use std::str::FromStr;

/// Longer ones are no amounts of money, and would cost memory.
const DIGITS_MAX: usize = 60;
/// Likewise.
const EXPONENT_MAX: i32 = 60;

/// A decimal number; equal if its value is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Amount {
    is_negative: bool,
    /// Without zeros at either end; empty: zero.
    digits: String,
    /// The value is digits × 10^exponent.
    exponent: i32,
}

impl Amount {
    /// Times 10^places: from major units to minor ones.
    pub(crate) fn shifted(self, places: i32) -> Self {
        // Zero has one spelling.
        let exponent = if self.digits.is_empty() { 0 } else { self.exponent + places };
        Self { exponent, ..self }
    }
}

/// Why a text is no amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotAnAmount;

impl fmt::Display for NotAnAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected digits with at most one point, such as 1250 or 12.50")
    }
}

impl FromStr for Amount {
    type Err = NotAnAmount;

    /// A decimal, or a JSON number. No thousands' separators: in `1,250` nobody can tell which it is.
    fn from_str(text: &str) -> Result<Self, NotAnAmount> {
        let (is_negative, unsigned) = match text.strip_prefix('-') {
            Some(unsigned) => (true, unsigned),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
            None => (unsigned, 0),
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().map_err(|_| NotAnAmount)?),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = [whole, fraction].concat();
        let are_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
        if digits.is_empty() || !are_digits || digits.len() > DIGITS_MAX || exponent.abs() > EXPONENT_MAX {
            return Err(NotAnAmount);
        }
        let kept = digits.trim_end_matches('0');
        let dropped = digits.len() - kept.len();
        let kept = kept.trim_start_matches('0');
        if kept.is_empty() {
            return Ok(Self { is_negative: false, digits: String::new(), exponent: 0 });
        }
        let places = |count: usize| i32::try_from(count).map_err(|_| NotAnAmount);
        let exponent = exponent + places(dropped)? - places(fraction.len())?;
        Ok(Self { is_negative, digits: kept.to_owned(), exponent })
    }
}

impl fmt::Display for Amount {
    /// Without an exponent: the one spelling of its value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { is_negative, digits, exponent } = self;
        if digits.is_empty() {
            return f.write_str("0");
        }
        if *is_negative {
            f.write_str("-")?;
        }
        let places = exponent.unsigned_abs() as usize;
        if *exponent >= 0 {
            return write!(f, "{digits}{}", "0".repeat(places));
        }
        match digits.len().checked_sub(places) {
            Some(point @ 1..) => write!(f, "{}.{}", &digits[..point], &digits[point..]),
            _ => write!(f, "0.{}{digits}", "0".repeat(places - digits.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_one_spelling() {
        for (written, read) in [
            ("0", "0"),
            ("-0.00", "0"),
            ("0e9", "0"),
            ("1250", "1250"),
            ("+1250", "1250"),
            ("12.50", "12.5"),
            ("012.5", "12.5"),
            ("1250e-2", "12.5"),
            ("1.25E3", "1250"),
            (".5", "0.5"),
            ("5.", "5"),
            ("-0.05", "-0.05"),
            ("9007199254740993", "9007199254740993"),
            ("0.1", "0.1"),
        ] {
            assert_eq!(written.parse::<Amount>().unwrap().to_string(), read, "{written}");
        }
    }

    #[test]
    fn what_a_double_would_confuse_is_told_apart() {
        let amount = |text: &str| text.parse::<Amount>().unwrap();
        assert_ne!(amount("9007199254740993"), amount("9007199254740992"));
        assert_ne!(amount("0.1"), amount("0.1000000000000000055"));
        assert_eq!(amount("12.50").shifted(2), amount("1250"));
        assert_eq!(amount("0").shifted(2), amount("0"));
        assert_eq!(amount("1250").shifted(-2), amount("12.5"));
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        let long = "1".repeat(DIGITS_MAX + 1);
        for bad in [
            "",
            "-",
            ".",
            "1,250",
            "1.2.3",
            "12 50",
            "€5",
            "0x10",
            "1e",
            "1e61",
            "1e99999999999",
            "NaN",
            "--1",
            &long,
        ] {
            assert_eq!(bad.parse::<Amount>(), Err(NotAnAmount), "{bad}");
        }
    }
}
