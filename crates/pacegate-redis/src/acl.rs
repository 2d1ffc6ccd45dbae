//! The ACL rules of Pacegate.

/// The ACL rules for the commands of Pacegate and its scripts, without the key pattern.
///
/// For Redis 6.2 and newer, and for Valkey, single servers and clusters:
///
/// ```text
/// ACL SETUSER pacegate reset on >PASSWORD ~pg:* <these rules>
/// ```
///
/// `pg:` is the [prefix](crate::RedisStoreBuilder::prefix) of the keys. `HELLO` and `AUTH` need no rule.
///
/// ```
/// use pacegate_redis::ACL_RULES;
///
/// let command = format!("ACL SETUSER pacegate reset on >PASSWORD ~pg:* {ACL_RULES}");
/// assert!(command.contains("+evalsha") && !command.contains("flushall"));
/// ```
pub const ACL_RULES: &str = "-@all +ping +info +select +time +eval +evalsha +cluster|slots +asking \
    +get +mget +set +exists +del +unlink +pexpire \
    +lindex +llen +lpush +lrange +lset +ltrim +rpush +rpop \
    +zadd +zcard +zcount +zrange +zrangebyscore +zrem +zremrangebyscore +zscore";

/// Additional rules for a store with the [layout](crate::Layout) of another limiter. The key pattern is then that of
/// the layout, such as `~rl:*` for `rl:{key}:{window}`.
pub const LAYOUT_ACL_RULES: &str = "+incrby +decrby +pttl +zpopmax";

/// The ACL rules for a user of the sentinels, which are queried for the master only.
pub const SENTINEL_ACL_RULES: &str =
    "-@all +ping +info +sentinel|master +sentinel|get-master-addr-by-name";

/// Returns the command that creates a user with these rules.
pub(crate) fn acl_line(prefix: &str) -> String {
    format!("ACL SETUSER pacegate reset on >PASSWORD ~{prefix}* {ACL_RULES}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn commands(scripts: &[&str]) -> BTreeSet<String> {
        scripts
            .iter()
            .flat_map(|script| script.split("call('").skip(1))
            .filter_map(|rest| rest.split('\'').next())
            .map(|command| format!("+{}", command.to_lowercase()))
            .collect()
    }

    #[test]
    fn layout_rules_match_the_layout_scripts() {
        let used = commands(&[include_str!("script/window.lua"), include_str!("script/log.lua")]);
        let has = |rules: &str, command: &str| rules.split_whitespace().any(|rule| rule == command);
        let more: Vec<&String> = used.iter().filter(|command| !has(ACL_RULES, command)).collect();
        assert!(more.iter().all(|command| has(LAYOUT_ACL_RULES, command)), "{more:?}");
        assert_eq!(more.len(), LAYOUT_ACL_RULES.split_whitespace().count());
    }

    #[test]
    fn the_rules_match_the_commands_exactly() {
        let scripts = [
            include_str!("script/common.lua"),
            include_str!("script/charge_simple.lua"),
            include_str!("script/log_entries.lua"),
            include_str!("script/returns.lua"),
            include_str!("script/due.lua"),
            include_str!("script/settle_state.lua"),
            include_str!("script/settle_simple.lua"),
            include_str!("script/charge_batch.lua"),
            include_str!("script/settle.lua"),
            include_str!("script/update.lua"),
            include_str!("script/claim.lua"),
            include_str!("script/blocks.lua"),
        ];
        let mut used = commands(&scripts);
        for sent in
            ["ping", "info", "select", "eval", "evalsha", "cluster|slots", "asking", "unlink"]
        {
            used.insert(format!("+{sent}"));
        }
        let allowed: BTreeSet<String> =
            ACL_RULES.split_whitespace().skip(1).map(str::to_owned).collect();
        assert_eq!(allowed, used);
    }
}
