//! The section `bounds`: one table with the name, meaning, default, range and form of each bound.

use std::{borrow::Cow, ops::RangeInclusive, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    problem::Problems,
    spanned::At,
    text::{self, ValueError},
};

/// The form of a bound in the file.
struct BoundForm<T> {
    parse: fn(&str, RangeInclusive<T>) -> Result<T, ValueError>,
    schema: fn(&RangeInclusive<T>, T) -> Value,
}

const COUNT: BoundForm<usize> = BoundForm {
    parse: text::count,
    schema: |range, default| {
        let (min, max) = (range.start(), range.end());
        json!({"type": "integer", "format": "uint64", "minimum": min, "maximum": max, "default": default})
    },
};

const BYTES: BoundForm<usize> = BoundForm {
    parse: text::size,
    schema: |_, default| {
        let number = json!({"type": "integer", "format": "uint64", "minimum": 0});
        json!({"anyOf": [number, {"type": "string"}], "default": text::format_size(default)})
    },
};

const TIME: BoundForm<Duration> = BoundForm {
    parse: text::duration,
    schema: |_, default| json!({"type": "string", "default": text::format_duration(default)}),
};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const MIN_TIMEOUT: Duration = Duration::from_millis(10);
const HOUR: Duration = Duration::from_secs(3_600);

/// Declares each bound as `name: type = form, default, range`. Makes of it the setting, its default, the form in the
/// file, its check and its schema.
macro_rules! bounds {
    (
        $(#[doc = $about:literal])+ section
        $($(#[doc = $doc:literal])+ $name:ident: $type:ty = $form:ident, $default:expr, $range:expr;)+
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Bounds {
            $($(#[doc = $doc])+ pub $name: $type,)+
        }

        impl Default for Bounds {
            fn default() -> Self {
                Self { $($name: $default,)+ }
            }
        }

        /// The section `bounds` of a file.
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct BoundsSection {
            $(#[serde(default)] $name: Option<At<String>>,)+
        }

        impl BoundsSection {
            /// Returns the bounds, with the default for each that is absent or invalid.
            pub(super) fn read(&self, problems: &mut Problems<'_>) -> Bounds {
                let mut bounds = Bounds::default();
                $(if let Some(At { value, location, .. }) = &self.$name
                    && let Some(read) = problems.take(*location, ($form.parse)(value, $range))
                {
                    bounds.$name = read;
                })+
                bounds
            }
        }

        impl JsonSchema for BoundsSection {
            fn schema_name() -> Cow<'static, str> {
                "Bounds".into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                let mut properties = Map::new();
                $({
                    let mut schema = ($form.schema)(&$range, $default);
                    schema["description"] = description(&[$($doc),+]).into();
                    properties.insert(stringify!($name).to_owned(), schema);
                })+
                let mut schema = Schema::default();
                schema.insert("type".to_owned(), "object".into());
                schema.insert("description".to_owned(), description(&[$($about),+]).into());
                schema.insert("properties".to_owned(), properties.into());
                schema.insert("additionalProperties".to_owned(), false.into());
                schema
            }
        }
    };
}

fn description(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join("\n")
}

bounds! {
    /// Limits on the resources that clients can use. Bytes are numbers or texts such as `64KiB`, times such as `5s`.
    section

    /// Connections per listener, from 1 to 1,000,000. The open-file limit of the process may lower it.
    connections: usize = COUNT, 10_000, 1..=1_000_000;

    /// Size of one request: a body, or a command with its arguments. From 1KiB to 64MiB.
    request_bytes: usize = BYTES, 64 * KIB, KIB..=64 * MIB;

    /// Size of all headers of a request. From 1KiB to 1MiB.
    header_bytes: usize = BYTES, 16 * KIB, KIB..=MIB;

    /// Size of a key, and of the value of an attribute. From 16 bytes to 64KiB.
    key_bytes: usize = BYTES, KIB, 16..=64 * KIB;

    /// Maximum number of attributes, of descriptors and of entries in one request, from 1 to 1,024.
    attributes: usize = COUNT, 32, 1..=1_024;

    /// Requests in a batch, and pipelined commands that are decided together, from 1 to 65,536.
    batch: usize = COUNT, 1_024, 1..=65_536;

    /// Time for a request to arrive completely, from its first byte. From 10ms to 1h.
    read_timeout: Duration = TIME, Duration::from_secs(5), MIN_TIMEOUT..=HOUR;

    /// Time for a client to read a response. The server closes a connection if it cannot write for this long, or if
    /// the client leaves an HTTP/2 response unread. From 10ms to 1h.
    write_timeout: Duration = TIME, Duration::from_secs(30), MIN_TIMEOUT..=HOUR;

    /// Idle time after which a connection is closed. From 10ms to 1d.
    idle_timeout: Duration = TIME, Duration::from_secs(300), MIN_TIMEOUT..=24 * HOUR;

    /// Time for in-flight requests to finish during shutdown. From 0s to 1h.
    drain_timeout: Duration = TIME, Duration::from_secs(10), Duration::ZERO..=HOUR;
}
