//! The mutants of the client: what it takes for settled, and where it keeps its keys.

use super::list::Mutant;

/// A mutant of what is sent and believed, which the contract's cases must notice.
const fn contract(
    name: &'static str,
    file: &'static str,
    rule: &'static str,
    without: &'static str,
) -> Mutant {
    Mutant { name, package: "oncegate-client", test: "contract", file, rule, without }
}

/// A mutant of what the contract has no row for.
const fn client(name: &'static str, file: &'static str, rule: &'static str, without: &'static str) -> Mutant {
    Mutant { name, package: "oncegate-client", test: "client", file, rule, without }
}

const JUDGE: &str = "crates/client/src/judge.rs";
const COURSE: &str = "crates/client/src/course.rs";
const OPERATION: &str = "crates/client/src/operation.rs";
const SEND: &str = "crates/client/src/send.rs";
const KEEP: &str = "crates/client/src/keep.rs";
const FILE: &str = "crates/client/src/keep/file.rs";
const BUILD: &str = "crates/client/src/client.rs";

/// Every one of them.
pub(super) const MUTANTS: &[Mutant] = &[
    contract(
        "a refusal speaks for an earlier try",
        COURSE,
        "Verdict::Refused(why) => Next::Over(self.ended(why, self.trace)),",
        "Verdict::Refused(why) => Next::Over(self.ended(why, Trace::Nothing)),",
    ),
    contract(
        "doubt is forgotten by a try that did nothing",
        COURSE,
        "        if trace == Trace::Doubt {\n            self.trace = Trace::Doubt;\n        }",
        "        self.trace = trace;",
    ),
    contract(
        "credentials go to another server",
        COURSE,
        ".filter(|url| url.origin() == self.url.origin())",
        "",
    ),
    contract(
        "a wait is begun that ends after the deadline",
        COURSE,
        "(self.left(now)? <= wait).then_some(Why::Deadline)",
        "{ let _ = wait; self.left(now)?.is_zero().then_some(Why::Deadline) }",
    ),
    contract(
        "a 503 is taken for nothing done",
        JUDGE,
        "400..=499 | 501 | 505 => Verdict::Refused(Why::Refused),\n        _ => IN_DOUBT,",
        "400..=499 | 501 | 505 => Verdict::Refused(Why::Refused),\n        _ => NOTHING_DONE,",
    ),
    contract(
        "a kept failure is asked for again",
        JUDGE,
        "        400..=499 => Verdict::DidNotHappen(Why::Refused),\n        _ => Verdict::Unclear(Why::Failed),",
        "        400..=499 => Verdict::DidNotHappen(Why::Refused),\n        _ => IN_DOUBT,",
    ),
    contract(
        "what is said at the place of accepted work is believed from anybody",
        JUDGE,
        "if state.is_none() && answer.is_kept() {",
        "if state.is_none() {",
    ),
    contract(
        "a key that was given is taken for a new one",
        OPERATION,
        "Which::Begun(key) => (Begun { key, trace: Trace::Doubt }, None),",
        "Which::Begun(key) => (Begun { key, trace: Trace::Nothing }, None),",
    ),
    client(
        "a key that was kept is taken for a new one",
        KEEP,
        "return Ok(Begun { key, trace: Trace::Doubt });",
        "return Ok(Begun { key, trace: Trace::Nothing });",
    ),
    client(
        "a try without a connection leaves doubt",
        SEND,
        "let how = if error.is_connect() || error.is_builder() { How::NotSent } else { How::BrokenOff };",
        "let how = How::BrokenOff;",
    ),
    client(
        "a try that was given up did nothing",
        COURSE,
        "self.ended(Why::Cancelled, Trace::Doubt)",
        "self.ended(Why::Cancelled, self.trace)",
    ),
    client(
        "a later key replaces the first",
        FILE,
        "let linked = fs::hard_link(&draft, &self.path);\n        fs::remove_file(&draft)?;",
        "let linked = fs::rename(&draft, &self.path);",
    ),
    client(
        "a damaged key file is as good as none",
        FILE,
        "None => Err(FileKeepError::Damaged { path: path.to_owned(), name: self.name.clone() }),",
        "None => Ok(None),",
    ),
    client(
        "the key of what may have happened is forgotten",
        BUILD,
        "Some(name) if outcome.is_certain() =>",
        "Some(name) =>",
    ),
    client(
        "a caller's own HTTP client follows redirects",
        BUILD,
        "http.redirect(Policy::none()).referer(false)",
        "{ let _ = Policy::none(); http.referer(false) }",
    ),
];
