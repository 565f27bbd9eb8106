#![doc = include_str!("../README.md")]
// A test suite asserts: panicking is how it speaks.
#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a suite reports by panicking; each message says what broke"
)]
#![expect(
    clippy::missing_panics_doc,
    reason = "every case panics when the store breaks the promise it is named after"
)]

#[expect(missing_docs, reason = "a case is documented by its name, and by the contract that names it")]
pub mod cases;
pub mod histories;
pub mod samples;

use std::future::Future;

use oncegate_store::Store;

/// How the suite gets at a store.
pub trait Harness: Sized + Send + Sync + 'static {
    /// The store under test.
    type Store: Store;

    /// A place of its own: an empty directory, a new schema. Dropped with the harness.
    fn start() -> Self;

    /// Opens the store in that place. Called again, it opens a further handle on the same rows.
    fn open(&self) -> impl Future<Output = Self::Store> + Send;
}

/// Runs one case of the suite in a runtime of its own.
pub fn run<H: Harness, F: Future<Output = ()>>(case: impl FnOnce(H) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(case(H::start()));
}

/// Every case, once. `suite!` makes a test of each, and a test holds the contract's bullets against it.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_case {
    ([$($callback:tt)*] $($prefix:tt)*) => {
        $($callback)* ! { $($prefix)*
            applied_writes_survive_a_reopening
            racing_inserts_admit_one
            two_handles_are_one_store
            a_clash_returns_the_winner
            a_stale_swap_is_refused
            racing_swaps_admit_one
            what_is_absent_cannot_change
            each_write_stands_alone
            one_key_twice_in_a_batch
            removal_spares_what_lives
            every_field_comes_back
            scopes_never_meet
            batches_may_be_empty_or_large
            reads_follow_writes
            due_finds_what_is_due
            due_goes_on_from_a_moment
            excepted_operations_hide_no_other
            parked_is_never_due
            a_scan_says_whether_it_came_to_the_end
            lines_take_turns
            no_line_is_passed_over
            only_what_waits_is_called
            the_backlog_is_true
            the_doubts_are_true
            browsing_filters
            browsing_pages_show_each_row_once
            counts_are_true
            an_entry_comes_with_its_write
            only_the_winner_tells
            a_story_outlives_its_record
            a_story_is_told_in_order
            entries_of_one_moment_are_all_kept
            old_entries_are_dropped
            pages_of_the_trail_show_each_entry_once
            a_removal_is_remembered
            old_removals_are_forgotten
            what_is_kept_apart_comes_back
            a_history_is_intact_while_nothing_is_lost
            a_watermark_that_is_gone_is_noticed
            quarantines_are_kept
            the_clock_never_runs_backwards
            the_rules_hold_over_this_store
            random_histories_equal_the_model
        }
    };
}

/// Every case of the outbox, once.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_outbox_case {
    ([$($callback:tt)*] $($prefix:tt)*) => {
        $($callback)* ! { $($prefix)*
            every_field_of_a_job_comes_back
            a_promise_takes_the_place_of_a_parked_one
            a_promise_that_stands_is_not_replaced
            only_what_is_due_is_claimed
            racing_claimers_share_the_jobs
            a_claim_ends
            only_the_claimer_reports
            what_was_delivered_is_kept
            a_line_is_kept_in_order
            a_parked_job_holds_back_its_own_line
            a_withdrawn_job_lets_its_line_go_on
            a_withdrawn_promise_can_be_made_again
            what_was_tried_stands_in_no_way
            a_try_that_does_not_count_is_not_counted
            parked_jobs_are_listed_and_put_back
            depth_is_true
            only_old_jobs_that_are_over_are_dropped
        }
    };
}

/// The same as [`suite!`], for a store that keeps an outbox.
#[macro_export]
macro_rules! outbox_suite {
    ($name:ident, $harness:ty) => {
        $crate::for_each_outbox_case! { [$crate::__suite_module] $name $harness; }
    };
}

/// Makes a module with one test a case, and the random histories. The one line that a store's tests need.
#[macro_export]
macro_rules! suite {
    ($name:ident, $harness:ty) => {
        $crate::for_each_case! { [$crate::__suite_module] $name $harness; }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __suite_module {
    ($name:ident $harness:ty; $($case:ident)*) => {
        mod $name {
            use super::*;
            $(
                #[test]
                fn $case() {
                    $crate::run::<$harness, _>($crate::cases::$case);
                }
            )*
        }
    };
}
