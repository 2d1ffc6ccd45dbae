use actix_web::{
    App, HttpMessage as _, HttpRequest, HttpResponse,
    body::to_bytes,
    dev::{Service, ServiceResponse},
    http::{Method, header::HeaderMap},
    test::{TestRequest, init_service},
    web,
};
use pacegate::{Decision, Limiter, ManualClock};
use pacegate_actix::{Decide, Incoming, IntoDenial, RateLimit, Rules};

/// A limiter on a clock that stands still.
pub(crate) fn limiter(limit: &str) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let limiter = Limiter::builder().limit(limit).clock(clock.clone()).build().unwrap();
    (limiter, clock)
}

/// Answers with what remains, as it is in the extensions. Its status is what the request wants.
pub(crate) async fn handler(request: HttpRequest, body: String) -> HttpResponse {
    let remaining = request.extensions().get::<Decision>().map(Decision::remaining);
    let status = request
        .headers()
        .get("x-status")
        .map_or(200, |value| value.to_str().unwrap().parse().unwrap());
    let mut response = HttpResponse::build(status.try_into().unwrap());
    response.body(format!("{remaining:?} {body}"))
}

/// Returns the status, headers and body of a request under these rules.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// Sends requests, one after the other, to an app under these rules.
pub(crate) async fn send<L: Decide, R>(
    rules: Rules<L, R>,
    requests: impl IntoIterator<Item = TestRequest>,
) -> Vec<Answer>
where
    R: IntoDenial<Incoming, Response = HttpResponse> + 'static,
{
    let app = App::new()
        .route("/users/{id}", web::get().to(handler))
        .default_service(web::to(handler))
        .wrap(RateLimit::new(rules));
    let service = init_service(app).await;
    let mut answers = Vec::new();
    for request in requests {
        let response = service.call(request.to_request()).await.unwrap();
        answers.push(answer(response).await);
    }
    answers
}

async fn answer<B>(response: ServiceResponse<B>) -> Answer
where
    B: actix_web::body::MessageBody,
{
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let body = to_bytes(response.into_body()).await.map_err(|_| "no body").unwrap();
    Answer { status, headers, body: String::from_utf8(body.to_vec()).unwrap() }
}

pub(crate) fn get(path: &str) -> TestRequest {
    TestRequest::default().method(Method::GET).uri(path)
}

pub(crate) fn statuses(answers: &[Answer]) -> Vec<u16> {
    answers.iter().map(|answer| answer.status).collect()
}
