//! Orders what it is told to, once, however often it is started: the client of `clients/examples`, for either of the APIs there.
//!
//! ```sh
//! cargo run -p oncegate-client --example order -- "order 17" apples
//! ```

use std::env::{args, var};
use std::error::Error;
use std::process::ExitCode;

use oncegate_client::{Client, FileKeep, Outcome};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut words = args().skip(1);
    let name = words.next().unwrap_or_else(|| "order 17".to_owned());
    let item = words.next().unwrap_or_else(|| "apples".to_owned());
    let gateway = var("GATEWAY").unwrap_or_else(|_| "http://127.0.0.1:8080".to_owned());
    let keys = var("KEYS").unwrap_or_else(|_| "keys".to_owned());

    let client = Client::builder().keep(FileKeep::new(keys)).build()?;
    let outcome = client
        .post(&format!("{gateway}/orders"))
        .header("authorization", "Bearer me")
        .json(&json!({ "item": item }))
        .named(name)
        .run()
        .await?;

    match &outcome {
        Outcome::Happened(happened) => {
            let earlier = if happened.replayed { ", earlier" } else { "" };
            let order = happened.answer.body.as_deref().unwrap_or_default();
            println!("ordered{earlier}: {}", String::from_utf8_lossy(order));
        }
        Outcome::DidNotHappen(no) => println!("not ordered: {}", no.why),
        Outcome::MayHaveHappened(open) => {
            let (why, key) = (open.why, &open.asked.key);
            println!("not known yet ({why}): start this again, and it goes on with the key {key}");
        }
    }
    // Here a real program would first write the outcome down. Then the key may go: a later order of this name is another order.
    if var("DONE").is_ok() {
        client.done(&outcome).await?;
    }
    Ok(if outcome.is_certain() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
