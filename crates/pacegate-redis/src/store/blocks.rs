//! Blocked keys, shared by all processes that use the store.

use std::time::Duration;

use pacegate::{KeyBuf, KeyRef, PolicyName, StoreError, Timestamp};
use redis::Cmd;

use super::{RedisStore, gone};
use crate::{
    cell::slot_of,
    command::{Command, Payload},
    responder::{Answer, Responder},
    wire::ScriptParams,
};

/// A key of a policy that is denied until an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The policy.
    pub policy: PolicyName,
    /// The key.
    pub key: KeyBuf,
    /// The end, by the server's clock.
    pub until: Timestamp,
}

/// The answer to a call about the blocks of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlocksReply {
    /// The server's time.
    pub now: Timestamp,
    /// The version of the blocks before the call; 0 if there were none.
    pub before: u64,
    /// The version after the call. Each change sets another version.
    pub version: u64,
    /// The number of blocks that were added, replaced or removed.
    pub changed: u64,
    /// The blocks, for [`RedisStore::blocks`] only. They may include expired ones.
    pub blocks: Vec<Block>,
}

/// The store keeps the blocks, but does not apply them: the caller denies blocked keys, for example with
/// [`Charges::deny`](pacegate::Charges::deny).
impl RedisStore {
    /// Returns the blocks of all processes, unless the version is the `known` one. 0 is the version without blocks.
    ///
    /// The names of blocked keys are readable on the server.
    pub async fn blocks(&self, known: u64) -> Result<BlocksReply, StoreError> {
        self.send_blocks(BlocksAction::Read { known }).await
    }

    /// Blocks a key for `time` by the server's clock, or replaces its block. Changes nothing if `max` other keys are
    /// blocked.
    pub async fn block(
        &self,
        policy: PolicyName,
        key: KeyRef<'_>,
        time: Duration,
        max: usize,
    ) -> Result<BlocksReply, StoreError> {
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).min(MAX_TIME);
        let (member, max) = (member(policy, key), max as u64);
        self.send_blocks(BlocksAction::Add { member, time, max }).await
    }

    /// Removes blocks, from 1 to 1,000 at a time.
    pub async fn unblock(&self, blocks: &[Block]) -> Result<BlocksReply, StoreError> {
        let members: Vec<_> =
            blocks.iter().map(|one| member(one.policy, one.key.as_ref())).collect();
        match members.len() {
            1..=1_000 => self.send_blocks(BlocksAction::Remove { members }).await,
            count => {
                let problem = format!("cannot remove {count} blocks at once: expected 1 to 1,000");
                Err(StoreError::Unsupported(problem))
            }
        }
    }

    async fn send_blocks(&self, action: BlocksAction) -> Result<BlocksReply, StoreError> {
        let inner = &self.inner;
        inner.opened().await;
        let key = inner.common.names.blocks();
        let worker = inner.session().worker_of(|| slot_of(&key))?;
        let (responder, reply) = Responder::new();
        let command = BlocksCommand { key, action, responder };
        worker.send_command(Command::new(Payload::Blocks(command)));
        let answer = reply.await.unwrap_or_else(|_| Err(gone()))?;
        answer.blocks.map(|blocks| *blocks).ok_or_else(unexpected)
    }
}

/// Ends of blocks must be exact in a double.
const MAX_TIME: u64 = 1 << 52;

/// A call of `blocks.lua`.
#[derive(Debug)]
pub(crate) struct BlocksCommand {
    pub(crate) key: Vec<u8>,
    action: BlocksAction,
    pub(crate) responder: Responder,
}

#[derive(Debug)]
enum BlocksAction {
    Read { known: u64 },
    Add { member: Vec<u8>, time: u64, max: u64 },
    Remove { members: Vec<Vec<u8>> },
}

impl BlocksCommand {
    /// Adds key and arguments to a call of the script.
    pub(crate) fn command(&self, mut call: Cmd, params: ScriptParams) -> Cmd {
        let (numbers, members) = match &self.action {
            BlocksAction::Read { known } => ([0, *known, 0, 0], &[][..]),
            BlocksAction::Add { member, time, max } => {
                ([1, 0, *time, *max], std::slice::from_ref(member))
            }
            BlocksAction::Remove { members } => ([2, 0, 0, 0], members.as_slice()),
        };
        let words = [params.now, params.slack].into_iter().chain(numbers);
        let packed: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        call.arg(1).arg(&self.key).arg(packed).arg(members).take()
    }

    /// Reads the reply of the script, and answers the caller.
    pub(crate) fn finish(mut self, reply: &[u8]) {
        let reply = read(reply).ok_or_else(unexpected);
        let answer =
            reply.map(|reply| Answer { blocks: Some(Box::new(reply)), ..Answer::default() });
        self.responder.answer(answer);
    }
}

fn unexpected() -> StoreError {
    StoreError::Failed("unexpected reply about blocks".to_owned())
}

/// Encodes a policy and a key: the length of the name, the name, and the key.
fn member(policy: PolicyName, key: KeyRef<'_>) -> Vec<u8> {
    let name = policy.as_str().as_bytes();
    // A name has at most 64 bytes.
    let mut member = vec![name.len() as u8];
    member.extend_from_slice(name);
    key.feed(|bytes| member.extend_from_slice(bytes));
    member
}

fn read(mut reply: &[u8]) -> Option<BlocksReply> {
    let mut number = || {
        let (number, rest) = reply.split_first_chunk()?;
        reply = rest;
        Some(u64::from_le_bytes(*number))
    };
    let (now, before, version, changed) = (number()?, number()?, number()?, number()?);
    let mut blocks = Vec::new();
    while !reply.is_empty() {
        let (until, rest) = reply.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (member, rest) = rest.split_at_checked(length)?;
        reply = rest;
        // Other versions of Pacegate may write other members.
        let until = Timestamp::from_micros(u64::from_le_bytes(*until));
        blocks.extend(policy_and_key(member).map(|(policy, key)| Block { policy, key, until }));
    }
    Some(BlocksReply { now: Timestamp::from_micros(now), before, version, changed, blocks })
}

fn policy_and_key(member: &[u8]) -> Option<(PolicyName, KeyBuf)> {
    let (&length, rest) = member.split_first()?;
    let (name, key) = rest.split_at_checked(length.into())?;
    Some((str::from_utf8(name).ok()?.parse().ok()?, KeyBuf::decode(key)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_decoded_and_unknown_ones_skipped() {
        let policy: PolicyName = "api".parse().unwrap();
        let mut reply: Vec<u8> = [7_u64, 1, 2, 3].iter().flat_map(|n| n.to_le_bytes()).collect();
        let keys = [KeyBuf::from_key("a"), KeyBuf::from_key(("", Some("b"))), KeyBuf::empty()];
        let members = keys.iter().map(|key| member(policy, key.as_ref()));
        let broken = [b"".to_vec(), b"\x03ap".to_vec(), b"\x03api".to_vec(), b"\x01!\0a".to_vec()];
        for member in members.chain(broken) {
            reply.extend([9, member.len() as u64].iter().flat_map(|n| n.to_le_bytes()));
            reply.extend(member);
        }
        let found = read(&reply).unwrap();
        let numbers = (found.now.as_micros(), found.before, found.version, found.changed);
        assert_eq!(numbers, (7, 1, 2, 3));
        let until = Timestamp::from_micros(9);
        assert_eq!(found.blocks, keys.map(|key| Block { policy, key, until }));
        for length in [0, 31, reply.len() - 1] {
            assert_eq!(read(&reply[..length]), None, "{length}");
        }
    }
}
