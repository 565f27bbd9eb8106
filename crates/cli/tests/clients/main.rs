//! The clients of `clients/` and of `crates/client`, against the real gateway: their own tests, their examples, and the storms, in which
//! every result is held against the provider's ledger.
//!
//! The binary is its own child: with a part for its first word it plays that part, otherwise it runs the tests.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod driver;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use example_payments::command::{api, provider};
use libtest_mimic::{Arguments, Failed, Trial};
use oncegate_test_servers::programs;

/// Parts to play; no filter of tests looks like that.
const PROVIDER: &str = "part:provider";
const API: &str = "part:api";
const DRIVER: &str = "part:driver";

fn main() -> ExitCode {
    let words = || std::env::args_os().skip(1);
    match words().next().as_deref().and_then(|word| word.to_str()) {
        Some(PROVIDER) => runtime().block_on(provider::run(words())),
        Some(API) => runtime().block_on(api::run(words())),
        Some(DRIVER) => runtime().block_on(driver::run(words().skip(1))),
        _ => libtest_mimic::run(&Arguments::from_args(), tests()).exit_code(),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn tests() -> Vec<Trial> {
    let [node_driver, python_driver] = ["typescript/tests/driver.mjs", "python/tests/driver.py"];
    vec![
        test("the_tests_of_the_typescript_client", || must(node().arg("--test").args(typescript_tests()))),
        test("the_tests_of_the_python_client", || {
            must(python().args(["-m", "unittest", "discover", "-s", "python/tests"]));
        }),
        test("the_examples_do_what_their_readmes_say", || must(python().arg("examples/check.py"))),
        test("the_typescript_client_and_what_a_gateway_accepts", move || {
            accepted("typescript", &[node_program().into(), node_driver.into()]);
        }),
        test("the_python_client_and_what_a_gateway_accepts", move || {
            accepted("python", &[python_program().into(), python_driver.into()]);
        }),
        test("the_rust_client_and_what_a_gateway_accepts", || accepted("rust", &[this(), DRIVER.into()])),
        test("storm_of_the_typescript_client", move || {
            storm("typescript", &[node_program().into(), node_driver.into()]);
        }),
        test("storm_of_the_python_client", move || {
            storm("python", &[python_program().into(), python_driver.into()]);
        }),
        test("storm_of_the_rust_client", || storm("rust", &[this(), DRIVER.into()])),
    ]
}

fn test(name: &str, act: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name, move || {
        act();
        Ok::<(), Failed>(())
    })
}

/// One client, which is started by these words, in front of a gateway that does its work later.
fn accepted(name: &str, driver: &[OsString]) {
    must(python().args(["storm/accepted.py", name, "--"]).args(driver));
}

/// A thousand operations by one client, which is started by these words.
fn storm(name: &str, driver: &[OsString]) {
    must(python().args(["storm/storm.py", name, "--"]).args(driver));
}

fn typescript_tests() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(clients().join("typescript/tests")).unwrap();
    let files = entries.map(|entry| entry.unwrap().path());
    files.filter(|path| path.to_str().is_some_and(|path| path.ends_with(".test.mjs"))).collect()
}

fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients")
}

fn node_program() -> PathBuf {
    programs::must(programs::find("node"), "nodejs")
}

fn python_program() -> PathBuf {
    programs::must(programs::find("python3"), "python3")
}

fn node() -> Command {
    command(&node_program())
}

fn python() -> Command {
    command(&python_program())
}

/// In the clients' folder, with what the scripts there ask for; they leave nothing behind.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    let paths = ["python", "python/tests"].map(|path| clients().join(path));
    // As a shell reads it.
    let part = |part: &str| format!("'{}' {part}", this().to_str().unwrap());
    command
        .current_dir(clients())
        .env("PYTHONPATH", std::env::join_paths(paths).unwrap())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("ONCEGATE_BIN", concat!("'", env!("CARGO_BIN_EXE_oncegate"), "'"))
        .env("PAYMENTS_PROVIDER_BIN", part(PROVIDER))
        .env("PAYMENTS_API_BIN", part(API));
    command
}

/// This very program.
fn this() -> OsString {
    std::env::current_exe().unwrap().into()
}

fn must(command: &mut Command) {
    let shown: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    let shown = shown.join(" ".as_ref()).to_string_lossy().into_owned();
    let status = command.status().unwrap_or_else(|error| panic!("`{shown}` cannot be started: {error}"));
    assert!(status.success(), "`{shown}` ended with {status}");
}
