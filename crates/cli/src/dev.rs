//! `oncegate dev`: shows the rules at work, on the embedded store, in a few seconds.
//!
//! Every step says what the client saw and what the provider charged, and is checked: the command fails if any step came
//! out otherwise. The provider here lives in this process and counts its charges; it is the judge.

mod screen;
mod shop;

use std::process::ExitCode;
use std::time::Duration;

use screen::Screen;
use shop::{Ending, Shop};

/// Show the rules at work on the embedded store: retries, races, misuse, a timeout after the charge, a crash.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_: &Args) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    match runtime.block_on(show()) {
        Ok(screen) if screen.all_came_out_right() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => failed(&*error),
    }
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("error: the show could not go on: {error}");
    eprintln!("  nothing outside a temporary folder was touched; run it again, or see `oncegate dev --help`");
    ExitCode::FAILURE
}

type Error = Box<dyn std::error::Error + Send + Sync>;

async fn show() -> Result<Screen, Error> {
    let folder = tempfile::tempdir()?;
    let mut shop = Shop::open(&folder.path().join("oncegate.db"))?;
    let mut screen = Screen::new();
    screen
        .title("Oncegate: a POST takes effect once", "an embedded store, a provider that counts its charges");

    screen.step("A payment, and the same again");
    let first = shop.post("acme", "order-1", r#"{"amount": 100}"#, Ending::Answers).await?;
    screen.saw("the client sends it", &first, "201 charge 1");
    let replay = shop.post("acme", "order-1", r#"{ "amount": 1e2 }"#, Ending::Answers).await?;
    screen.saw("its retry, spelled differently", &replay, "201 charge 1, replayed");
    screen.charged(shop.charges(), 1);

    screen.step("Twenty at once, one key");
    let race = shop.race("acme", "order-2", r#"{"amount": 200}"#, 20).await?;
    screen.saw("the clients", &race, "1 × 201 charge 2, 19 × 409 in_progress");
    screen.charged(shop.charges(), 2);

    screen.step("The same key for another request");
    let misuse = shop.post("acme", "order-1", r#"{"amount": 999}"#, Ending::Answers).await?;
    screen.saw("the client", &misuse, "422 key_reused");
    let replay = shop.post("acme", "order-1", r#"{"amount": 100}"#, Ending::Answers).await?;
    screen.saw("the first request's retry", &replay, "201 charge 1, replayed");
    let neighbour = shop.post("other tenant", "order-1", r#"{"amount": 5}"#, Ending::Answers).await?;
    screen.saw("another tenant, same key", &neighbour, "201 charge 3");
    screen.charged(shop.charges(), 3);

    screen.step("A refused connection: proved not executed, so the same key may run again");
    let refused = shop.post("acme", "order-3", r#"{"amount": 7}"#, Ending::RefusesConnection).await?;
    screen.saw("the client", &refused, "502 upstream_unreachable");
    let again = shop.post("acme", "order-3", r#"{"amount": 7}"#, Ending::Answers).await?;
    screen.saw("its retry", &again, "201 charge 4");
    screen.charged(shop.charges(), 4);

    screen.step("A timeout after the charge: nobody guesses, it is found out");
    let timeout = shop.post("acme", "order-4", r#"{"amount": 42}"#, Ending::TimesOutAfterCharging).await?;
    screen.saw("the client", &timeout, "504 outcome_unknown");
    let retry = shop.post("acme", "order-4", r#"{"amount": 42}"#, Ending::Answers).await?;
    screen.saw("its retry", &retry, "409 outcome_unknown");
    let verdict = shop.probe("acme", "order-4").await?;
    screen.saw("the provider, asked", &verdict, "it happened: charge 5");
    let settled = shop.post("acme", "order-4", r#"{"amount": 42}"#, Ending::Answers).await?;
    screen.saw("the next retry", &settled, "201 charge 5, replayed");
    screen.charged(shop.charges(), 5);

    screen.step("The node dies while charging; its lease lapses; it comes back late");
    let silence = shop.post("acme", "order-5", r#"{"amount": 1}"#, Ending::DiesAfterCharging).await?;
    screen.saw("the client", &silence, "no answer");
    shop.pass(Duration::from_secs(61));
    let retry = shop.post("acme", "order-5", r#"{"amount": 1}"#, Ending::Answers).await?;
    screen.saw("a retry after the lease", &retry, "409 outcome_unknown");
    let late = shop.wake_the_dead().await?;
    screen.saw("the late holder settles its own", &late, "recorded: 201 charge 6");
    let settled = shop.post("acme", "order-5", r#"{"amount": 1}"#, Ending::Answers).await?;
    screen.saw("the next retry", &settled, "201 charge 6, replayed");
    screen.charged(shop.charges(), 6);

    screen.step("A restart: the file is closed and opened again");
    shop = shop.reopened(&folder.path().join("oncegate.db"))?;
    let replay = shop.post("acme", "order-4", r#"{"amount": 42}"#, Ending::Answers).await?;
    screen.saw("a retry of yesterday's payment", &replay, "201 charge 5, replayed");
    screen.charged(shop.charges(), 6);

    screen.end();
    Ok(screen)
}
