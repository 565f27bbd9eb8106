//! The timeline of `oncegate keys show`: what happened to a record, for whoever is woken at three.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use insta::assert_snapshot;
use oncegate_core::audit::{Act, Entry, Subject};
use oncegate_core::decide::Notice;
use oncegate_core::identity::{Fence, RecordId, Token, Version};
use oncegate_core::record::{Reason, StateKind};

use oncegate_store::Store as _;

use crate::desk::Desk;
use crate::gateway::Gateway;
use crate::records::{self, MORNING};

/// Entries of one record, each some seconds after the one before.
pub(crate) struct Told {
    id: RecordId,
    pub(crate) entries: Vec<Entry>,
}

impl Told {
    pub(crate) fn of(id: RecordId) -> Self {
        Self { id, entries: Vec::new() }
    }

    pub(crate) fn then(mut self, act: Act, from: Option<StateKind>, to: Option<StateKind>) -> Self {
        let count = self.entries.len() as u64;
        let at = MORNING.plus(Duration::from_millis(2_113 + 61_417 * count));
        self.entries.push(Entry {
            id: self.id,
            at,
            node: "node-1".into(),
            act,
            subject: Some(Subject { scope: "acme".into(), operation: "POST /payments".into() }),
            life: Token::from_bytes([7; 16]),
            from,
            to,
            version: Version::from_raw(at.as_micros()),
            fence: Fence::from_raw(MORNING.as_micros()),
            attempt: 1,
            source: None,
            reason: None,
            notices: Vec::new(),
        });
        self
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Entry)) -> Self {
        change(self.entries.last_mut().unwrap());
        self
    }

    pub(crate) fn by(self, source: &str) -> Self {
        self.with(|entry| entry.source = Some(source.into()))
    }

    pub(crate) fn because(self, code: &str, detail: &str) -> Self {
        self.with(|entry| entry.reason = Some(Reason::new(code, detail)))
    }

    fn noting(self, notice: Notice) -> Self {
        self.with(|entry| entry.notices.push(notice))
    }

    fn attempt(self, attempt: u32) -> Self {
        self.with(|entry| entry.attempt = attempt)
    }
}

const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
const PENDING: Option<StateKind> = Some(StateKind::Pending);
const RUNNING: Option<StateKind> = Some(StateKind::InProgress);
const UNKNOWN: Option<StateKind> = Some(StateKind::Unknown);
const COMPLETED: Option<StateKind> = Some(StateKind::Completed);
const RELEASED: Option<StateKind> = Some(StateKind::FailedRetryable);
const EXPIRED: Option<StateKind> = Some(StateKind::Expired);

/// A timeout after the charge, a probe that finds nobody, and a person who looks.
pub(crate) fn a_bad_morning(id: RecordId) -> Told {
    Told::of(id)
        .then(Act::Doubted, RUNNING, UNKNOWN)
        .because("upstream_timeout", "no answer in 60 s")
        .then(Act::NotKnown, UNKNOWN, UNKNOWN)
        .by("probe")
        .because("not_known", "503")
        .then(Act::DidNotHappen, UNKNOWN, UNKNOWN)
        .by("probe")
        .noting(Notice::NegativeDropped)
        .then(Act::NotKnown, UNKNOWN, UNKNOWN)
        .by("probe")
        .because("not_known", "no answer in time")
        .noting(Notice::Parked)
        .then(Act::AskedAgain, UNKNOWN, UNKNOWN)
        .by("ada")
        .because("operator", "the provider is back")
        .then(Act::Happened, UNKNOWN, COMPLETED)
        .by("operator ada")
        .because("operator", "seen in the provider's ledger")
        .then(Act::Happened, COMPLETED, COMPLETED)
        .by("webhook stripe")
        .noting(Notice::AfterTheFact)
}

#[test]
fn a_bad_morning_is_told() {
    let record = records::paid("acme", "order-1");
    let told = a_bad_morning(record.id);
    let desk = telling(Desk::with(vec![record]), &told.entries);
    assert_snapshot!("bad_morning", desk.ask("keys show order-1"));
    assert_snapshot!("bad_morning_json", desk.ask("keys show order-1 --json"));
}

/// The beginning of a long story was cut off without a word: the doubt itself was not on the page, and nobody knew.
#[test]
fn a_long_story_says_what_is_left_out() {
    let record = records::paid("acme", "order-1");
    let long = |entries: usize| {
        (1..entries).fold(Told::of(record.id).then(Act::Doubted, RUNNING, UNKNOWN), |told, _| {
            told.then(Act::NotKnown, UNKNOWN, UNKNOWN).by("probe")
        })
    };
    for (entries, left_out) in [(1_000, 0), (1_234, 234)] {
        let desk = telling(Desk::with(vec![record.clone()]), &long(entries).entries);
        let shown = desk.ask("keys show order-1");
        let words = format!("earlier entries that are not shown: {left_out}\n");
        assert_eq!(shown.contains(&words), left_out > 0, "{}", &shown[..1_000]);
        let json = desk.ask("keys show order-1 --json");
        assert!(json.contains(&format!("\"story_left_out\": {left_out},")), "{}", &json[json.len() - 300..]);
        assert_eq!(json.matches("\"words\": ").count(), 1_000);
        // And so says a gateway.
        let gateway = Gateway::start(desk.path(), NOWHERE, None);
        assert_eq!(desk.run(&format!("keys show order-1 --json --admin http://{}", gateway.admin)), json);
    }
}

/// Nothing that can happen is without words.
#[test]
fn everything_that_can_happen() {
    let record = records::paid("acme", "order-1");
    let told = Told::of(record.id)
        .then(Act::Began, None, PENDING)
        .attempt(0)
        .then(Act::Began, None, RUNNING)
        .then(Act::Lapsed, RUNNING, UNKNOWN)
        .noting(Notice::Zombie)
        .then(Act::Lapsed, RUNNING, PENDING)
        .noting(Notice::Zombie)
        .then(Act::Lapsed, RUNNING, COMPLETED)
        .noting(Notice::Zombie)
        .then(Act::RanAgain, RUNNING, RUNNING)
        .attempt(2)
        .then(Act::RanAgain, RELEASED, PENDING)
        .attempt(2)
        .then(Act::RanAfterExpiry, EXPIRED, RUNNING)
        .noting(Notice::OutOfTombstone)
        .then(Act::RanAfterExpiry, COMPLETED, RUNNING)
        .then(Act::RanAfterExpiry, None, RUNNING)
        .because("removed", "the record of an earlier life was removed 3 days before")
        .then(Act::KeyReused, COMPLETED, COMPLETED)
        .by("client 192.0.2.7")
        .because("key_reused", "scope 1a2b3c4d; differing members: amount, currency")
        .then(Act::Released, RUNNING, RELEASED)
        .because("upstream_unreachable", "the upstream refused the connection")
        .then(Act::Completed, UNKNOWN, COMPLETED)
        .then(Act::Completed, RELEASED, COMPLETED)
        .noting(Notice::WronglyReleased)
        .then(Act::Completed, COMPLETED, COMPLETED)
        .noting(Notice::SecondEffect)
        .then(Act::CleanedUp, None, RELEASED)
        .then(Act::Happened, RUNNING, RUNNING)
        .by("webhook stripe")
        .noting(Notice::EvidenceKept)
        .then(Act::Happened, COMPLETED, COMPLETED)
        .by("webhook stripe")
        .noting(Notice::Contradiction)
        .then(Act::Happened, EXPIRED, EXPIRED)
        .by("webhook stripe")
        .noting(Notice::AnotherLife)
        .then(Act::Completed, EXPIRED, EXPIRED)
        .noting(Notice::EffectAtTombstone)
        .then(Act::Completed, RUNNING, RUNNING)
        .noting(Notice::EffectUnderOlderGrant)
        .then(Act::DidNotHappen, UNKNOWN, RELEASED)
        .by("probe")
        .then(Act::NotKnown, UNKNOWN, UNKNOWN)
        .by("probe")
        .because("nobody_to_ask", "no probe is configured for its route")
        .noting(Notice::Parked)
        .then(Act::Woken, UNKNOWN, UNKNOWN)
        .by("webhook stripe")
        .then(Act::Forgotten, COMPLETED, EXPIRED)
        .by("ada")
        .because("operator", "a wrong answer")
        .then(Act::GivenUp, PENDING, COMPLETED)
        .attempt(0)
        .then(Act::Cancelled, PENDING, COMPLETED)
        .attempt(0)
        .by("owner")
        .then(Act::Withdrawn, COMPLETED, COMPLETED)
        .by("ada")
        .because("operator", "job_17: the customer has left")
        .then(Act::Withdrawn, COMPLETED, COMPLETED)
        .because("settled", "job_18: the record has been settled")
        .then(Act::Compared, None, None)
        .by("oncegate compare")
        .because("agreed", "name=default charges=3 records=3 differences=0 unreadable=0");
    let mut acts: Vec<_> =
        told.entries.iter().chain(&a_bad_morning(record.id).entries).map(|one| one.act.name()).collect();
    acts.sort_unstable();
    acts.dedup();
    assert_eq!(acts.len(), Act::ALL.len(), "{acts:?}");
    let desk = telling(Desk::with(vec![record]), &told.entries);
    assert_snapshot!("everything", desk.ask("keys show order-1"));
}

/// Over midnight.
#[test]
fn days_are_named() {
    let record = records::parked("order-1");
    let told = a_bad_morning(record.id);
    let entries: Vec<_> = told
        .entries
        .into_iter()
        .zip(0..)
        .map(|(entry, n)| Entry { at: entry.at.plus(Duration::from_hours(8 * n)), ..entry })
        .collect();
    let desk = telling(Desk::with(vec![record]), &entries);
    assert_snapshot!("days", desk.ask("keys show order-1"));
}

/// The story outlives the record, and is found by the id, or by key and scope.
#[test]
fn the_record_is_gone() {
    let id = records::paid("acme", "order-1").id;
    let desk = telling(Desk::with(Vec::new()), &a_bad_morning(id).entries);
    let shown = desk.ask(&format!("keys show {id}"));
    assert_snapshot!("gone", shown);
    assert_eq!(desk.ask("keys show order-1 --scope acme"), shown);
    assert_snapshot!("gone_by_key", desk.ask("keys show order-1"));
    let json = desk.ask(&format!("keys show {id} --json"));
    assert!(json.contains("\"state\": \"absent\"") && json.contains("\"words\""), "{json}");
    let why = "--operator ada --reason r";
    assert_snapshot!("gone_acted_on", desk.ask(&format!("forget {id} --yes {why}")));
    assert_snapshot!("gone_acted_on_version", desk.ask(&format!("forget {id} --version 17 {why}")));
    let gateway = Gateway::start(desk.path(), NOWHERE, None);
    for line in [
        format!("keys show {id}"),
        format!("keys show {id} --json"),
        format!("forget {id} --version 17 {why}"),
    ] {
        assert_eq!(desk.run(&format!("{line} --admin http://{}", gateway.admin)), desk.ask(&line), "{line}");
    }
}

/// Whoever can write an error or a reason cannot write the next line of the story, nor command the terminal.
#[test]
fn what_others_wrote_stays_on_its_line() {
    let record = records::parked("order-1");
    let hostile = "x\n09:15:11.001  operator ada: it happened\x1b[2J\r\u{9b}31m";
    let told = Told::of(record.id)
        .then(Act::Doubted, RUNNING, UNKNOWN)
        .because("upstream_answer", hostile)
        .with(|entry| entry.node = hostile.into())
        .then(Act::Happened, UNKNOWN, COMPLETED)
        .by(hostile);
    let desk = telling(Desk::with(vec![record]), &told.entries);
    assert_snapshot!("hostile", desk.ask("keys show order-1"));
}

/// The desk, with these added to the stories in its `oncegate.db`.
pub(crate) fn telling(desk: Desk, entries: &[Entry]) -> Desk {
    let url = format!("sqlite://{}", desk.path().join("oncegate.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = oncegate::open(&url).await.unwrap();
        store.tell(entries).await.unwrap();
    });
    desk
}
