//! Commands that clients send to any Redis server: `PING`, `HELLO`, `CLIENT`, `INFO` and others.

use super::{CommandError, RespSession};
use crate::active_config::{ActiveConfig, Revision};

/// The number of commands, as `COMMAND COUNT` returns it.
const COMMANDS: i64 = 24;
const MAX_NAME_BYTES: usize = 128;

impl RespSession {
    /// Runs a command that clients send to any Redis server.
    pub(super) fn general_command(
        &mut self,
        args: &[&[u8]],
        active: &ActiveConfig,
        revision: &Revision,
    ) -> Result<(), CommandError> {
        let is = |place: usize, other: &str| {
            args.get(place).is_some_and(|word| word.eq_ignore_ascii_case(other.as_bytes()))
        };
        if is(0, "QUIT") {
            self.replies.simple("OK");
            self.is_closing = true;
        } else if is(0, "AUTH") {
            return self.auth(&args[1..], active, revision);
        } else if is(0, "HELLO") {
            return self.hello(&args[1..], active, revision);
        } else if self.access(revision).is_none() {
            return Err(CommandError::NoAuth);
        } else if is(0, "PING") {
            match args {
                [_] => self.replies.simple("PONG"),
                [_, text] => self.replies.bulk(text),
                _ => return Err(CommandError::Usage("PING [text]")),
            }
        } else if is(0, "ECHO") && args.len() == 2 {
            self.replies.bulk(args[1]);
        } else if is(0, "CLIENT") {
            return self.client(args);
        } else if is(0, "COMMAND") {
            match is(1, "COUNT") {
                true => self.replies.integer(COMMANDS),
                false if is(1, "DOCS") => self.replies.map(0),
                false => self.replies.array(0),
            }
        } else if is(0, "CONFIG") && is(1, "GET") && args.len() == 3 {
            // Load generators expect a value for each name, so every setting is empty.
            self.replies.map(1);
            self.replies.bulk(args[2]);
            self.replies.bulk("");
        } else if is(0, "SELECT") && is(1, "0") {
            self.replies.simple("OK");
        } else if is(0, "INFO") {
            self.replies.bulk(info(revision));
        } else if is(0, "RESET") {
            (self.digest, self.replies.is_resp3) = (None, false);
            self.replies.simple("RESET");
        } else {
            let name: String = String::from_utf8_lossy(args[0]).chars().take(40).collect();
            return Err(CommandError::UnknownCommand(name.escape_debug().to_string()));
        }
        Ok(())
    }

    fn hello(
        &mut self,
        args: &[&[u8]],
        active: &ActiveConfig,
        revision: &Revision,
    ) -> Result<(), CommandError> {
        let mut rest = args;
        let mut is_resp3 = self.replies.is_resp3;
        if let [version, after @ ..] = rest {
            is_resp3 = match *version {
                b"2" => false,
                b"3" => true,
                _ => return Err(CommandError::ProtocolVersion),
            };
            rest = after;
        }
        loop {
            match rest {
                [] => break,
                [option, _, key, after @ ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                    self.authenticate(key, active, revision)?;
                    rest = after;
                }
                [option, name, after @ ..] if option.eq_ignore_ascii_case(b"SETNAME") => {
                    self.name = name.iter().copied().take(MAX_NAME_BYTES).collect();
                    rest = after;
                }
                _ => return Err(CommandError::Usage("HELLO [2|3 [AUTH user key] [SETNAME name]]")),
            }
        }
        if self.access(revision).is_none() {
            return Err(CommandError::HelloWithoutAuth);
        }
        self.replies.is_resp3 = is_resp3;
        self.write_server_info();
        Ok(())
    }

    fn write_server_info(&mut self) {
        let to = &mut self.replies;
        to.map(7);
        to.bulk("server");
        to.bulk("pacegate");
        to.bulk("version");
        to.bulk(env!("CARGO_PKG_VERSION"));
        to.bulk("proto");
        to.integer(if to.is_resp3 { 3 } else { 2 });
        to.bulk("id");
        to.integer(i64::try_from(self.id).unwrap_or(i64::MAX));
        to.bulk("mode");
        to.bulk("standalone");
        to.bulk("role");
        to.bulk("master");
        to.bulk("modules");
        to.array(0);
    }

    fn client(&mut self, args: &[&[u8]]) -> Result<(), CommandError> {
        let is = |other: &str| {
            args.get(1).is_some_and(|word| word.eq_ignore_ascii_case(other.as_bytes()))
        };
        if is("SETNAME") && args.len() == 3 {
            self.name = args[2].iter().copied().take(MAX_NAME_BYTES).collect();
            self.replies.simple("OK");
        } else if is("GETNAME") {
            self.replies.bulk(&self.name);
        } else if is("ID") {
            self.replies.integer(i64::try_from(self.id).unwrap_or(i64::MAX));
        } else if is("SETINFO") || is("NO-EVICT") || is("NO-TOUCH") {
            self.replies.simple("OK");
        } else {
            let usage = "CLIENT SETNAME, GETNAME, ID, SETINFO, NO-EVICT or NO-TOUCH";
            return Err(CommandError::Usage(usage));
        }
        Ok(())
    }
}

fn info(revision: &Revision) -> String {
    format!(
        "# Server\r\nserver_name:pacegate\r\npacegate_version:{}\r\nredis_mode:standalone\r\n\
         config_revision:{}\r\npolicies:{}\r\n\r\n# Persistence\r\nloading:0\r\n",
        env!("CARGO_PKG_VERSION"),
        revision.number,
        revision.engine.policies().policies().len(),
    )
}
