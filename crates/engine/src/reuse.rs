//! A key that came with another request: a log line and an entry in the audit trail.
//!
//! **Invariants:** no client can fill the trail, and no tenant can use up the reports of all
//! others: a node reports a record once per minute, and a bounded number of records per tenant.
//! What is not reported is counted. No client is told more than a few times per minute how its
//! request differs from the first one, because it could be guessing.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use metrics::counter;
use oncegate_core::audit::{Act, Entry};
use oncegate_core::fingerprint::Difference;
use oncegate_core::identity::RecordId;
use oncegate_core::record::{Reason, Record};
use oncegate_store::Store;

use crate::engine::Engine;
use crate::meters::names;

/// How long a budget of reports lasts.
const WINDOW: Duration = Duration::from_mins(1);
/// How many records of one tenant are reported in that time.
const RECORDS_PER_TENANT_MAX: u8 = 16;
/// How many records are reported in that time.
const RECORDS_MAX: usize = 256;
/// How often in that time clients are told how their requests differ from that of one record.
const ANSWERS_PER_RECORD_MAX: u8 = 3;

/// A refused request with the key of another one.
#[derive(Clone, Debug, Default)]
pub struct KeyReuse {
    /// Who sent it, where that is known.
    pub peer: Option<IpAddr>,
    /// How it differs from the first request.
    pub difference: Difference,
}

/// The reports of this minute.
#[derive(Debug, Default)]
pub(crate) struct ReuseLog(Mutex<Option<Window>>);

#[derive(Debug)]
struct Window {
    began: Instant,
    /// How often the key of each reported record was reused.
    records: HashMap<RecordId, u8>,
    /// How many of them each tenant has.
    tenants: HashMap<Box<str>, u8>,
    /// Refusals without a report, of records beyond the budget.
    unreported: u64,
}

/// What becomes of one refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It is reported, and the client may be told the difference.
    Report,
    /// Its record was reported in this minute. The client may be told the difference.
    Answer,
    /// The same, but the client has been told often enough.
    Silent,
    /// There have been too many reports.
    OverBudget {
        /// It is the first one of this minute.
        is_first: bool,
    },
}

impl ReuseLog {
    /// What becomes of a refusal, and how many were not reported in the minute before, if it ends
    /// here.
    fn judge(&self, id: RecordId, tenant: &str, now: Instant) -> (Verdict, u64) {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let window = window.get_or_insert_with(|| Window::new(now));
        let mut unreported = 0;
        if now.saturating_duration_since(window.began) >= WINDOW {
            unreported = window.unreported;
            *window = Window::new(now);
        }
        (window.judge(id, tenant), unreported)
    }
}

impl Window {
    fn new(began: Instant) -> Self {
        Self { began, records: HashMap::new(), tenants: HashMap::new(), unreported: 0 }
    }

    fn judge(&mut self, id: RecordId, tenant: &str) -> Verdict {
        if let Some(times) = self.records.get_mut(&id) {
            *times = times.saturating_add(1);
            return if *times <= ANSWERS_PER_RECORD_MAX { Verdict::Answer } else { Verdict::Silent };
        }
        let of_tenant = self.tenants.get(tenant).copied().unwrap_or_default();
        if self.records.len() >= RECORDS_MAX || of_tenant >= RECORDS_PER_TENANT_MAX {
            self.unreported += 1;
            return Verdict::OverBudget { is_first: self.unreported == 1 };
        }
        self.records.insert(id, 1);
        self.tenants.insert(tenant.into(), of_tenant + 1);
        Verdict::Report
    }
}

impl<S: Store> Engine<S> {
    /// Logs that the key of `record` came with another request, and adds it to the audit trail,
    /// in a task of its own: at most once per record and minute, and for a bounded number of
    /// records. Returns whether the client may be told the difference.
    #[must_use]
    pub fn tell_reuse(&self, record: &Record, reuse: &KeyReuse) -> bool {
        let scope = &record.address.scope;
        let (verdict, unreported) = self.0.reuse_log.judge(record.id, scope.tenant_str(), Instant::now());
        if unreported > 0 {
            tracing::warn!(unreported, "reused keys of an earlier minute were not reported");
        }
        match verdict {
            Verdict::Report => {
                self.report_reuse(record, reuse);
                true
            }
            Verdict::Answer => true,
            Verdict::Silent => false,
            Verdict::OverBudget { is_first } => {
                counter!(names::REUSE_UNREPORTED).increment(1);
                if is_first {
                    let scope = scope.short_digest();
                    tracing::warn!(
                        scope,
                        "too many keys are reused; for up to a minute, further reused keys are not reported one by one"
                    );
                }
                false
            }
        }
    }

    fn report_reuse(&self, record: &Record, reuse: &KeyReuse) {
        let peer = reuse.peer.map_or_else(|| "an unknown client".to_owned(), |peer| peer.to_string());
        let scope = record.address.scope.short_digest();
        let (id, difference) = (record.id, &reuse.difference);
        tracing::warn!(
            %id, scope, peer, %difference, operation = %record.operation,
            "key reused for another request; refused"
        );
        let entry = Entry {
            source: Some(format!("client {peer}").into()),
            reason: Some(Reason::new("key_reused", format!("scope {scope}; {difference}"))),
            ..Entry::about(record, Act::KeyReused, self.now().at, &self.0.who.node)
        };
        let engine = self.clone();
        self.behind(async move {
            if let Err(error) = engine.0.store.tell(&[entry]).await {
                tracing::warn!(%id, %error, "a reused key could not be added to the audit trail");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u16) -> RecordId {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&n.to_be_bytes());
        RecordId::from_bytes(bytes)
    }

    /// How many of so many records of a tenant are reported.
    fn reported(log: &ReuseLog, tenant: &str, first: u16, count: u16, now: Instant) -> usize {
        let judged = (first..first + count).map(|n| log.judge(id(n), tenant, now).0);
        judged.filter(|verdict| *verdict == Verdict::Report).count()
    }

    #[test]
    fn each_record_once_per_minute_and_answered_a_few_times() {
        let (log, start) = (ReuseLog::default(), Instant::now());
        let judge = |after| log.judge(id(0), "a", start + after).0;
        let verdicts: Vec<_> = (0..5).map(|n| judge(WINDOW / 10 * n)).collect();
        let expected = [Verdict::Report, Verdict::Answer, Verdict::Answer, Verdict::Silent, Verdict::Silent];
        assert_eq!(verdicts, expected);
        assert_eq!(judge(WINDOW), Verdict::Report, "a minute later");
        for _ in 0..1_000 {
            judge(WINDOW);
        }
        assert_eq!(judge(WINDOW), Verdict::Silent);
    }

    #[test]
    fn no_tenant_uses_up_the_reports_of_others() {
        let (log, start) = (ReuseLog::default(), Instant::now());
        assert_eq!(reported(&log, "greedy", 0, 2_000, start), usize::from(RECORDS_PER_TENANT_MAX));
        assert_eq!(reported(&log, "other", 2_000, 1, start), 1);
        // Nor do many of them fill the memory.
        let of_many: usize =
            (0..100).map(|n| reported(&log, &format!("tenant {n}"), 3_000 + n * 20, 20, start)).sum();
        assert_eq!(of_many, RECORDS_MAX - usize::from(RECORDS_PER_TENANT_MAX) - 1);
        let window = log.0.lock().unwrap().take().unwrap();
        assert!(window.records.len() == RECORDS_MAX && window.tenants.len() <= RECORDS_MAX);
    }

    #[test]
    fn what_is_not_reported_is_told_once_at_the_beginning_and_counted_at_the_end() {
        let (log, start) = (ReuseLog::default(), Instant::now());
        reported(&log, "greedy", 0, 16, start);
        assert_eq!(log.judge(id(16), "greedy", start), (Verdict::OverBudget { is_first: true }, 0));
        assert_eq!(log.judge(id(17), "greedy", start), (Verdict::OverBudget { is_first: false }, 0));
        assert_eq!(log.judge(id(18), "greedy", start + WINDOW), (Verdict::Report, 2));
        assert_eq!(log.judge(id(19), "greedy", start + WINDOW), (Verdict::Report, 0));
    }
}
