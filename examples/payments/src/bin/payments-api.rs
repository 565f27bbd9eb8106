//! The payment API; see the README.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    example_payments::command::api::run(std::env::args_os()).await
}
