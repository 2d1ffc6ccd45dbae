use std::collections::BTreeSet;

use regex_lite::Regex;
use serde_json::{Value, json};

use super::{super::routes::routes, *};
use crate::explain::DecisionFields;

async fn document() -> Value {
    let reply = Server::new().get("/openapi.json").await;
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")));
    reply.json()
}

/// The units of `Limit`, by its documentation.
const UNITS: [&str; 26] = [
    "us",
    "µs",
    "microsecond",
    "microseconds",
    "ms",
    "millisecond",
    "milliseconds",
    "s",
    "sec",
    "second",
    "seconds",
    "m",
    "min",
    "minute",
    "minutes",
    "h",
    "hr",
    "hour",
    "hours",
    "d",
    "day",
    "days",
    "w",
    "week",
    "weeks",
    "month",
];

#[tokio::test]
async fn the_document_allows_every_limit_that_is_accepted() {
    let document = document().await;
    let limit = &document["components"]["schemas"]["CheckRequest"]["properties"]["limit"];
    let patterns = patterns(limit);
    assert_eq!(patterns.len(), 2, "{limit}");
    let lengths = UNITS.iter().filter(|unit| **unit != "month").map(|unit| format!("1/2{unit}"));
    let units = UNITS.iter().map(|unit| format!("1/{unit}")).chain(lengths);
    let others = [
        "1_000/hour",
        "100 per minute",
        " 1 / 30s  burst 20",
        "5/day in Europe/Berlin",
        "1/year",
        "10/second burst 20",
        "1/week starting monday",
        "5 per day in Europe/Berlin",
        "0/hour",
    ];
    for text in units.chain(others.map(str::to_owned)) {
        assert!(text.parse::<pacegate::Limit>().is_ok(), "{text}");
        assert!(patterns.iter().all(|pattern| pattern.is_match(&text)), "{text}");
    }
    for text in ["", "100", "x/minute", "1.5/s", "-1/s", "1/30", "1/", "/s", "per minute"] {
        assert!(text.parse::<pacegate::Limit>().is_err(), "{text}");
        assert!(!patterns.iter().any(|pattern| pattern.is_match(text)), "{text}");
    }
}

/// Returns the patterns anywhere in a schema.
fn patterns(schema: &Value) -> Vec<Regex> {
    let own = schema["pattern"].as_str().map(|pattern| Regex::new(pattern).unwrap());
    let fields = schema.as_object().into_iter().flat_map(|fields| fields.values());
    let parts = fields.chain(schema.as_array().into_iter().flatten());
    own.into_iter().chain(parts.flat_map(patterns)).collect()
}

#[tokio::test]
async fn the_document_has_every_path_and_method() {
    let server = Server::new();
    let document = document().await;
    assert_eq!(document["openapi"], "3.1.0");
    let described: BTreeSet<_> = document["paths"].as_object().unwrap().keys().cloned().collect();
    let routed: BTreeSet<_> = routes().into_iter().map(|route| route.path.to_owned()).collect();
    assert_eq!(described, routed);
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in ["get", "post", "put", "delete", "patch"] {
            let reply = server.send(&format!("{} {path}", method.to_uppercase()), "", "").await;
            let is_there = reply.status != 405;
            let is_described = operations.get(method).is_some();
            let is_any = path == "/v1/auth";
            assert!(is_there == is_described || is_any, "{method} {path}: {reply:?}");
            if is_described {
                let status = reply.status.to_string();
                let responses = &operations[method]["responses"];
                assert!(responses.get(&status).is_some(), "{method} {path}: {status}");
            }
        }
    }
}

#[tokio::test]
async fn every_reference_resolves_and_operations_have_names() {
    let document = document().await;
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"#").skip(1) {
        let pointer = reference.split('"').next().unwrap();
        assert!(document.pointer(pointer).is_some(), "{pointer}");
    }
    let operations = document["paths"].as_object().unwrap().values();
    let ids: Vec<_> = operations
        .flat_map(|path| path.as_object().unwrap().values())
        .map(|operation| operation["operationId"].as_str().unwrap())
        .collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
}

#[tokio::test]
async fn the_schemas_have_the_members_that_are_read_and_written() {
    let server = Server::new();
    let schemas = document().await["components"]["schemas"].clone();
    let members = |name: &str| -> BTreeSet<String> {
        schemas[name]["properties"].as_object().unwrap().keys().cloned().collect()
    };
    let fields = |fields: &[&str]| fields.iter().map(|&field| field.to_owned()).collect();
    let check = ["domain", "attributes", "key", "limit", "cost", "spent", "up_to", "id"];
    assert_eq!(members("CheckRequest"), fields(&check));
    let permit: Vec<_> = check.into_iter().chain(["permit"]).collect();
    assert_eq!(members("PermitRequest"), fields(&permit));
    let reserve: Vec<_> = check.into_iter().chain(["ttl"]).collect();
    assert_eq!(members("ReserveRequest"), fields(&reserve));
    assert_eq!(schemas["CheckRequest"]["additionalProperties"], json!(false));
    let limits = server.get("/v1/state?attribute=user:alice").await.json()["limits"].clone();
    serde_json::from_value::<Vec<DecisionFields>>(limits).unwrap();
    let check = r#"{"attributes":{"user":"alice"}}"#;
    let written =
        |value: Value| -> BTreeSet<String> { value.as_object().unwrap().keys().cloned().collect() };
    let up_to = r#"{"attributes":{"user":"alice"},"up_to":true}"#;
    assert_eq!(members("Decision"), written(server.check(up_to).await.json()));
    assert_eq!(members("Acquired"), written(server.post("/v1/acquire", check).await.json()));
    assert_eq!(members("Reserved"), written(server.post("/v1/reserve", check).await.json()));
    assert_eq!(members("State"), written(server.get("/v1/state").await.json()));
    assert_eq!(members("Explanation"), written(server.get("/v1/explain").await.json()));
    assert_eq!(members("Stats"), written(server.get("/v1/stats").await.json()));
    assert_eq!(members("Problem"), written(server.check("").await.json()));
    let json = "Accept: application/json\r\n";
    let seed = server.send("GET /check?userId=a", json, "").await;
    assert_eq!(members("SeedResponse"), written(seed.json()));
}
