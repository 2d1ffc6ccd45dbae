//! The dashboard: a page and its files, embedded in the program. The files contain no data and need no API key; the
//! page loads its data from the API like any other client.

use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::Arc,
};

use axum::{
    Router,
    routing::{MethodRouter, get},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use http_body_util::Full;

use super::{HttpResponse, Shared};

/// A file of the page.
#[derive(Clone, Copy, Debug)]
struct Asset {
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

macro_rules! asset {
    ($path:literal, $content_type:ident, $file:literal) => {
        Asset {
            path: $path,
            content_type: $content_type,
            bytes: include_bytes!(concat!("../../assets/", $file)),
        }
    };
}

const ASSETS: [Asset; 12] = [
    asset!("/", HTML, "index.html"),
    asset!("/assets/api.js", SCRIPT, "api.js"),
    asset!("/assets/chart.js", SCRIPT, "chart.js"),
    asset!("/assets/dashboard.css", STYLE, "dashboard.css"),
    asset!("/assets/dashboard.js", SCRIPT, "dashboard.js"),
    asset!("/assets/icon.svg", IMAGE, "icon.svg"),
    asset!("/assets/keys.js", SCRIPT, "keys.js"),
    asset!("/assets/live.js", SCRIPT, "live.js"),
    asset!("/assets/policies.js", SCRIPT, "policies.js"),
    asset!("/assets/store.js", SCRIPT, "store.js"),
    asset!("/assets/theme.js", SCRIPT, "theme.js"),
    asset!("/assets/try.js", SCRIPT, "try.js"),
];

/// Forbids other origins as sources, targets and frames.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; connect-src 'self'; form-action 'none'; base-uri 'none'; \
    frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-cache"),
];

/// Adds the page and its files, which `/openapi.json` omits.
pub(super) fn add(router: Router<Arc<Shared>>) -> Router<Arc<Shared>> {
    ASSETS.into_iter().fold(router, |router, asset| router.route(asset.path, serve(asset)))
}

fn serve(asset: Asset) -> MethodRouter<Arc<Shared>> {
    let tag = asset.tag();
    get(async move |headers: HeaderMap| asset.response(&tag, &headers))
}

impl Asset {
    /// Returns the ETag: a hash of the content.
    fn tag(&self) -> String {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        format!("\"{:016x}\"", hasher.hash_one(self.bytes))
    }

    fn response(&self, tag: &str, request: &HeaderMap) -> HttpResponse {
        let known = request.get_all(header::IF_NONE_MATCH).iter();
        let is_known = known.filter_map(|tags| tags.to_str().ok()).any(|tags| tags.contains(tag));
        let (status, bytes) = match is_known {
            true => (StatusCode::NOT_MODIFIED, Bytes::new()),
            false => (StatusCode::OK, Bytes::from_static(self.bytes)),
        };
        let mut response = HttpResponse::new(Full::new(bytes));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        for (name, value) in HEADERS {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        if let Ok(tag) = HeaderValue::from_str(tag) {
            headers.insert(header::ETAG, tag);
        }
        response
    }
}
