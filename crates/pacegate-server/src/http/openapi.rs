//! `/openapi.json`: the paths by hand, the bodies from their types.

use std::sync::LazyLock;

use bytes::Bytes;
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::{
    block::{BlockModel, BlockRequest},
    clear::{ClearRequest, Cleared},
    descriptors::{Asked, Told},
    live::LiveModel,
    model::{
        Acquired, BatchAnswers, BatchRequest, CheckRequest, DecisionModel, Done, Health,
        HeldRequest, PolicyList, ProblemModel, Reloaded, SeedAnswer, StateModel, StatsModel,
    },
};
use crate::explain::Explanation;

/// The document, made once.
pub(super) fn document() -> Bytes {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(build().to_string()));
    DOCUMENT.clone()
}

/// Collects schemas while paths refer to them.
struct Paths {
    schemas: SchemaGenerator,
    paths: Map<String, Value>,
}

/// One operation on a path.
struct Operation {
    id: &'static str,
    summary: &'static str,
    parameters: Vec<Value>,
    body: Option<Value>,
    /// By status.
    responses: Map<String, Value>,
}

fn build() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut paths = Paths { schemas: settings.into_generator(), paths: Map::new() };
    paths.add_checks();
    paths.add_budgets();
    paths.add_permits();
    paths.add_reports();
    paths.add_live();
    paths.add_operation_paths();
    paths.add_proxies();
    let Paths { mut schemas, paths } = paths;
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Pacegate",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Decides, for every request, whether it may pass now.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "schemas": schemas.take_definitions(true),
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
        },
        "security": [{}, { "key": [] }],
    })
}

impl Paths {
    fn add_checks(&mut self) {
        let check = Operation::new("check", "Decides one request")
            .taking(self.json::<CheckRequest>("What is asked"))
            .answering("200", limited(self.json::<DecisionModel>("It may pass")))
            .answering("429", limited(self.denial()));
        let check = check.refusing(self, &BODY);
        self.add("/v1/check", &[("post", check)]);
        let batch = Operation::new("checkBatch", "Decides several requests, each by itself")
            .taking(self.json::<BatchRequest>("What is asked"))
            .answering("200", self.json::<BatchAnswers>("An answer for each, in their order"));
        let batch = batch.refusing(self, &["400", "401", "408", "413", "415"]);
        self.add("/v1/check/batch", &[("post", batch)]);
    }

    fn add_budgets(&mut self) {
        let peek = Operation::new("peek", "Tells how budgets stand, and charges nothing")
            .with(state_parameters())
            .answering("200", self.json::<StateModel>("What a request would meet"));
        let peek = peek.refusing(self, &["400", "401", "403", "503"]);
        let reset = Operation::new("reset", "Forgets what was charged; takes the scope `admin`")
            .with(state_parameters())
            .answering("200", self.json::<Done>("It is forgotten"));
        let reset = reset.refusing(self, &["400", "401", "403", "503"]);
        self.add("/v1/state", &[("get", peek), ("delete", reset)]);
        let refund = Operation::new("refund", "Gives units back; takes the scope `admin`")
            .taking(self.json::<CheckRequest>("What was charged; `cost` is what comes back"))
            .answering("200", self.json::<Done>("Up to so much came back as was used"));
        let refund = refund.refusing(self, &BODY);
        self.add("/v1/refund", &[("post", refund)]);
        let clear =
            Operation::new("clear", "Forgets all keys of a policy or a domain; takes `admin`")
                .taking(self.json::<ClearRequest>("Which keys"))
                .answering(
                    "200",
                    self.json::<Cleared>("They are forgotten; not possible on Redis"),
                );
        let clear = clear.refusing(self, &BODY);
        self.add("/v1/clear", &[("post", clear)]);
    }

    fn add_permits(&mut self) {
        let acquire =
            Operation::new("acquire", "Decides, and holds concurrency limits by a permit")
                .taking(self.json::<CheckRequest>("What is asked"))
                .answering("200", limited(self.json::<Acquired>("It may pass")))
                .answering("429", limited(self.json::<Acquired>("It may not pass now")));
        let acquire = acquire.refusing(self, &BODY);
        self.add("/v1/acquire", &[("post", acquire)]);
        let release =
            Operation::new("release", "Gives a permit back; one that is gone is no trouble")
                .taking(self.json::<HeldRequest>("What was acquired, and the permit"))
                .answering("200", self.json::<Done>("It is not held any more"));
        let release = release.refusing(self, &BODY);
        self.add("/v1/release", &[("post", release)]);
        let renew = Operation::new("renew", "Starts a permit's life anew")
            .taking(self.json::<HeldRequest>("What was acquired, and the permit"))
            .answering("200", self.json::<Done>("It is held for another period"));
        let renew = renew.refusing(self, &BODY).refusing(self, &["409"]);
        self.add("/v1/renew", &[("post", renew)]);
    }

    fn add_reports(&mut self) {
        let query = Operation::new("explain", "Tells which policies cover a request, and why")
            .with(subject_parameters())
            .answering("200", self.json::<Explanation>("What each policy makes of it"));
        let query = query.refusing(self, &["400", "401", "403", "503"]);
        let body = Operation::new("explainBody", "The same, with the request in the body")
            .taking(self.json::<CheckRequest>("What is asked"))
            .answering("200", self.json::<Explanation>("What each policy makes of it"));
        let body = body.refusing(self, &BODY);
        self.add("/v1/explain", &[("get", query), ("post", body)]);
        let policies = Operation::new("policies", "The policies in force")
            .answering("200", self.json::<PolicyList>("Those of your domains"));
        let policies = policies.refusing(self, &["401"]);
        self.add("/v1/policies", &[("get", policies)]);
        let stats = Operation::new("stats", "What was decided so far; takes the scope `admin`")
            .answering("200", self.json::<StatsModel>("Counts of this process"));
        let stats = stats.refusing(self, &["401", "403"]);
        self.add("/v1/stats", &[("get", stats)]);
    }

    fn add_live(&mut self) {
        let whole = json!({ "type": "integer", "minimum": 0 });
        let since = "Leaves out the history up to the end of this second, since the epoch";
        let live = Operation::new("live", "What the service does now; takes the scope `admin`")
            .with(vec![parameter("since", since, false, &whole)])
            .answering("200", self.json::<LiveModel>("Counts and keys of this process"));
        let live = live.refusing(self, &["400", "401", "403"]);
        self.add("/v1/live", &[("get", live)]);
        let block = Operation::new("block", "Denies a key of a policy for a while; takes `admin`")
            .taking(self.json::<BlockRequest>("Which key, and for how long"))
            .answering("200", self.json::<BlockModel>("It is denied by this process until then"));
        let block = block.refusing(self, &BODY);
        let full = self.problem("So many keys are blocked that there is no room for another");
        let block = block.answering("409", full);
        let text = json!({ "type": "string" });
        let unblock = Operation::new("unblock", "Lifts a block; takes the scope `admin`")
            .with(vec![
                parameter("policy", "The policy", true, &text),
                parameter("key", "Its key, as GET /v1/live shows it", true, &text),
            ])
            .answering("200", self.json::<Done>("It is not blocked; `limits` is 0 if it was not"));
        let unblock = unblock.refusing(self, &["400", "401", "403"]);
        self.add("/v1/block", &[("post", block), ("delete", unblock)]);
    }

    fn add_operation_paths(&mut self) {
        let reload = Operation::new("reload", "Reads the configuration again; takes `admin`")
            .answering("200", self.json::<Reloaded>("It is in force"));
        let reload = reload.refusing(self, &["401", "403", "422", "503"]);
        self.add("/v1/reload", &[("post", reload)]);
        let health = Operation::new("healthz", "The process answers")
            .answering("200", self.json::<Health>("It does"));
        self.add("/healthz", &[("get", health)]);
        for (path, id, summary) in [
            ("/readyz", "readyz", "The service wants requests"),
            ("/healthcheck", "healthcheck", "The same, where envoyproxy/ratelimit has it"),
        ] {
            let ready = Operation::new(id, summary)
                .answering("200", self.json::<Health>("It does; `degraded` if without its store"));
            let ready = ready.refusing(self, &["503"]);
            self.add(path, &[("get", ready)]);
        }
        let text = json!({ "application/openmetrics-text": { "schema": { "type": "string" } } });
        let metrics = Operation::new("metrics", "Metrics for Prometheus")
            .answering("200", json!({ "description": "OpenMetrics", "content": text }));
        let metrics = metrics.refusing(self, &["401", "403", "503"]);
        self.add("/metrics", &[("get", metrics)]);
        let object = json!({ "application/json": { "schema": { "type": "object" } } });
        let openapi = Operation::new("openapi", "This document")
            .answering("200", json!({ "description": "OpenAPI 3.1", "content": object }));
        let openapi = openapi.refusing(self, &["401"]);
        self.add("/openapi.json", &[("get", openapi)]);
    }

    fn add_proxies(&mut self) {
        let auth = |id, paths: &mut Self| {
            let denied = "Denied, where `deny` is 403; or a problem: the API key is not for this";
            let denied = limited(json!({ "description": denied }));
            let operation = Operation::new(id, "Decides about the request that a proxy describes")
                .with(auth_parameters())
                .answering("200", limited(json!({ "description": "It may pass" })))
                .answering("429", limited(json!({ "description": "Denied, where `deny` is 429" })))
                .answering("403", denied);
            operation.refusing(paths, &["400", "401"])
        };
        let (get, post) = (auth("auth", self), auth("authPost", self));
        self.add("/v1/auth", &[("get", get), ("post", post)]);
        let user = parameter("userId", "Whose request it is", true, &json!({ "type": "string" }));
        let seed = Operation::new("seedCheck", "Decides as RLaaS does, for a user")
            .with(vec![user])
            .answering("200", limited(self.text_or_json::<SeedAnswer>("It may pass")))
            .answering("429", limited(self.text_or_json::<SeedAnswer>("It may not pass now")));
        let seed = seed.refusing(self, &["400", "401", "403"]);
        self.add("/check", &[("get", seed)]);
        let json =
            Operation::new("descriptors", "Decides what Envoy asks, as envoyproxy/ratelimit")
                .taking(self.json::<Asked>("The question in the JSON form of its message"))
                .answering("200", self.json::<Told>("It may pass"))
                .answering("429", self.json::<Told>("It may not pass now"));
        let json = json.refusing(self, &["400", "401", "403", "408", "413", "503"]);
        self.add("/json", &[("post", json)]);
    }

    fn add(&mut self, path: &str, operations: &[(&str, Operation)]) {
        let operations: Map<String, Value> = operations
            .iter()
            .map(|(method, operation)| ((*method).to_owned(), operation.to_value()))
            .collect();
        self.paths.insert(path.to_owned(), operations.into());
    }

    /// A body of this type.
    fn json<T: JsonSchema>(&mut self, description: &str) -> Value {
        let schema = self.schemas.subschema_for::<T>();
        let content = json!({ "application/json": { "schema": schema } });
        json!({ "description": description, "content": content })
    }

    /// A denial: a decision, or the same with the members of a problem by the setting `problem_details`.
    fn denial(&mut self) -> Value {
        let mut response = self.json::<DecisionModel>("It may not pass now");
        let schema = response["content"]["application/json"].clone();
        response["content"]["application/problem+json"] = schema;
        response
    }

    /// A sentence, or a body of this type for clients that accept JSON.
    fn text_or_json<T: JsonSchema>(&mut self, description: &str) -> Value {
        let mut response = self.json::<T>(description);
        response["content"]["text/plain"] = json!({ "schema": { "type": "string" } });
        response
    }

    fn problem(&mut self, description: &str) -> Value {
        let schema = self.schemas.subschema_for::<ProblemModel>();
        let content = json!({ "application/problem+json": { "schema": schema } });
        json!({ "description": description, "content": content })
    }
}

/// What can go wrong wherever there is a body.
const BODY: [&str; 7] = ["400", "401", "403", "408", "413", "415", "503"];

impl Operation {
    fn new(id: &'static str, summary: &'static str) -> Self {
        Self { id, summary, parameters: Vec::new(), body: None, responses: Map::new() }
    }

    fn with(self, parameters: Vec<Value>) -> Self {
        Self { parameters, ..self }
    }

    fn taking(self, mut body: Value) -> Self {
        body["required"] = true.into();
        Self { body: Some(body), ..self }
    }

    fn answering(mut self, status: &str, response: Value) -> Self {
        self.responses.insert(status.to_owned(), response);
        self
    }

    /// Problems of these statuses.
    fn refusing(mut self, paths: &mut Paths, statuses: &[&str]) -> Self {
        for status in statuses {
            let description = match *status {
                "400" => "What was asked cannot be used",
                "401" => "No API key that is known",
                "403" => "The API key is not for this",
                "408" => "The body did not arrive in time",
                "409" => "The permit has ended",
                "413" => "The body is too large",
                "415" => "The body is not said to be JSON",
                "422" => "The configuration cannot be used; the last good one stays",
                _ => "It cannot be done now",
            };
            let problem = paths.problem(description);
            self.responses.insert((*status).to_owned(), problem);
        }
        self
    }

    fn to_value(&self) -> Value {
        let mut value = json!({
            "operationId": self.id,
            "summary": self.summary,
            "responses": self.responses,
        });
        if !self.parameters.is_empty() {
            value["parameters"] = self.parameters.clone().into();
        }
        if let Some(body) = &self.body {
            value["requestBody"] = body.clone();
        }
        value
    }
}

/// The headers that tell of a limit.
fn limited(mut response: Value) -> Value {
    let header = |description: &str, kind: &str| json!({ "description": description, "schema": { "type": kind } });
    response["headers"] = json!({
        "RateLimit": header("What remains, and in how many seconds there is more", "string"),
        "RateLimit-Policy": header("The limit that speaks", "string"),
        "X-RateLimit-Limit": header("The most at one instant", "integer"),
        "X-RateLimit-Remaining": header("What remains", "integer"),
        "X-RateLimit-Reset": header("When nothing is used any more", "integer"),
        "Retry-After": header("Seconds, after a denial that does not last for good", "integer"),
    });
    response
}

fn parameter(name: &str, description: &str, required: bool, schema: &Value) -> Value {
    json!({
        "name": name, "in": "query", "description": description, "required": required,
        "schema": schema,
    })
}

/// Whose budget, in a query.
fn subject_parameters() -> Vec<Value> {
    let text = json!({ "type": "string" });
    let pair = json!({ "type": "string", "pattern": "^[^:]*:" });
    let pairs = json!({ "type": "array", "items": pair });
    let limits = json!({ "type": "array", "items": text });
    vec![
        parameter("domain", "The domain whose policies apply", false, &text),
        parameter("attribute", "NAME:VALUE, any number of times", false, &pairs),
        parameter("key", "Whose budget, with a `limit` of its own", false, &text),
        parameter("limit", "Such as 100/minute, any number of times", false, &limits),
    ]
}

/// Whose budget, also by the name of a policy.
fn state_parameters() -> Vec<Value> {
    let policy = "A policy by name, with one of its keys as GET /v1/live shows it";
    let mut parameters = subject_parameters();
    parameters.push(parameter("policy", policy, false, &json!({ "type": "string" })));
    parameters
}

fn auth_parameters() -> Vec<Value> {
    let header = |name: &str, description: &str| {
        json!({
            "name": name, "in": "header", "description": description, "required": false,
            "schema": { "type": "string" },
        })
    };
    let deny = "403 for nginx, which reads X-Original-*; 429 for Traefik and Caddy: X-Forwarded-*";
    let codes = json!({ "type": "string", "enum": ["403", "429"], "default": "403" });
    vec![
        parameter("domain", "The domain whose policies apply", false, &json!({ "type": "string" })),
        parameter("deny", deny, false, &codes),
        header("X-Original-URI", "The attribute `path`, without the query"),
        header("X-Original-Method", "The attribute `method`"),
        header("X-Original-Host", "The attribute `host`"),
        header("X-Real-IP", "The attribute `ip`"),
        header("X-Forwarded-Uri", "The attribute `path`, without the query"),
        header("X-Forwarded-Method", "The attribute `method`"),
        header("X-Forwarded-Host", "The attribute `host`"),
        header("X-Forwarded-For", "The last entry is the attribute `ip`"),
        header("X-Pacegate-User", "The attribute `user`; so for any other name"),
    ]
}
