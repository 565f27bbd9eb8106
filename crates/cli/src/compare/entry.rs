//! The two sides, as they are sorted: a charge of the export, and a record.

use oncegate_core::codec::{Decoder, Encoder, Malformed};

use super::columns::unquoted;

/// Charges come first, so that a record knows whether it was charged.
pub(crate) const CHARGE: u8 = 0;
pub(crate) const RECORD: u8 = 1;

/// An amount in its one spelling, and its currency where that is compared too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Money {
    pub(crate) amount: String,
    pub(crate) currency: Option<String>,
}

impl std::fmt::Display for Money {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.amount)?;
        self.currency.as_ref().map_or(Ok(()), |currency| write!(f, " {currency}"))
    }
}

/// A row of the export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) line: u64,
    pub(crate) is_in_window: bool,
    /// Or the record's id, as the export has it.
    pub(crate) key: String,
    pub(crate) scope: String,
    pub(crate) reference: String,
    pub(crate) money: Option<Money>,
}

/// A record, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) scope: String,
    pub(crate) state: String,
    pub(crate) is_parked: bool,
    /// Of the stored answer.
    pub(crate) status: Option<u16>,
    pub(crate) created_at: String,
    pub(crate) is_in_window: bool,
    /// Of the operation that was asked for.
    pub(crate) is_asked_for: bool,
    pub(crate) money: Recorded,
}

/// The amount in a stored answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// Nobody asked, or the answer is none of a success.
    NotAsked,
    /// The answer was too large to keep.
    NotKept,
    /// It is not where it should be.
    Missing(String),
    Found(Money),
}

impl Kept {
    /// The operation did what was asked.
    pub(crate) fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status < 400)
    }

    /// Past its retention: nobody can tell any more.
    pub(crate) fn is_tombstone(&self) -> bool {
        self.status.is_none() && self.state == "expired"
    }
}

/// What a key is found by, in any scope.
pub(crate) fn by_key(key: &str) -> Vec<u8> {
    unquoted(key).into_bytes()
}

/// What a tenant's key is found by. No tenant has a control character.
pub(crate) fn by_key_in_scope(tenant: &str, key: &str) -> Vec<u8> {
    [tenant.as_bytes(), b"\x1f", &by_key(key)].concat()
}

impl Charge {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        out.i64(self.line.cast_signed());
        out.u8(self.is_in_window.into());
        out.text(&self.key);
        out.text(&self.scope);
        out.text(&self.reference);
        encode_money(&mut out, self.money.as_ref());
        out.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = Decoder::new(bytes, "charge");
        Ok(Self {
            line: input.i64()?.cast_unsigned(),
            is_in_window: input.u8()? == 1,
            key: input.text()?.to_owned(),
            scope: input.text()?.to_owned(),
            reference: input.text()?.to_owned(),
            money: decode_money(&mut input)?,
        })
    }
}

impl Kept {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        for text in [&self.id, &self.key, &self.scope, &self.state, &self.created_at] {
            out.text(text);
        }
        out.u16(self.status.unwrap_or_default());
        let flags = [self.is_parked, self.is_in_window, self.is_asked_for];
        for flag in flags {
            out.u8(flag.into());
        }
        match &self.money {
            Recorded::NotAsked => out.u8(0),
            Recorded::NotKept => out.u8(1),
            Recorded::Missing(why) => {
                out.u8(2);
                out.text(why);
            }
            Recorded::Found(money) => {
                out.u8(3);
                encode_money(&mut out, Some(money));
            }
        }
        out.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = Decoder::new(bytes, "record");
        let mut text = || input.text().map(str::to_owned);
        let (id, key, scope, state, created_at) = (text()?, text()?, text()?, text()?, text()?);
        let status = Some(input.u16()?).filter(|status| *status != 0);
        let mut flag = || Ok(input.u8()? == 1);
        let (is_parked, is_in_window, is_asked_for) = (flag()?, flag()?, flag()?);
        let money = match input.u8()? {
            0 => Recorded::NotAsked,
            1 => Recorded::NotKept,
            2 => Recorded::Missing(input.text()?.to_owned()),
            _ => Recorded::Found(decode_money(&mut input)?.ok_or(Malformed { what: "record" })?),
        };
        Ok(Self { id, key, scope, state, is_parked, status, created_at, is_in_window, is_asked_for, money })
    }
}

fn encode_money(out: &mut Encoder, money: Option<&Money>) {
    out.optional(money.map(|money| money.amount.as_bytes()));
    out.optional(money.and_then(|money| money.currency.as_deref()).map(str::as_bytes));
}

fn decode_money(input: &mut Decoder<'_>) -> Result<Option<Money>, Malformed> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| Malformed { what: "amount" });
    let amount = input.optional()?.map(text).transpose()?;
    let currency = input.optional()?.map(text).transpose()?;
    Ok(amount.map(|amount| Money { amount, currency }))
}
