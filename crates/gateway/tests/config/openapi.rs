//! The contract in an API's own document, and endpoints that nobody protects.

use oncegate_gateway::{Described, openapi};
use serde_json::{Value, json};

use crate::parse;

const CONFIG: &str = "[defaults]\nprofile = \"off\"\n\
    [[route]]\nmatch = \"POST /payments\"\nprofile = \"payments\"\n\
    [[route]]\nmatch = \"PUT /payments/{id}\"\nprofile = \"stripe\"\n\
    [[route]]\nmatch = \"POST /v2/{*rest}\"\nprofile = \"ietf\"\n\
    [[route]]\nmatch = \"POST /reports\"\nprofile = \"accepted\"\n";

fn describe(document: &Value) -> (Described, Value) {
    let described = openapi(&parse(CONFIG).unwrap(), &document.to_string()).unwrap();
    let again = openapi(&parse(CONFIG).unwrap(), &described.document).unwrap();
    assert_eq!(again, described, "twice is once");
    let parsed = serde_json::from_str(&described.document).unwrap();
    (described, parsed)
}

fn paths(paths: &Value) -> Value {
    json!({ "openapi": "3.1.0", "info": { "title": "t", "version": "1" }, "paths": paths })
}

#[test]
fn a_protected_operation_is_described() {
    let (described, document) = describe(&paths(&json!({
        "/payments": { "post": { "responses": { "201": { "description": "made" } } } },
        "/payments/{id}": { "put": {}, "get": {} },
    })));
    assert!(described.unprotected.is_empty() && described.warnings.is_empty() && described.unseen.is_empty());
    let post = &document["paths"]["/payments"]["post"];
    let parameter = &post["parameters"][0];
    assert_eq!(
        (&parameter["name"], &parameter["in"], &parameter["required"]),
        (&json!("Idempotency-Key"), &json!("header"), &json!(true))
    );
    assert_eq!(parameter["schema"]["minLength"], 16);
    assert_eq!(post["responses"]["201"], json!({ "description": "made" }));
    for status in ["400", "401", "409", "410", "413", "422", "502", "503", "504"] {
        let schema = &post["responses"][status]["content"]["application/problem+json"]["schema"];
        assert_eq!(schema["$ref"], "#/components/schemas/IdempotencyProblem", "{status}");
        assert!(post["responses"][status]["description"].is_string());
    }
    assert_eq!(
        post["responses"]["409"]["x-idempotency"],
        json!(["in_progress", "outcome_unknown", "answer_not_kept"])
    );
    let contract = &post["x-idempotency"];
    assert_eq!(contract["route"], "POST /payments");
    assert_eq!(contract["retention_s"], 172_800);
    assert_eq!((&contract["after_retention"], &contract["tombstone_s"]), (&json!(410), &json!(2_592_000)));
    let put = &document["paths"]["/payments/{id}"]["put"];
    assert_eq!(
        (&put["parameters"][0]["required"], &put["x-idempotency"]["replayed_header"]),
        (&json!(false), &json!("Idempotent-Replayed"))
    );
    assert_eq!(document["paths"]["/payments/{id}"]["get"], json!({}));
    assert_eq!(document["components"]["schemas"]["IdempotencyProblem"]["type"], "object");
}

#[test]
fn what_the_document_says_stays() {
    let theirs = json!({ "type": "object", "title": "theirs" });
    let (_, document) = describe(&json!({
        "openapi": "3.0.3",
        "paths": { "/payments": { "post": {
            "parameters": [{ "$ref": "#/components/parameters/Page" }, { "$ref": "#/components/parameters/Key" }],
            "responses": {
                "409": { "$ref": "#/components/responses/Conflict" },
                "422": { "description": "Wrong", "content": { "application/problem+json": { "schema": theirs.clone() } } },
            },
        } } },
        "components": {
            "parameters": {
                "Page": { "name": "page", "in": "query", "schema": {} },
                "Key": { "name": "idempotency-key", "in": "header", "description": "Ours.", "content": {} },
            },
            "responses": { "Conflict": { "description": "Conflict.", "content": { "application/json": {} } } },
        },
    }));
    let post = &document["paths"]["/payments"]["post"];
    assert_eq!(post["parameters"].as_array().unwrap().len(), 2);
    assert_eq!(post["parameters"][0], json!({ "$ref": "#/components/parameters/Page" }));
    let key = &post["parameters"][1];
    assert_eq!(
        (&key["description"], &key["required"], key.get("content")),
        (&json!("Ours."), &json!(true), None)
    );
    let conflict = &post["responses"]["409"];
    assert_eq!(conflict["description"], "Conflict.");
    assert_eq!(conflict["content"].as_object().unwrap().len(), 2);
    let both = &post["responses"]["422"]["content"]["application/problem+json"]["schema"]["anyOf"];
    assert_eq!(both[0], theirs);
    assert_eq!(post["responses"]["422"]["description"], "Wrong");
    // Others may refer to it.
    assert_eq!(document["components"]["responses"]["Conflict"]["content"].as_object().unwrap().len(), 1);
}

#[test]
fn endpoints_that_no_route_protects_are_listed() {
    let changing = json!({ "post": {}, "put": {}, "patch": {}, "delete": {}, "get": {}, "head": {}, "options": {}, "trace": {} });
    let (described, document) = describe(&paths(&json!({
        "/payments": changing.clone(),
        "/payments/{id}": changing,
        "/search": { "post": { "x-idempotency": false } },
        "x-internal": { "post": {} },
    })));
    assert_eq!(
        described.unprotected,
        [
            "PUT /payments",
            "PATCH /payments",
            "DELETE /payments",
            "POST /payments/{id}",
            "PATCH /payments/{id}",
            "DELETE /payments/{id}",
        ]
    );
    assert_eq!(document["paths"]["/search"]["post"], json!({ "x-idempotency": false }));
    assert_eq!(document["paths"]["/payments"]["put"], json!({}));
}

/// The path of a server's URL is part of what clients send.
#[test]
fn servers_are_put_before_paths() {
    let with = |servers: Value| {
        let mut document = paths(&json!({ "/payments": { "post": {} } }));
        document["servers"] = servers;
        let (described, document) = describe(&document);
        (
            described.unprotected,
            described.warnings.len(),
            document["paths"]["/payments"]["post"]["x-idempotency"]["route"].clone(),
        )
    };
    let none = Vec::<String>::new();
    assert_eq!(with(json!([])), (none.clone(), 0, json!("POST /payments")));
    assert_eq!(
        with(json!([{ "url": "https://api.example.com/" }])),
        (none.clone(), 0, json!("POST /payments"))
    );
    assert_eq!(
        with(json!([{ "url": "https://api.example.com/v2" }])),
        (none.clone(), 0, json!("POST /v2/{*rest}"))
    );
    let variables = json!({ "major": { "default": "v2" } });
    assert_eq!(
        with(json!([{ "url": "/{major}/", "variables": variables }])),
        (none.clone(), 0, json!("POST /v2/{*rest}"))
    );
    assert_eq!(with(json!([{ "url": "/v3" }])), (vec!["POST /v3/payments".to_owned()], 0, Value::Null));
    // Under two, by two routes; and under one of two only.
    assert_eq!(with(json!([{ "url": "/" }, { "url": "/v2" }])), (none.clone(), 1, json!("POST /payments")));
    assert_eq!(
        with(json!([{ "url": "/v3" }, { "url": "/" }])),
        (vec!["POST /v3/payments".to_owned()], 0, json!("POST /payments"))
    );
    // The nearest list counts.
    let (described, _) = describe(&paths(&json!({
        "/a": { "servers": [{ "url": "/v2" }], "post": {}, "put": { "servers": [{ "url": "/x" }] } },
    })));
    assert_eq!(described.unprotected, ["PUT /x/a"]);
}

#[test]
fn path_items_of_another_place() {
    let (described, document) = describe(&json!({
        "openapi": "3.1.0",
        "paths": {
            "/payments": { "$ref": "#/components/pathItems/Pay", "summary": "Pay" },
            "/refunds": { "$ref": "#/components/pathItems/Pay" },
            "/out": { "$ref": "other.json#/paths/~1out" },
            "/nowhere": { "$ref": "#/components/pathItems/No" },
            "/round": { "$ref": "#/paths/~1round" },
            "/odd": 7,
        },
        "components": { "pathItems": { "Pay": { "post": { "summary": "pays" } } } },
    }));
    assert_eq!(described.unprotected, ["POST /refunds"]);
    assert_eq!(described.unseen.len(), 3, "{:?}", described.unseen);
    assert_eq!(described.warnings, ["/odd: is not an object, and was left as it is"]);
    let pay = &document["paths"]["/payments"];
    assert_eq!((&pay["summary"], &pay["post"]["summary"]), (&json!("Pay"), &json!("pays")));
    assert_eq!(pay["post"]["x-idempotency"]["route"], "POST /payments");
    assert_eq!(document["paths"]["/refunds"], json!({ "$ref": "#/components/pathItems/Pay" }));
    assert_eq!(document["components"]["pathItems"]["Pay"]["post"], json!({ "summary": "pays" }));
}

#[test]
fn members_stay_in_their_order_and_numbers_as_they_are() {
    let document = "{\n  \"paths\": {\n    \"/z\": {},\n    \"/a\": {}\n  },\n  \"openapi\": \"3.1.0\",\n  \"x-n\": [\n    1.10,\n    12345678901234567890123\n  ]\n}\n";
    assert_eq!(openapi(&parse(CONFIG).unwrap(), document).unwrap().document, document);
}

/// Whatever is in it, it is described or refused, and never a panic.
#[test]
fn odd_documents() {
    let wrong = [
        ("", "is not JSON: EOF"),
        ("{\"openapi\": \"3.1.0\",\n  \"paths\": }", "line 2 column 12"),
        ("openapi: 3.1.0\npaths: {}\n", "YAML is not read here; convert it first, for instance with `yq"),
        ("[]", "expected an object"),
        ("{}", "expected a member \"openapi\""),
        ("{\"swagger\": \"2.0\"}", "Swagger 2"),
        ("{\"openapi\": \"4.0\"}", "of OpenAPI 4.0"),
        ("{\"openapi\": 3.1}", "expected a member \"openapi\""),
        ("{\"openapi\": \"3.1.0\", \"a\": 1, \"a\": 2}", "two members named \"a\""),
    ];
    for (text, words) in wrong {
        let error = openapi(&parse(CONFIG).unwrap(), text).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
    for odd in [
        json!(null),
        json!(7),
        json!("x"),
        json!([]),
        json!([1]),
        json!({}),
        json!({ "$ref": 7 }),
        json!({ "$ref": "x.json" }),
    ] {
        for place in ["paths", "components", "servers"] {
            let mut document = paths(&json!({ "/payments": { "post": {} } }));
            document[place] = odd.clone();
            describe(&document);
        }
        for place in ["parameters", "responses", "servers", "x-idempotency"] {
            let mut document = paths(&json!({ "/payments": { "post": {} } }));
            document["paths"]["/payments"]["post"][place] = odd.clone();
            describe(&document);
        }
        describe(&paths(
            &json!({ "/payments": { "post": { "parameters": [odd.clone()], "responses": { "409": odd.clone(), "422": { "content": odd.clone() } } } } }),
        ));
        describe(&paths(
            &json!({ "/payments": { "post": odd.clone() }, "no-slash": { "post": odd }, "/{": { "post": {} } }),
        ));
    }
}

/// What is run later is answered with 202, and says where its answer will be; what the API says of its own 202 stays.
#[test]
fn an_operation_that_is_run_later_is_described() {
    let (_, document) = describe(&paths(&json!({
        "/reports": { "post": { "responses": { "202": { "description": "queued" } } } },
        "/payments": { "post": {} },
    })));
    let post = &document["paths"]["/reports"]["post"];
    assert_eq!(post["responses"]["202"]["description"], "queued");
    assert_eq!(post["responses"]["202"]["headers"]["Location"]["schema"]["type"], "string");
    let contract = &post["x-idempotency"];
    assert_eq!((&contract["execution"], &contract["respond_async"]), (&json!("deferred"), &json!(false)));
    assert_eq!(post["responses"].get("502"), None, "nobody waits for the API itself");
    assert!(post["responses"].get("504").is_some(), "it may have been accepted");
    assert_eq!(document["paths"]["/payments"]["post"]["responses"].get("202"), None);
}
