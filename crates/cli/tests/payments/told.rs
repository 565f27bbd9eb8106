//! A story, told again when it is over: what became of the record, what the client saw, and what the provider's ledger holds, line by line.
//!
//! What happens several times in a row is one line: how often a question is asked, or a client comes back, depends on the machine.

use oncegate_test_servers::wait_until;
use serde_json::Value;

use crate::order::Order;

/// Steps that many stories have.
pub(crate) mod step {
    pub(crate) const BEGAN: &str = "absent → in_progress: began";
    /// The API itself says that it does not know.
    pub(crate) const DOUBTED: &str = "in_progress → unknown: doubted, answered";
    /// Asked too early for that to mean anything, or about another attempt.
    pub(crate) const NOT_FOUND_YET: &str = "unknown → unknown: did_not_happen, says probe (negative_dropped)";
    /// Asked, and nobody could say.
    pub(crate) const NOT_KNOWN: &str = "unknown → unknown: not_known, says probe, not_known";
    pub(crate) const NOT_FOUND: &str = "unknown → failed_retryable: did_not_happen, says probe";
    pub(crate) const FOUND: &str = "unknown → completed: happened, says probe";
    pub(crate) const RAN_AGAIN: &str = "failed_retryable → in_progress: ran_again, did_not_happen";
    pub(crate) const LAPSED: &str = "in_progress → unknown: lapsed, lapsed (zombie)";
    /// "Failed" proves nothing.
    pub(crate) const WOKEN: &str = "unknown → unknown: woken, says webhook provider";
    pub(crate) const TOLD: &str = "unknown → completed: happened, says webhook provider";
    /// "Failed" is declared to be final.
    pub(crate) const FAILED_FOR_GOOD: &str =
        "unknown → failed_retryable: did_not_happen, says webhook provider";
    pub(crate) const TOLD_AFTER_ALL: &str =
        "failed_retryable → completed: happened, says webhook provider (wrongly_released)!";
}

/// The ledger's line of an order over 100.
pub(crate) const PAID: &str = "100 EUR succeeded";

/// How a story is told.
pub(crate) struct Told<'a> {
    /// The record: each step of its audit trail, and then what it is.
    pub(crate) record: &'a [&'a str],
    /// What the client was answered.
    pub(crate) client: &'a [&'a str],
    /// Every line about this order.
    pub(crate) ledger: &'a [&'a str],
}

impl Order<'_> {
    /// That is the whole story.
    #[track_caller]
    pub(crate) fn is_told(&self, told: Told<'_>) {
        self.has_lines("the record", &self.record_lines(), told.record);
        self.has_lines("the client's view", &self.view.borrow(), told.client);
        self.has_lines("the ledger", &self.ledger_lines(), told.ledger);
    }

    #[track_caller]
    fn has_lines(&self, what: &str, lines: &[String], expected: &[&str]) {
        let (lines, expected) = (lines.join("\n  "), expected.join("\n  "));
        assert!(lines == expected, "{what} of {} is\n  {lines}\nand not\n  {expected}", self.key);
    }

    /// Waits for a step: sooner or later it is the record's last one.
    pub(crate) fn comes_to(&self, step: &str) {
        let what = format!("the last step of {} is {step:?}", self.key);
        wait_until(&what, || self.steps().last().is_some_and(|last| last == step));
    }

    /// Each step of the audit trail.
    pub(crate) fn steps(&self) -> Vec<String> {
        let mut lines: Vec<_> = self.story().iter().map(line).collect();
        lines.dedup();
        lines
    }

    /// The audit trail, as it is.
    pub(crate) fn story(&self) -> Vec<Value> {
        let Some(record) = self.found() else { return Vec::new() };
        let id = record["id"].as_str().unwrap();
        let mut told = self.town.get(self.town.admin_address(), &format!("/api/v1/records/{id}/story"));
        serde_json::from_value(told["story"].take()).unwrap()
    }

    /// The doubt was ended once, and by one; everything else in the trail left the record where it was.
    #[track_caller]
    pub(crate) fn is_settled_once(&self) {
        let story = self.story();
        let settled = story.iter().filter(|entry| entry["from"] == "unknown" && entry["to"] != "unknown");
        assert_eq!(settled.count(), 1, "{}: {story:#?}", self.key);
    }

    fn record_lines(&self) -> Vec<String> {
        let mut lines = self.steps();
        let record = self.found().unwrap_or_default();
        let state = record["state"].as_str().unwrap_or("absent");
        lines.push(match record["answer"]["status"].as_u64() {
            Some(status) => format!("{state}: {status}"),
            None => state.to_owned(),
        });
        lines
    }

    fn ledger_lines(&self) -> Vec<String> {
        let lines = self.booked().into_iter().map(|charge| {
            let text = |name: &str| charge[name].as_str().unwrap().to_owned();
            format!("{} {} {}", charge["amount"], text("currency"), text("status"))
        });
        lines.collect()
    }
}

/// `completed → completed: happened, says probe (after_the_fact)`; what should alarm somebody ends with `!`
fn line(entry: &Value) -> String {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let state = |name: &str| text(&entry[name]).unwrap_or_else(|| "absent".to_owned());
    let act = text(&entry["act"]).unwrap();
    let source = text(&entry["source"]).map(|source| format!(", says {source}"));
    let reason = text(&entry["reason"]["code"]).map(|reason| format!(", {reason}"));
    let notices: Vec<_> = entry["notices"].as_array().unwrap().iter().filter_map(text).collect();
    let notices = (!notices.is_empty()).then(|| format!(" ({})", notices.join(", ")));
    let alarm = (entry["alarm"] == true).then(|| "!".to_owned());
    let rest: String = [source, reason, notices, alarm].into_iter().flatten().collect();
    format!("{} → {}: {act}{rest}", state("from"), state("to"))
}
