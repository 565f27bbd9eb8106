//! Amounts: exact, where both sides say them.

use insta::assert_snapshot;

use crate::ledger::{self, answered, compare, found, not_kept, paid};

const FLAGS: &str = "--amount-column amount --amount-pointer /amount";

fn differs(keys: &[&str]) -> (i32, Vec<String>) {
    (if keys.is_empty() { 0 } else { 5 }, keys.iter().map(|key| format!("amount_differs {key}")).collect())
}

/// Two amounts that one double would hold are two.
#[test]
fn amounts_are_exact() {
    let body = |amount: &str| format!(r#"{{"amount":{amount}}}"#);
    let records = vec![
        answered("a", 201, &body("9007199254740993")),
        answered("b", 201, &body("9007199254740993")),
        answered("c", 201, &body("0.1")),
        answered("d", 201, &body("0.10")),
        answered("e", 201, &body("\"12.50\"")),
        answered("f", 201, &body("1.25e1")),
        answered("g", 201, &body("-5")),
    ];
    let export = "idempotency_key,amount\na,9007199254740992\nb,9007199254740993\nc,0.1000000000000000055511151231257827\n\
                  d,0.1\ne,12.5\nf,12.50\ng,5\n";
    let desk = ledger::desk(records, "export.csv", export);
    assert_eq!(found(&desk, FLAGS), differs(&["a", "c", "g"]));
    assert_eq!(found(&desk, ""), differs(&[]), "not compared unless asked for");
}

/// An export in euros, answers in cents.
#[test]
fn other_units() {
    let desk = ledger::desk(
        vec![paid("a", 1250), paid("b", 1250)],
        "export.csv",
        "idempotency_key,amount\na,12.50\nb,12.51\n",
    );
    assert_eq!(found(&desk, FLAGS), differs(&["a", "b"]));
    assert_eq!(found(&desk, &format!("{FLAGS} --amount-shift 2")), differs(&["b"]));
    let desk = ledger::desk(
        vec![answered("a", 201, r#"{"amount":"12.50"}"#)],
        "export.csv",
        "idempotency_key,amount\na,1250\n",
    );
    assert_eq!(found(&desk, &format!("{FLAGS} --amount-shift -2")), differs(&[]));
}

#[test]
fn currencies_count_too() {
    let export = "idempotency_key,amount,currency\na,100,eur\nb,100,USD\n";
    let desk = ledger::desk(vec![paid("a", 100), paid("b", 100)], "export.csv", export);
    assert_eq!(found(&desk, FLAGS), differs(&[]));
    let flags = format!("{FLAGS} --currency-column currency --currency-pointer /currency");
    assert_eq!(found(&desk, &flags), differs(&["b"]));
    assert_snapshot!("currency", compare(&desk, &flags));
}

/// An answer that does not say its amount differs; one that was too large to keep cannot be asked.
#[test]
fn answers_without_an_amount() {
    let records = vec![
        answered("a", 201, "{}"),
        answered("b", 201, "paid"),
        answered("c", 201, r#"{"amount":{"value":1}}"#),
        answered("d", 201, r#"{"amount":"much"}"#),
        answered("e", 201, r#"{"amount":1,"amount":2}"#),
        not_kept("f"),
    ];
    let export = "idempotency_key,amount\na,1\nb,1\nc,1\nd,1\ne,1\nf,1\n";
    let desk = ledger::desk(records, "export.csv", export);
    assert_snapshot!("missing", compare(&desk, FLAGS));
}
