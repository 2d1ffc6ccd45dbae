//! Resources of a config server, and their conversion to the documents that rule files contain.

use std::sync::Arc;

use prost::Message;
use serde_saphyr::{Location, Spanned};

use super::{
    super::{
        compile,
        file::{FileError, Replaces, RuleDescriptor, RuleDocument, RuleFile, RuleLimit, shorten},
        metadata,
        options::EnvoyOptions,
        proto::Unit,
        rules::Rules,
    },
    proto::{Any, ConfigDescriptor, ConfigLimit, RateLimitConfig},
};

/// The type of the resources.
pub(super) const TYPE_URL: &str =
    "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// All resources of one config server.
#[derive(Debug)]
pub(crate) struct Resources {
    received: Vec<Any>,
    /// Each with its origin, for errors.
    documents: Vec<(RuleFile, RuleDocument)>,
}

/// The last resources that were accepted from each config server. `None`: it has not sent any.
pub(crate) type AcceptedResources = Vec<Option<Arc<Resources>>>;

impl Resources {
    /// Parses the resources of a response. `server` is for errors.
    pub(super) fn parse(server: &str, received: Vec<Any>) -> Result<Self, FileError> {
        let documents = received.iter().map(|resource| document(server, resource));
        let documents = documents.collect::<Result<_, _>>()?;
        Ok(Self { received, documents })
    }

    /// Returns true if these are the same resources in the same order.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.received == other.received
    }
}

/// Compiles the resources of all config servers to rules.
pub(crate) fn rules(
    accepted: &AcceptedResources,
    options: &EnvoyOptions,
) -> Result<Rules, FileError> {
    if accepted.iter().all(Option::is_none) {
        return Ok(Rules::pending());
    }
    let documents = accepted.iter().flatten().flat_map(|resources| &resources.documents);
    compile::documents(documents.map(|(source, document)| (source, document)), options)
}

fn document(server: &str, resource: &Any) -> Result<(RuleFile, RuleDocument), FileError> {
    let source = |name: &str| RuleFile {
        file: format!("{server}/{}", shorten(name, 80)).into(),
        text: String::new(),
    };
    if resource.type_url != TYPE_URL {
        let found = shorten(&resource.type_url, 120);
        let message = format!("unknown type `{found}` of a resource: expected {TYPE_URL}");
        return Err(source("").error(None, message));
    }
    let config = RateLimitConfig::decode(resource.value.clone())
        .map_err(|error| source("").error(None, format!("cannot decode a resource: {error}")))?;
    let document = RuleDocument {
        domain: unlocated(config.domain),
        descriptors: Some(descriptors(config.descriptors)),
    };
    Ok((source(&config.name), document))
}

fn descriptors(descriptors: Vec<ConfigDescriptor>) -> Vec<Spanned<RuleDescriptor>> {
    descriptors.into_iter().map(|one| unlocated(descriptor(one))).collect()
}

fn descriptor(descriptor: ConfigDescriptor) -> RuleDescriptor {
    RuleDescriptor {
        key: Some(unlocated(descriptor.key)),
        value: text(descriptor.value),
        rate_limit: descriptor.rate_limit.map(|one| unlocated(limit(one))),
        descriptors: Some(descriptors(descriptor.descriptors)),
        shadow_mode: Some(descriptor.shadow_mode),
        quota_mode: Some(descriptor.quota_mode),
        metadata: descriptor.metadata.as_ref().map(metadata::object),
        detailed_metric: Some(descriptor.detailed_metric),
        ..RuleDescriptor::default()
    }
}

fn limit(limit: ConfigLimit) -> RuleLimit {
    let unit = match Unit::try_from(limit.unit) {
        Ok(Unit::Unknown) if limit.unlimited => None,
        Ok(unit) => Some(unit.word().to_owned()),
        Err(_) => Some(format!("number {}", limit.unit)),
    };
    let replaces = limit.replaces.into_iter().map(|it| unlocated(Replaces { name: Some(it.name) }));
    RuleLimit {
        name: text(limit.name),
        unit: unit.map(unlocated),
        requests_per_unit: Some(unlocated(u64::from(limit.requests_per_unit))),
        unlimited: Some(unlocated(limit.unlimited)),
        replaces: Some(replaces.collect()),
        ..RuleLimit::default()
    }
}

/// Returns `None` for an empty text, which protobuf does not distinguish from an absent one.
fn text(text: String) -> Option<Spanned<String>> {
    Some(text).filter(|text| !text.is_empty()).map(unlocated)
}

fn unlocated<T>(value: T) -> Spanned<T> {
    Spanned::new(value, Location::UNKNOWN, Location::UNKNOWN)
}

#[cfg(test)]
mod tests {
    use pacegate::PolicyName;
    use proptest::{prelude::*, sample::Index};

    use super::{
        super::{
            super::proto::{Entry, Struct, Value},
            proto::ConfigReplace,
        },
        *,
    };

    fn any(config: &RateLimitConfig) -> Any {
        Any { type_url: TYPE_URL.to_owned(), value: config.encode_to_vec().into() }
    }

    fn config(domain: &str, descriptors: Vec<ConfigDescriptor>) -> Any {
        any(&RateLimitConfig {
            name: format!("{domain}-rules"),
            domain: domain.to_owned(),
            descriptors,
        })
    }

    fn leaf(key: &str, value: &str, rate_limit: ConfigLimit) -> ConfigDescriptor {
        ConfigDescriptor {
            key: key.to_owned(),
            value: value.to_owned(),
            rate_limit: Some(rate_limit),
            ..ConfigDescriptor::default()
        }
    }

    fn hourly(requests_per_unit: u32) -> ConfigLimit {
        ConfigLimit { unit: Unit::Hour.into(), requests_per_unit, ..ConfigLimit::default() }
    }

    /// Compiles the resources of several config servers.
    fn compile(servers: &[&[Any]], merge_domains: bool) -> Result<Rules, String> {
        let parse = |(index, resources): (usize, &&[Any])| {
            Resources::parse(&format!("cp{index}:1"), resources.to_vec()).map(Arc::new).map(Some)
        };
        let all: Result<AcceptedResources, _> = servers.iter().enumerate().map(parse).collect();
        let options = EnvoyOptions { merge_domains, ..EnvoyOptions::default() };
        all.and_then(|all| rules(&all, &options)).map_err(|error| error.to_string())
    }

    fn problem(descriptors: Vec<ConfigDescriptor>) -> String {
        compile(&[&[config("edge", descriptors)]], false).unwrap_err()
    }

    #[test]
    fn a_resource_gives_the_same_rules_as_a_file() {
        let fields = [("tier".to_owned(), Value::from("gold"))].into_iter().collect();
        let quota = ConfigDescriptor {
            quota_mode: true,
            metadata: Some(Struct { fields }),
            ..leaf("path", "/api*", ConfigLimit { name: "api".into(), ..hourly(7) })
        };
        let replaces = vec![ConfigReplace { name: "api".to_owned() }];
        let nested = ConfigDescriptor {
            key: "plan".to_owned(),
            descriptors: vec![leaf("user", "", ConfigLimit { replaces, ..hourly(5) })],
            ..ConfigDescriptor::default()
        };
        let open = ConfigLimit { unlimited: true, ..ConfigLimit::default() };
        let shadow = ConfigDescriptor { shadow_mode: true, ..leaf("ip", "", hourly(0)) };
        let resource = config("edge", vec![quota, nested, leaf("user", "admin", open), shadow]);
        let received = compile(&[&[resource]], false).unwrap();
        let text = "domain: edge
descriptors:
- key: path
  value: /api*
  quota_mode: true
  metadata: {tier: gold}
  rate_limit: {name: api, unit: hour, requests_per_unit: 7}
- key: plan
  descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 5, replaces: [{name: api}]}}
- {key: user, value: admin, rate_limit: {unlimited: true}}
- {key: ip, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
";
        let file = RuleFile { file: "a.yaml".into(), text: text.to_owned() };
        let written = Rules::parse(&[file], &EnvoyOptions::default()).unwrap();
        assert_eq!(received.written, written.written);
        let entry = |key: &'static str, value: &'static str| Entry {
            key: key.as_bytes().into(),
            value: value.as_bytes().into(),
        };
        for entries in [
            &[entry("path", "/api/x")][..],
            &[entry("plan", "free"), entry("user", "a")],
            &[entry("user", "admin")],
            &[entry("ip", "::1")],
        ] {
            let rule = |rules: &Rules| {
                format!("{:?}", rules.domain(b"edge").unwrap().rule(entries).unwrap())
            };
            assert_eq!(rule(&received), rule(&written));
        }
        assert!(!received.is_pending && received.policies() == written.policies());
    }

    #[test]
    fn errors_name_the_server_the_resource_and_the_descriptor() {
        let below = ConfigDescriptor {
            key: "plan".to_owned(),
            value: "free".to_owned(),
            descriptors: vec![leaf("user", "", ConfigLimit { unit: 0, ..hourly(5) })],
            ..ConfigDescriptor::default()
        };
        assert_eq!(
            problem(vec![below]),
            "cp0:1/edge-rules: descriptor `plan=free`: descriptor `user`: unknown unit `unknown`: expected second, \
             minute, hour, day, week, month or year, or a period such as 30s or 5m"
        );
        let unlimited = ConfigLimit { unlimited: true, ..hourly(0) };
        let itself = vec![ConfigReplace { name: "a".to_owned() }];
        for (descriptors, expected) in [
            (vec![leaf("", "x", hourly(1))], "missing key of a descriptor"),
            (
                vec![leaf("a", "x", hourly(1)), leaf("a", "x", hourly(2))],
                "duplicate descriptor `a` with value `x`: already in cp0:1/edge-rules;",
            ),
            (vec![leaf("a", "", ConfigLimit { unit: 9, ..hourly(1) })], "unknown unit `number 9`"),
            (vec![leaf("a", "", unlimited)], "`unlimited` and `unit` exclude each other"),
            (
                vec![leaf(
                    "a",
                    "",
                    ConfigLimit { name: "a".into(), replaces: itself, ..hourly(1) },
                )],
                "cannot replace itself",
            ),
            (
                vec![leaf(
                    "a",
                    "",
                    ConfigLimit { replaces: vec![ConfigReplace::default()], ..hourly(1) },
                )],
                "`replaces` requires the name",
            ),
        ] {
            let error = problem(descriptors);
            assert!(
                error.starts_with("cp0:1/edge-rules: descriptor `") && error.contains(expected),
                "{error}"
            );
        }
        assert!(
            compile(&[&[config("", Vec::new())]], false)
                .unwrap_err()
                .contains("the domain is empty")
        );
    }

    #[test]
    fn other_types_and_broken_messages_are_errors() {
        let other = Any { type_url: "type.googleapis.com/other".to_owned(), ..Any::default() };
        assert!(
            compile(&[&[other]], false)
                .unwrap_err()
                .contains("unknown type `type.googleapis.com/other`")
        );
        let broken = Any { value: vec![0x0a, 9].into(), ..config("edge", Vec::new()) };
        assert!(compile(&[&[broken]], false).unwrap_err().contains("cannot decode a resource"));
    }

    #[test]
    fn deep_resources_are_errors() {
        let mut deep = leaf("a", "", hourly(1));
        for _ in 0..200 {
            deep = ConfigDescriptor {
                key: "a".to_owned(),
                descriptors: vec![deep],
                ..ConfigDescriptor::default()
            };
        }
        let error = problem(vec![deep]);
        assert!(error.contains("cannot decode a resource"), "{error}");
    }

    proptest! {
        #[test]
        fn damaged_resources_are_rules_or_errors(place: Index, byte: u8, cut: Index) {
            let replaces = vec![ConfigReplace { name: "b".to_owned() }];
            let nested = ConfigDescriptor {
                descriptors: vec![leaf("b", "x*", ConfigLimit { replaces, ..hourly(2) })],
                ..leaf("a", "v", hourly(1))
            };
            let resource = config("edge", vec![nested, leaf("c", "", hourly(3))]);
            let mut value = resource.value.to_vec();
            let at = place.index(value.len());
            value[at] = byte;
            value.truncate(cut.index(value.len() + 1).max(at + 1));
            let error = compile(&[&[Any { value: value.into(), ..resource }]], false).err();
            prop_assert!(error.is_none_or(|error| error.starts_with("cp0:1/")));
        }
    }

    #[test]
    fn a_domain_of_two_resources_needs_permission_to_merge() {
        let [a, b] = ["a", "b"].map(|key| config("edge", vec![leaf(key, "", hourly(1))]));
        let same: [&[Any]; 1] = [&[a.clone(), b.clone()]];
        let two: [&[Any]; 2] = [std::slice::from_ref(&a), std::slice::from_ref(&b)];
        assert_eq!(
            compile(&two, false).unwrap_err(),
            "cp1:1/edge-rules: duplicate domain `edge`: already in cp0:1/edge-rules"
        );
        assert!(compile(&same, false).unwrap_err().contains("duplicate domain `edge`"));
        assert_eq!(compile(&two, true).unwrap().policies(), 2);
        assert_eq!(compile(&same, true).unwrap().policies(), 2);
        let twice: [&[Any]; 2] = [std::slice::from_ref(&a), std::slice::from_ref(&a)];
        assert!(compile(&twice, true).unwrap_err().contains("duplicate descriptor `a`"));
    }

    #[test]
    fn rejected_resources_leave_no_names_in_memory() {
        let resource = config("names", vec![leaf("user", "", hourly(1))]);
        let known = || PolicyName::known("names.user").is_some();
        assert!(compile(&[&[resource.clone(), config("", Vec::new())]], false).is_err());
        assert!(!known());
        assert!(compile(&[&[resource]], false).is_ok() && known());
    }

    #[test]
    fn rules_are_pending_until_a_server_has_sent_some() {
        let options = EnvoyOptions::default();
        assert!(rules(&Vec::new(), &options).unwrap().is_pending);
        assert!(rules(&vec![None, None], &options).unwrap().is_pending);
        let empty = compile(&[&[]], false).unwrap();
        assert!(!empty.is_pending && empty.is_empty());
    }
}
