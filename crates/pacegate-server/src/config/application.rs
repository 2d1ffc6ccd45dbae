//! An `application.yaml` of Spring with a `rate-limiter` and settings of ours at its top.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeSeed, Error, IgnoredAny, IntoDeserializer, MapAccess, Visitor,
        value::StringDeserializer,
    },
    forward_to_deserialize_any,
};

use super::{
    policies::FailureSection,
    rlaas::RateLimiter,
    settings::Config,
    spanned::{At, Form},
};

/// The parts of such a file that are read. Every name at its top that is neither RLaaS's nor ours is Spring's, and is
/// ignored.
#[derive(Debug)]
pub(super) struct Application {
    pub(super) limiter: At<RateLimiter>,
    /// The failure mode of the one policy.
    pub(super) failure: Option<At<Form<FailureSection>>>,
    /// All other sections of a Pacegate file, except for policies.
    pub(super) config: Config,
}

impl<'de> Deserialize<'de> for Application {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ApplicationVisitor)
    }
}

struct ApplicationVisitor;

impl<'de> Visitor<'de> for ApplicationVisitor {
    type Value = Application;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("names and values, one of them `rate-limiter`")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Application, A::Error> {
        let mut top = TopLevel { map, limiter: None, failure: None };
        let config = Config::deserialize(&mut top)?;
        let limiter = top.limiter.ok_or_else(|| A::Error::missing_field("rate-limiter"))?;
        Ok(Application { limiter, failure: top.failure, config })
    }
}

/// The map as a deserializer for [`Config`], without the names that it would reject. Serde passes the names of
/// its fields, so a new field needs no entry here.
struct TopLevel<A> {
    map: A,
    limiter: Option<At<RateLimiter>>,
    failure: Option<At<Form<FailureSection>>>,
}

impl<'de, A: MapAccess<'de>> Deserializer<'de> for &mut TopLevel<A> {
    type Error = A::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        visitor.visit_map(Fields { top: self, fields })
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, A::Error> {
        visitor.visit_map(Fields { top: self, fields: &[] })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The entries of a map under these names.
struct Fields<'a, A> {
    top: &'a mut TopLevel<A>,
    fields: &'static [&'static str],
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Fields<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        let top = &mut *self.top;
        while let Some(name) = top.map.next_key::<String>()? {
            match &*name {
                "rate-limiter" => top.limiter = Some(top.map.next_value()?),
                "failure" => top.failure = Some(top.map.next_value()?),
                // `format_of` detects Pacegate's own files by this name.
                "policies" => drop(top.map.next_value::<IgnoredAny>()?),
                own if self.fields.contains(&own) => {
                    let name: StringDeserializer<A::Error> = name.into_deserializer();
                    return seed.deserialize(name).map(Some);
                }
                _ => drop(top.map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.top.map.next_value_seed(seed)
    }
}
