//! Many nodes, one truth: processes that race, databases that die under load, connections cut in a commit, a failover.
//!
//! The binary is its own child: started with a role in its environment it plays that role, otherwise it runs the tests. What
//! the operations did is counted beside the store, never by it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod actor;
mod race;
mod starting;
mod world;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    if let Some(role) = actor::role() {
        match role.as_str() {
            "racer" => race::racer(),
            other => panic!("no role {other}"),
        }
        return ExitCode::SUCCESS;
    }
    let tests = vec![
        trial("nodes_that_start_together_on_an_empty_database_all_start", starting::together),
        trial("three_processes_racing_for_2000_keys_run_each_once_and_refuse_meanwhile", race::refusing),
        trial("three_processes_racing_for_2000_keys_run_each_once_and_wait_meanwhile", race::waiting),
        trial("hosts_whose_clocks_are_twenty_minutes_apart_race_as_if_they_were_not", race::clocks_apart),
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
