//! `AUTH`: API keys that a client shows, and those that are wrong.

use std::{net::IpAddr, sync::Arc};

use super::Session;
use crate::{
    gate::{Gate, Revision},
    listeners::ListenerId,
    service::{Guesses, Keys},
};

/// API keys that a client may get wrong before its connection ends.
const MAX_WRONG_KEYS: u32 = 3;

impl Session {
    /// The session of a client at this address, which may get a limited number of API keys wrong.
    pub(in crate::resp) fn of_peer(self, address: IpAddr, guesses: Arc<Guesses>) -> Self {
        Self { peer: Some((address, guesses)), ..self }
    }

    pub(super) fn auth(&mut self, words: &[&[u8]], gate: &Gate, revision: &Revision) {
        // A user's name may come first; the key alone says who it is.
        let key = match *words {
            [key] | [_, key] => key,
            _ => return self.fail("AUTH takes: [user] key".to_owned()),
        };
        if self.show(key, gate, revision) {
            self.replies.simple("OK");
        }
    }

    /// Authenticates the client by an API key. A wrong one is answered with an error, and after
    /// [`MAX_WRONG_KEYS`] the connection ends.
    pub(super) fn show(&mut self, key: &[u8], gate: &Gate, revision: &Revision) -> bool {
        let keys = Keys(&revision.settings.security.credentials);
        let guesses = self.peer.as_ref().filter(|_| keys.are_needed());
        if let Some(Err(wait)) = guesses.map(|(address, guesses)| guesses.begin(*address)) {
            let seconds = wait.as_millis().div_ceil(1_000).max(1);
            self.fail(format!("too many wrong API keys from this address: retry in {seconds} s"));
            self.reject_key(gate);
            self.is_over = true;
            return false;
        }
        let digest = Keys::digest(key);
        if keys.access_by_digest(Some(&digest)).is_none() {
            self.answered.1 += 1;
            self.replies
                .coded_error("WRONGPASS invalid username-password pair or user is disabled.");
            self.reject_key(gate);
            return false;
        }
        if let Some((address, guesses)) = guesses {
            guesses.was_right(*address);
        }
        self.digest = Some(digest);
        true
    }

    fn reject_key(&mut self, gate: &Gate) {
        gate.audit()
            .rejected_key(ListenerId::Resp, self.peer.as_ref().map(|(address, _)| *address));
        self.wrong_keys += 1;
        self.is_over |= self.wrong_keys == MAX_WRONG_KEYS;
    }
}
