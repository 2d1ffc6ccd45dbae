//! The section `notifications`.

use std::{fmt, sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    environment::beside,
    security::MIN_API_KEY,
    settings::Reader,
    spanned::At,
    text::{count, duration},
};
use crate::client::{Client, ClientError};

/// The receivers of events. Policies with `notify` create them.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Notifications")]
pub(crate) struct NotificationsSection {
    /// An HTTP endpoint that gets a signed POST for each event. See docs/guide/notifications.md.
    webhook: Option<At<WebhookSection>>,
}

/// An HTTP endpoint that gets a signed POST for each event. A response with a status from 200 to 299 confirms the
/// event; after any other, it is sent again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Webhook")]
pub(crate) struct WebhookSection {
    /// The URL, with `https://` or `http://`.
    #[schemars(example = "https://billing.example.com/pacegate")]
    url: At<String>,

    /// A file that contains only the secret of the signature, of at least 16 bytes. A relative path starts at the
    /// directory of this file.
    #[schemars(example = "/run/secrets/webhook-secret")]
    secret_file: Option<At<String>>,

    /// The environment variable that contains the secret of the signature, of at least 16 bytes.
    #[schemars(example = &"WEBHOOK_SECRET")]
    secret_env: Option<At<String>>,

    /// A PEM file with the certificate authority of the receiver. Default: the authorities of the system.
    authority: Option<At<String>>,

    /// Time for one attempt. From 10ms to 1m.
    #[schemars(extend("default" = "5s"))]
    timeout: Option<At<String>>,

    /// Time for which an event is sent again before it is dropped. From 1s to 7d.
    #[schemars(extend("default" = "1d"))]
    max_age: Option<At<String>>,

    /// Maximum number of events that wait for delivery. If there are more, the oldest are dropped.
    #[schemars(range(min = 1, max = 1_000_000), extend("default" = 10_000))]
    queue: Option<At<u64>>,
}

/// An HTTP endpoint that gets events. Its `Debug` form shows no secret.
#[derive(Clone)]
pub(crate) struct WebhookSettings {
    pub(crate) client: Client,
    /// The key of the signature.
    pub(crate) secret: Arc<[u8]>,
    pub(crate) timeout: Duration,
    pub(crate) max_age: Duration,
    pub(crate) queue: usize,
}

const DAY: Duration = Duration::from_secs(86_400);

impl Reader<'_, '_> {
    pub(super) fn webhook(&mut self, section: &NotificationsSection) -> Option<WebhookSettings> {
        let At { value: webhook, location, .. } = section.webhook.as_ref()?;
        let (at, secret) = match (&webhook.secret_file, &webhook.secret_env) {
            (Some(path), None) => {
                (path.location, self.environment.file(&beside(self.file, &path.value)))
            }
            (None, Some(name)) => (name.location, self.environment.variable(&name.value)),
            _ => {
                let message = "a webhook needs exactly one of `secret_file` and `secret_env`";
                self.problems.add(*location, message);
                return None;
            }
        };
        let secret = self.problems.take(at, secret)?.unwrap_or_else(|| vec![0; MIN_API_KEY]);
        if secret.len() < MIN_API_KEY {
            let message = format!(
                "the secret has {} bytes: use at least {MIN_API_KEY}, such as the output of \
                 `openssl rand -hex 32`",
                secret.len()
            );
            self.problems.add(at, message);
        }
        let authority = webhook.authority.as_ref().map(|path| beside(self.file, &path.value));
        let client = Client::for_url(&webhook.url.value, authority.as_deref());
        // Without the URL, because its path may contain a token.
        let client = client.map_err(|error| match error {
            ClientError::Address(_) => "invalid URL: expected `https://HOST/PATH`".to_owned(),
            other => other.to_string(),
        });
        let mut webhook_settings = WebhookSettings {
            client: self.problems.take(webhook.url.location, client)?,
            secret: secret.into(),
            timeout: Duration::from_secs(5),
            max_age: DAY,
            queue: 10_000,
        };
        if let Some(At { value, location, .. }) = &webhook.timeout {
            let range = Duration::from_millis(10)..=Duration::from_secs(60);
            let timeout = self.problems.take(*location, duration(value, range));
            webhook_settings.timeout = timeout.unwrap_or(webhook_settings.timeout);
        }
        if let Some(At { value, location, .. }) = &webhook.max_age {
            let range = Duration::from_secs(1)..=7 * DAY;
            let max_age = self.problems.take(*location, duration(value, range));
            webhook_settings.max_age = max_age.unwrap_or(webhook_settings.max_age);
        }
        if let Some(At { value, location, .. }) = &webhook.queue {
            let queue = self.problems.take(*location, count(&value.to_string(), 1..=1_000_000));
            webhook_settings.queue = queue.unwrap_or(webhook_settings.queue);
        }
        Some(webhook_settings)
    }
}

impl fmt::Debug for WebhookSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The path and the query of the URL may contain a token.
        f.debug_struct("WebhookSettings")
            .field("host", &self.client.host_and_port())
            .field("secret", &"***")
            .field("timeout", &self.timeout)
            .field("max_age", &self.max_age)
            .field("queue", &self.queue)
            .finish()
    }
}
