//! The canonical text of a number: its exact decimal value, laid out as ECMAScript lays out a double.
//!
//! RFC 8785 takes the shortest digits that name the literal's double, and places the point by the rules of
//! `Number::toString`. Here the digits are the literal's own, without zeros at either end, placed by the same rules.
//!
//! *The same as RFC 8785 where that loses nothing.* If the literal's value is the decimal value of the double's
//! shortest form, both have the same digits and the same point, hence the same text.
//!
//! *No collision where it would lose something.* The text depends on the value alone (sign, digits, point), and read
//! as a decimal it is that value again, for the layout only adds zeros and an exponent. So two values never share a
//! text: in particular, the text of a number that no double holds is not the text of any double, whose value differs.

use std::borrow::Cow;
use std::fmt::Write;

/// Beyond this many digits before the point, ECMAScript writes an exponent.
const WHOLE_DIGITS_MAX: usize = 21;

/// The exponent does not fit 64 bits: nobody means such a number, and its neighbours could not be told apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ExponentTooLarge;

/// Writes a literal of the JSON grammar in the one way of its value.
pub(super) fn canonical(literal: &str) -> Result<Cow<'_, str>, ExponentTooLarge> {
    if let Some(text) = already_canonical(literal) {
        return Ok(Cow::Borrowed(text));
    }
    let (sign, unsigned) = match literal.strip_prefix('-') {
        Some(unsigned) => ("-", unsigned),
        None => ("", literal),
    };
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));

    let padded = [whole, fraction].concat();
    let without_leading = padded.trim_start_matches('0');
    let digits = without_leading.trim_end_matches('0');
    if digits.is_empty() {
        // Zero has no sign and no exponent: RFC 8785 writes -0 as 0.
        return Ok(Cow::Borrowed("0"));
    }
    let leading = padded.len() - without_leading.len();
    // The value is 0.digits × 10^point. Wide arithmetic, so that the value decides, not how it is spelled.
    let point = exponent_value(exponent) + whole.len() as i128 - leading as i128;
    if i64::try_from(point - 1).is_err() {
        return Err(ExponentTooLarge);
    }
    Ok(Cow::Owned(lay_out(sign, digits, point)))
}

/// The common amounts, `1250` and `12.50`, need no copy: canonical as they stand, but for zeros at the end.
fn already_canonical(literal: &str) -> Option<&str> {
    let unsigned = literal.strip_prefix('-').unwrap_or(literal);
    let whole_digits = unsigned.bytes().take_while(u8::is_ascii_digit).count();
    if whole_digits > WHOLE_DIGITS_MAX || unsigned.starts_with('0') {
        return None;
    }
    match unsigned[whole_digits..].strip_prefix('.') {
        None if whole_digits == unsigned.len() => Some(literal),
        Some(fraction) if fraction.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(literal.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => None,
    }
}

/// Places the point as `Number::toString` does.
fn lay_out(sign: &str, digits: &str, point: i128) -> String {
    let mut text = String::with_capacity(sign.len() + digits.len() + WHOLE_DIGITS_MAX);
    text.push_str(sign);
    match usize::try_from(point) {
        Ok(whole @ 1..=WHOLE_DIGITS_MAX) if digits.len() <= whole => {
            text.push_str(digits);
            text.extend((digits.len()..whole).map(|_| '0'));
        }
        Ok(whole @ 1..=WHOLE_DIGITS_MAX) => {
            text.push_str(&digits[..whole]);
            text.push('.');
            text.push_str(&digits[whole..]);
        }
        _ if (-5..=0).contains(&point) => {
            text.push_str("0.");
            text.extend((point..0).map(|_| '0'));
            text.push_str(digits);
        }
        _ => {
            let (first, others) = digits.split_at(1);
            text.push_str(first);
            if !others.is_empty() {
                text.push('.');
                text.push_str(others);
            }
            // Writing to a string cannot fail.
            let _ = write!(text, "e{:+}", point - 1);
        }
    }
    text
}

/// Reads an exponent, up to a bound that is far beyond 64 bits and that no length of a mantissa can bring back.
fn exponent_value(text: &str) -> i128 {
    const BOUND: i128 = 1 << 100;
    let digits = text.trim_start_matches(['+', '-']);
    let size = digits.bytes().fold(0, |size: i128, digit| (size * 10 + i128::from(digit - b'0')).min(BOUND));
    if text.starts_with('-') { -size } else { size }
}
