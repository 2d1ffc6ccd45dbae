//! The same layers in this process, without a network: with less noise, and next to an empty layer.

use std::{
    hint::black_box,
    io,
    net::SocketAddr,
    pin::pin,
    task::{Context, Poll, Waker},
};

use axum::{Router, body::Body, extract::ConnectInfo, http::Request};
use tower::Service;

use super::{
    FIVE_HEADERS, SAME_HEADERS,
    actix::{self, Calls},
    servers::app,
};
use crate::{
    Options,
    report::Row,
    row,
    speed::{Candidate, measure},
    traffic::Keys,
};

/// Layers in one process, without a network.
struct InProcess {
    name: &'static str,
    /// The bare app, and the middleware that is compared with.
    bare: &'static str,
    theirs: &'static str,
    /// An empty layer, and one that adds five constant headers.
    floors: [&'static str; 2],
    ours: [(&'static str, f64); 2],
    calls: fn(&'static str) -> io::Result<Calls>,
}

const CASES: [InProcess; 2] = [
    InProcess {
        name: "axum in process",
        bare: "axum",
        theirs: "tower_governor peer",
        floors: ["empty layer", "five headers"],
        ours: [("pacegate same headers", SAME_HEADERS), ("pacegate peer", FIVE_HEADERS)],
        calls: axum_calls,
    },
    InProcess {
        name: "actix-web in process",
        bare: "actix",
        theirs: "actix-governor peer",
        floors: ["empty layer actix", "five headers actix"],
        ours: [
            ("pacegate actix same headers", SAME_HEADERS),
            ("pacegate actix peer", FIVE_HEADERS),
        ],
        calls: actix::calls,
    },
];

/// Measures the time that each layer adds to a request.
pub fn rows(options: &Options) -> io::Result<Vec<Row>> {
    let cases = CASES.iter().filter(|case| options.includes(case.name));
    let rows = cases.map(|case| case.measure(options.quick_or(11, 41)));
    Ok(rows.collect::<io::Result<Vec<_>>>()?.concat())
}

impl InProcess {
    fn measure(&self, rounds: usize) -> io::Result<Vec<Row>> {
        eprintln!("{}, {rounds} rounds", self.name);
        let [empty, constant] = self.floors;
        let others = [(self.theirs, None), (empty, None), (constant, None)];
        let subjects = others.into_iter().chain(self.ours.map(|(name, bar)| (name, Some(bar))));
        let subjects: Vec<_> = subjects.collect();
        let names = std::iter::once(self.bare).chain(subjects.iter().map(|(name, _)| *name));
        let candidate = |name| {
            let calls = (self.calls)(name)?;
            Ok(Candidate::new(name, move |keys: &[String]| calls(keys.len())))
        };
        let candidates = names.map(candidate).collect::<io::Result<Vec<_>>>()?;
        let times = measure(&candidates, &Keys::One, 1, rounds);
        let added = |own: &[f64]| -> Vec<f64> {
            own.iter().zip(&times[0]).map(|(own, bare)| own - bare).collect()
        };
        let theirs = added(&times[1]);
        let rows = subjects.iter().zip(&times[1..]).flat_map(|(&(name, bar), own)| {
            let own = added(own);
            let ratios = own.iter().zip(&theirs).map(|(own, theirs)| own / theirs).collect();
            let ratio = row(self.name, name, "added time, relative to the other", ratios);
            let metric = "ns per request, added to the bare app";
            [row(self.name, name, metric, own), Row { bar, ..ratio }]
        });
        Ok(rows.collect())
    }
}

/// Returns a function that sends requests to an axum router, all from one address.
fn axum_calls(subject: &'static str) -> io::Result<Calls> {
    let app = app(subject).ok_or_else(|| io::Error::other(format!("unknown app `{subject}`")))?;
    // Without its state, a router would build its layers for every request.
    let app: Router = app.with_state(());
    Ok(Box::new(move |count| {
        let mut app = app.clone();
        for _ in 0..count {
            let mut request = Request::new(Body::empty());
            let peer = SocketAddr::from(([127, 0, 0, 1], 4711));
            request.extensions_mut().insert(ConnectInfo(peer));
            let answered = pin!(app.call(request)).poll(&mut Context::from_waker(Waker::noop()));
            let Poll::Ready(Ok(response)) = answered else { panic!("{subject} waits") };
            assert_eq!(response.status(), 200, "{subject}");
            black_box(response);
        }
    }))
}
