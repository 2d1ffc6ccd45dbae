//! `PACEGATE.BLOCK` and `PACEGATE.UNBLOCK`.

use pacegate_redis::Block;

use super::{super::throttle::number, CommandError, RespSession};
use crate::{
    active_config::{ActiveConfig, Revision},
    blocks::{NamedKey, block_time, find, is_named},
    config::Scope,
    listeners::ListenerId,
};

const BLOCK_USAGE: &str = "PACEGATE.BLOCK policy key [SECONDS n | UNTIL unix-time]";
const UNBLOCK_USAGE: &str = "PACEGATE.UNBLOCK policy key";

impl RespSession {
    /// Blocks a key. Replies with the end of the block as a Unix time in seconds.
    pub(super) async fn block(
        &mut self,
        args: &[&[u8]],
        active: &ActiveConfig,
        revision: &Revision,
    ) -> Result<(), CommandError> {
        // Checked first: without an API key, errors must not reveal the names of policies.
        let access = self.access(revision).ok_or(CommandError::NoAuth)?;
        let [policy, key, options @ ..] = args else {
            return Err(CommandError::Usage(BLOCK_USAGE));
        };
        let (seconds, until) = match options {
            [] => (None, None),
            [name, value] if name.eq_ignore_ascii_case(b"SECONDS") => {
                (Some(number("SECONDS", value)?), None)
            }
            [name, value] if name.eq_ignore_ascii_case(b"UNTIL") => {
                (None, Some(number("UNTIL", value)?))
            }
            _ => return Err(CommandError::Usage(BLOCK_USAGE)),
        };
        let (policy, key) = (text("the policy", policy)?, text("the key", key)?);
        let blocks = &revision.engine.blocks;
        let time = block_time(seconds, until, blocks.now())?;
        let named = NamedKey::new(policy, key, revision, access)?;
        self.check_access(revision, Scope::Admin, named.domain)?;
        NamedKey::check_shown(key)?;
        let until = blocks.add(named.policy, named.key.clone(), time).await?;
        active.audit.keys("block", &access, &[(named.policy, named.key.as_ref())]);
        let seconds = until.as_micros().div_ceil(1_000_000);
        self.replies.integer(i64::try_from(seconds).unwrap_or(i64::MAX));
        Ok(())
    }

    /// Removes the blocks that `GET /v1/live` shows with this policy and key. Replies with their number.
    pub(super) async fn unblock(
        &mut self,
        args: &[&[u8]],
        active: &ActiveConfig,
        revision: &Revision,
    ) -> Result<(), CommandError> {
        let access = self.access(revision).ok_or(CommandError::NoAuth)?;
        let [policy, key] = args else { return Err(CommandError::Usage(UNBLOCK_USAGE)) };
        let (policy, key) = (text("the policy", policy)?, text("the key", key)?);
        match find(policy, revision, access) {
            Some((_, domain)) => self.check_access(revision, Scope::Admin, domain)?,
            None if revision.settings.is_admin_off(ListenerId::Resp) => {
                return Err(CommandError::AdminOff);
            }
            None if access.allows_everywhere(Scope::Admin) => {}
            None => return Err(CommandError::NoPermission),
        }
        let is_meant = |block: &Block| is_named(block, policy, key);
        let lifted = revision.engine.blocks.lift(is_meant).await?;
        if lifted.is_empty() {
            // Reports a policy or a key that cannot exist.
            NamedKey::new(policy, key, revision, access)?;
        } else {
            let keys: Vec<_> =
                lifted.iter().map(|block| (block.policy, block.key.as_ref())).collect();
            active.audit.keys("unblock", &access, &keys);
        }
        self.replies.integer(i64::try_from(lifted.len()).unwrap_or(i64::MAX));
        Ok(())
    }
}

fn text<'a>(name: &'static str, word: &'a [u8]) -> Result<&'a str, CommandError> {
    str::from_utf8(word).map_err(|_| CommandError::NotUtf8(name))
}
