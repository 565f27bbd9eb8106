//! How a row finds its record.

use insta::assert_snapshot;
use oncegate_core::record::Record;

use crate::ledger::{self, compare, doubted, found, of, of_route, paid};

fn nothing() -> (i32, Vec<String>) {
    (0, vec![])
}

/// One key of two tenants: without the scope nobody knows whose charge it is; with it, both are told apart.
#[test]
fn a_scope_settles_whose_key_it_is() {
    let records = || vec![paid("a", 1), of("other", paid("a", 1))];
    let both = ledger::desk(records(), "export.csv", "idempotency_key,tenant\na,acme\na,other\n");
    assert_eq!(found(&both, ""), (5, vec!["ambiguous a".to_owned()]));
    assert_eq!(found(&both, "--scope-column tenant"), nothing());
    let one = ledger::desk(records(), "export.csv", "idempotency_key,tenant\na,acme\na,acme\n");
    let expected = ["charged_twice a", "completed_not_charged a"].map(str::to_owned).to_vec();
    assert_eq!(found(&one, "--scope-column tenant"), (5, expected));
    assert_snapshot!("ambiguous", compare(&one, "--report json"));
}

/// Uncharged, each is what it is.
#[test]
fn a_key_of_two_tenants_that_was_never_charged_is_not_ambiguous() {
    let desk = ledger::desk(
        vec![paid("a", 1), of("other", paid("a", 1)), of("third", doubted("a"))],
        "export.csv",
        "idempotency_key\n",
    );
    let expected = ["completed_not_charged a", "completed_not_charged a"].map(str::to_owned).to_vec();
    assert_eq!(found(&desk, ""), (5, expected));
}

#[test]
fn by_the_records_id() {
    let (one, other) = (paid("a", 1), of("other", doubted("a")));
    let export = format!("id\n{}\n{}\nop_00000000000000000000000000\n", one.id, other.id);
    let desk = ledger::desk(vec![one, other], "export.csv", &export);
    let (code, kinds) = found(&desk, "--id-column id");
    assert_eq!(code, 5);
    let mut kinds = kinds;
    kinds.sort();
    assert_eq!(kinds, ["charged_not_completed a", "charged_not_completed op_00000000000000000000000000"]);
}

/// Where the gateway derives the key, the provider has never seen the client's.
#[test]
fn by_the_derived_key() {
    let (one, other) = (paid("a", 1), of("other", paid("a", 1)));
    let key = |record: &Record| record.id.derived_key(record.life);
    // One as text, one as the header's quoted form.
    let export = format!("idempotency_key\n{}\n\"\"\"{}\"\"\"\na\n", key(&one), key(&other));
    let desk = ledger::desk(vec![one, other], "export.csv", &export);
    assert_eq!(found(&desk, "--derived-keys"), (5, vec!["charged_not_completed a".to_owned()]));
}

/// A provider that keeps the header as it came has quotes around it, and perhaps parameters behind.
#[test]
fn quoted_keys_are_the_same_keys() {
    let export = "idempotency_key\n\"\"\"a\"\"\"\n\"\"\"b\\\"\"c\"\"\"\n\"\"\"d\"\";p=1\"\n\"\"\"e\"\n";
    let records = vec![paid("a", 1), paid("b\"c", 1), paid("d", 1), paid("\"e", 1)];
    let desk = ledger::desk(records, "export.csv", export);
    assert_eq!(found(&desk, ""), nothing());
}

/// Rows with another status are no charges.
#[test]
fn only_rows_with_this_status() {
    let export = "idempotency_key,status\na,Succeeded\na,declined\nb,captured\nc,declined\n";
    let desk = ledger::desk(vec![paid("a", 1), paid("b", 1)], "export.csv", export);
    let flags = "--status-column status --status-charged succeeded --status-charged captured";
    assert_eq!(found(&desk, flags), nothing());
    assert!(compare(&desk, flags).contains("left out: 2 rows, no charge"));
    let flags = "--status-column status --status-charged succeeded";
    assert_eq!(found(&desk, flags), (5, vec!["completed_not_charged b".to_owned()]));
}

/// Records of other routes are no payments that were not charged, and their charges are not foreign.
#[test]
fn only_records_of_this_route() {
    let refund = || of_route("POST /refunds", paid("r", 1));
    let records = || vec![paid("a", 1), refund(), of_route("POST /refunds", paid("a", 1))];
    let desk = ledger::desk(records(), "export.csv", "idempotency_key\na\nr\n");
    let flags = "--operation 'POST /payments'";
    assert_eq!(found(&desk, flags), nothing());
    assert!(compare(&desk, flags).contains("left out: 1 charge, of another operation"));
    assert_eq!(found(&desk, ""), (5, vec!["ambiguous a".to_owned()]));
    let desk = ledger::desk(records(), "export.csv", "idempotency_key\na\n");
    assert_eq!(found(&desk, flags), nothing());
    // A route that no record has would leave out everything, and all would seem well.
    assert_snapshot!("no_such_route", compare(&desk, "--operation 'POST /payment'"));
    let quiet = ledger::desk(records(), "export.csv", "idempotency_key\n");
    assert_eq!(found(&quiet, "--operation 'POST /payment'"), nothing(), "nothing to leave out");
}
