//! What a client may ask for. Checked before anything is written or sent.

use serde::Deserialize;

/// The largest amount, in cents.
const AMOUNT_MAX: i64 = 100_000_000;

/// A payment, or a refund.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    pub(super) amount: i64,
    #[serde(default)]
    pub(super) currency: Option<String>,
}

/// A payment that makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Money {
    pub(super) amount: i64,
    pub(super) currency: String,
}

/// Reads a payment; the error is for the client.
pub(super) fn payment(body: &[u8]) -> Result<Money, String> {
    let asked = parse(body)?;
    let currency = asked.currency.ok_or("currency is missing: three capital letters, such as EUR")?;
    if currency.len() != 3 || !currency.bytes().all(|letter| letter.is_ascii_uppercase()) {
        return Err(format!("currency {currency:?} is not three capital letters, such as EUR"));
    }
    Ok(Money { amount: asked.amount, currency })
}

/// Reads a refund of a payment.
pub(super) fn refund(body: &[u8], paid: &Money) -> Result<Money, String> {
    let asked = parse(body)?;
    if asked.currency.as_ref().is_some_and(|currency| *currency != paid.currency) {
        return Err(format!("the payment was in {}", paid.currency));
    }
    Ok(Money { amount: asked.amount, currency: paid.currency.clone() })
}

fn parse(body: &[u8]) -> Result<Asked, String> {
    let asked: Asked = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if !(1..=AMOUNT_MAX).contains(&asked.amount) {
        return Err(format!("amount {} is not between 1 and {AMOUNT_MAX} cents", asked.amount));
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_makes_sense_is_a_payment() {
        let paid = payment(br#"{"amount": 100, "currency": "EUR"}"#).unwrap();
        assert_eq!(paid, Money { amount: 100, currency: "EUR".to_owned() });
        for (body, words) in [
            (r#"{"amount": 0, "currency": "EUR"}"#, "amount 0"),
            (r#"{"amount": -5, "currency": "EUR"}"#, "amount -5"),
            (r#"{"amount": 100000001, "currency": "EUR"}"#, "amount 100000001"),
            (r#"{"amount": 1.5, "currency": "EUR"}"#, "invalid type"),
            (r#"{"amount": 100}"#, "currency is missing"),
            (r#"{"amount": 100, "currency": "euro"}"#, "three capital letters"),
            (r#"{"amount": 100, "currency": "EUR", "to": 1}"#, "unknown field"),
            ("amount=100", "expected"),
        ] {
            let error = payment(body.as_bytes()).unwrap_err();
            assert!(error.contains(words), "{body}: {error}");
        }
        assert!(refund(br#"{"amount": 100}"#, &paid).is_ok());
        assert!(refund(br#"{"amount": 0}"#, &paid).is_err());
        assert!(refund(br#"{"amount": 1, "currency": "USD"}"#, &paid).is_err());
    }
}
