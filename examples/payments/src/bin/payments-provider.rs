//! The payment provider; see the README.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    example_payments::command::provider::run(std::env::args_os()).await
}
