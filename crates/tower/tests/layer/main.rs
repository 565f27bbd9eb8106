//! The layer around an axum service, over real TCP: what clients see, and how often the handler runs.
//!
//! Nothing here waits for time to pass. Handlers stop at a gate, stores at a fault, and the test lets them go on.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod admit;
mod answer_limits;
mod attempt;
mod client;
mod deferred;
mod endings;
mod errors;
mod faults;
mod hang_up;
mod identity;
mod late;
mod misuse;
mod phased;
mod race;
mod replay;
mod reply;
mod request_limits;
mod stage;
