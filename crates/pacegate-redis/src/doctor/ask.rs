//! Diagnostic commands, and the reasons why one may fail.

use std::time::Duration;

use redis::{FromRedisValue, RedisError};
use tokio::time::timeout;

use super::{Finding, findings::NOT_CHECKED};
use crate::link::{self, Link};

/// A diagnostic command that may need extra permissions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) words: &'static [&'static str],
    /// The ACL rules that permit it.
    pub(super) rules: &'static str,
}

/// The reason why something could not be checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotChecked {
    reason: String,
    advice: String,
    no_permission: bool,
}

/// A checked value, or the reason why it is missing.
pub(super) type Checked<T> = Result<T, NotChecked>;

/// The output of INFO.
#[derive(Clone, Debug)]
pub(super) struct Info(String);

pub(super) const INFO: Question = Question { words: &["INFO"], rules: "+info" };
pub(super) const TIME: Question = Question { words: &["TIME"], rules: "+time" };
pub(super) const CONFIG_GET: Question =
    Question { words: &["CONFIG", "GET"], rules: "+config|get" };
pub(super) const ACL_WHOAMI: Question =
    Question { words: &["ACL", "WHOAMI"], rules: "+acl|whoami +acl|dryrun" };
pub(super) const ACL_DRYRUN: Question =
    Question { words: &["ACL", "DRYRUN"], rules: "+acl|whoami +acl|dryrun" };
pub(super) const SENTINEL_MASTER: Question =
    Question { words: &["SENTINEL", "MASTER"], rules: "+sentinel|master" };

/// Timeout of a diagnostic command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

impl Question {
    /// Sends the command; `user` is named in the advice.
    pub(super) async fn ask<T: FromRedisValue>(
        self,
        link: &mut Link,
        user: &str,
        args: &[&str],
    ) -> Checked<T> {
        let mut command = redis::Cmd::new();
        for word in self.words.iter().chain(args) {
            command.arg(*word);
        }
        match timeout(COMMAND_TIMEOUT, command.query_async(link.connection())).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.refused(&error, user)),
            Err(_) => Err(NotChecked {
                reason: format!("no response to {} within {COMMAND_TIMEOUT:?}", self.name()),
                advice: "check for slow commands: SLOWLOG GET 10".to_owned(),
                no_permission: false,
            }),
        }
    }

    fn refused(self, error: &RedisError, user: &str) -> NotChecked {
        let name = self.name();
        if error.code() == Some("NOPERM") {
            let advice = format!("allow it with ACL SETUSER {user} {}", self.rules);
            let advice = format!("{advice}, or run the doctor as another user");
            return NotChecked {
                reason: format!("no permission for {name}"),
                advice,
                no_permission: true,
            };
        }
        let advice = format!("run it manually: {name}");
        NotChecked { reason: format!("{name} failed: {error}"), advice, no_permission: false }
    }

    fn name(self) -> String {
        self.words.join(" ")
    }
}

impl NotChecked {
    pub(super) fn is_missing_permission(&self) -> bool {
        self.no_permission
    }

    pub(super) fn finding(&self, subject: &'static str) -> Finding {
        Finding { subject, ..NOT_CHECKED.with(&[&self.reason, &self.advice]) }
    }
}

impl Info {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        link::field(&self.0, name)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// Returns the values of all lines `name0:…`, `name1:…` and so on.
    pub(super) fn rows<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        (0..).map_while(move |number| self.text(&format!("{name}{number}")))
    }

    pub(super) fn is_sentinel(&self) -> bool {
        self.text("redis_mode") == Some("sentinel") || self.text("server_mode") == Some("sentinel")
    }
}
