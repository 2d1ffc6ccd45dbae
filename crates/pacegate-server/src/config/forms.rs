//! The schemas of fields that have several forms.

use std::collections::BTreeMap;

use schemars::JsonSchema;

use super::file::{Condition, Failure, Layout, Store};

/// `memory`, an address, or the parts of a store.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
#[expect(dead_code, reason = "only its schema is used; `Form` parses the value")]
pub(super) enum StoreForm {
    Text(String),
    Parts(Box<Store>),
}

/// A named layout, a template, or a template with its options.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
#[expect(dead_code, reason = "only its schema is used; `Form` parses the value")]
pub(super) enum LayoutForm {
    Text(String),
    Parts(Box<Layout>),
}

/// A text, or a list of texts.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
#[expect(dead_code, reason = "only its schema is used; `Form` parses the value")]
pub(super) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// A condition on an attribute.
#[derive(JsonSchema)]
#[schemars(untagged, rename = "ConditionForm")]
#[expect(dead_code, reason = "only its schema is used; `Form` parses the value")]
pub(super) enum ConditionForm {
    /// The value, or a pattern if it has a `*` or a `?`.
    Text(String),
    /// The value, as it is written here.
    Number(serde_json::Number),
    /// The value, as it is written here.
    Truth(bool),
    /// One of these values, compared literally.
    List(Vec<String>),
    /// A condition of another kind.
    Parts(Box<Condition>),
}

pub(super) type Conditions = BTreeMap<String, ConditionForm>;

/// `open`: let requests pass, and count nothing. `closed`: deny them. `local`: count in the memory of this process, at
/// the full limit or at a share of it.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
#[expect(dead_code, reason = "only its schema is used; `Form` parses the value")]
pub(super) enum FailureForm {
    Name(FailureName),
    Share(Failure),
}

/// The failure mode, which applies when the store does not answer.
#[derive(JsonSchema)]
#[schemars(rename_all = "kebab-case")]
#[expect(dead_code, reason = "only its schema is used; `Form` parses the value")]
pub(super) enum FailureName {
    /// Let requests pass, and count nothing.
    Open,
    /// Deny them, to be tried again after a second.
    Closed,
    /// Count in the memory of this process, at the full limit.
    Local,
}

/// Units, or a part such as `5%`.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
#[expect(dead_code, reason = "the schema of a text that may be a number")]
pub(super) enum Lease {
    Units(u64),
    Part(String),
}
