//! `pg_ctl stop -m immediate` under load, again and again.

use std::time::Duration;

use oncegate_test_servers::Postgres;

use crate::load::Load;

const STOPS: usize = 10;
const SECONDS: Duration = Duration::from_secs(5);

pub(crate) fn stopped_ten_times() {
    let mut server = Postgres::start(&[]);
    let mut load = Load::start(&server.url(), 3);
    let mut worst = Duration::ZERO;
    for _ in 0..STOPS {
        load.until_answered(50);
        server.stop_immediate();
        // Some from before the breaker opens, and many from after.
        load.until_unavailable(20);
        server.start_again();
        worst = worst.max(load.recovery());
    }
    load.until_answered(50);
    let ledger = load.check(&server.url());
    println!(
        "{STOPS} immediate stops: {ledger:?}; a fresh key on every node at most {worst:?} after the server's return"
    );
    assert!(worst < SECONDS, "{worst:?}");
    assert!(ledger.keys > 50 * STOPS, "this was no load");
}
