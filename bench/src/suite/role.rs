//! What this program is when it is started again by a run: the other processes beside the gateway.
//!
//! Each prints the address it listens on as its first line, and lives until it is killed.

mod layer;
mod upstream;

use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::Outcome;
use crate::gateway::bare;

/// `role upstream`, `role bare ADDRESS`, `role layer STORE`.
pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> Outcome {
    let mut next = || arguments.next().ok_or("a role is missing a word");
    match next()?.as_str() {
        "upstream" => upstream::run(),
        "bare" => {
            let upstream: SocketAddr = next()?.parse()?;
            on_all_cores(async move |listener| bare::serve(listener, upstream).await)
        }
        "layer" => {
            let store = next()?;
            on_all_cores(async move |listener| layer::serve(listener, &store).await)
        }
        other => Err(format!("there is no role {other}").into()),
    }
}

/// On the runtime that the gateway has: one thread a core.
fn on_all_cores(serve: impl AsyncFnOnce(TcpListener) -> Outcome) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        serve(listener).await
    })
}
