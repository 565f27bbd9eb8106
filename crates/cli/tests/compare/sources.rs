//! The records of a store, and the same through the gateway that uses it.

use std::net::SocketAddr;

use insta::assert_snapshot;

use crate::desk::seen;
use crate::gateway::Gateway;
use crate::ledger::{self, DAY, answered, doubted, found, not_kept, of, paid, parked, tombstone};

/// No process listens there.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);
const TOKEN: &str = "hunter2hunter2hunter2";

/// To the last byte, also over several pages.
#[test]
fn a_store_and_its_gateway_say_the_same() {
    let mut records = vec![
        paid("a", 100),
        paid("uncharged", 100),
        doubted("b"),
        parked("c"),
        tombstone("d"),
        not_kept("e"),
        answered("f", 402, "{}"),
        of("other", paid("a", 100)),
    ];
    records.extend((0..1200).map(|number| paid(&format!("many-{number}"), number)));
    let mut export = "idempotency_key,amount,tenant\na,100,acme\na,99,other\nb,1,acme\nc,1,acme\nd,1,acme\ne,1,acme\nf,1,acme\n".to_owned();
    export.extend((0..1199).map(|number| format!("many-{number},{number},acme\n")));
    let derived = records[0].id.derived_key(records[0].life);
    export.extend([derived.as_str(), ",100,acme\n"]);
    let desk = ledger::desk(records, "export.csv", &export);
    let gateway = Gateway::start(desk.path(), NOWHERE, None);
    for flags in [
        "",
        "--scope-column tenant --report json",
        "--scope-column tenant --amount-column amount --amount-pointer /amount",
        "--derived-keys --report csv",
        "--operation 'POST /payments' --scope-column tenant",
    ] {
        let line = format!("compare --provider-export export.csv {DAY} {flags}");
        let (asked, told) = (desk.ask(&line), desk.run(&format!("{line} --admin http://{}", gateway.admin)));
        assert!(asked.starts_with("exit code: 5\n"), "{asked}");
        assert_eq!(asked, told, "{flags}");
    }
    let (_, mut kinds) =
        found(&desk, "--scope-column tenant --amount-column amount --amount-pointer /amount");
    let foreign = format!("charged_not_completed {derived}");
    kinds.retain(|kind| *kind != foreign);
    kinds.sort();
    assert_eq!(
        kinds,
        [
            "amount_differs a",
            "charged_not_completed b",
            "charged_not_completed c",
            "charged_not_completed f",
            "completed_not_charged many-1199",
            "completed_not_charged uncharged",
        ]
    );
}

/// A nightly job must tell these from differences: exit code 1, and no report.
#[test]
fn sources_that_are_down() {
    let desk = ledger::desk(vec![paid("a", 1)], "export.csv", "idempotency_key\nforeign\n");
    let run = |flags: &str| desk.run(&format!("compare --provider-export export.csv {DAY} {flags}"));
    assert_snapshot!("store_missing", run("--store sqlite://nothing.db"));
    assert_snapshot!("store_down", run("--store postgres://u:hunter2@127.0.0.1:1/db"));
    assert_snapshot!("gateway_down", run("--admin 127.0.0.1:1"));
    let mut gateway = Gateway::start(desk.path(), NOWHERE, Some(TOKEN));
    assert_snapshot!("token_missing", run(&format!("--admin {}", gateway.admin)));
    let line = format!("compare --provider-export export.csv {DAY} --admin {}", gateway.admin);
    let ask = |line: &str| seen(&desk.command(line).env("ONCEGATE_ADMIN_TOKEN", TOKEN).output().unwrap());
    let differences = run("--store sqlite://oncegate.db");
    assert_eq!(ask(&line), differences);
    gateway.is_killed();
    assert!(ask(&line).starts_with("exit code: 1\n"));
    gateway.starts_again();
    assert_eq!(ask(&line), differences);
    // The one for clients has no records to show.
    let wrong = ask(&line.replace(&gateway.admin.to_string(), &gateway.address.to_string()));
    assert!(wrong.starts_with("exit code: 1\n----- stdout\n----- stderr\nerror: "), "{wrong}");
}

/// A record that cannot be read may be the one that a charge belongs to: the report is not whole.
#[test]
fn a_damaged_record_is_no_difference_and_no_success() {
    let desk = ledger::desk(vec![paid("a", 1), paid("b", 1)], "export.csv", "idempotency_key\na\n");
    let store = rusqlite::Connection::open(desk.path().join("oncegate.db")).unwrap();
    let damaged = store.execute("UPDATE record SET body = x'09' WHERE seq = 2", []).unwrap();
    assert_eq!(damaged, 1);
    drop(store);
    assert_snapshot!("damaged", desk.ask(&format!("compare --provider-export export.csv {DAY}")));
}
