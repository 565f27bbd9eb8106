//! Every kind of difference, in every form.

use insta::assert_snapshot;
use oncegate_core::record::Record;

use crate::desk::Desk;
use crate::ledger::{
    self, answered, compare, doubted, found, lapsed, of, paid, parked, released, running, tombstone,
};

const AMOUNTS: &str = "--reference-column charge --amount-column amount --amount-pointer /amount";

fn records() -> Vec<Record> {
    vec![
        paid("agrees", 1250),
        paid("charged-twice", 100),
        paid("not-charged", 100),
        paid("wrong-amount", 1250),
        answered("told-402", 402, "{}"),
        answered("declined", 402, "{}"),
        doubted("in-doubt"),
        parked("parked"),
        released("released"),
        released("never-charged"),
        running("running"),
        lapsed("lapsed"),
        tombstone("tombstone"),
        paid("two-tenants", 100),
        of("other", paid("two-tenants", 100)),
    ]
}

const EXPORT: &str = "\
charge,idempotency_key,amount
ch_1,agrees,1250
ch_2,charged-twice,100
ch_3,wrong-amount,1249
ch_4,told-402,100
ch_5,in-doubt,100
ch_6,parked,100
ch_7,released,100
ch_8,running,100
ch_9,lapsed,100
ch_10,tombstone,100
ch_11,two-tenants,100
ch_12,charged-twice,100
ch_13,never-heard-of,100
ch_14,,100
";

fn world() -> Desk {
    ledger::desk(records(), "export.csv", EXPORT)
}

#[test]
fn as_a_table() {
    assert_snapshot!("table", compare(&world(), AMOUNTS));
}

#[test]
fn as_json() {
    let desk = world();
    let seen = compare(&desk, &format!("{AMOUNTS} --report json"));
    let json = seen.split("----- stdout\n").nth(1).unwrap().split("----- stderr").next().unwrap();
    let parsed: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(parsed["differences"].as_array().unwrap().len(), 12);
    assert_snapshot!("json", seen);
}

#[test]
fn as_csv() {
    assert_snapshot!("csv", compare(&world(), &format!("{AMOUNTS} --report csv")));
}

/// The same from lines of JSON, named by pointers.
#[test]
fn lines_of_json_say_the_same() {
    let desk = world();
    let lines = EXPORT.lines().skip(1).map(|line| {
        let fields: Vec<_> = line.split(',').collect();
        let key = if fields[1].is_empty() { "null".to_owned() } else { format!("{:?}", fields[1]) };
        format!(
            "{{\"charge\": \"{}\", \"meta\": {{\"key\": {key}}}, \"money\": [\"EUR\", {}]}}\n",
            fields[0], fields[2]
        )
    });
    // As many lines before it as the head is.
    let export = format!("\n{}", lines.collect::<String>());
    std::fs::write(desk.path().join("export.jsonl"), export).unwrap();
    for form in ["table", "json", "csv"] {
        let seen = desk.ask(&format!(
            "compare --provider-export export.jsonl {} --key-column /meta/key --reference-column charge --amount-column /money/1 \
             --amount-pointer /amount --report {form}",
            ledger::DAY
        ));
        assert_eq!(seen, compare(&desk, &format!("{AMOUNTS} --report {form}")));
    }
}

#[test]
fn nothing_differs() {
    let records =
        vec![paid("a", 1), paid("b", 2), answered("declined", 402, "{}"), released("c"), doubted("d")];
    let export = "idempotency_key,amount\na,1\nb,2.00\n";
    let desk = ledger::desk(records, "export.csv", export);
    for form in ["table", "json", "csv"] {
        let flags = format!("--amount-column amount --amount-pointer /amount --report {form}");
        assert_snapshot!(format!("agree_{form}"), compare(&desk, &flags));
    }
}

#[test]
fn nothing_at_all_is_no_difference() {
    let desk = ledger::desk(Vec::new(), "export.csv", "idempotency_key\n");
    assert_eq!(found(&desk, ""), (0, vec![]));
}

/// Past its retention nobody can tell what it was: no alarm, but it is said.
#[test]
fn a_tombstone_is_no_difference_unless_charged_twice() {
    let records = || vec![tombstone("gone")];
    let once = ledger::desk(records(), "export.csv", "idempotency_key\ngone\n");
    assert_eq!(found(&once, ""), (0, vec![]));
    assert!(compare(&once, "").contains("left out: 1 charge, past its record"));
    let twice = ledger::desk(records(), "export.csv", "idempotency_key\ngone\ngone\n");
    assert_eq!(found(&twice, ""), (5, vec!["charged_twice gone".to_owned()]));
}

/// Two differences of one key are two lines.
#[test]
fn charged_twice_without_a_completed_record() {
    let desk = ledger::desk(vec![doubted("a")], "export.csv", "idempotency_key\na\nb\na\nb\n");
    let expected =
        ["charged_not_completed a", "charged_twice a", "charged_not_completed b", "charged_twice b"];
    assert_eq!(found(&desk, ""), (5, expected.map(str::to_owned).to_vec()));
}

/// However often it was charged, a few are shown and all are counted.
#[test]
fn charged_a_hundred_times() {
    let mut export = "idempotency_key,charge\n".to_owned();
    export.extend((0..100).map(|number| format!("a,ch_{number}\n")));
    let desk = ledger::desk(vec![paid("a", 1)], "export.csv", &export);
    assert_snapshot!("hundred", compare(&desk, "--reference-column charge"));
}

/// What customers and providers have written does not paint the operator's terminal, nor break a table or a line of CSV.
#[test]
fn hostile_text_is_harmless() {
    let export = "idempotency_key,charge\n\"\x1b[2Ja\nb\tc\",\"x,\"\"y\"\"\"\n";
    let desk = ledger::desk(Vec::new(), "export.csv", export);
    assert_snapshot!("hostile", compare(&desk, "--reference-column charge"));
    let csv = desk.command(&format!(
        "compare --provider-export export.csv {} --reference-column charge --report csv --store sqlite://oncegate.db",
        ledger::DAY
    ));
    let csv = { csv }.output().unwrap().stdout;
    let csv = String::from_utf8(csv).unwrap();
    assert!(
        csv.contains("charged_not_completed,\"\x1b[2Ja\nb\tc\",,,absent,,,,1,,\"x,\"\"y\"\"\",2,"),
        "{csv}"
    );
}
