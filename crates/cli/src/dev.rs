//! `oncegate dev`: shows the point, with real processes, in half a minute.
//!
//! A provider that counts its charges, a payment API that knows nothing of retries, and the gateway in front of it: three processes, over
//! TCP, on files in a temporary folder. Every step says what the client saw and what the provider charged, and is checked: with `--once` the
//! command fails if any step came out otherwise. The provider is the judge.

mod client;
mod part;
mod screen;
mod stage;

use std::process::ExitCode;

use client::Pay;
use screen::Screen;
use stage::Stage;

/// Show a payment API behind the gateway: retries, a race, misuse, a hang-up, a timeout after the charge, a crash.
///
/// Starts a payment provider, a payment API and the gateway on free ports, shows what happens, and stays up for you to try.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// End after the show; exit code 0 only if every step came out right
    #[arg(long)]
    once: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    if let Some(part) = part::told() {
        return part::run(part);
    }
    let shown = Stage::open().and_then(|mut stage| {
        let screen = show(&mut stage)?;
        if !args.once {
            stay(&stage)?;
        }
        Ok(screen)
    });
    match shown {
        Ok(screen) if screen.all_came_out_right() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: the show could not go on: {error}");
            eprintln!("  nothing outside a temporary folder was touched; run it again");
            ExitCode::FAILURE
        }
    }
}

type Error = Box<dyn std::error::Error + Send + Sync>;

fn show(stage: &mut Stage) -> Result<Screen, Error> {
    let mut screen = Screen::new();
    screen.title(
        "Oncegate: a POST takes effect once",
        &format!(
            "the gateway on http://{}, in front of a payment API, whose provider counts its charges",
            stage.gateway()
        ),
    );
    let pay = |key, amount| Pay { tenant: "acme", key, amount, fault: None, refund_of: None };

    screen.step("A payment, and the same again");
    let first = stage.pay(pay("order-0001-payment", 100))?;
    screen.saw("the client sends it", &first.seen, "201 succeeded");
    let retry = stage.pay(pay("order-0001-payment", 100))?;
    screen.saw("its retry", &retry.seen, "201 succeeded, replayed");
    screen.saw("byte for byte?", if retry.body == first.body { "yes" } else { "no" }, "yes");
    screen.charged(stage.charges()?, 1);

    screen.step("Twenty at once, one key");
    let race = stage.race(pay("order-0002-payment", 200).with("slow"), 20)?;
    screen.saw("clients that were the first", &race.first.to_string(), "1");
    screen.saw("the others: refused or replayed", &race.others.to_string(), "19");
    screen.note(&format!("({} × 409 in_progress, {} × 201 replayed)", race.busy, race.replayed));
    screen.charged(stage.charges()?, 2);

    screen.step("The same key for another request, and another tenant's same key");
    let misuse = stage.pay(pay("order-0001-payment", 999))?;
    screen.saw("999 instead of 100", &misuse.seen, "422 key_reused");
    let neighbour = stage.pay(Pay { tenant: "other", ..pay("order-0001-payment", 5) })?;
    screen.saw("another tenant, its own payment", &neighbour.seen, "201 succeeded");
    screen.charged(stage.charges()?, 3);

    screen.step("A declined card is an answer, too");
    let declined = stage.pay(pay("order-0003-payment", 300).with("decline"))?;
    screen.saw("the client", &declined.seen, "402 declined");
    let retry = stage.pay(pay("order-0003-payment", 300))?;
    screen.saw("its retry", &retry.seen, "402 declined, replayed");
    screen.charged(stage.charges()?, 3);

    screen.step("A client that hangs up while it is being charged");
    stage.hang_up(pay("order-0004-payment", 400).with("slow"))?;
    screen.note("the client hangs up; its payment goes on");
    let settled = stage.until_settled(pay("order-0004-payment", 400))?;
    screen.saw("its retry", &settled.seen, "201 succeeded, replayed");
    screen.charged(stage.charges()?, 4);

    screen.step("The payment API is down: proved not executed, so the same key may run again");
    stage.kill_api();
    let refused = stage.pay(pay("order-0005-payment", 500))?;
    screen.saw("the client", &refused.seen, "502 upstream_unreachable");
    stage.start_api()?;
    let again = stage.pay(pay("order-0005-payment", 500))?;
    screen.saw("its retry, the API being back", &again.seen, "201 succeeded");
    screen.charged(stage.charges()?, 5);

    screen.step("A timeout after the charge: nobody guesses, the gateway asks");
    let timeout = stage.pay(pay("order-0006-payment", 600).with("timeout-after-charge,webhook-lost"))?;
    screen.saw("the client", &timeout.seen, "504 unknown");
    let known = stage.until_known(pay("order-0006-payment", 600))?;
    screen.saw("its retry, soon after", &known.seen, "201 succeeded, replayed");
    screen.saw("found out by", &stage.found_out_by("order-0006-payment")?, "probe");
    screen.saw("the record's state", &stage.state("order-0006-payment")?, "completed");
    screen.charged(stage.charges()?, 6);

    screen.step("A refund whose answer is lost, and nobody to ask: the provider's webhook tells");
    let payment: serde_json::Value = serde_json::from_slice(&first.body)?;
    let payment = payment["id"].as_str().ok_or("the payment has no id")?;
    let refund = Pay { refund_of: Some(payment), ..pay("order-0001-refund", 40) };
    let lost = stage.pay(refund.with("reset-after-charge,webhook-late"))?;
    screen.saw("the client", &lost.seen, "504 unknown");
    let known = stage.until_known(refund)?;
    screen.saw("its retry, soon after", &known.seen, "201 succeeded, replayed");
    screen.saw("found out by", &stage.found_out_by("order-0001-refund")?, "webhook provider");
    screen.charged(stage.charges()?, 7);

    screen.step("The gateway is killed with -9 while a payment runs, and started again");
    let crashed = pay("order-0007-payment", 700).with("timeout-after-charge,webhook-lost");
    let silence = stage.kill_gateway_during(crashed)?;
    screen.saw("the client", &silence, "no answer");
    stage.start_gateway()?;
    let retry = stage.until_known(pay("order-0007-payment", 700))?;
    screen.saw("its retry, after the lease", &retry.seen, "201 succeeded, replayed");
    let replay = stage.pay(pay("order-0001-payment", 100))?;
    screen.saw("the first payment, after all that", &replay.seen, "201 succeeded, replayed");
    let is_same = replay.body == first.body;
    screen.saw("still byte for byte?", if is_same { "yes" } else { "no" }, "yes");
    screen.charged(stage.charges()?, 8);

    screen.step("The judge");
    screen.saw("references charged twice", &stage.charged_twice()?.to_string(), "0");
    screen.saw("outcomes that nobody knows", &stage.unknown()?.to_string(), "0");
    screen.end();
    Ok(screen)
}

/// Until somebody ends it.
fn stay(stage: &Stage) -> Result<(), Error> {
    // Before anybody reads that Ctrl-C ends it.
    let end = stage.told_to_end()?;
    let line = |text: &str| screen::line(text);
    line("\nAll three are still up. Try it, as often as you like:\n");
    line(&format!(
        "  curl -i http://{}/payments -H 'Authorization: Bearer me' -H 'Idempotency-Key: \"my-first-order-17\"' \\\n       -H 'Content-Type: application/json' -d '{{\"amount\": 100, \"currency\": \"EUR\"}}'",
        stage.gateway()
    ));
    line(
        "\nAdd -H 'X-Fault: timeout-after-charge' (or slow, decline, reset-after-charge, late-charge, …) and retry. Then look:\n",
    );
    line(&format!(
        "  curl http://{}/ledger                  # what was charged, and whether anything twice",
        stage.provider()
    ));
    line(&format!("  curl http://{}/api/v1/records          # the gateway's records", stage.admin()));
    line(&format!("  curl http://{}/metrics", stage.admin()));
    line(&format!("  oncegate keys list --admin http://{}", stage.admin()));
    line(&format!("  oncegate keys show --admin http://{} my-first-order-17", stage.admin()));
    line("\nCtrl-C ends all of it.");
    stage.wait_for(end);
    Ok(())
}
