//! The payments example behind the real gateway: stories, one for each way in which a payment can go wrong, and then all of them at once.
//!
//! A story is read from top to bottom. In a town there are a provider, which keeps the ledger and is the judge; a payment API, which knows
//! nothing of retries; a postman, who has the provider's webhooks; a messenger, who carries the gateway's questions; and the gateway, a process of its own. Clients come over TCP. After each
//! step a story says what the client saw, what the gateway's record is, what the API says of the payment, and what was charged.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests: what cannot be done should stop the test"
)]
#![expect(clippy::needless_pass_by_value, reason = "a story reads better without ampersands")]

mod accepted;
mod attacks;
mod compare;
mod database;
mod faults;
mod faults_alone;
mod gateway;
mod messenger;
mod mix;
mod opposites;
mod order;
mod postman;
mod reaping;
mod reconciled;
mod reconcilers;
mod refunds;
mod restored;
mod storm;
mod told;
mod town;
mod trouble;
mod webhooks;
