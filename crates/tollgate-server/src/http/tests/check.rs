use super::*;

const ALICE: &str = r#"{"attributes":{"user":"alice"}}"#;

#[tokio::test]
async fn a_decision_comes_with_status_headers_and_body() {
    let server = Server::new();
    let first = server.check(ALICE).await;
    assert_eq!(first.status, 200);
    assert_eq!(
        first.body,
        concat!(
            r#"{"allowed":true,"policy":"api","limit":"3/minute","remaining":2,"retry_after":null,"#,
            r#""reset_after":60.000000,"source":"store","shadow_denied":false,"degraded":false,"#,
            r#""revision":1}"#
        )
    );
    let expected = [
        ("ratelimit", "\"api\";r=2;t=60"),
        ("ratelimit-policy", "\"api\";q=3;w=60"),
        ("x-ratelimit-limit", "3"),
        ("x-ratelimit-remaining", "2"),
        ("x-ratelimit-reset", "1767225660"),
        ("content-type", "application/json"),
        ("content-length", "176"),
        ("connection", "close"),
    ];
    let mut headers: Vec<(&str, &str)> =
        first.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
    headers.sort_unstable();
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(headers, expected);
}
