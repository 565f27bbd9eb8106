//! The document of the admin interface says what is served, and what is served is as it says.

use serde_json::Value;

use crate::acts::with_doubt;
use crate::client::Call;
use crate::gateway::{Stage, admin};
use crate::reply::Reply;
use crate::upstream::{Act, Seen, Upstream, numbered};

async fn document(stage: &Stage) -> Value {
    let reply = admin(&stage.gateway, "/api/v1/openapi.json").await;
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")));
    reply.json()
}

/// The paths in the source of the routes.
fn routes() -> Vec<String> {
    let source = include_str!("../../src/admin.rs");
    let mut routes: Vec<String> =
        source.split(".route(").skip(1).map(|rest| rest.split('"').nth(1).unwrap().to_owned()).collect();
    routes.sort();
    routes
}

#[tokio::test]
async fn it_lists_the_routes_that_are_served() {
    let stage = Stage::numbered("").await;
    let document = document(&stage).await;
    let mut listed: Vec<String> = document["paths"].as_object().unwrap().keys().cloned().collect();
    listed.sort();
    assert_eq!(listed, routes());
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.replace("{id}", "op_00000000000000000000000000");
        let methods: Vec<_> = methods.as_object().unwrap().keys().map(|name| name.to_uppercase()).collect();
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            let got = Call::operator(method, &path).send(stage.gateway.admin_address().tcp().unwrap()).await;
            if methods.iter().all(|described| described != method) {
                assert_eq!(got.status, 405, "{method} {path}");
                continue;
            }
            let is_served =
                got.status != 405 && (got.status != 404 || got.text().contains("There is no record"));
            assert!(is_served, "{method} {path}: {got:?}");
        }
    }
}

/// Holds a value against a schema: types, required members, enumerations, and no member that is not named.
fn check(document: &Value, schema: &Value, value: &Value, place: &str) {
    if let Some(reference) = schema["$ref"].as_str() {
        let found = document.pointer(reference.trim_start_matches('#')).unwrap();
        return check(document, found, value, place);
    }
    if let Some(values) = schema["enum"].as_array() {
        return assert!(values.contains(value), "{place}: {value} is none of {values:?}");
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().map(|one| one.as_str().unwrap()).collect(),
        other => panic!("{place}: no type but {other}"),
    };
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    assert!(types.contains(&found), "{place}: {value} is none of {types:?}");
    for name in schema["required"].as_array().into_iter().flatten() {
        assert!(value.get(name.as_str().unwrap()).is_some(), "{place}: {name} is missing");
    }
    if let (Some(members), Some(properties)) = (value.as_object(), schema["properties"].as_object()) {
        for (name, member) in members {
            let schema = properties.get(name).unwrap_or_else(|| panic!("{place}: {name} is not described"));
            check(document, schema, member, &format!("{place}/{name}"));
        }
    }
    if let (Some(elements), Some(items)) = (value.as_array(), schema.get("items")) {
        for element in elements {
            check(document, items, element, &format!("{place}[]"));
        }
    }
}

#[tokio::test]
async fn answers_are_as_described() {
    let upstream = Upstream::start(async |seen: Seen| match seen.header("idempotency-key").unwrap() {
        "doubted" => Act::AnswerAndClose(Vec::new()),
        "running" => std::future::pending().await,
        _ => numbered(seen).await,
    });
    let stage = Stage::new(upstream.await, "").await;
    stage.send(&Call::pay("done")).await.expect_first(200, "run 1");
    stage.send(&Call::pay("doubted")).await.expect_problem(504, "outcome_unknown");
    let _running = Call::pay("running").open(stage.addr()).await;
    stage.upstream.ran(3).await;
    let document = document(&stage).await;
    let id = stage.record("done").await.unwrap()["id"].as_str().unwrap().to_owned();
    let doubted = stage.record("doubted").await.unwrap()["id"].as_str().unwrap().to_owned();
    let asked = [
        ("/readyz", "/readyz".to_owned()),
        ("/api/v1/records", "/api/v1/records?limit=2".to_owned()),
        ("/api/v1/records", "/api/v1/records".to_owned()),
        ("/api/v1/records", "/api/v1/records?limit=0".to_owned()),
        ("/api/v1/records/{id}", format!("/api/v1/records/{id}?body=true")),
        ("/api/v1/records/{id}", "/api/v1/records/op_00000000000000000000000000".to_owned()),
        ("/api/v1/records/{id}/story", format!("/api/v1/records/{id}/story")),
        ("/api/v1/records/{id}/story", format!("/api/v1/records/{doubted}/story")),
        ("/api/v1/records/{id}/story", "/api/v1/records/op_00000000000000000000000000/story".to_owned()),
        ("/api/v1/counts", "/api/v1/counts".to_owned()),
        ("/api/v1/audit", "/api/v1/audit".to_owned()),
        ("/api/v1/audit", "/api/v1/audit?limit=0".to_owned()),
    ];
    let run = r#"{"name":"a","charges":1,"records":1,"differences":0,"unreadable":0}"#;
    for body in [run, "{}"] {
        let call = Call::operator("POST", "/api/v1/comparisons").json(body);
        let reply = call.send(stage.gateway.admin_address().tcp().unwrap()).await;
        is_as_described(&document, "/api/v1/comparisons", "post", &reply);
    }
    for (path, request) in asked {
        let reply = admin(&stage.gateway, &request).await;
        is_as_described(&document, path, "get", &reply);
    }
}

fn is_as_described(document: &Value, path: &str, method: &str, reply: &Reply) {
    let described = &document["paths"][path][method]["responses"][reply.status.to_string()];
    let described = match described["$ref"].as_str() {
        Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap(),
        None => described,
    };
    let schema = &described["content"][reply.header("content-type").unwrap()]["schema"];
    assert!(schema.is_object(), "{method} {path}: {} is not described", reply.status);
    check(document, schema, &reply.json(), path);
}

#[tokio::test]
async fn what_is_said_of_acts_is_as_described() {
    let (stage, seen, _folder) = with_doubt().await;
    let document = document(&stage).await;
    let (id, version) = (seen["id"].as_str().unwrap(), seen["version"].as_str().unwrap());
    let right = format!(r#"{{"version":"{version}","operator":"ada","reason":"she knows"}}"#);
    let nobody = "op_00000000000000000000000000";
    for (verb, id, body, status) in [
        ("forget", id, right.as_str(), 409),
        ("retry", id, "{}", 400),
        ("retry", nobody, &right, 404),
        ("retry", id, &right, 200),
        ("retry", id, &right, 409),
    ] {
        let call = Call::operator("POST", &format!("/api/v1/records/{id}/{verb}")).json(body);
        let reply = call.send(stage.gateway.admin_address().tcp().unwrap()).await;
        assert_eq!(reply.status, status, "{verb} {body}: {reply:?}");
        is_as_described(&document, &format!("/api/v1/records/{{id}}/{verb}"), "post", &reply);
    }
}
