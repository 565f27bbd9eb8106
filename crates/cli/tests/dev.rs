//! `oncegate dev` shows what it says, and every step is asserted, not only printed.

use std::process::Command;

#[test]
fn every_step_of_the_show_comes_out_right() {
    let out = Command::new(env!("CARGO_BIN_EXE_oncegate")).arg("dev").output().unwrap();
    let shown = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{shown}\n{}", String::from_utf8_lossy(&out.stderr));
    assert!(!shown.contains('✗'), "{shown}");
    assert!(!shown.contains('\x1b'), "colours only on a terminal");
    for line in [
        "the clients                        1 × 201 charge 2, 19 × 409 in_progress",
        "its retry                          409 outcome_unknown",
        "the next retry                     201 charge 6, replayed",
        "the consumer                       charge 8; charge 8, replayed; charge 8, replayed",
        "Every step came out right: no key was charged twice.",
    ] {
        assert!(shown.contains(line), "{line:?} is not in:\n{shown}");
    }
}
