//! `oncegate check`: what a configuration comes to, before it serves anybody.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use oncegate_gateway::{Config, Rule, contract, openapi};
use serde_json::{Value, json};

use crate::serve::{Settings, admin_url};
use crate::streams::{print, say};

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
    /// Print what clients can rely on, route by route, as Markdown
    #[arg(long, conflicts_with = "json")]
    contract: bool,
    /// Print this OpenAPI 3 document (JSON) with the contract added, and list on stderr what changes something and no route protects
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "contract"])]
    openapi: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    let config = match Config::load(args.settings.config.as_deref(), &args.settings.given()) {
        Ok(config) => config,
        Err(error) => {
            say(format_args!("error: {error}"));
            return ExitCode::from(2);
        }
    };
    for warning in &config.warnings {
        say(format_args!("warning: {warning}"));
    }
    for note in identity_notes(&config) {
        say(format_args!("note: {note}"));
    }
    if let Some(path) = &args.openapi {
        return described(&config, path);
    }
    let shown = if args.contract {
        contract(&config)
    } else if args.json {
        format!("{:#}\n", as_json(&config))
    } else {
        as_text(&config)
    };
    print(shown.as_bytes())
}

/// The document, and what it says about endpoints that nobody protects.
fn described(config: &Config, path: &Path) -> ExitCode {
    let refuse = |words: &str| {
        say(format_args!("error: {}: {words}", path.display()));
        ExitCode::from(2)
    };
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => return refuse(&format!("the file could not be read: {error}")),
    };
    let described = match openapi(config, &text) {
        Ok(described) => described,
        Err(error) => return refuse(&error.to_string()),
    };
    for warning in &described.warnings {
        say(format_args!("warning: {}: {warning}", path.display()));
    }
    for endpoint in &described.unprotected {
        say(format_args!("unprotected: {endpoint}"));
    }
    let is_all = described.unprotected.is_empty() && described.unseen.is_empty();
    for endpoint in &described.unseen {
        say(format_args!("not seen: {endpoint}"));
    }
    if !is_all {
        say(format_args!(
            "a client that retries may execute these twice: give each a [[route]] that protects it, or, where it may be repeated, put \
             \"x-idempotency\": false into its operation"
        ));
    }
    let printed = print(described.document.as_bytes());
    if is_all { printed } else { ExitCode::from(1) }
}

/// Routes whose keys are other keys than under the defaults, which serve their requests before
/// such a route is added and after it is removed.
fn identity_notes(config: &Config) -> Vec<String> {
    let defaults = &config.otherwise.policy;
    let is_served_otherwise = |rule: &&Rule| {
        let method = rule.pattern.split(' ').next().unwrap_or_default();
        !rule.is_off() && defaults.methods.contains(&method)
    };
    let note = |rule: &Rule| {
        let (scope, syntax) = (rule.policy.scope, rule.policy.key.syntax);
        let differs = match (scope != defaults.scope, syntax.is_literal() != defaults.key.syntax.is_literal())
        {
            (false, false) => return None,
            (true, false) => "`scope`",
            (false, true) => "`key_syntax`",
            (true, true) => "`scope` and `key_syntax`",
        };
        Some(format!(
            "{}: {differs} other than in [defaults], so a key is another key there. While a deploy adds or removes this \
             route, a node with the old file and one with the new may both execute a key that comes to both: stop the old \
             nodes first. Before you remove the route, name it in `formerly` of what serves its requests then",
            rule.pattern
        ))
    };
    config.routes.iter().filter(is_served_otherwise).filter_map(note).collect()
}

fn rules(config: &Config) -> impl Iterator<Item = &Rule> {
    config.routes.iter().chain(std::iter::once(&config.otherwise))
}

fn as_text(config: &Config) -> String {
    let mut text = String::new();
    let scheme = if config.listen.tls.is_some() { "https" } else { "http" };
    let token = if config.admin.token.is_some() { "with a token" } else { "without a token" };
    let gateway = [
        ("listen", format!("{scheme}://{}", config.listen.address)),
        ("admin", format!("{} ({token})", admin_url(config, &config.admin.address))),
        ("upstream", config.upstream.shown()),
        ("store", config.store.shown()),
    ];
    text.push_str("gateway\n");
    for (name, value) in gateway {
        let _ = writeln!(text, "  {name:<18} {value}");
    }
    text.push_str("\nlimits\n");
    for (name, value) in config.limit_settings() {
        let _ = writeln!(text, "  {name:<24} {value}");
    }
    for rule in rules(config) {
        let title = if rule.pattern == "*" { "everything else" } else { &rule.pattern };
        let _ = writeln!(text, "\n{title}");
        for (name, value) in rule.settings() {
            let _ = writeln!(text, "  {name:<18} {value}");
        }
    }
    for webhook in &config.webhooks {
        let _ = writeln!(text, "\nPOST {}", webhook.path());
        for (name, value) in webhook.settings() {
            let _ = writeln!(text, "  {name:<18} {value}");
        }
    }
    text
}

fn as_json(config: &Config) -> Value {
    let rules = rules(config).map(|rule| json!({ "match": rule.pattern, "settings": rule.settings_json() }));
    let webhooks = config.webhooks.iter();
    let webhooks =
        webhooks.map(|webhook| json!({ "path": webhook.path(), "settings": webhook.settings_json() }));
    json!({
        "listen": { "address": config.listen.address.to_string(), "tls": config.listen.tls.is_some() },
        "admin": {
            "address": config.admin.address.to_string(),
            "tls": config.admin.tls.is_some(),
            "token": config.admin.token.is_some(),
        },
        "upstream": config.upstream.shown(),
        "store": config.store.shown(),
        "limits": config.limit_settings_json(),
        "routes": rules.collect::<Vec<_>>(),
        "webhooks": webhooks.collect::<Vec<_>>(),
        "warnings": config.warnings,
    })
}
