use std::{collections::BTreeSet, fs, path::Path};

use super::*;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; connect-src 'self'; form-action 'none'; base-uri 'none'; \
    frame-ancestors 'none'";

/// The files of the page, by name.
fn files() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets");
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    files.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("assets").join(name)).unwrap()
}

#[tokio::test]
async fn every_file_is_served_with_strict_headers() {
    let settings = Settings::new(policies());
    let mut settings = settings;
    // Files without data need no API key.
    settings.security.credentials = vec![credential("boss", "secret", Scope::Admin, &[])];
    let server = Server::with(settings);
    for name in files() {
        let path = match &*name {
            "index.html" => "/".to_owned(),
            _ => format!("/assets/{name}"),
        };
        let reply = server.get(&path).await;
        assert_eq!((reply.status, &*reply.body), (200, &*read(&name)), "{path}");
        let kind = match name.rsplit('.').next().unwrap() {
            "html" => "text/html; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            _ => "image/svg+xml",
        };
        for (header, value) in [
            ("content-type", kind),
            ("content-security-policy", POLICY),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-cache"),
        ] {
            assert_eq!(reply.header(header), Some(value), "{path}");
        }
    }
    assert_eq!(server.get("/assets/none.js").await.status, 404);
    assert_eq!(server.get("/assets/../index.html").await.status, 404);
    assert_eq!(server.send("POST /", "", "").await.status, 405);
}

#[tokio::test]
async fn unchanged_assets_are_not_sent_again() {
    let server = Server::new();
    let first = server.get("/assets/chart.js").await;
    let tag = first.header("etag").unwrap();
    assert_ne!(Some(tag), server.get("/").await.header("etag"));
    let again = server.send("GET /assets/chart.js", &format!("if-none-match: {tag}\r\n"), "").await;
    assert_eq!((again.status, &*again.body), (304, ""));
    assert_eq!(again.header("etag"), Some(tag));
    let other = "if-none-match: \"0123456789abcdef\"\r\n";
    let other = server.send("GET /assets/chart.js", other, "").await;
    assert_eq!((other.status, other.body), (200, first.body));
}

#[test]
fn scripts_do_not_create_html_from_text() {
    for name in files() {
        let text = read(&name);
        for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!text.contains(word), "{word} in {name}");
        }
        // The only URL is the XML namespace of SVG.
        let elsewhere = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!elsewhere.contains("http:") && !elsewhere.contains("https:"), "{name}");
    }
    let page = read("index.html");
    assert!(!page.contains(" style=") && !page.contains(" onclick="), "its policy forbids both");
}
