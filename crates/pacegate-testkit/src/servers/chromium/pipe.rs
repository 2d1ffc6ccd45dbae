//! The DevTools protocol over two pipes: JSON messages, each terminated by a zero byte.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{ChildStdin, ChildStdout},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::{Value, json};

use super::super::process::tail;

/// The connection to a browser.
#[derive(Debug)]
pub(super) struct Pipe {
    out: Mutex<Out>,
    heard: Arc<Heard>,
    log: PathBuf,
}

#[derive(Debug)]
struct Out {
    stdin: ChildStdin,
    last: u64,
}

/// The messages from the browser.
#[derive(Debug, Default)]
struct Heard {
    said: Mutex<Said>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Said {
    replies: HashMap<u64, Value>,
    /// Events of each session that have not been taken yet.
    events: HashMap<String, Vec<Value>>,
    ended: bool,
}

/// Timeout; the browser may start slowly on a busy machine.
const SERVER_TIMEOUT: Duration = Duration::from_secs(30);

impl Pipe {
    pub(super) fn new(stdin: ChildStdin, stdout: ChildStdout, log: PathBuf) -> Self {
        let heard = Arc::new(Heard::default());
        let hearing = heard.clone();
        std::thread::spawn(move || hearing.listen(stdout));
        Self { out: Mutex::new(Out { stdin, last: 0 }), heard, log }
    }

    /// Sends a command and waits for the response.
    pub(super) fn ask(&self, method: &str, parameters: &Value, session: Option<&str>) -> Value {
        let id = self.send(method, parameters, session);
        let wanted = |said: &mut Said| !said.replies.contains_key(&id) && !said.ended;
        let waiting = self.heard.more.wait_timeout_while(self.heard.said(), SERVER_TIMEOUT, wanted);
        let (mut said, _) = waiting.unwrap_or_else(PoisonError::into_inner);
        let Some(mut reply) = said.replies.remove(&id) else {
            panic!("no response from Chromium to {method}:\n{}", tail(&self.log));
        };
        assert!(reply.get("error").is_none(), "{method}: {reply}");
        reply["result"].take()
    }

    /// Ends the browser.
    pub(super) fn close(&self) {
        self.send("Browser.close", &json!({}), None);
    }

    fn send(&self, method: &str, parameters: &Value, session: Option<&str>) -> u64 {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.last += 1;
        let mut message = json!({ "id": out.last, "method": method, "params": parameters });
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        // Ignore errors: if the browser has ended, waiting for the response fails.
        drop(out.stdin.write_all(format!("{message}\0").as_bytes()));
        out.last
    }

    /// Returns the events of a session since the last call.
    pub(super) fn take_events(&self, session: &str) -> Vec<Value> {
        self.heard.said().events.remove(session).unwrap_or_default()
    }
}

impl Heard {
    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(&self, stdout: ChildStdout) {
        let mut stdout = BufReader::new(stdout);
        let mut bytes = Vec::new();
        while stdout.read_until(0, &mut bytes).is_ok_and(|read| read > 0) {
            bytes.pop_if(|last| *last == 0);
            if let Ok(message) = serde_json::from_slice(&bytes) {
                self.take(message);
            }
            bytes.clear();
        }
        self.said().ended = true;
        self.more.notify_all();
    }

    fn take(&self, message: Value) {
        let mut said = self.said();
        match (message["id"].as_u64(), message["sessionId"].as_str()) {
            (Some(id), _) => {
                said.replies.insert(id, message);
            }
            (None, Some(session)) => {
                let session = session.to_owned();
                said.events.entry(session).or_default().push(message);
            }
            (None, None) => {}
        }
        self.more.notify_all();
    }
}
