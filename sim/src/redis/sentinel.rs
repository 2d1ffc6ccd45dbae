//! A model of a sentinel, which names the master.

use super::{
    Session,
    resp::{Args, Reply},
};

/// Host and port of a server.
pub type Address = (String, u16);

/// A sentinel.
#[derive(Clone, Debug)]
pub struct Sentinel {
    /// The master of the last failover that it knows to be complete.
    pub master: Address,
    /// The number of that failover.
    pub epoch: u64,
    /// The new master of a failover that is in progress.
    pub promoted: Option<Address>,
}

impl Sentinel {
    /// Runs a command.
    pub fn execute(&self, session: &mut Session, args: &Args) -> Reply {
        let words: Vec<String> =
            args.iter().map(|arg| String::from_utf8_lossy(arg).to_ascii_uppercase()).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["HELLO", version, ..] => {
                session.resp3 = version == "3";
                let proto = if session.resp3 { 3 } else { 2 };
                Reply::Map(vec![("proto".to_owned(), Reply::Int(proto))])
            }
            ["INFO", ..] => {
                Reply::bulk("# Server\r\nredis_version:7.2.4\r\nredis_mode:sentinel\r\n")
            }
            ["CLIENT", ..] => Reply::ok(),
            ["PING"] => Reply::Status("PONG".to_owned()),
            ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", _] => {
                let (host, port) = self.promoted.as_ref().unwrap_or(&self.master);
                Reply::Array(vec![Reply::bulk(host.as_str()), Reply::bulk(port.to_string())])
            }
            ["SENTINEL", "MASTER", _] => {
                let (host, port) = &self.master;
                let fields = [
                    ("ip", host.clone()),
                    ("port", port.to_string()),
                    ("config-epoch", self.epoch.to_string()),
                ];
                Reply::Map(
                    fields.map(|(name, value)| (name.to_owned(), Reply::bulk(value))).to_vec(),
                )
            }
            _ => Reply::error(format!("ERR unknown command '{}'", words.join(" "))),
        }
    }
}
