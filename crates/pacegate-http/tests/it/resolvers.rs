//! Values of each resolver, and requests without a value.

use std::net::SocketAddr;

use axum::{
    Router,
    extract::{ConnectInfo, MatchedPath},
    routing::get,
};
use http::{HeaderName, Request, request::Parts};
use pacegate::{
    Key, KeyRef, Limiter, PolicySet,
    policy::{Condition, Policy},
};
use pacegate_http::{
    KeyParts, Missing, PeerAddr, RateLimitLayer, Resolve, ResolveExt,
    resolve::{
        ApiKey, BearerSubject, ClientAddress, Cookie, Everyone, Extension, Header, Host,
        MatchedRoute, Method, Path, PeerAddress,
    },
};
use tower::util::ServiceExt;

#[derive(Clone)]
struct User {
    id: u64,
}

#[test]
fn each_finds_its_value() {
    let head = head(|request| {
        request
            .method("PUT")
            .uri("http://Shop.Example:8080/a//b/../%63?x=1")
            .header("x-tenant", "acme")
            .header("cookie", "a=1; session=\"s-1\"; b=2")
            .extension(User { id: 7 })
            .extension(PeerAddr("[::ffff:203.0.113.7]:4711".parse().unwrap()))
    });
    assert_eq!(found(&Header::from_static("x-tenant"), &head), Ok("acme".into()));
    assert_eq!(found(&Cookie::new("session"), &head), Ok("s-1".into()));
    assert_eq!(found(&Cookie::new("b"), &head), Ok("2".into()));
    assert_eq!(found(&Path, &head), Ok("/a/c".into()));
    assert_eq!(found(&Method, &head), Ok("PUT".into()));
    assert_eq!(found(&Host, &head), Ok("shop.example".into()));
    assert_eq!(found(&Extension::new(|user: &User| user.id), &head), Ok("7".into()));
    assert_eq!(found(&PeerAddress::new(), &head), Ok("203.0.113.7".into()));
    assert_eq!(found(&|head: &Parts| head.uri.port_u16(), &head), Ok("8080".into()));
    assert_eq!(found(&Everyone, &head), Ok(String::new()));
}

#[test]
fn user_information_does_not_change_the_host() {
    let head = head(|request| request.uri("http://me:secret@shop.example:8080/"));
    assert_eq!(found(&Host, &head), Ok("shop.example".into()));
}

#[test]
fn missing_values_follow_the_chosen_setting() {
    let none = head(|request| request);
    let header = || Header::from_static("x-tenant");
    assert_eq!(found(&header(), &none), Err(Missing::Unspecified));
    assert_eq!(found(&header().or_skip(), &none), Err(Missing::Skip));
    assert_eq!(found(&header().or_reject(), &none), Err(Missing::Reject));
    assert_eq!(found(&header().or_reject().or_share(), &none), Err(Missing::Share));
    for missing in [
        found(&Cookie::new("a"), &none),
        found(&Extension::new(|user: &User| user.id), &none),
        found(&MatchedRoute, &none),
        found(&Host, &none),
        found(&ApiKey::bearer(), &none),
        found(&|_: &Parts| None::<u64>, &none),
        found(&|_: &Parts| Some(None::<u64>), &none),
        found(
            &Extension::new(|_: &User| None::<u64>),
            &head(|request| request.extension(User { id: 7 })),
        ),
    ] {
        assert_eq!(missing, Err(Missing::Unspecified));
    }
    for address in [
        found(&PeerAddress::new(), &none),
        found(&ClientAddress::trusting([]), &none),
        found(&ClientAddress::behind(1), &none),
    ] {
        assert!(matches!(address, Err(Missing::Misconfigured(_))), "{address:?}");
    }
    assert_eq!(found(&PeerAddress::new().or_share(), &none), Err(Missing::Share));
}

#[test]
fn repeated_values_are_not_trusted() {
    let twice = head(|request| {
        request
            .header("x-tenant", "acme")
            .header("x-tenant", "evil")
            .header("x-empty", "")
            .header("cookie", "a=1; same=x")
            .header("cookie", "a=2; same=x; none=")
            .header("host", "a.example")
            .header("host", "b.example")
    });
    assert_eq!(found(&Header::from_static("x-tenant"), &twice), Err(Missing::Unspecified));
    assert_eq!(found(&Header::from_static("x-empty"), &twice), Err(Missing::Unspecified));
    assert_eq!(found(&Cookie::new("a"), &twice), Err(Missing::Unspecified));
    assert_eq!(found(&Cookie::new("none"), &twice), Err(Missing::Unspecified));
    assert_eq!(found(&Cookie::new("same"), &twice), Ok("x".into()));
    assert_eq!(found(&Host, &twice), Err(Missing::Unspecified));
}

#[test]
fn both_or_one_of_two() {
    let tenant = || Header::from_static("x-tenant");
    let user = || Header::from_static("x-user");
    let only_user = head(|request| request.header("x-user", "alice"));
    assert_eq!(found(&tenant().or(user()), &only_user), Ok("alice".into()));
    assert_eq!(found(&tenant().or(user().and(Path)), &only_user), Ok("alice, /".into()));
    assert_eq!(found(&tenant().and(user()), &only_user), Err(Missing::Unspecified));
    let shared = tenant().or_share().and(user());
    assert_eq!(found(&shared, &only_user), Ok("(absent), alice".into()));
    assert_eq!(found(&user().and(tenant().or_skip()), &only_user), Err(Missing::Skip));
    let nobody = head(|request| request);
    assert_eq!(found(&tenant().or(user()).or_reject(), &nobody), Err(Missing::Reject));
    assert_eq!(found(&tenant().or_share().and(user().or_share()), &nobody), Err(Missing::Share));
}

#[test]
fn a_key_of_one_part_is_that_part() {
    let head = head(|request| request.header("x-user", "alice"));
    let user = || Header::from_static("x-user");
    with_key(&user(), &head, |key| "alice".with(|alice| assert_eq!(key, alice)));
    let both = user().and(Path);
    with_key(&both, &head, |key| ("alice", "/").with(|tuple| assert_eq!(key, tuple)));
    let path_first = Path.and(user());
    with_key(&path_first, &head, |key| ("alice", "/").with(|tuple| assert_ne!(key, tuple)));
}

#[test]
fn secrets_are_digests() {
    let name = HeaderName::from_static("x-api-key");
    let head = head(|request| {
        request.header("x-api-key", "key-1").header("authorization", "BEARER key-1")
    });
    let digest = &blake3::hash(b"key-1").to_hex()[..32];
    assert_eq!(found(&ApiKey::header(name.clone()), &head).as_deref(), Ok(digest));
    assert_eq!(found(&ApiKey::bearer(), &head).as_deref(), Ok(digest));
    let keyed = found(&ApiKey::header(name.clone()).keyed([7; 32]), &head).unwrap();
    assert_eq!(keyed, blake3::keyed_hash(&[7; 32], b"key-1").to_hex()[..32]);
    assert!(!format!("{:?}", ApiKey::header(name).keyed([7; 32])).contains('7'));
}

#[test]
fn the_subject_comes_from_the_verifier() {
    let verify = |token: &str| token.strip_prefix("good-").map(str::to_owned);
    let subject = BearerSubject::verified(verify);
    let bearing = |token: &str| head(|request| request.header("authorization", token));
    assert_eq!(found(&subject, &bearing("Bearer good-alice")), Ok("alice".into()));
    for other in ["Bearer forged-alice", "Basic good-alice", "good-alice", "Bearer "] {
        assert_eq!(found(&subject, &bearing(other)), Err(Missing::Unspecified), "{other}");
    }
}

#[test]
fn axum_provides_routes_and_peers() {
    let seen = |path: MatchedPath, request: axum::extract::Request| {
        let (head, _) = request.into_parts();
        let route = found(&MatchedRoute, &head).unwrap();
        assert_eq!(route, path.as_str());
        std::future::ready(format!("{route} {}", found(&PeerAddress::new(), &head).unwrap()))
    };
    let router = Router::new().route("/users/{id}", get(seen));
    let peer: SocketAddr = "203.0.113.7:4711".parse().unwrap();
    let request = Request::get("/users/7").extension(ConnectInfo(peer));
    let answer =
        pollster::block_on(router.oneshot(request.body(axum::body::Body::empty()).unwrap()));
    let body = axum::body::to_bytes(answer.unwrap().into_body(), 100);
    assert_eq!(pollster::block_on(body).unwrap(), "/users/{id} 203.0.113.7");
}

#[test]
fn a_layer_in_a_nested_router_sees_the_whole_path() {
    let login = Policy::new("login", ["1/minute"]).matching("path", Condition::equal("/api/login"));
    let limiter = Limiter::builder().policies(PolicySet::new([login]).unwrap()).build().unwrap();
    let inner = Router::new()
        .route("/login", get(|| async {}))
        .layer(RateLimitLayer::new(limiter).attribute("path", Path));
    let router = Router::new().nest("/api", inner.clone()).nest("/shop", inner);
    let status = |path: &str| {
        let request = Request::get(path).body(axum::body::Body::empty()).unwrap();
        pollster::block_on(router.clone().oneshot(request)).unwrap().status().as_u16()
    };
    assert_eq!(["/api/login", "/shop/login", "/api/login"].map(status), [200, 200, 429]);
}

fn head(build: impl FnOnce(http::request::Builder) -> http::request::Builder) -> Parts {
    build(Request::builder().uri("/")).body(()).unwrap().into_parts().0
}

fn found(resolver: &impl Resolve, head: &Parts) -> Result<String, Missing> {
    let mut parts = KeyParts::new();
    resolver.resolve(head, &mut parts)?;
    Ok(parts.with(|key| key.to_string()))
}

fn with_key(resolver: &impl Resolve, head: &Parts, then: impl FnOnce(KeyRef<'_>)) {
    let mut parts = KeyParts::new();
    resolver.resolve(head, &mut parts).unwrap();
    parts.with(then);
}
