//! The contract, put into an API's own OpenAPI document; and which of its endpoints nobody protects.
//!
//! Which route an endpoint belongs to is asked of the layer's own routes, with a placeholder for each parameter of its path. The document
//! is read as what clients see: the path of a server's URL is put before each path. Pure; the order of the document's members stays, and
//! doing it twice is doing it once. Not here: the contract itself (`contract`).

mod add;
mod json;
mod servers;

use std::error::Error;
use std::fmt;

use http::Method;
use oncegate_engine::Route;
use oncegate_tower::Routes;

use crate::config::Config;
use json::{Node, Object};

/// A document with its contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The document, as JSON.
    pub document: String,
    /// Endpoints that change something, and that no route protects: `POST /payments/{id}`.
    pub unprotected: Vec<String>,
    /// Paths whose endpoints are in another file, so that nobody knows whether they are protected.
    pub unseen: Vec<String>,
    /// What could not be described.
    pub warnings: Vec<String>,
}

/// Adds each route's contract to an OpenAPI 3 document in JSON.
///
/// A protected operation gets the header parameter, the boundary's own answers, and the whole as `x-idempotency`. What the document says
/// already stays. An unprotected operation that says `"x-idempotency": false` is meant to be so, and is not listed.
pub fn openapi(config: &Config, document: &str) -> Result<Described, OpenApiError> {
    let routes = config.layer_routes().map_err(|error| OpenApiError::new(error.to_string()))?;
    let original = read(document)?;
    let mut described = original.clone();
    let mut work =
        Work { config, routes, original: &original, unprotected: vec![], unseen: vec![], warnings: vec![] };
    let bases = servers::bases(original.get("servers")).unwrap_or_else(|| vec![String::new()]);
    let mut is_any = false;
    if let Some(Node::Object(paths)) = described.get_mut("paths") {
        for (path, item) in paths.iter_mut().filter(|(path, _)| path.starts_with('/')) {
            is_any |= work.path(path, item, &bases);
        }
    }
    if is_any {
        described.edit("components", |components| {
            components.edit("schemas", |schemas| schemas.insert(add::PROBLEM, add::problem_schema()));
        });
    }
    let Work { unprotected, unseen, warnings, .. } = work;
    Ok(Described { document: Node::Object(described).to_string(), unprotected, unseen, warnings })
}

fn read(document: &str) -> Result<Object, OpenApiError> {
    let document = document.trim_start_matches('\u{feff}');
    let parsed = json::parse(document).map_err(|error| {
        let looks_like_json = document.trim_start().starts_with(['{', '[']);
        OpenApiError::new(if looks_like_json || document.trim().is_empty() {
            format!("the document is not JSON: {error}")
        } else {
            "the document is not JSON. YAML is not read here; convert it first, for instance with `yq -o=json . openapi.yaml > openapi.json`"
                .to_owned()
        })
    })?;
    let Node::Object(document) = parsed else {
        return Err(OpenApiError::new(
            "the document is JSON, but not an OpenAPI document: expected an object",
        ));
    };
    match document.get("openapi") {
        Some(Node::Text(version)) if version.starts_with("3.") => Ok(document),
        Some(Node::Text(version)) => {
            Err(OpenApiError::new(format!("the document is of OpenAPI {version}; expected 3.0 or later")))
        }
        _ if document.get("swagger").is_some() => Err(OpenApiError::new(
            "the document is of Swagger 2; expected OpenAPI 3, which converters such as swagger2openapi make of it",
        )),
        _ => Err(OpenApiError::new(
            "the document is JSON, but not an OpenAPI document: expected a member \"openapi\": \"3.…\"",
        )),
    }
}

/// Methods that change something, as a document has them.
const CHANGING: [(&str, Method); 4] =
    [("post", Method::POST), ("put", Method::PUT), ("patch", Method::PATCH), ("delete", Method::DELETE)];

struct Work<'a> {
    config: &'a Config,
    routes: Routes,
    original: &'a Object,
    unprotected: Vec<String>,
    unseen: Vec<String>,
    warnings: Vec<String>,
}

impl Work<'_> {
    /// Describes the endpoints of one path; whether any of them is protected.
    fn path(&mut self, path: &str, item: &mut Node, bases: &[String]) -> bool {
        let Node::Object(typed) = &*item else {
            self.warnings.push(format!("{path}: is not an object, and was left as it is"));
            return false;
        };
        // The item of another place is copied to this one: what protects it depends on the path.
        let Some(mut whole) = typed.whole(self.original) else {
            let reference = typed.get("$ref").map(Node::shown).unwrap_or_default();
            self.unseen.push(format!("{path} (its endpoints are described elsewhere: {reference})"));
            return false;
        };
        let bases = servers::bases(whole.get("servers")).unwrap_or_else(|| bases.to_vec());
        let mut is_any = false;
        for (name, method) in CHANGING {
            if let Some(Node::Object(operation)) = whole.get_mut(name) {
                let bases = servers::bases(operation.get("servers")).unwrap_or_else(|| bases.clone());
                is_any |= self.operation(&method, path, &bases, operation);
            }
        }
        if is_any {
            *item = Node::Object(whole);
        }
        is_any
    }

    /// Describes one endpoint; whether it is protected.
    fn operation(&mut self, method: &Method, path: &str, bases: &[String], operation: &mut Object) -> bool {
        let mut found: Option<&Route> = None;
        let is_meant = operation.get("x-idempotency") == Some(&Node::from(false));
        for base in bases {
            let Some(route) = self.routes.of(method, &format!("{base}{}", filled(path))) else {
                if !is_meant {
                    self.unprotected.push(format!("{method} {base}{path}"));
                }
                continue;
            };
            match found {
                Some(first) if first.policy() != route.policy() => self.warnings.push(format!(
                    "{method} {path}: its servers lead to two routes, {} and {}; the contract of the first was added",
                    first.operation(),
                    route.operation()
                )),
                Some(_) => {}
                None => found = Some(route),
            }
        }
        let Some(route) = found else { return false };
        let left = add::contract(operation, route, self.config, self.original);
        self.warnings.extend(left.into_iter().map(|words| format!("{method} {path}: {words}")));
        true
    }
}

/// A path as a request might have it.
fn filled(template: &str) -> String {
    let mut path = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((_, after)) = after.split_once('}') else { break };
        path.push_str(before);
        path.push_str("oncegate-placeholder");
        rest = after;
    }
    path.push_str(rest);
    path
}

/// A document that cannot be described: what is wrong with it, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenApiError(String);

impl OpenApiError {
    fn new(words: impl Into<String>) -> Self {
        Self(words.into())
    }
}

impl fmt::Display for OpenApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for OpenApiError {}
