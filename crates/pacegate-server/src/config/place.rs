use std::{borrow::Cow, fmt, marker::PhantomData};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};
use serde_saphyr::{Location, Spanned};

/// A value with its position in the file.
#[derive(Clone, Debug)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) place: Location,
    /// The place of its definition, if it is an alias.
    pub(crate) origin: Location,
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

/// The map form of a type that has none.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NoMap {}

/// The entries of a map, in their order.
#[derive(Clone, Debug)]
pub(crate) struct Entries<T>(pub(crate) Vec<(At<String>, At<T>)>);

/// A type that can be written in several forms. [`Form`] parses them.
pub(crate) trait Forms<'de>: Deserialize<'de> {
    /// The end of the sentence "expected ...".
    const EXPECTED: &'static str;
}

impl<T> At<T> {
    /// Returns another value with the same position.
    pub(crate) fn with<U>(&self, value: U) -> At<U> {
        At { value, place: self.place, origin: self.origin }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for At<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, referenced, defined } = Spanned::deserialize(deserializer)?;
        Ok(Self { value, place: referenced, origin: defined })
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

impl<'de> Forms<'de> for NoMap {
    const EXPECTED: &'static str = "one text or a list of texts";
}

impl<'de> Deserialize<'de> for NoMap {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom("expected one text or a list of texts, not a map"))
    }
}

impl<'de, M: Forms<'de>> Deserialize<'de> for Form<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FormVisitor(PhantomData))
    }
}

struct FormVisitor<M>(PhantomData<M>);

impl<'de, M: Forms<'de>> Visitor<'de> for FormVisitor<M> {
    type Value = Form<M>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(M::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Form::One(Scalar::Text(text.to_owned())))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Form::One(Scalar::Plain))
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Form::One(Scalar::Plain))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Form::One(Scalar::Plain))
    }

    fn visit_u128<E: Error>(self, _: u128) -> Result<Self::Value, E> {
        Ok(Form::One(Scalar::Plain))
    }

    fn visit_i128<E: Error>(self, _: i128) -> Result<Self::Value, E> {
        Ok(Form::One(Scalar::Plain))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Form::One(Scalar::Plain))
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
