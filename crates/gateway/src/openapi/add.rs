//! What is added to one operation: the header, the boundary's answers, the contract.

use oncegate_core::policy::Policy;
use oncegate_core::problem::{CONTENT_TYPE, TYPE_BASE};
use oncegate_core::record::AfterRetention;
use oncegate_engine::Route;

use super::json::{Node, Object};
use crate::config::{Config, Rule, Words as _};
use crate::contract::{Endings, Refusal, example, header_case, owner, refusals, sameness};

/// The schema that is ours among a document's.
pub(super) const PROBLEM: &str = "IdempotencyProblem";
const KEY: &str = "Idempotency-Key";

/// Adds a route's contract to an operation, and says what could not be added.
pub(super) fn contract(
    operation: &mut Object,
    route: &Route,
    config: &Config,
    document: &Object,
) -> Vec<String> {
    let policy = route.policy();
    let is_preauthorized = config.is_preauthorized(route.operation().as_str());
    let refusals = refusals(policy, &config.scope, is_preauthorized);
    parameter(operation, policy, document);
    let mut left = responses(operation, &refusals, document);
    if policy.may_defer() {
        left.extend(accepted(operation, document));
    }
    operation.insert("x-idempotency", extension(route, config, &refusals));
    left
}

fn parameter(operation: &mut Object, policy: &Policy, document: &Object) {
    operation.edit_list("parameters", |parameters| {
        let found = parameters.iter().enumerate().find_map(|(place, node)| {
            let Node::Object(typed) = node else { return None };
            let whole = typed.whole(document)?;
            let is_text = |name, wanted: &str| matches!(whole.get(name), Some(Node::Text(text)) if text.eq_ignore_ascii_case(wanted));
            (is_text("name", KEY) && is_text("in", "header")).then_some((place, whole))
        });
        let (place, mut parameter) = match found {
            Some((place, parameter)) => (Some(place), parameter),
            None => (None, Object::of([("name", KEY.into()), ("in", "header".into())])),
        };
        let (min, max) = example::lengths(policy);
        if parameter.get("description").is_none() {
            parameter.insert("description", key_description(policy));
        }
        parameter.insert("required", policy.key.required);
        parameter.remove("content");
        let schema = Object::of([
            ("type", "string".into()),
            ("minLength", (min as u64).into()),
            ("maxLength", (max as u64).into()),
            ("pattern", example::pattern(policy).into()),
        ]);
        parameter.insert("schema", schema);
        if let Some(value) = example::value(policy)
            && parameter.get("example").is_none()
            && parameter.get("examples").is_none()
        {
            parameter.insert("example", value);
        }
        match place {
            Some(place) => parameters[place] = parameter.into(),
            None => parameters.push(parameter.into()),
        }
    });
}

/// What a client has to know about the key, for a person who reads the document.
fn key_description(policy: &Policy) -> String {
    let (min, max) = (policy.key.chars_min.max(1), policy.key.chars_max);
    format!(
        "Makes this operation take effect once. Send a new value, such as a random UUID, for each operation and the same value with \
         each retry: {min} to {max} characters of printable ASCII, without personal data. A replay reports what happened when the \
         operation ran, not the current state."
    )
}

/// Adds the boundary's answers to those that are described, and leaves these as they are.
fn responses(operation: &mut Object, refusals: &[Refusal], document: &Object) -> Vec<String> {
    let mut left = Vec::new();
    operation.edit("responses", |responses| {
        for of_status in refusals.chunk_by(|one, next| one.status == next.status) {
            let Some(first) = of_status.first() else { continue };
            let status = first.status.to_string();
            let typed = match responses.get(&status) {
                Some(Node::Object(typed)) => typed.clone(),
                _ => Object::default(),
            };
            // Others may refer to the same description: a copy is extended.
            match typed.whole(document) {
                Some(mut response) => {
                    describe(&mut response, of_status);
                    responses.insert(&status, response);
                }
                None => left.push(format!(
                    "the answer {status} is described in another document, and was left as it is"
                )),
            }
        }
    });
    left
}

/// 202, beside what is said of it already.
fn accepted(operation: &mut Object, document: &Object) -> Option<String> {
    let mut left = None;
    operation.edit("responses", |responses| {
        let typed = match responses.get("202") {
            Some(Node::Object(typed)) => typed.clone(),
            _ => Object::default(),
        };
        let Some(mut response) = typed.whole(document) else {
            left = Some("the answer 202 is described in another document, and was left as it is".to_owned());
            return;
        };
        if response.get("description").is_none() {
            let words = "Accepted, and run by itself. `Location` gives the state, and then the answer.";
            response.insert("description", words);
        }
        response.edit("headers", |headers| {
            for (name, kind, words) in [
                ("Location", "string", "Where the answer will be."),
                ("Retry-After", "integer", "Seconds to wait before it is asked for."),
            ] {
                if headers.get(name).is_none() {
                    let schema = Object::of([("type", kind.into())]);
                    headers
                        .insert(name, Object::of([("description", words.into()), ("schema", schema.into())]));
                }
            }
        });
        responses.insert("202", response);
    });
    left
}

fn describe(response: &mut Object, refusals: &[Refusal]) {
    let mut codes: Vec<&str> = Vec::new();
    for refusal in refusals {
        if !codes.contains(&refusal.code.name()) {
            codes.push(refusal.code.name());
        }
    }
    if response.get("description").is_none() {
        let words = refusals.iter().map(|refusal| format!("`{}`: {}", refusal.code.name(), refusal.when));
        response.insert("description", words.collect::<Vec<_>>().join(" "));
    }
    if refusals.iter().any(|refusal| refusal.retry_after_s.is_some()) {
        response.edit("headers", |headers| {
            if headers.get("Retry-After").is_none() {
                let schema = Object::of([("type", "integer".into())]);
                let words = "Seconds to wait before the same request is sent again.";
                headers.insert(
                    "Retry-After",
                    Object::of([("description", words.into()), ("schema", schema.into())]),
                );
            }
        });
    }
    let ours = Node::from(Object::of([("$ref", format!("#/components/schemas/{PROBLEM}").into())]));
    response.edit("content", |content| {
        content.edit(CONTENT_TYPE, |media| {
            let both = match media.get("schema") {
                None => ours,
                Some(schema) if *schema == ours || is_any_of(schema, &ours) => schema.clone(),
                Some(schema) => Object::of([("anyOf", vec![schema.clone(), ours].into())]).into(),
            };
            media.insert("schema", both);
        });
    });
    response.insert("x-idempotency", codes.into_iter().map(Node::from).collect::<Vec<_>>());
}

fn is_any_of(schema: &Node, ours: &Node) -> bool {
    let Node::Object(schema) = schema else { return false };
    matches!(schema.get("anyOf"), Some(Node::List(all)) if all.contains(ours))
}

fn extension(route: &Route, config: &Config, refusals: &[Refusal]) -> Object {
    let policy = route.policy();
    let rule = Rule::of(route);
    let settings = rule.settings_json();
    let setting = |name: &str| settings.get(name).map_or_else(|| Node::from(false), Node::from);
    let statuses = refusals.iter().map(|refusal| {
        let name = refusal.code.name();
        let mut row = Object::of([
            ("status", u64::from(refusal.status).into()),
            ("code", name.into()),
            ("type", format!("{TYPE_BASE}{name}").into()),
        ]);
        if let Some(seconds) = refusal.retry_after_s {
            row.insert("retry_after_s", seconds);
        }
        Node::from(row)
    });
    let endings = Endings::of(policy);
    let listed = |statuses: Option<String>| Node::from(statuses.unwrap_or_default());
    let mut extension = Object::of([
        ("route", route.operation().to_string().into()),
        ("profile", route.profile().into()),
        (
            "key",
            Object::of([
                ("required", policy.key.required.into()),
                ("syntax", policy.key.syntax.word().into()),
                ("chars_min", (policy.key.chars_min as u64).into()),
                ("chars_max", (policy.key.chars_max as u64).into()),
                ("form", setting("key_form")),
            ])
            .into(),
        ),
        ("scope", policy.scope.word().into()),
        ("owner", plain(&owner(&config.scope)).into()),
        ("fingerprint", setting("fingerprint")),
        ("same_request", plain(&sameness(policy)).into()),
        (
            "answers",
            Object::of([
                ("kept", listed(endings.kept)),
                ("executed_again", listed(endings.released)),
                ("unknown", listed(endings.unknown)),
            ])
            .into(),
        ),
        ("statuses", statuses.collect::<Vec<_>>().into()),
        ("answer_bytes_max", policy.answer_bytes_max.into()),
        ("keeps_cookies", policy.keeps_cookies.into()),
        ("replayed_header", header_case(policy.replayed_header).into()),
        ("expires_header", "Idempotency-Expires".into()),
        ("retention_s", policy.retention.as_secs().into()),
        ("retention_from", policy.retention_from.word().into()),
        ("after_retention", setting("after_retention")),
    ]);
    if policy.may_defer() {
        extension.insert("execution", policy.execution.word());
        extension.insert("respond_async", policy.respond_async);
        extension.insert("wait_limit_s", policy.wait_limit.as_secs());
    }
    if let AfterRetention::Gone { tombstone, .. } = policy.after_retention {
        extension.insert("tombstone_s", tombstone.as_secs());
    }
    extension
}

/// Without Markdown's marks.
fn plain(words: &str) -> String {
    words.replace("**", "").replace('`', "")
}

/// What the boundary says in its own voice.
pub(super) fn problem_schema() -> Object {
    let text =
        |words: &str| Node::from(Object::of([("type", "string".into()), ("description", words.into())]));
    let number =
        |words: &str| Node::from(Object::of([("type", "integer".into()), ("description", words.into())]));
    let required = ["type", "title", "status", "detail", "code"].map(Node::from).to_vec();
    Object::of([
        ("type", "object".into()),
        ("description", "A problem document (RFC 9457) of the idempotency boundary.".into()),
        ("required", required.into()),
        (
            "properties",
            Object::of([
                ("type", text("A page about it.")),
                ("title", text("The same each time.")),
                ("status", number("The HTTP status.")),
                ("detail", text("What happened, what state things are in, and what to do next.")),
                ("code", text("Which problem it is; for programs.")),
                ("retry_after_s", number("When to send the same request again, as in Retry-After.")),
                ("operation", text("The operation's id.")),
                ("instance", text("Where the operation can be looked at.")),
                ("answer_status", number("Of an answer that was not kept.")),
                ("answer_location", text("Of an answer that was not kept.")),
            ])
            .into(),
        ),
    ])
}
