//! Reading the records, a page at a time, from a store or through a gateway; each goes to the sorter.

use std::collections::BTreeSet;

use oncegate_core::identity::RecordId;
use oncegate_gateway::record::Bodies;
use serde_json::Value;

use super::amount::Amount;
use super::columns::Matching;
use super::entry::{Kept, Money, RECORD, Recorded, by_key, by_key_in_scope};
use super::json::{self, Found, Path};
use super::sort::Sorter;
use super::window::{self, Lies, Window};
use crate::progress::Progress;
use crate::source::{Asked, Source, Trouble};

/// A page without answers, and one with them: these may be large.
const PAGE: usize = 500;
const PAGE_WITH_BODIES: usize = 50;
/// So many operations are named to whoever has misspelled one.
const OTHERS: usize = 5;

/// What is asked of records.
pub(crate) struct Question {
    pub(crate) matching: Matching,
    pub(crate) window: Window,
    pub(crate) operation: Option<String>,
    /// Where answers have their amount.
    pub(crate) amount: Option<Path>,
    /// Where they have its currency.
    pub(crate) currency: Option<Path>,
}

/// What was read.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) records: u64,
    pub(crate) unreadable: u64,
    /// Of the operation that was asked for.
    asked_for: u64,
    /// The first few others.
    others: BTreeSet<String>,
}

impl Tally {
    /// An operation that is misspelled would leave out every charge, and all would seem well.
    pub(crate) fn check(&self, operation: Option<&str>) -> Result<(), Trouble> {
        let Some(operation) = operation.filter(|_| self.asked_for == 0 && self.records > 0) else {
            return Ok(());
        };
        let others: Vec<_> = self.others.iter().map(|other| format!("{other:?}")).collect();
        Err(Trouble::Wrong(format!(
            "no record is of the operation {operation:?}; there are {}",
            others.join(", ")
        )))
    }
}

/// Reads all of them.
pub(crate) async fn read(
    source: &Source,
    question: &Question,
    sorter: &mut Sorter,
) -> Result<Tally, Trouble> {
    let (bodies, limit) = match question.amount {
        Some(_) => (Bodies::Shown, PAGE_WITH_BODIES),
        None => (Bodies::Counted, PAGE),
    };
    let mut asked = Asked {
        created_from: Some(question.window.first()),
        created_before: Some(question.window.end()),
        limit,
        ..Asked::default()
    };
    let mut progress = Progress::new("records", None);
    let mut tally = Tally::default();
    loop {
        let page = source.list(&asked, bodies).await?;
        let Some(records) = page["records"].as_array() else {
            return Err(Trouble::Failed("the gateway's answer is no page of records".to_owned()));
        };
        for record in records {
            let (matched_by, kept) = question.read(record)?;
            sorter.add(&matched_by, RECORD, &kept.encode()).map_err(|error| super::spill(&error))?;
            tally.records += 1;
            tally.asked_for += u64::from(kept.is_asked_for);
            if let Some(other) =
                record["operation"].as_str().filter(|_| !kept.is_asked_for && tally.others.len() < OTHERS)
            {
                tally.others.insert(other.to_owned());
            }
            progress.tick(tally.records, 0);
        }
        tally.unreadable += page["unreadable"].as_u64().unwrap_or_default();
        match page["next"].as_str() {
            Some(next) => asked.after = Some(next.to_owned()),
            None => return Ok(tally),
        }
    }
}

impl Question {
    fn read(&self, record: &Value) -> Result<(Vec<u8>, Kept), Trouble> {
        let text = |name: &str| match record[name].as_str() {
            Some(text) => Ok(text.to_owned()),
            None => {
                Err(Trouble::Failed(format!("a record has no {name}; is the gateway of another release?")))
            }
        };
        let (id, key, created_at) = (text("id")?, text("key")?, text("created_at")?);
        let matched_by = match self.matching {
            Matching::Key => by_key(&key),
            Matching::KeyInScope => by_key_in_scope(&text("tenant")?, &key),
            Matching::DerivedKey => text("derived_key")?.into_bytes(),
            Matching::Id => match id.parse::<RecordId>() {
                Ok(id) => id.as_bytes().to_vec(),
                Err(_) => return Err(Trouble::Failed(format!("a record's id is {id:?}"))),
            },
        };
        let created = window::moment(&created_at).map_err(Trouble::Failed)?;
        let answer = &record["answer"];
        let status = answer["status"].as_u64().and_then(|status| u16::try_from(status).ok());
        // What is past its retention still says what it was, until it is removed.
        let state = if status.is_some() { "completed".to_owned() } else { text("state")? };
        let is_asked_for = match &self.operation {
            None => true,
            Some(operation) => text("operation")? == *operation,
        };
        let mut kept = Kept {
            id,
            key,
            scope: text("scope")?,
            state,
            is_parked: record["doubt"]["parked"] == true,
            status,
            created_at,
            is_in_window: self.window.of(created) == Lies::Inside,
            is_asked_for,
            money: Recorded::NotAsked,
        };
        if kept.is_success() && kept.is_asked_for {
            kept.money = self.money(answer);
        }
        Ok((matched_by, kept))
    }

    fn money(&self, answer: &Value) -> Recorded {
        let Some(path) = &self.amount else { return Recorded::NotAsked };
        if answer["kept"] == false {
            return Recorded::NotKept;
        }
        let Some(body) = answer["body"].as_str() else {
            return Recorded::Missing("the stored answer is not text".to_owned());
        };
        match money(body, path, self.currency.as_ref()) {
            Ok(money) => Recorded::Found(money),
            Err(why) => Recorded::Missing(why),
        }
    }
}

fn money(body: &str, amount: &Path, currency: Option<&Path>) -> Result<Money, String> {
    let find = |what: &str, path: &Path| match json::find(body, path) {
        Ok(Found::Scalar(text)) => Ok(text),
        Ok(_) => Err(format!("the stored answer has no {what} there")),
        Err(_) => Err("the stored answer cannot be read as JSON".to_owned()),
    };
    let text = find("amount", amount)?;
    let amount: Amount =
        text.parse().map_err(|_| "what the stored answer has there is no amount".to_owned())?;
    let currency = currency.map(|path| find("currency", path)).transpose()?;
    Ok(Money { amount: amount.to_string(), currency: currency.map(|text| text.to_ascii_uppercase()) })
}
