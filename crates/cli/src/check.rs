//! `oncegate check`: what a configuration comes to, before it serves anybody.

use std::process::ExitCode;

use oncegate_gateway::{Config, Rule};
use serde_json::{Map, Value, json};

use crate::serve::Settings;

/// Check a configuration, and show each route's effective policy.
///
/// Exit code 0: it can be used; 1: it can, but an endpoint that changes something is not protected (with --openapi); 2: it cannot.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    settings: Settings,
    /// For programs
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    let config = match Config::load(args.settings.config.as_deref(), &args.settings.given()) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    if args.json {
        println!("{:#}", as_json(&config));
    } else {
        print(&config);
    }
    for warning in &config.warnings {
        eprintln!("warning: {warning}");
    }
    ExitCode::SUCCESS
}

fn rules(config: &Config) -> impl Iterator<Item = &Rule> {
    config.routes.iter().chain(std::iter::once(&config.otherwise))
}

fn print(config: &Config) {
    for (number, rule) in rules(config).enumerate() {
        if number > 0 {
            println!();
        }
        match rule.pattern.as_str() {
            "*" => println!("everything else"),
            pattern => println!("{pattern}"),
        }
        for (name, value) in rule.settings() {
            println!("  {name:<18} {value}");
        }
    }
}

fn as_json(config: &Config) -> Value {
    let rules = rules(config).map(|rule| {
        let settings: Map<String, Value> =
            rule.settings().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        json!({ "match": rule.pattern, "settings": settings })
    });
    json!({ "routes": rules.collect::<Vec<_>>(), "warnings": config.warnings })
}
