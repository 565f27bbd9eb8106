//! What the pages show of a service is what compiles.

use std::fs;
use std::path::Path;

/// The example of `docs/deferred.md` started the completer and nothing else: a service that died in the middle of a run left it there for ever.
/// Line by line it is now the one in the crate's documentation, which is compiled.
#[test]
fn the_example_of_deferred_work_is_the_one_that_compiles() {
    let crate_ = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(crate_.join("../../docs/deferred.md")).unwrap();
    let compiled = fs::read_to_string(crate_.join("src/lib.rs")).unwrap();
    let example = page.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    let example = example.unwrap_or_else(|| panic!("the page has an example"));
    let mut rest = compiled.as_str();
    for line in example.lines() {
        let line = format!("//! {line}\n");
        rest = rest.split_once(&line).unwrap_or_else(|| panic!("not in the crate's documentation: {line}")).1;
    }
}
