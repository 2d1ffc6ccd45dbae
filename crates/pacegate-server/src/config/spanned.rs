//! Values with their positions in the file, and values that can be written in several forms.

use std::{borrow::Cow, collections::BTreeMap, fmt, marker::PhantomData};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};
use serde_saphyr::{Location, Spanned};

use super::problem::Problems;

/// A value with its position in the file.
#[derive(Clone, Debug)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) location: Location,
    /// The location of its definition, if it is an alias.
    pub(crate) definition: Location,
}

/// A value that is neither a list nor a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    /// Text.
    Text(String),
    /// A number or a boolean. Its text is at its position in the file.
    Plain,
    /// An empty value, `~` or `null`.
    Nothing,
}

/// A value that can be written as a scalar, a list, or a map.
#[derive(Clone, Debug)]
pub(crate) enum Form<M> {
    One(Scalar),
    List(Vec<At<String>>),
    Map(Box<M>),
}

/// A text or a list of texts.
pub(crate) type Texts = At<Form<NoMap>>;

/// The map form of a type that has none.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NoMap {}

/// The entries of a map, in their order.
#[derive(Clone, Debug)]
pub(crate) struct Entries<T>(pub(crate) Vec<(At<String>, At<T>)>);

/// A type that can be written in several forms. [`Form`] parses them.
pub(crate) trait Forms: DeserializeOwned {
    /// The end of the sentence "expected ...".
    const EXPECTED: &'static str;
    /// The type whose schema describes all forms.
    type AnyForm: JsonSchema;
}

// The schema of a value of one of two types.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
#[expect(dead_code, reason = "only its schema is used; `Form` parses the value")]
pub(crate) enum Either<A, B> {
    A(A),
    B(B),
}

impl<T> At<T> {
    /// Returns another value with the same position.
    pub(crate) fn with<U>(&self, value: U) -> At<U> {
        At { value, location: self.location, definition: self.definition }
    }
}

impl<M> At<Form<M>> {
    /// Returns a scalar as it is written in the file.
    pub(crate) fn scalar_text(&self, scalar: &Scalar, problems: &Problems<'_>) -> String {
        match scalar {
            Scalar::Text(text) => text.clone(),
            Scalar::Plain => problems.written(self.definition).unwrap_or_default().to_owned(),
            Scalar::Nothing => String::new(),
        }
    }
}

impl Texts {
    /// Returns the texts with their positions. Adds a problem if the value is empty.
    pub(crate) fn texts(&self, problems: &mut Problems<'_>) -> Option<Vec<At<String>>> {
        match &self.value {
            Form::One(Scalar::Nothing) => {
                problems.add(self.location, "missing value: write one, or remove the field");
                None
            }
            Form::One(scalar) => Some(vec![self.with(self.scalar_text(scalar, problems))]),
            Form::List(list) => Some(list.clone()),
            Form::Map(never) => match **never {},
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for At<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, referenced, defined } = Spanned::deserialize(deserializer)?;
        Ok(Self { value, location: referenced, definition: defined })
    }
}

impl<T: JsonSchema> JsonSchema for At<T> {
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

impl<M: Forms> JsonSchema for Form<M> {
    fn schema_name() -> Cow<'static, str> {
        M::AnyForm::schema_name()
    }

    fn inline_schema() -> bool {
        M::AnyForm::inline_schema()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        M::AnyForm::json_schema(generator)
    }
}

impl<T: JsonSchema> JsonSchema for Entries<T> {
    fn schema_name() -> Cow<'static, str> {
        "Entries".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<String, T>::json_schema(generator)
    }
}

impl Forms for NoMap {
    const EXPECTED: &'static str = "one text or a list of texts";
    type AnyForm = Either<String, Vec<String>>;
}

impl<'de> Deserialize<'de> for NoMap {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom("expected one text or a list of texts, not a map"))
    }
}

impl<'de, M: Forms> Deserialize<'de> for Form<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FormVisitor(PhantomData))
    }
}

struct FormVisitor<M>(PhantomData<M>);

/// Accepts values whose text is read from the file later.
macro_rules! accept_plain {
    ($($visit:ident: $type:ty),+) => {$(
        fn $visit<E: Error>(self, _: $type) -> Result<Self::Value, E> {
            Ok(Form::One(Scalar::Plain))
        }
    )+};
}

impl<'de, M: Forms> Visitor<'de> for FormVisitor<M> {
    type Value = Form<M>;

    accept_plain!(visit_bool: bool, visit_u64: u64, visit_i64: i64);
    accept_plain!(visit_u128: u128, visit_i128: i128, visit_f64: f64);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(M::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Form::One(Scalar::Text(text.to_owned())))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Form::One(Scalar::Nothing))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(Form::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        Box::deserialize(MapAccessDeserializer::new(map)).map(Form::Map)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}

struct EntriesVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for EntriesVisitor<T> {
    type Value = Entries<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("names and values, such as `path: /login`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Entries(entries))
    }
}
