//! Resolvers on requests of actix-web.

use std::net::SocketAddr;

use actix_web::test::TestRequest;
use pacegate_actix::{
    Incoming, Resolve, Rules,
    resolve::{
        ClientAddress, Cookie, Extension, Header, Host, MatchedRoute, Method, Path, PeerAddress,
        ResolveExt,
    },
};

use crate::kit::{get, limiter, send, statuses};

#[derive(Clone)]
struct User(u64);

fn from(address: &str) -> TestRequest {
    get("/").peer_addr(address.parse::<SocketAddr>().unwrap())
}

fn with(name: &'static str, value: &'static str) -> TestRequest {
    get("/").insert_header((name, value))
}

/// Returns which requests are denied because an earlier one has the same key, with one unit for each key.
async fn repeated(resolver: impl Resolve<Incoming>, requests: Vec<TestRequest>) -> Vec<usize> {
    let rules = Rules::new(limiter("1/hour").0).by(resolver);
    let statuses = statuses(&send(rules, requests).await);
    let limited = statuses.iter().enumerate().filter(|(_, status)| **status == 429);
    limited.map(|(place, _)| place).collect()
}

#[actix_web::test]
async fn addresses() {
    let requests = || vec![from("192.0.2.1:80"), from("192.0.2.2:80"), from("192.0.2.1:81")];
    assert_eq!(repeated(PeerAddress::new(), requests()).await, [2]);
    let proxied = |address: &str, chain: &'static str| {
        from(address).insert_header(("x-forwarded-for", chain))
    };
    let trusting = ClientAddress::trusting(["10.0.0.0/8".parse().unwrap()]);
    let requests = vec![
        proxied("10.0.0.1:1", "203.0.113.1"),
        proxied("10.0.0.1:1", "198.51.100.9, 203.0.113.1"),
        proxied("10.0.0.1:1", "198.51.100.9").append_header(("x-forwarded-for", "203.0.113.1")),
        proxied("192.0.2.1:1", "203.0.113.1"),
    ];
    assert_eq!(repeated(trusting, requests).await, [1, 2], "the chain is read from its end");
}

#[actix_web::test]
async fn a_request_without_a_peer_address_is_not_counted_with_all_others() {
    let rules = Rules::new(limiter("1/hour").0).by(PeerAddress::new());
    assert_eq!(statuses(&send(rules, [get("/"), get("/")]).await), [500, 500]);
}

#[actix_web::test]
async fn parts_of_the_head() {
    let requests = || vec![with("x-tenant", "a"), with("x-tenant", "b"), with("x-tenant", "a")];
    assert_eq!(repeated(Header::from_static("x-tenant"), requests()).await, [2]);
    let requests =
        || vec![with("cookie", "s=1; t=2"), with("cookie", "s=2"), with("cookie", "t=9; s=1")];
    assert_eq!(repeated(Cookie::new("s"), requests()).await, [2]);
    let requests =
        || vec![with("host", "a.example"), with("host", "b.example"), with("host", "A.example:80")];
    assert_eq!(repeated(Host, requests()).await.len(), 1);
    let paths = || ["/users/1", "/users/2", "/users/1?x"].map(get).into_iter().collect::<Vec<_>>();
    assert_eq!(repeated(Path, paths()).await, [2]);
    let spellings = ["/users/1", "/USERS/1/", "/users;v=2/1", "/x/..;/users/1", "//users/%31"];
    let spellings = spellings.map(get).into_iter().collect();
    assert_eq!(repeated(Path, spellings).await, [1, 2, 3, 4]);
    assert_eq!(repeated(Method, paths()).await, [1, 2]);
    assert_eq!(repeated(MatchedRoute, paths()).await, [1, 2], "/users/{{id}}");
}

#[actix_web::test]
async fn extensions_closures_and_both() {
    let user =
        |head: &Incoming| head.headers().get("x-user").map(|value| value.as_bytes().to_vec());
    let requests =
        || vec![with("x-user", "a"), with("x-user", "b"), with("x-user", "a"), get("/"), get("/")];
    assert_eq!(repeated(user, requests()).await, [2], "those without one are rejected");
    assert_eq!(repeated(user.or_share(), requests()).await, [2, 4]);
    let both = Extension::new(|user: &User| user.0).or(PeerAddress::new()).and(Path);
    assert_eq!(
        repeated(both, vec![from("192.0.2.1:1"), from("192.0.2.2:1"), from("192.0.2.1:2")]).await,
        [2]
    );
    let tenant = Header::from_static("x-tenant").or_reject();
    let answers =
        send(Rules::new(limiter("9/hour").0).by(tenant), [get("/"), with("x-tenant", "a")]).await;
    assert_eq!(statuses(&answers), [400, 200]);
}

#[actix_web::test]
async fn extensions_of_other_middleware() {
    use actix_web::{App, HttpMessage as _, dev::Service as _, test::init_service, web};
    use pacegate_actix::RateLimit;

    let rules = Rules::new(limiter("1/hour").0).by(Extension::new(|user: &User| user.0));
    let app = App::new()
        .default_service(web::to(crate::kit::handler))
        .wrap(RateLimit::new(rules))
        .wrap_fn(|request, next| {
            let id = request.path().len() as u64;
            request.extensions_mut().insert(User(id));
            next.call(request)
        });
    let service = init_service(app).await;
    for (path, status) in [("/a", 200), ("/ab", 200), ("/b", 429)] {
        let response = service.call(get(path).to_request()).await.unwrap();
        assert_eq!(response.status(), status, "{path}");
    }
}
