//! Which column of an export says what, and what a row comes to.

use std::fmt;

use oncegate_core::identity::RecordId;
use oncegate_core::key::Key;
use oncegate_core::policy::{EmptyKey, KeyForm, KeyPolicy, KeySyntax};

use super::amount::Amount;
use super::entry::{Charge, Money, by_key, by_key_in_scope};
use super::window::{self, Lies, Window};

/// What a column may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Key,
    Scope,
    Id,
    Reference,
    Amount,
    Currency,
    Status,
    Time,
}

impl Field {
    const ALL: [Self; 8] = [
        Self::Key,
        Self::Scope,
        Self::Id,
        Self::Reference,
        Self::Amount,
        Self::Currency,
        Self::Status,
        Self::Time,
    ];

    /// The flag that names its column.
    pub(crate) const fn flag(self) -> &'static str {
        match self {
            Self::Key => "--key-column",
            Self::Scope => "--scope-column",
            Self::Id => "--id-column",
            Self::Reference => "--reference-column",
            Self::Amount => "--amount-column",
            Self::Currency => "--currency-column",
            Self::Status => "--status-column",
            Self::Time => "--time-column",
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.flag().trim_start_matches("--");
        f.write_str(name.strip_suffix("-column").unwrap_or(name))
    }
}

/// How a row finds its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Matching {
    /// By the client's key, in any scope.
    Key,
    /// By tenant and key.
    KeyInScope,
    /// By `op_…`.
    Id,
    /// By the key that the gateway derives.
    DerivedKey,
}

/// The columns that count, and what is taken for a charge.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    pub(crate) matching: Matching,
    pub(crate) names: [Option<String>; 8],
    /// Only rows with one of these are charges; none: all are.
    pub(crate) charged: Vec<String>,
    /// The export's amounts times 10^this are the answers'.
    pub(crate) amount_shift: i32,
    pub(crate) window: Window,
}

impl Columns {
    /// Those that were named.
    pub(crate) fn named(&self) -> impl Iterator<Item = (Field, &str)> {
        Field::ALL.into_iter().filter_map(|field| Some((field, self.names[field as usize].as_deref()?)))
    }

    fn is_named(&self, field: Field) -> bool {
        self.names[field as usize].is_some()
    }

    /// What a row is.
    pub(crate) fn read(&self, line: u64, values: &Values) -> Result<Meaning, String> {
        if self.is_named(Field::Status) {
            let status = values.get(Field::Status).unwrap_or_default();
            if !self.charged.iter().any(|charged| charged.eq_ignore_ascii_case(status)) {
                return Ok(Meaning::NoCharge);
            }
        }
        let is_in_window = match self.lies(values)? {
            Lies::Outside => return Ok(Meaning::Outside),
            lies => lies == Lies::Inside,
        };
        let text = |field| values.get(field).unwrap_or_default().to_owned();
        let charge = Charge {
            line,
            is_in_window,
            key: text(if self.matching == Matching::Id { Field::Id } else { Field::Key }),
            scope: text(Field::Scope),
            reference: text(Field::Reference),
            money: self.money(values)?,
        };
        Ok(Meaning::Charge(self.matched_by(&charge)?, charge))
    }

    fn lies(&self, values: &Values) -> Result<Lies, String> {
        if !self.is_named(Field::Time) {
            return Ok(Lies::Inside);
        }
        let time = values.get(Field::Time).ok_or("it has no time")?;
        Ok(self.window.of(window::moment(time)?))
    }

    fn money(&self, values: &Values) -> Result<Option<Money>, String> {
        if !self.is_named(Field::Amount) {
            return Ok(None);
        }
        let amount = values.get(Field::Amount).ok_or("it has no amount")?;
        let amount: Amount =
            amount.parse().map_err(|error| format!("its amount {amount:?} is none: {error}"))?;
        let currency = match values.get(Field::Currency) {
            None if self.is_named(Field::Currency) => return Err("it has no currency".to_owned()),
            currency => currency.map(str::to_ascii_uppercase),
        };
        Ok(Some(Money { amount: amount.shifted(self.amount_shift).to_string(), currency }))
    }

    /// What a charge and its record have in common; empty: the charge has nothing of the kind.
    fn matched_by(&self, charge: &Charge) -> Result<Vec<u8>, String> {
        if charge.key.is_empty() {
            return Ok(Vec::new());
        }
        match self.matching {
            Matching::Key | Matching::DerivedKey => Ok(by_key(&charge.key)),
            Matching::KeyInScope if charge.scope.is_empty() => Err("it has no scope".to_owned()),
            Matching::KeyInScope => Ok(by_key_in_scope(&charge.scope, &charge.key)),
            Matching::Id => match charge.key.parse::<RecordId>() {
                Ok(id) => Ok(id.as_bytes().to_vec()),
                Err(_) => Err(format!(
                    "{:?} is not a record's id: those are op_ and 26 letters and digits",
                    charge.key
                )),
            },
        }
    }
}

/// What a row comes to.
pub(crate) enum Meaning {
    /// And by what its record is found.
    Charge(Vec<u8>, Charge),
    /// It has another status.
    NoCharge,
    /// Of another time.
    Outside,
}

/// A row's values; their room is used again.
#[derive(Default)]
pub(crate) struct Values {
    values: [Option<String>; 8],
    /// Whether any row had this at all.
    were_seen: [bool; 8],
}

impl Values {
    pub(crate) fn set(&mut self, field: Field, value: &str) {
        self.were_seen[field as usize] = true;
        let place = &mut self.values[field as usize];
        if value.is_empty() {
            *place = None;
        } else {
            let kept = place.get_or_insert_default();
            kept.clear();
            kept.push_str(value);
        }
    }

    pub(crate) fn is_empty(&mut self, field: Field) {
        self.set(field, "");
    }

    /// As if it were empty, but for whoever asks whether there is such a column.
    pub(crate) fn is_absent(&mut self, field: Field) {
        self.values[field as usize] = None;
    }

    pub(crate) const fn was_seen(&self, field: Field) -> bool {
        self.were_seen[field as usize]
    }

    fn get(&self, field: Field) -> Option<&str> {
        self.values[field as usize].as_deref()
    }
}

/// A key as the record has it: a provider may have kept it as the header's quoted text.
pub(crate) fn unquoted(key: &str) -> String {
    if !key.starts_with('"') {
        return key.to_owned();
    }
    let any = KeyPolicy {
        required: false,
        empty: EmptyKey::Absent,
        syntax: KeySyntax::Structured,
        chars_min: 0,
        chars_max: usize::MAX,
        form: KeyForm::Any,
    };
    match Key::read(&[key.as_bytes()], &any) {
        Ok(Some(read)) => read.as_str().to_owned(),
        Ok(None) | Err(_) => key.to_owned(),
    }
}
