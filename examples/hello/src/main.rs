//! The smallest axum service whose POSTs take effect once. Run it, and send the same request twice:
//!
//! ```sh
//! cargo run -p example-hello
//! curl -i localhost:3000/charges -H 'Authorization: Bearer me' -H 'Idempotency-Key: "order-17"' -d 100
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use axum::{Router, routing::post};
use oncegate::{Engine, Idempotency, Options, Profile, Routes, open, scope};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // It also runs the sweeper and the reaper: see `Options::workers`.
    let engine = Engine::start(open("sqlite://hello.db").await?, Options::default()).await?;
    let idempotency = Idempotency::new(engine, scope::authorization(), Routes::all(Profile::Ietf)?);
    let app = Router::new().route("/charges", post(charge)).layer(idempotency);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}

/// Charges somebody, and must do so once.
async fn charge(amount: String) -> String {
    static CHARGES: AtomicU64 = AtomicU64::new(0);
    format!("charge {}: {amount}\n", CHARGES.fetch_add(1, Ordering::Relaxed) + 1)
}
