use super::*;

const PING: &str = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Returns bounds with timeouts short enough for a test.
fn impatient() -> Server {
    let mut settings = Settings::new(policies());
    settings.bounds.read_timeout = Duration::from_millis(60);
    settings.bounds.idle_timeout = Duration::from_millis(120);
    Server::with(settings)
}

/// Reads one response with a length from a connection that stays open.
async fn read_reply(client: &mut DuplexStream) -> Reply {
    let mut bytes = Vec::new();
    loop {
        bytes.push(client.read_u8().await.unwrap());
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
        if body.len() == length.parse::<usize>().unwrap() {
            return Reply::parse(&bytes);
        }
    }
}

#[tokio::test]
async fn connections_are_kept_and_requests_pipelined() {
    let server = Server::new();
    let mut client = server.connect();
    for _ in 0..3 {
        client.write_all(PING.as_bytes()).await.unwrap();
        assert_eq!(read_reply(&mut client).await.status, 200);
    }
    client.write_all(PING.repeat(5).as_bytes()).await.unwrap();
    for _ in 0..5 {
        assert_eq!(read_reply(&mut client).await.body, r#"{"status":"alive"}"#);
    }
}

#[tokio::test]
async fn slow_clients_time_out() {
    let server = impatient();
    // A head that never ends.
    assert_eq!(server.exchange(b"GET /healthz HTTP/1.1\r\nHost:").await, b"");
    // A body that never comes.
    let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Content-Length: 10\r\n\r\n{";
    let reply = Reply::parse(&server.exchange(head.as_bytes()).await);
    assert_eq!((reply.status, reply.problem()), (408, "slow".to_owned()));
    // A connection that does nothing, before and after a request.
    assert_eq!(server.exchange(b"").await, b"");
    let replies = server.exchange(PING.as_bytes()).await;
    assert_eq!(Reply::parse(&replies).status, 200);
}

#[tokio::test]
async fn a_drain_answers_requests_and_closes() {
    let server = Server::new();
    let mut busy = server.connect();
    busy.write_all(PING.as_bytes()).await.unwrap();
    assert_eq!(read_reply(&mut busy).await.header("connection"), None);
    let mut idle = server.connect();
    // Half of a request was sent before the drain, half comes after it.
    busy.write_all(&PING.as_bytes()[..10]).await.unwrap();
    server.active.drain();
    server.switch.turn();
    busy.write_all(&PING.as_bytes()[10..]).await.unwrap();
    let mut last = Vec::new();
    busy.read_to_end(&mut last).await.unwrap();
    let last = Reply::parse(&last);
    assert_eq!((last.status, last.header("connection")), (200, Some("close")));
    let mut nothing = Vec::new();
    idle.read_to_end(&mut nothing).await.unwrap();
    assert_eq!(nothing, b"");
}

/// The responses in these bytes, whose bodies have no blank lines.
fn replies(bytes: &[u8]) -> Vec<Reply> {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let parts = text.split("HTTP/1.1 ").filter(|part| !part.is_empty());
    parts.map(|part| Reply::parse(format!("HTTP/1.1 {part}").as_bytes())).collect()
}

#[tokio::test]
async fn a_drain_answers_every_pipelined_request_and_announces_the_last() {
    let server = Server::new();
    let mut client = server.connect();
    client.write_all(PING.repeat(200).as_bytes()).await.unwrap();
    // Nothing was read yet.
    server.switch.turn();
    let mut answers = Vec::new();
    client.read_to_end(&mut answers).await.unwrap();
    let answers = replies(&answers);
    assert_eq!(answers.len(), 200);
    for (place, answer) in answers.iter().enumerate() {
        let close = (place == 199).then_some("close");
        assert_eq!((answer.status, answer.header("connection")), (200, close), "{place}");
    }
}

#[tokio::test]
async fn a_drain_ends_a_pipeline_that_does_not() {
    let server = Server::new();
    let client = server.connect();
    server.switch.turn();
    let (mut reader, mut writer) = tokio::io::split(client);
    let flood = async {
        let requests = PING.repeat(1_000);
        while writer.write_all(requests.as_bytes()).await.is_ok() {}
    };
    let mut answers = Vec::new();
    let (read, ()) = tokio::join!(reader.read_to_end(&mut answers), flood);
    read.unwrap();
    let answers = replies(&answers);
    // A megabyte, less the rest of a buffer.
    assert!(answers.len() > (1_000 << 10) / PING.len(), "{}", answers.len());
    assert_eq!(answers.last().unwrap().header("connection"), Some("close"));
}

#[tokio::test]
async fn http2_is_spoken_on_the_same_port() {
    let server = impatient();
    let mut client = server.connect();
    // The preface, empty settings, and a request for /healthz: :method GET, :scheme http, :path, :authority.
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    let headers = b"\x82\x86\x04\x08/healthz\x01\x01t";
    bytes.extend_from_slice(&[0, 0, headers.len() as u8, 1, 5, 0, 0, 0, 1]);
    bytes.extend_from_slice(headers);
    client.write_all(&bytes).await.unwrap();
    let mut data = None;
    while data.is_none() {
        let mut head = [0; 9];
        client.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        client.read_exact(&mut payload).await.unwrap();
        data = (head[3] == 0).then_some(payload);
    }
    assert_eq!(data.unwrap(), br#"{"status":"alive"}"#);
    // The server sends GOAWAY when it shuts down.
    server.switch.turn();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert!(rest.windows(5).any(|bytes| bytes[3] == 7), "no GOAWAY in {rest:?}");
}
