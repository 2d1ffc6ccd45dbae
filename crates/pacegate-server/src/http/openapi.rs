//! `/openapi.json`, generated from the table of endpoints and the types of their bodies.

use std::sync::{Arc, LazyLock};

use axum::routing::MethodRouter;
use bytes::Bytes;
use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::{ProblemDetails, Shared, routes::routes};

/// An endpoint: its handler, and its description.
pub(super) struct Route {
    pub(super) path: &'static str,
    pub(super) handler: MethodRouter<Arc<Shared>>,
    /// Methods and operation ids, such as `get auth, post authPost`.
    operations: &'static str,
    summary: &'static str,
    needs_key: bool,
    needs_admin: bool,
    parameters: &'static [Parameter],
    body: Option<(&'static str, SchemaOf)>,
    responses: Vec<ResponseDoc>,
}

/// A parameter in the query or a header.
#[derive(Clone, Copy)]
pub(super) struct Parameter {
    name: &'static str,
    location: &'static str,
    description: &'static str,
    is_required: bool,
    schema: SchemaOf,
}

#[derive(Clone)]
struct ResponseDoc {
    status: u16,
    description: &'static str,
    /// Schemas by content type.
    content: Vec<(&'static str, SchemaOf)>,
    has_limit_headers: bool,
}

/// Generates the schema of a type.
pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

pub(super) fn schema<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Schema {
    schemas.subschema_for::<T>()
}

/// Returns the document, generated once.
pub(super) fn document() -> Bytes {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(generate().to_string()));
    DOCUMENT.clone()
}

fn generate() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut schemas = settings.into_generator();
    let mut paths: Map<String, Value> = Map::new();
    for endpoint in routes() {
        let path = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        for operation in endpoint.operations.split(", ") {
            let (method, id) = operation.split_once(' ').unwrap_or((operation, ""));
            path[method] = endpoint.describe(id, &mut schemas);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Pacegate",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A rate limiter: allows or denies requests, and returns when to retry.",
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

impl Route {
    pub(super) fn new(
        path: &'static str,
        operations: &'static str,
        handler: MethodRouter<Arc<Shared>>,
    ) -> Self {
        Self {
            path,
            handler,
            operations,
            summary: "",
            needs_key: true,
            needs_admin: false,
            parameters: &[],
            body: None,
            responses: Vec::new(),
        }
    }

    pub(super) fn summary(self, summary: &'static str) -> Self {
        Self { summary, ..self }
    }

    /// States that the endpoint requires the scope `admin`.
    pub(super) fn admin(self) -> Self {
        Self { needs_admin: true, ..self }
    }

    pub(super) fn parameters(self, parameters: &'static [Parameter]) -> Self {
        Self { parameters, ..self }
    }

    /// Adds a JSON request body.
    pub(super) fn body<T: JsonSchema>(self, description: &'static str) -> Self {
        Self { body: Some((description, schema::<T>)), ..self }
    }

    /// Adds a response of status 200 with a JSON body.
    pub(super) fn returns<T: JsonSchema>(self, description: &'static str) -> Self {
        self.response(200, description, &[("application/json", schema::<T>)])
    }

    /// Adds the responses of a decision: 200 and 429 with rate limit headers.
    pub(super) fn decision(
        self,
        allowed: &[(&'static str, SchemaOf)],
        denied: &[(&'static str, SchemaOf)],
    ) -> Self {
        let allowed = self.response(200, "Allowed", allowed).limit_headers();
        allowed.response(429, "Denied", denied).limit_headers()
    }

    pub(super) fn response(
        mut self,
        status: u16,
        description: &'static str,
        content: &[(&'static str, SchemaOf)],
    ) -> Self {
        let content = content.to_vec();
        self.responses.push(ResponseDoc { status, description, content, has_limit_headers: false });
        self
    }

    /// Adds the rate limit headers to the last response.
    pub(super) fn limit_headers(mut self) -> Self {
        if let Some(response) = self.responses.last_mut() {
            response.has_limit_headers = true;
        }
        self
    }

    /// Adds an error response.
    pub(super) fn problem(mut self, status: u16, description: &'static str) -> Self {
        self.responses.push(ResponseDoc::problem(status, description));
        self
    }

    /// States that the endpoint needs no API key, and has no common errors.
    pub(super) fn without_key(self) -> Self {
        Self { needs_key: false, ..self }
    }

    /// Returns the errors that the endpoint has in common with others.
    fn common_errors(&self) -> impl Iterator<Item = ResponseDoc> {
        let (has_body, has_input) = (self.body.is_some(), !self.parameters.is_empty());
        let own: Vec<_> = self.responses.iter().map(|response| response.status).collect();
        let errors = [
            (has_body || has_input, 400, "Invalid request"),
            (true, 401, "Missing or unknown API key"),
            (true, 403, "The API key does not permit this"),
            (has_body, 408, "Timed out while reading the body"),
            (has_body, 413, "The body is too large"),
            (has_body, 415, "Content-Type must be application/json"),
            (true, 503, "Temporarily unavailable"),
        ];
        let needs_key = self.needs_key;
        errors
            .into_iter()
            .filter(move |(applies, status, _)| needs_key && *applies && !own.contains(status))
            .map(|(_, status, description)| ResponseDoc::problem(status, description))
    }

    fn describe(&self, id: &str, schemas: &mut SchemaGenerator) -> Value {
        let mut responses = Map::new();
        for doc in self.responses.iter().cloned().chain(self.common_errors()) {
            responses.insert(doc.status.to_string(), doc.describe(schemas));
        }
        let mut value = json!({
            "operationId": id,
            "summary": self.summary,
            "responses": responses,
        });
        if self.needs_admin {
            value["description"] = "Requires the scope `admin` if API keys are configured.".into();
        }
        if !self.parameters.is_empty() {
            value["parameters"] =
                self.parameters.iter().map(|parameter| parameter.describe(schemas)).collect();
        }
        if let Some((description, schema)) = self.body {
            value["requestBody"] = json!({
                "description": description,
                "content": { "application/json": { "schema": schema(schemas) } },
                "required": true,
            });
        }
        value
    }
}

impl Parameter {
    pub(super) const fn query(name: &'static str, description: &'static str) -> Self {
        let schema = schema::<String>;
        Self { name, location: "query", description, is_required: false, schema }
    }

    pub(super) const fn header(name: &'static str, description: &'static str) -> Self {
        Self { location: "header", ..Self::query(name, description) }
    }

    pub(super) const fn required(self) -> Self {
        Self { is_required: true, ..self }
    }

    pub(super) const fn with(self, schema: SchemaOf) -> Self {
        Self { schema, ..self }
    }

    fn describe(&self, schemas: &mut SchemaGenerator) -> Value {
        json!({
            "name": self.name,
            "in": self.location,
            "description": self.description,
            "required": self.is_required,
            "schema": (self.schema)(schemas),
        })
    }
}

impl ResponseDoc {
    fn problem(status: u16, description: &'static str) -> Self {
        let content = vec![("application/problem+json", schema::<ProblemDetails> as SchemaOf)];
        Self { status, description, content, has_limit_headers: false }
    }

    fn describe(&self, schemas: &mut SchemaGenerator) -> Value {
        let mut value = json!({ "description": self.description });
        for (content_type, schema) in &self.content {
            value["content"][content_type] = json!({ "schema": schema(schemas) });
        }
        if self.has_limit_headers {
            value["headers"] = json!({
                "RateLimit": header("Units left, and seconds until more are available", "string"),
                "RateLimit-Policy": header("The limit that decided", "string"),
                "X-RateLimit-Limit": header("Maximum units at one instant", "integer"),
                "X-RateLimit-Remaining": header("Units left", "integer"),
                "X-RateLimit-Reset": header("Unix time when the limit is unused again", "integer"),
                "Retry-After": header("Seconds until a retry is allowed, after a denial", "integer"),
            });
        }
        value
    }
}

fn header(description: &str, kind: &str) -> Value {
    json!({ "description": description, "schema": { "type": kind } })
}
