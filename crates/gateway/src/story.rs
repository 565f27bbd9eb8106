//! A record's audit trail: as JSON, with each entry in plain words.

use std::borrow::Cow;

use oncegate_core::audit::{Act, Entry};
use oncegate_core::decide::Notice;
use oncegate_core::record::{Reason, StateKind};
use oncegate_core::scope::Scope;
use serde_json::{Value, json};

use crate::record::moment;

/// So much of a story is shown: its end.
const SHOWN_MAX: usize = 1_000;
/// So much of it is read, to say how much is not shown. What is before that is not counted.
pub const STORY_MAX: usize = 10 * SHOWN_MAX;

/// The story as JSON, oldest first; and how many entries before it are not shown.
#[must_use]
pub fn story(entries: &[Entry]) -> (Value, usize) {
    let left_out = entries.len().saturating_sub(SHOWN_MAX);
    (entries[left_out..].iter().map(entry).collect(), left_out)
}

/// An entry as JSON.
#[must_use]
pub fn entry(entry: &Entry) -> Value {
    let notices: Vec<_> = entry.notices.iter().map(|notice| notice.name()).collect();
    let remarks: Vec<_> = entry.notices.iter().filter_map(|notice| remark(*notice)).collect();
    json!({
        "at": moment(entry.at),
        "words": words(entry),
        "remarks": remarks,
        "act": entry.act.name(),
        "scope": entry.subject.as_ref().map(|subject| scope(&subject.scope)),
        "operation": entry.subject.as_ref().map(|subject| &subject.operation),
        "from": entry.from.map(StateKind::name),
        "to": entry.to.map(StateKind::name),
        "node": entry.node,
        "attempt": entry.attempt,
        "fence": entry.fence.as_raw(),
        "version": entry.version.as_raw().to_string(),
        "source": source(entry),
        "reason": entry.reason.as_ref().map(|reason| json!({ "code": reason.code(), "detail": reason.detail() })),
        "notices": notices,
        "alarm": entry.notices.iter().any(|notice| notice.is_alarm()),
    })
}

/// A stored scope as it is shown with records.
pub(crate) fn scope(stored: &str) -> String {
    Scope::from_stored(stored).map_or_else(|_| stored.to_owned(), |scope| scope.to_string())
}

/// What happened, for people.
fn words(entry: &Entry) -> String {
    let (who, attempt) = (who(entry), entry.attempt);
    let is_operator = who.starts_with(OPERATOR);
    let mut words = match entry.act {
        Act::Began if entry.to == Some(StateKind::Pending) => "accepted, to be run by a worker".to_owned(),
        Act::Began => format!("attempt {attempt} began"),
        Act::RanAgain | Act::RanAfterExpiry => ran_again(entry),
        Act::Lapsed => format!("attempt {attempt} lapsed: its holder is gone; {}", became(entry)),
        Act::Completed => completed(entry),
        Act::Released => format!("attempt {attempt} had no effect{}", because(entry)),
        Act::Doubted => format!("attempt {attempt} ended in doubt{}", because(entry)),
        Act::CleanedUp => "a reserve that the store may not have kept was made void: nothing ran".to_owned(),
        Act::Happened => format!("{who}: it happened{}", effect(entry)),
        Act::DidNotHappen if entry.notices.contains(&Notice::NegativeDropped) => {
            format!("{who}: no trace of it, which proves nothing yet")
        }
        Act::DidNotHappen => format!("{who}: it did not happen{}", effect(entry)),
        Act::NotKnown => not_known(entry, &who),
        Act::AskedAgain => format!("{who}: to be asked about again"),
        Act::Woken => format!("{who} proves nothing; to be asked about soon"),
        Act::Forgotten => format!("{who}: the stored answer is dropped; the key is shut for a while"),
        Act::GivenUp => "nobody ran it in its time: answered with 408".to_owned(),
        Act::Cancelled => "taken back before anybody ran it: answered with 410".to_owned(),
        Act::Withdrawn => format!("{who}: a promise of its is withdrawn, and not kept any more"),
        Act::KeyReused => format!("{who} sent another request with this key: refused{}", because(entry)),
        Act::Compared => format!("{who}: compared with a provider's export{}", because(entry)),
    };
    if is_operator && let Some(reason) = &entry.reason {
        words.push_str("; reason: \"");
        words.push_str(reason.detail());
        words.push('"');
    }
    words
}

/// As the subject of a sentence.
fn who(entry: &Entry) -> Cow<'_, str> {
    match source(entry) {
        None => "this node".into(),
        Some(source) if source == "probe" => "the probe".into(),
        Some(source) => source,
    }
}

/// Who said so. Of acts that only people do, entries of before have the name alone.
fn source(entry: &Entry) -> Option<Cow<'_, str>> {
    let source = entry.source.as_deref()?;
    let is_bare = matches!(entry.act, Act::AskedAgain | Act::Forgotten | Act::Withdrawn)
        && !source.starts_with(OPERATOR);
    Some(if is_bare { format!("{OPERATOR}{source}").into() } else { source.into() })
}

const OPERATOR: &str = "operator ";

fn because(entry: &Entry) -> String {
    entry.reason.as_ref().map_or_else(String::new, |reason| match (reason.code(), reason.detail()) {
        ("not_known", detail) => format!(" ({detail})"),
        (code, "") => format!(": {code}"),
        (code, detail) => format!(": {code}: {detail}"),
    })
}

fn not_known(entry: &Entry, who: &str) -> String {
    match &entry.reason {
        Some(reason) if reason.code() == "nobody_to_ask" => format!("nobody to ask: {}", reason.detail()),
        _ => format!("{who} asked: not known{}", because(entry)),
    }
}

fn ran_again(entry: &Entry) -> String {
    let began = match (entry.to, entry.attempt) {
        (Some(StateKind::Pending), _) => "queued again".to_owned(),
        (_, attempt) => format!("attempt {attempt} began"),
    };
    let why = match entry.from {
        Some(StateKind::FailedRetryable) => "the one before had no effect",
        Some(StateKind::InProgress) => "the holder before it is gone",
        Some(StateKind::Completed) => "a new life: the one before is past its retention",
        Some(StateKind::Expired) => "a new life: the tombstone is past its end",
        None => entry.reason.as_ref().map_or("a new life", Reason::detail),
        _ => return began,
    };
    format!("{began}; {why}")
}

fn completed(entry: &Entry) -> String {
    let attempt = entry.attempt;
    if entry.from == entry.to {
        return format!("a holder reported late, and the record stays {}", state(entry.to));
    }
    match entry.from {
        Some(StateKind::Unknown) => format!("attempt {attempt} reported after all: completed"),
        _ => format!("attempt {attempt} completed"),
    }
}

/// What a lapsed lease became.
fn became(entry: &Entry) -> &'static str {
    match entry.to {
        Some(StateKind::Unknown) => "what it did is not known",
        Some(StateKind::Completed) => "what was heard before settles it",
        Some(StateKind::Pending) => "queued again",
        Some(StateKind::InProgress) => "another goes on",
        _ => "it is over",
    }
}

/// What a verdict came to, where that is not plain.
fn effect(entry: &Entry) -> String {
    match (entry.from, entry.to) {
        (_, Some(StateKind::InProgress)) => "; kept as evidence until the attempt ends".to_owned(),
        (from, to) if from == to => format!("; nothing changed, it stays {}", state(to)),
        _ => String::new(),
    }
}

fn state(kind: Option<StateKind>) -> &'static str {
    kind.map_or("absent", StateKind::name)
}

/// What was off the happy path, for people; nothing of what the entry itself says.
const fn remark(notice: Notice) -> Option<&'static str> {
    Some(match notice {
        Notice::Zombie | Notice::EvidenceKept | Notice::NegativeDropped | Notice::Misuse => return None,
        Notice::OutOfTombstone => "it runs where a tombstone was",
        Notice::WronglyReleased => "it had been judged to have no effect, and yet it happened",
        Notice::EffectUnderOlderGrant => "an older attempt had its effect while a newer one runs",
        Notice::EffectAtTombstone => "an effect of a life that is already buried",
        Notice::SecondEffect => "two attempts have completed: the effect may have happened twice",
        Notice::Contradiction => "this contradicts what is recorded: somebody should find out which is true",
        Notice::AnotherLife => "about another life of the key",
        Notice::AfterTheFact => "it was settled before",
        Notice::Confirmed => "it was settled so before",
        Notice::Parked => "parked: it waits for an operator",
    })
}
