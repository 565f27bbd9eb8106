//! The same store through PgBouncer in transaction mode: no session is ours, and the contract holds all the same.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use oncegate_conformance::Harness;
use oncegate_store::Store;
use oncegate_store_sql::PostgresStore;
use oncegate_test_servers::{PgBouncer, shared};

use crate::place::{Place, apply_all, completed, insert, leased, read, swap};

/// A schema in the shared server, and a PgBouncer in front of it that all tests of this process share.
struct Pooled {
    place: Place,
    bouncer: Arc<PgBouncer>,
}

impl Harness for Pooled {
    type Store = PostgresStore;

    fn start() -> Self {
        static SHARED: Mutex<Weak<PgBouncer>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let bouncer = shared.upgrade().unwrap_or_else(|| {
            Arc::new(PgBouncer::start(&shared::postgres_url(), &[("default_pool_size", "4")]))
        });
        *shared = Arc::downgrade(&bouncer);
        Self { place: Place::shared(), bouncer }
    }

    async fn open(&self) -> PostgresStore {
        let store = self.place.open_through(&self.bouncer.url()).await;
        assert!(store.signals().is_none(), "PgBouncer is noticed");
        store
    }
}

/// All cases but the random histories, of which there are fewer below: each takes a conversation many times over.
macro_rules! cases {
    ($($case:ident)*) => {$(
        #[test]
        fn $case() {
            oncegate_conformance::run::<Pooled, _>(oncegate_conformance::cases::$case);
        }
    )*};
}

cases! {
    applied_writes_survive_a_reopening racing_inserts_admit_one two_handles_are_one_store a_clash_returns_the_winner
    a_stale_swap_is_refused racing_swaps_admit_one what_is_absent_cannot_change each_write_stands_alone
    one_key_twice_in_a_batch removal_spares_what_lives every_field_comes_back scopes_never_meet
    batches_may_be_empty_or_large reads_follow_writes due_finds_what_is_due due_goes_on_from_a_moment excepted_operations_hide_no_other parked_is_never_due a_scan_says_whether_it_came_to_the_end lines_take_turns
    no_line_is_passed_over only_what_waits_is_called the_backlog_is_true the_doubts_are_true browsing_filters
    browsing_pages_show_each_row_once counts_are_true an_entry_comes_with_its_write only_the_winner_tells
    a_story_outlives_its_record a_story_is_told_in_order entries_of_one_moment_are_all_kept old_entries_are_dropped
    pages_of_the_trail_show_each_entry_once a_removal_is_remembered old_removals_are_forgotten what_is_kept_apart_comes_back the_clock_never_runs_backwards the_rules_hold_over_this_store
}

#[test]
fn random_histories_equal_the_model() {
    let _keeps_the_pooler = Pooled::start();
    if let Err(failure) = oncegate_conformance::histories::equal_the_model::<Pooled>(24) {
        panic!("{failure}");
    }
}

/// Nothing is prepared, and nothing set beyond a transaction: each way of finding out that there is a pooler must lead there.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_is_noticed_in_each_way() {
    // One server session for all clients: what one leaves behind the next one meets.
    let strict = [("default_pool_size", "1")];
    let lenient = [("default_pool_size", "1"), ("ignore_startup_parameters", "options")];
    for (what, settings, words) in [
        ("it refuses the mark", &strict[..], ""),
        ("it swallows the mark", &lenient[..], ""),
        ("it is said", &strict[..], "?pooler=transaction"),
        ("it is said, and would swallow", &lenient[..], "?pooler=transaction"),
    ] {
        let place = Place::shared();
        let bouncer = PgBouncer::start(&place.url, settings);
        let url = format!("{}{words}", bouncer.url());
        let (one, two) = (place.open_through(&url).await, place.open_through(&url).await);
        assert!(one.signals().is_none() && two.signals().is_none(), "{what}");
        for (n, store) in [&one, &two, &one, &two].into_iter().enumerate() {
            let row = leased(&n.to_string());
            apply_all(store, &[insert(&row)]).await;
            apply_all(store, &[swap(&row, &completed(&row))]).await;
            assert_eq!(read(store, &n.to_string()).await, Some(completed(&row)), "{what}");
        }
        let left = "SELECT count(*) FROM pg_settings WHERE source = 'session' AND name LIKE 'enable%'";
        let left = crate::place::raw(&bouncer.url()).await.query_typed(left, &[]).await.expect("it is asked");
        assert_eq!(left[0].get::<_, i64>(0), 0, "{what}: nothing stays set in the pooler's session");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_direct_connection_is_noticed_too() {
    let place = Place::shared();
    assert!(place.open().await.signals().is_some());
}
