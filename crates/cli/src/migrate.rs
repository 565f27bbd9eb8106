//! `oncegate migrate`: makes a store's tables, or brings them up to date.

use std::process::ExitCode;

use crate::output;
use crate::source::{Trouble, not_opened, store_url};
use crate::streams::say;

/// Create a store's tables, or bring them up to date; `serve` does the same when it starts.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The store: sqlite://FILE, postgres://…, redis://…, or where its URL stands: env:NAME,
    /// file:PATH
    #[arg(long, env = "ONCEGATE_STORE", value_name = "URL", hide_env_values = true)]
    store: String,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    let done = crate::source::block_on(async {
        let url = store_url(&args.store)?;
        if url.expose().starts_with("memory") {
            return Err(Trouble::Wrong("a store in memory has nothing to migrate".to_owned()));
        }
        let opened = oncegate::open(url.expose()).await.map_err(|error| not_opened(&error))?;
        for warning in opened.warnings() {
            say(format_args!("warning: {warning}"));
        }
        Ok(())
    });
    match done {
        Ok(()) => {
            say(format_args!("the store is up to date"));
            ExitCode::SUCCESS
        }
        Err(trouble) => output::trouble(&trouble),
    }
}
