//! The configuration: wrong files, warnings, the reference, and what is published about it.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod contract;
mod errors;
mod openapi;
mod reconcile;
mod reference;
mod warnings;

use oncegate_gateway::{Config, ConfigError, Environment, Given, Secret};

/// A file, with the one thing that has no default.
fn parse(text: &str) -> Result<Config, ConfigError> {
    let given = Given { upstream: Some("http://127.0.0.1:3000".to_owned()), ..Given::default() };
    Config::parse(None, text, &given)
}

/// The same, with secrets in the environment.
fn parse_with(environment: &[(&str, &str)], text: &str) -> Result<Config, ConfigError> {
    let variables = environment.iter().map(|(name, value)| ((*name).to_owned(), Secret::new(*value)));
    let environment = Environment::Only(variables.collect());
    let given = Given { upstream: Some("http://127.0.0.1:3000".to_owned()), environment, ..Given::default() };
    Config::parse(None, text, &given)
}
