//! Many nodes, one truth: processes that race, databases that die under load, connections cut in a commit, a failover.
//!
//! The binary is its own child: started with a role in its environment it plays that role, otherwise it runs the tests. What
//! the operations did is counted beside the store, never by it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod actor;
mod clocks;
mod cuts;
mod failover;
mod load;
mod node;
mod outages;
mod outbox;
mod race;
mod rejected;
mod schema;
mod shared_cache;
mod signals;
mod starting;
mod world;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    if let Some(role) = actor::role() {
        match role.as_str() {
            "racer" => race::racer(),
            "loader" => load::loader(),
            "node" => node::node(),
            "outbox" => outbox::worker(),
            other => panic!("no role {other}"),
        }
        return ExitCode::SUCCESS;
    }
    let tests = vec![
        trial("a_schema_is_gone_with_its_trial", schema::gone_with_its_trial),
        trial("nodes_that_start_together_on_an_empty_database_all_start", starting::together),
        trial("three_processes_racing_for_2000_keys_run_each_once_and_refuse_meanwhile", race::refusing),
        trial("three_processes_racing_for_2000_keys_run_each_once_and_wait_meanwhile", race::waiting),
        trial("hosts_whose_clocks_are_twenty_minutes_apart_race_as_if_they_were_not", race::clocks_apart),
        trial("a_lease_is_judged_by_the_database_s_clock_whatever_the_host_s", clocks::leases),
        trial("an_answer_on_one_node_wakes_whoever_waits_on_another", signals::wake),
        trial("through_a_pooler_nobody_is_woken_and_whoever_waits_looks_by_itself", signals::pooled),
        trial("what_one_node_forgets_another_stops_replaying", signals::forget),
        trial("a_node_that_was_deaf_for_a_while_wakes_all_and_forgets_all", signals::gap),
        trial("signals_work_again_after_the_server_was_started_again", signals::restarted),
        trial(
            "a_database_stopped_ten_times_under_load_loses_nothing_and_nothing_runs_twice",
            outages::stopped_ten_times,
        ),
        trial("a_failover_to_a_synchronous_standby_loses_nothing_acknowledged", failover::synchronous),
        trial(
            "attack_26_a_completion_whose_wait_for_the_standby_is_cancelled_survives_a_failover",
            failover::cancelled_wait,
        ),
        trial(
            "attack_26_a_completion_whose_wait_for_the_standby_is_terminated_survives_a_failover",
            failover::terminated_wait,
        ),
        trial("a_failover_to_an_asynchronous_standby_loses_what_start_up_warned_of", failover::asynchronous),
        trial("a_reserve_cut_in_its_commit_is_granted_once", cuts::reserve),
        trial("a_reserve_cut_in_its_commit_and_given_up_leaves_a_key_that_works", cuts::reserve_given_up),
        trial("a_reserve_given_up_in_an_outage_is_cleaned_up_after_it", cuts::reserve_in_an_outage),
        trial("a_completion_cut_in_its_commit_is_recorded_once", cuts::completion),
        trial("a_completion_cut_off_in_an_outage_is_recorded_after_it", cuts::completion_in_an_outage),
        trial("a_healthy_redis_serves_replays_without_the_store", shared_cache::healthy),
        trial("two_stores_behind_one_redis_never_meet", shared_cache::two_stores),
        trial(
            "a_redis_killed_flushed_frozen_and_damaged_under_load_gives_no_wrong_answer",
            shared_cache::troubled,
        ),
        trial(
            "an_entry_from_before_a_forgetting_is_not_replayed_once_the_key_runs_again",
            shared_cache::stale,
        ),
        trial(
            "a_killed_outbox_is_finished_by_another_and_charges_once_on_postgres",
            outbox::killed_on_postgres,
        ),
        trial("a_killed_outbox_is_finished_by_another_and_charges_once_on_sqlite", outbox::killed_on_sqlite),
        trial("attack_31_rows_that_postgres_rejects_to_remove_fail_alone", rejected::on_postgres),
        trial(
            "attack_31_rows_that_postgres_rejects_to_remove_at_the_commit_fail_alone",
            rejected::on_postgres_deferred,
        ),
        trial("attack_31_a_corrupt_row_of_postgres_fails_alone", rejected::corrupt_on_postgres),
        trial("attack_31_rows_that_sqlite_rejects_to_remove_fail_alone", rejected::on_sqlite),
        trial(
            "attack_31_rows_that_sqlite_rejects_to_remove_at_the_commit_fail_alone",
            rejected::on_sqlite_deferred,
        ),
        trial("two_processes_racing_through_a_pooler_run_each_key_once", race::pooled),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || {
        test();
        Ok::<(), Failed>(())
    })
}
