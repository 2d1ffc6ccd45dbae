//! `AUTH`: authentication by API key.

use std::{net::IpAddr, sync::Arc};

use super::{CommandError, RespSession};
use crate::{
    active_config::{ActiveConfig, Revision},
    listeners::ListenerId,
    service::{Guesses, Keys},
};

/// Wrong API keys after which a connection is closed.
const MAX_WRONG_KEYS: u32 = 3;

impl RespSession {
    /// Limits the wrong API keys from the address of the client.
    pub(in crate::resp) fn with_peer(self, address: IpAddr, guesses: Arc<Guesses>) -> Self {
        Self { peer: Some((address, guesses)), ..self }
    }

    pub(super) fn auth(
        &mut self,
        args: &[&[u8]],
        active: &ActiveConfig,
        revision: &Revision,
    ) -> Result<(), CommandError> {
        // The user name is ignored: the API key alone identifies the client.
        let ([key] | [_, key]) = *args else {
            return Err(CommandError::Usage("AUTH [user] key"));
        };
        self.authenticate(key, active, revision)?;
        self.replies.simple("OK");
        Ok(())
    }

    /// Authenticates the client by an API key. After [`MAX_WRONG_KEYS`] the connection ends.
    pub(super) fn authenticate(
        &mut self,
        key: &[u8],
        active: &ActiveConfig,
        revision: &Revision,
    ) -> Result<(), CommandError> {
        let keys = Keys(&revision.settings.security.credentials);
        let guesses = self.peer.as_ref().filter(|_| keys.are_needed());
        if let Some(Err(wait)) = guesses.map(|(address, guesses)| guesses.begin(*address)) {
            let seconds = wait.as_millis().div_ceil(1_000).max(1);
            self.reject_key(active);
            self.is_closing = true;
            return Err(CommandError::TooManyWrongKeys(seconds));
        }
        let digest = Keys::digest(key);
        if keys.access_by_digest(Some(&digest)).is_none() {
            self.reject_key(active);
            return Err(CommandError::WrongKey);
        }
        if let Some((address, guesses)) = guesses {
            guesses.was_right(*address);
        }
        self.digest = Some(digest);
        Ok(())
    }

    fn reject_key(&mut self, active: &ActiveConfig) {
        active
            .audit
            .rejected_key(ListenerId::Resp, self.peer.as_ref().map(|(address, _)| *address));
        self.wrong_keys += 1;
        self.is_closing |= self.wrong_keys == MAX_WRONG_KEYS;
    }
}
