use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use super::{super::wait::eventually, Chromium};

/// A browser page with separate storage.
#[derive(Debug)]
pub struct Page {
    browser: Arc<Chromium>,
    context: String,
    session: String,
    seen: Mutex<Seen>,
}

/// The preferred colour scheme of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Dark text on a light background.
    Light,
    /// Light text on a dark background.
    Dark,
}

/// The events of a page so far.
#[derive(Debug, Default)]
struct Seen {
    complaints: Vec<String>,
    requests: Vec<String>,
    loads: usize,
}

const SERVER_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum number of clicks until one hits its element.
const MAX_CLICKS: usize = 5;

impl Page {
    pub(super) fn new(browser: Arc<Chromium>) -> Self {
        let text = |value: &Value| value.as_str().expect("an id").to_owned();
        let context = browser.ask("Target.createBrowserContext", &json!({}), None);
        let context = text(&context["browserContextId"]);
        let target = json!({ "url": "about:blank", "browserContextId": context });
        let target = text(&browser.ask("Target.createTarget", &target, None)["targetId"]);
        let attach = json!({ "targetId": target, "flatten": true });
        let session = text(&browser.ask("Target.attachToTarget", &attach, None)["sessionId"]);
        let page = Self { browser, context, session, seen: Mutex::default() };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            page.ask(&format!("{domain}.enable"), &json!({}));
        }
        page.ask("Emulation.setFocusEmulationEnabled", &json!({ "enabled": true }));
        page
    }

    /// Opens an address and waits until it is loaded.
    pub fn open(&self, address: &str) {
        let before = self.look(|seen| seen.loads);
        self.ask("Page.navigate", &json!({ "url": address }));
        eventually(SERVER_TIMEOUT, "the page is loaded", || self.look(|seen| seen.loads) > before);
    }

    /// Returns the value of an expression as JSON; waits for promises.
    ///
    /// # Panics
    ///
    /// Panics if it throws.
    pub fn evaluate(&self, expression: &str) -> Value {
        let asked =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut told = self.ask("Runtime.evaluate", &asked);
        assert!(told.get("exceptionDetails").is_none(), "{expression}: {told}");
        told["result"]["value"].take()
    }

    /// Waits until an expression is true.
    ///
    /// # Panics
    ///
    /// Panics if it is not true within twenty seconds.
    pub fn wait_until(&self, expression: &str) {
        eventually(SERVER_TIMEOUT, expression, || self.evaluate(expression) == true);
    }

    /// Returns the visible text of the first element that a selector matches.
    pub fn text(&self, selector: &str) -> String {
        let text =
            self.evaluate(&format!("document.querySelector({}).innerText", quoted(selector)));
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Clicks into the middle of the first element that a selector matches. Clicks again if the page moves the element
    /// at that moment, so that the click hits another one.
    pub fn click(&self, selector: &str) {
        for _ in 0..MAX_CLICKS {
            let place = self.evaluate(&format!(
                "(() => {{ const it = document.querySelector({}); \
                 it.scrollIntoView({{ block: 'center', behavior: 'instant' }}); \
                 window.isHit = false; \
                 it.addEventListener('click', () => {{ window.isHit = true; }}, \
                 {{ capture: true, once: true }}); \
                 const box = it.getBoundingClientRect(); \
                 return [box.x + box.width / 2, box.y + box.height / 2]; }})()",
                quoted(selector)
            ));
            for kind in ["mousePressed", "mouseReleased"] {
                let event = json!({
                    "type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1,
                });
                self.ask("Input.dispatchMouseEvent", &event);
            }
            // It is undefined in another page, to which the click has led.
            if self.evaluate("window.isHit") != false {
                return;
            }
        }
    }

    /// Drags the pointer between two points of the first element that a selector matches. A point is given in per cent
    /// of the width and the height of the element.
    pub fn drag(&self, selector: &str, from: (u32, u32), to: (u32, u32)) {
        for (kind, (x, y)) in [("mousePressed", from), ("mouseMoved", to), ("mouseReleased", to)] {
            let place = self.evaluate(&format!(
                "(() => {{ const box = document.querySelector({}).getBoundingClientRect(); \
                 return [box.x + box.width * {x} / 100, box.y + box.height * {y} / 100]; }})()",
                quoted(selector)
            ));
            let event = json!({
                "type": kind, "x": place[0], "y": place[1],
                "button": "left", "buttons": 1, "clickCount": 1,
            });
            self.ask("Input.dispatchMouseEvent", &event);
        }
    }

    /// Presses and releases a key by its name, such as `Tab` or `Enter`.
    pub fn press(&self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            "ArrowLeft" => (37, ""),
            _ => (0, ""),
        };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({
                "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text,
            });
            self.ask("Input.dispatchKeyEvent", &event);
        }
    }

    /// Replaces the text of the first input element that a selector matches.
    pub fn write(&self, selector: &str, text: &str) {
        self.evaluate(&format!(
            "(() => {{ const it = document.querySelector({}); it.focus(); it.select(); }})()",
            quoted(selector)
        ));
        self.ask("Input.insertText", &json!({ "text": text }));
    }

    /// Sets the size of the window, in CSS pixels.
    pub fn resize(&self, width: u32, height: u32) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.ask("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Sets the preferred colour scheme.
    pub fn prefer(&self, scheme: Scheme) {
        let value = match scheme {
            Scheme::Light => "light",
            Scheme::Dark => "dark",
        };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] });
        self.ask("Emulation.setEmulatedMedia", &features);
    }

    /// Takes a screenshot of the window, as PNG.
    ///
    /// # Panics
    ///
    /// Panics if the browser fails.
    pub fn picture(&self) -> Vec<u8> {
        let reply = self.ask("Page.captureScreenshot", &json!({ "format": "png" }));
        BASE64_STANDARD.decode(reply["data"].as_str().expect("data")).expect("data in base64")
    }

    /// Returns all errors and warnings of the console, with their source.
    pub fn complaints(&self) -> Vec<String> {
        self.look(|seen| seen.complaints.clone())
    }

    /// Returns the requested URLs, in order.
    pub fn requests(&self) -> Vec<String> {
        self.look(|seen| seen.requests.clone())
    }

    fn ask(&self, method: &str, parameters: &Value) -> Value {
        self.browser.ask(method, parameters, Some(&self.session))
    }

    fn look<T>(&self, at: impl FnOnce(&Seen) -> T) -> T {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for event in self.browser.pipe.take_events(&self.session) {
            seen.take(&event);
        }
        at(&seen)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // If a test fails because the browser has ended, report that failure and do not panic here again.
        if !std::thread::panicking() {
            let context = json!({ "browserContextId": self.context });
            self.browser.ask("Target.disposeBrowserContext", &context, None);
        }
    }
}

impl Seen {
    fn take(&mut self, event: &Value) {
        let about = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Page.loadEventFired" => self.loads += 1,
            "Network.requestWillBeSent" => {
                self.requests.extend(about["request"]["url"].as_str().map(str::to_owned));
            }
            "Runtime.exceptionThrown" => {
                let thrown = &about["exceptionDetails"];
                let what = thrown["exception"]["description"].as_str();
                let what = what.or(thrown["text"].as_str()).unwrap_or_default();
                self.complaints.push(format!("exception: {what}"));
            }
            "Runtime.consoleAPICalled" if about["type"] != "log" && about["type"] != "debug" => {
                self.complaints.push(format!("console: {}", about["args"]));
            }
            "Log.entryAdded" if about["entry"]["level"] != "verbose" => {
                let entry = &about["entry"];
                let source = entry["source"].as_str().unwrap_or_default();
                self.complaints.push(format!("{source}: {} {}", entry["text"], entry["url"]));
            }
            _ => {}
        }
    }
}

/// Quotes a text as a JavaScript literal.
fn quoted(text: &str) -> Value {
    Value::from(text)
}
