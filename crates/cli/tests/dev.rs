//! `oncegate dev` shows what it says, and every step is asserted, not only printed.

use std::process::Command;

#[test]
fn every_step_of_the_show_comes_out_right() {
    let out = Command::new(env!("CARGO_BIN_EXE_oncegate")).args(["dev", "--once"]).output().unwrap();
    let shown = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{shown}\n{}", String::from_utf8_lossy(&out.stderr));
    assert!(!shown.contains('✗'), "{shown}");
    assert!(!shown.contains('\x1b'), "colours only on a terminal");
    for line in [
        "clients that were the first        1",
        "999 instead of 100                 422 key_reused",
        "its retry                          402 declined, replayed",
        "the client                         502 upstream_unreachable",
        "its retry                          409 outcome_unknown",
        "the client                         no answer",
        "the first payment, after all that  201 succeeded, replayed",
        "references charged twice           0",
        "Every step came out right: no key was charged twice.",
    ] {
        assert!(shown.contains(line), "{line:?} is not in:\n{shown}");
    }
}
