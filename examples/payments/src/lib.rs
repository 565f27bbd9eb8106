#![doc = include_str!("../README.md")]

pub mod api;
pub mod command;
mod file;
pub mod post;
pub mod provider;
mod serve;

pub use serve::Serving;

/// How a gateway in front of the API finds out what became of a request: the keys of a `[route.probe]`.
pub const PROBE: &str = include_str!("../gateway/probe.toml");
/// How it reads the provider's events: the keys of a `[[webhook]]`, besides its name and its secrets.
pub const WEBHOOK: &str = include_str!("../gateway/webhook.toml");

/// A name that nobody can guess.
pub fn name(prefix: &str) -> Result<String, getrandom::Error> {
    let mut bits = [0; 8];
    getrandom::fill(&mut bits)?;
    Ok(format!("{prefix}_{:016x}", u64::from_be_bytes(bits)))
}
