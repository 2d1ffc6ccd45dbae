//! Explanations of decisions: the policies that apply to a request, the reasons why others do not, and the state of
//! limits.

use std::time::Duration;

use pacegate::{
    Charge, CheckError, Decision, Limit, Policy, Request, Timestamp,
    policy::{Condition, Match, Missing, Mode},
};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use crate::engine::Engine;

/// The result of each policy of a domain for a request, without charges.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Explanation {
    pub(crate) domain: String,
    /// Revision of the configuration.
    pub(crate) revision: u64,
    /// True if one unit would be admitted now.
    pub(crate) allowed: bool,
    /// The policy that decided.
    pub(crate) policy: Option<&'static str>,
    /// The policies of the domain, in their order.
    pub(crate) policies: Vec<Explained>,
    /// Number of other policies that do not apply.
    pub(crate) omitted: usize,
}

/// The result of one policy.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Explained {
    pub(crate) policy: &'static str,
    pub(crate) covers: bool,
    /// The condition that does not hold, if the policy does not apply.
    pub(crate) unmet: Option<Unmet>,
    /// Index of the override that applies, from 1.
    pub(crate) r#override: Option<usize>,
    /// `enforce` or `shadow`.
    #[schemars(with = "String")]
    pub(crate) mode: Mode,
    /// The values of its `per` attributes; null for one that is missing.
    pub(crate) key: Option<Vec<Option<String>>>,
    /// Empty if the policy does not apply, or an override removes its limits.
    pub(crate) limits: Vec<LimitState>,
    /// Parts of each limit at which a key is reported, such as `80%`. Absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) notify: Vec<String>,
}

/// The first condition that a request does not meet.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Unmet {
    /// The condition.
    pub(crate) condition: ConditionModel,
    /// Value in the request. Untrusted input: render it as text only.
    pub(crate) value: Option<String>,
}

/// The state of one limit.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "StateOfLimit")]
pub(crate) struct LimitState {
    #[serde(flatten)]
    #[schemars(with = "DecisionFields")]
    pub(crate) decision: Decision,
    /// The current window of a calendar period. Absent for other limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<WindowModel>,
    /// Units recorded beyond the capacity, which later requests wait for. Absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    debt: Option<u64>,
}

/// The fields of a [`Decision`], which serializes itself.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "LimitDecision")]
#[cfg_attr(test, derive(serde::Deserialize), serde(deny_unknown_fields))]
#[expect(dead_code, reason = "the schema of a type of the library")]
pub(crate) struct DecisionFields {
    /// True if the request is allowed.
    allowed: bool,
    /// The policy that decided; the tightest if several apply. Null if no policy applies.
    policy: Option<String>,
    /// The limit that decided, such as `100/minute`.
    limit: Option<String>,
    /// Units left. Null without a limit.
    remaining: Option<u64>,
    /// Seconds until the same request would be allowed. Null if it is allowed, or never will be.
    #[schemars(range(min = 0))]
    retry_after: Option<f64>,
    /// Seconds until the limit is unused again.
    #[schemars(range(min = 0))]
    reset_after: f64,
    /// `store`, `overflow`, `deny-cache`, `lease`, `fallback`, `blocked` or `unlimited`.
    source: String,
    /// True if a policy in shadow mode would have denied the request.
    shadow_denied: bool,
    /// True if a failure mode decided because the store did not answer.
    degraded: bool,
}

/// A window, by the clock of this server.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Window")]
pub(crate) struct WindowModel {
    /// Unix time in seconds.
    start: u64,
    /// Unix time in seconds.
    end: u64,
}

/// A condition on an attribute.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Condition")]
pub(crate) struct ConditionModel {
    attribute: String,
    /// `one-of`, `glob`, `cidr`, `present` or `absent`.
    is: &'static str,
    /// One of these values, patterns or networks.
    values: Vec<String>,
}

/// Seconds, with the microseconds as decimals.
#[derive(Clone, Copy, Debug, JsonSchema)]
#[schemars(transparent)]
pub(crate) struct Seconds(#[schemars(with = "f64", range(min = 0))] pub(crate) Duration);

/// Maximum number of policies to report that do not apply.
const MAX_UNMET: usize = 1_000;

/// Explains a request.
pub(crate) async fn explain(
    engine: &Engine,
    revision: u64,
    request: &Request<'_>,
) -> Result<Explanation, CheckError> {
    let plan = engine.plan(request);
    let charges = plan.charges(0)?;
    let batch = engine.check_batch(&charges, None).await?;
    let (mut policies, mut unmet, mut omitted) = (Vec::new(), 0, 0);
    let all = engine.policies().policies().iter();
    // Omits the policies of Envoy rules, which match no request.
    let of_domain =
        |policy: &&Policy| policy.domain == request.domain() && policy.matching != Match::never();
    for policy in all.filter(of_domain) {
        let replaced = engine.policies().override_for(policy.name, request);
        let charges = charges.iter().zip(&batch.each);
        let explained = Explained::new(policy, request, replaced, charges, engine.now());
        unmet += usize::from(!explained.covers);
        match !explained.covers && unmet > MAX_UNMET {
            true => omitted += 1,
            false => policies.push(explained),
        }
    }
    Ok(Explanation {
        domain: request.domain().to_owned(),
        revision,
        allowed: batch.decision.is_allowed(),
        policy: batch.decision.policy().map(|policy| policy.as_str()),
        policies,
        omitted,
    })
}

impl Explained {
    fn new<'a>(
        policy: &Policy,
        request: &Request<'_>,
        replaced: Option<usize>,
        charges: impl Iterator<Item = (&'a Charge<'a>, &'a Decision)>,
        now: Timestamp,
    ) -> Self {
        let unmet = Unmet::find(policy, request);
        let own: Vec<_> = charges.filter(|(charge, _)| charge.policy == policy.name).collect();
        let text =
            |part: Option<&[u8]>| part.map(|part| String::from_utf8_lossy(part).into_owned());
        let key = own.first().map(|(charge, _)| charge.key.parts().map(text).collect());
        Self {
            policy: policy.name.as_str(),
            covers: unmet.is_none(),
            r#override: replaced.filter(|_| unmet.is_none()).map(|place| place + 1),
            unmet,
            mode: policy.mode,
            key,
            limits: own.into_iter().map(|(_, decision)| LimitState::new(decision, now)).collect(),
            notify: policy.notify.iter().map(ToString::to_string).collect(),
        }
    }
}

impl Unmet {
    fn find(policy: &Policy, request: &Request<'_>) -> Option<Self> {
        let unmet = |(attribute, condition): &(&str, &Condition)| {
            !condition.holds(policy.value(request, attribute).as_deref())
        };
        let lacks = |attribute: &&String| {
            policy.missing == Missing::Skip && request.attribute(attribute).is_none()
        };
        let missing = || {
            let attribute = policy.per.iter().find(lacks)?;
            Some((attribute.as_str(), &Condition::Present))
        };
        let (attribute, condition) = policy.matching.conditions().find(unmet).or_else(missing)?;
        let value = policy.value(request, attribute);
        let value = value.map(|value| String::from_utf8_lossy(&value).into_owned());
        Some(Self { condition: ConditionModel::new(attribute, condition), value })
    }
}

impl LimitState {
    pub(crate) fn new(decision: &Decision, now: Timestamp) -> Self {
        let window = decision.limit().and_then(|limit| WindowModel::new(&limit, now));
        Self { decision: *decision, window, debt: Some(decision.debt()).filter(|debt| *debt > 0) }
    }
}

impl WindowModel {
    /// Returns the current window of a calendar period, or `None` for another limit.
    fn new(limit: &Limit, now: Timestamp) -> Option<Self> {
        limit.calendar()?;
        let window = limit.window_at(now)?;
        let seconds = |instant: Timestamp| instant.as_micros() / 1_000_000;
        Some(Self { start: seconds(window.start()), end: seconds(window.end()) })
    }
}

impl ConditionModel {
    pub(crate) fn new(attribute: &str, condition: &Condition) -> Self {
        let (is, values) = match condition {
            Condition::OneOf(values) => ("one-of", values.clone()),
            Condition::Glob(glob) => ("glob", vec![glob.to_string()]),
            Condition::Cidr(nets) => ("cidr", nets.iter().map(ToString::to_string).collect()),
            Condition::Present => ("present", Vec::new()),
            Condition::Absent => ("absent", Vec::new()),
            _ => ("other", Vec::new()),
        };
        Self { attribute: attribute.to_owned(), is, values }
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0.as_secs_f64())
    }
}
