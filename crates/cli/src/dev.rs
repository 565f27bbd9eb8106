//! `oncegate dev`: shows the layer at work, over TCP and on the embedded store, in a few seconds.
//!
//! Every step says what the client saw and what the provider charged, and is checked: the command fails if any step came
//! out otherwise. The provider lives in this process and counts its charges; it is the judge.

mod node;
mod provider;
mod screen;
mod shop;

use std::process::ExitCode;
use std::time::Duration;

use node::{ANSWERS, REFUSES, TIMES_OUT};
use screen::Screen;
use shop::{Post, Shop};

/// Show a protected service at work: retries, races, misuse, a client that hangs up, a timeout after the charge, a crash.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_: &Args) -> ExitCode {
    match show() {
        Ok(screen) if screen.all_came_out_right() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: the show could not go on: {error}");
            eprintln!(
                "  nothing outside a temporary folder was touched; run it again, or see `oncegate dev --help`"
            );
            ExitCode::FAILURE
        }
    }
}

type Error = Box<dyn std::error::Error + Send + Sync>;

fn show() -> Result<Screen, Error> {
    let folder = tempfile::tempdir()?;
    let mut shop = Shop::open(&folder.path().join("oncegate.db"))?;
    let mut screen = Screen::new();
    screen.title(
        "Oncegate: a POST takes effect once",
        &format!(
            "an axum service with the layer on http://{}, an embedded store, a provider that counts its charges",
            shop.address()
        ),
    );
    let order = |key, body| Post { tenant: "acme", key, body, provider: ANSWERS };

    screen.step("A payment, and the same again");
    let first = shop.post(order("order-1", r#"{"amount": 100}"#))?;
    screen.saw("the client sends it", &first, "201 charge 1");
    let replay = shop.post(order("order-1", r#"{ "amount": 1e2 }"#))?;
    screen.saw("its retry, spelled differently", &replay, "201 charge 1, replayed");
    screen.charged(shop.charges(), 1);

    screen.step("Twenty at once, one key");
    let race = shop.race(order("order-2", r#"{"amount": 200}"#), 20)?;
    screen.saw("the clients", &race, "1 × 201 charge 2, 19 × 409 in_progress");
    screen.charged(shop.charges(), 2);

    screen.step("The same key for another request");
    let misuse = shop.post(order("order-1", r#"{"amount": 999}"#))?;
    screen.saw("the client", &misuse, "422 key_reused");
    let replay = shop.post(order("order-1", r#"{"amount": 100}"#))?;
    screen.saw("the first request's retry", &replay, "201 charge 1, replayed");
    let neighbour = shop.post(Post { tenant: "other tenant", ..order("order-1", r#"{"amount": 5}"#) })?;
    screen.saw("another tenant, same key", &neighbour, "201 charge 3");
    screen.charged(shop.charges(), 3);

    screen.step("A client that hangs up while it is being charged");
    let gone = shop.hang_up(order("order-3", r#"{"amount": 8}"#))?;
    screen.saw("the client", &gone, "hangs up");
    let settled = eventually(|| shop.post(order("order-3", r#"{"amount": 8}"#)), "409 in_progress")?;
    screen.saw("its retry", &settled, "201 charge 4, replayed");
    screen.charged(shop.charges(), 4);

    screen.step("A refused connection: proved not executed, so the same key may run again");
    let refused = shop.post(Post { provider: REFUSES, ..order("order-4", r#"{"amount": 7}"#) })?;
    screen.saw("the client", &refused, "502 the provider refused the connection");
    let again = shop.post(order("order-4", r#"{"amount": 7}"#))?;
    screen.saw("its retry", &again, "201 charge 5");
    screen.charged(shop.charges(), 5);

    screen.step("A timeout after the charge: nobody guesses, it is found out");
    let timeout = shop.post(Post { provider: TIMES_OUT, ..order("order-5", r#"{"amount": 42}"#) })?;
    screen.saw("the client", &timeout, "504 the provider timed out");
    let retry = shop.post(order("order-5", r#"{"amount": 42}"#))?;
    screen.saw("its retry", &retry, "409 outcome_unknown");
    let verdict = shop.probe("acme", "order-5")?;
    screen.saw("the provider, asked", &verdict, "it happened: charge 6");
    let settled = shop.post(order("order-5", r#"{"amount": 42}"#))?;
    screen.saw("the next retry", &settled, "201 charge 6, replayed");
    screen.charged(shop.charges(), 6);

    screen.step("The service is killed while charging, and started again on the same file");
    let silence = shop.post_and_kill(order("order-6", r#"{"amount": 1}"#))?;
    screen.saw("the client", &silence, "no answer");
    let retry = shop.post(order("order-6", r#"{"amount": 1}"#))?;
    screen.saw("a retry within the lease", &retry, "409 in_progress");
    shop.pass(Duration::from_secs(61));
    let retry = shop.post(order("order-6", r#"{"amount": 1}"#))?;
    screen.saw("a retry after the lease", &retry, "409 outcome_unknown");
    let verdict = shop.probe("acme", "order-6")?;
    screen.saw("the provider, asked", &verdict, "it happened: charge 7");
    let settled = shop.post(order("order-6", r#"{"amount": 1}"#))?;
    screen.saw("the next retry", &settled, "201 charge 7, replayed");
    let replay = shop.post(order("order-1", r#"{"amount": 100}"#))?;
    screen.saw("the first payment, after all that", &replay, "201 charge 1, replayed");
    screen.charged(shop.charges(), 7);

    screen.step("No HTTP at all: a queue delivers a message three times to `engine.once`");
    let deliveries = shop.deliver("message-17", 3)?;
    screen.saw("the consumer", &deliveries, "charge 8; charge 8, replayed; charge 8, replayed");
    screen.charged(shop.charges(), 8);

    screen.end();
    Ok(screen)
}

/// Asks until the answer is another than `not_yet`.
fn eventually(ask: impl Fn() -> Result<String, Error>, not_yet: &str) -> Result<String, Error> {
    let started = std::time::Instant::now();
    loop {
        let seen = ask()?;
        if seen != not_yet || started.elapsed() > Duration::from_secs(20) {
            return Ok(seen);
        }
    }
}
