//! The example does what it says.

use std::process::Command;

#[test]
fn six_deliveries_send_three_mails() {
    let output = Command::new(env!("CARGO_BIN_EXE_example-jobs")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("sent before").count(), 3, "{text}");
    assert!(text.ends_with("3 mails for 6 deliveries of 3 invoices\n"), "{text}");
}
