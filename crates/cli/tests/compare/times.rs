//! The stretch of time that is compared, and what is at its ends.

use std::time::Duration;

use crate::ledger::{self, MORNING, after, compare, created, doubted, found, paid};

const DAY: &str = "--since 2026-03-02T09:00:00Z --until 2026-03-02T10:00:00Z --time-column time --slack 10m";

fn kinds(kinds: &[&str]) -> (i32, Vec<String>) {
    (if kinds.is_empty() { 0 } else { 5 }, kinds.iter().map(|kind| (*kind).to_owned()).collect())
}

/// Created just before, charged just after: found on both nights, reported on neither.
#[test]
fn a_record_from_before_explains_a_charge_from_after() {
    let records = vec![created(MORNING.minus(Duration::from_mins(1)), paid("a", 1))];
    let desk = ledger::desk(records, "export.csv", "idempotency_key,time\na,2026-03-02T09:00:01Z\n");
    assert_eq!(found(&desk, DAY), kinds(&[]));
    assert_eq!(found(&desk, &DAY.replace("--slack 10m", "--slack 30s")), kinds(&["charged_not_completed a"]));
    // The night before knows it too.
    let before = "--since 2026-03-02T08:00:00Z --until 2026-03-02T09:00:00Z --time-column time";
    assert_eq!(found(&desk, before), kinds(&[]));
}

/// Near the window and without a counterpart it is another night's.
#[test]
fn what_is_near_is_not_reported() {
    let early = MORNING.minus(Duration::from_mins(1));
    let records = vec![created(early, paid("early", 1)), created(after(3660), paid("late", 1))];
    let export = "idempotency_key,time\nnobody,2026-03-02T08:59:00Z\nno-one,2026-03-02T10:00:00Z\n,2026-03-02T10:00:00Z\n";
    let desk = ledger::desk(records, "export.csv", export);
    assert_eq!(found(&desk, DAY), kinds(&[]));
    assert_eq!(
        found(&desk, "--since 2026-03-02T08:00:00Z --until 2026-03-02T11:00:00Z --time-column time"),
        kinds(&[
            "charged_not_completed ",
            "completed_not_charged early",
            "completed_not_charged late",
            "charged_not_completed no-one",
            "charged_not_completed nobody"
        ])
    );
}

/// The second charge is past midnight, and it is a second charge all the same.
#[test]
fn charged_again_just_after_the_end() {
    let export = "idempotency_key,time\na,2026-03-02T09:59:59Z\na,2026-03-02T10:00:01Z\n";
    let desk = ledger::desk(vec![created(after(3590), paid("a", 1))], "export.csv", export);
    assert_eq!(found(&desk, DAY), kinds(&["charged_twice a"]));
}

/// Either side is inside one night and near the other: it was reported on both. It is of the night of the charge, whichever side came first.
#[test]
fn a_pair_across_an_end_is_reported_on_one_night() {
    let amounts = "--amount-column amount --amount-pointer /amount";
    let nights = [
        "--since 2026-03-02T08:00:00Z --until 2026-03-02T09:00:00Z",
        "--since 2026-03-02T09:00:00Z --until 2026-03-02T10:00:00Z",
    ]
    .map(|night| format!("{night} --time-column time --slack 10m {amounts}"));
    let (before, from_then_on) = (MORNING.minus(Duration::from_secs(1)), MORNING);
    for (recorded, charged, night) in
        [(before, "2026-03-02T09:00:00Z", 1), (from_then_on, "2026-03-02T08:59:59Z", 0)]
    {
        let records = vec![created(recorded, paid("a", 1)), created(recorded, doubted("b"))];
        let export = format!("idempotency_key,time,amount\na,{charged},2\nb,{charged},1\n");
        let desk = ledger::desk(records, "export.csv", &export);
        assert_eq!(found(&desk, &nights[night]), kinds(&["amount_differs a", "charged_not_completed b"]));
        assert_eq!(found(&desk, &nights[1 - night]), kinds(&[]), "{charged}");
    }
}

/// One charge in each of two nights: neither export may have both again, so each night that sees both says so.
#[test]
fn a_second_charge_across_an_end_is_reported_on_both_nights() {
    let export = "idempotency_key,time\na,2026-03-02T08:59:59Z\na,2026-03-02T09:00:01Z\n";
    let desk = ledger::desk(vec![paid("a", 1)], "export.csv", export);
    for night in [DAY, "--since 2026-03-02T08:00:00Z --until 2026-03-02T09:00:00Z --time-column time"] {
        assert_eq!(found(&desk, night), kinds(&["charged_twice a"]), "{night}");
    }
}

/// Rows of other times, in every spelling of a moment, are left out and counted.
#[test]
fn rows_of_other_times_are_left_out() {
    let export = "idempotency_key,time\na,1772442060\nb,2026-03-02T10:01:00+01:00\nc,2026-03-01 09:00:00\nd,1772452800.5\n";
    let desk = ledger::desk(vec![paid("a", 1), paid("b", 1)], "export.csv", export);
    assert_eq!(found(&desk, DAY), kinds(&[]));
    assert!(
        compare(&desk, "--time-column time --until 2026-03-02T10:00:00Z").starts_with("exit code: 2"),
        "--until twice"
    );
    let seen = desk.ask(&format!("compare --provider-export export.csv {DAY}"));
    assert!(seen.contains("left out: 2 rows, of another time"), "{seen}");
    assert!(seen.contains("compared 2 charges with 2 records"), "{seen}");
}

/// So long ago.
#[test]
fn since_may_be_a_span() {
    let desk = ledger::desk(vec![paid("a", 1)], "export.csv", "idempotency_key\n");
    assert_eq!(found(&desk, "--since 200000days"), kinds(&["completed_not_charged a"]), "before 1970");
    assert_eq!(found(&desk, "--since 1h"), kinds(&[]));
    assert_eq!(
        found(&desk, "--since 10years --until 2026-03-03T00:00:00Z"),
        kinds(&["completed_not_charged a"])
    );
}
