use pacegate::Algorithm;
use pacegate_testkit::Model;
use proptest::prelude::*;

use super::*;

const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::FixedWindow,
    Algorithm::SlidingWindow,
    Algorithm::SlidingLog,
    Algorithm::TokenBucket,
];

/// Start of all histories, in microseconds since the Unix epoch; not at the edge of a window.
const START: u64 = 1_000_000_000_123;

fn rule(limit: &str) -> Rule {
    Rule { limit: limit.parse().unwrap(), windows: Windows::Aligned, skew: 0, used: false }
}

fn entry(sent: u64, took: u32, cost: u32, answer: Answer) -> Exchange {
    Exchange { sent, took, key: 0, cost, answer }
}

/// Returns (over-admitted units, wrongly denied requests).
fn judged(rule: &Rule, entries: &[Exchange]) -> (u64, u64) {
    let mut history = History::new(usize::MAX);
    entries.iter().for_each(|&entry| history.push(entry));
    let result = check(rule, &mut history);
    assert_eq!(result.checked, entries.len() as u64);
    (result.over_admitted, result.wrongly_denied)
}

/// Creates `requests` simultaneous requests, the first `admitted` of which are allowed.
fn burst(at: u64, requests: usize, admitted: usize) -> Vec<Exchange> {
    let answer = |place| if place < admitted { Answer::Allowed } else { Answer::Denied };
    (0..requests).map(|place| entry(at, 900, 1, answer(place))).collect()
}

/// One generated request: the pause before it, the travel times to and from the server, and its cost.
#[derive(Clone, Copy, Debug)]
struct Step {
    pause: u64,
    there: u64,
    back: u64,
    cost: u64,
}

/// A limit and requests, to be decided by the model.
#[derive(Clone, Debug)]
struct Story {
    limit: Limit,
    steps: Vec<Step>,
}

/// Returns the model's decision for each request, with the instant at which it was made.
fn told(story: &Story) -> Vec<(u64, Exchange)> {
    let (mut now, mut model) = (START, Model::new(story.limit));
    let decide = |step: &Step| {
        now += step.pause;
        let answer = match model.charge(now, step.cost, 0).admitted {
            true => Answer::Allowed,
            false => Answer::Denied,
        };
        let took = u32::try_from(step.there + step.back).unwrap();
        (now, entry(now - step.there, took, u32::try_from(step.cost).unwrap(), answer))
    };
    story.steps.iter().map(decide).collect()
}

fn entries(told: &[(u64, Exchange)]) -> Vec<Exchange> {
    told.iter().map(|(_, entry)| *entry).collect()
}

prop_compose! {
    /// Periods of a few milliseconds, with pauses from zero to longer than the limit remembers.
    fn stories(way: u64)(
        algorithm in prop::sample::select(&ALGORITHMS[..]),
        amount in 1_u64..12,
        burst in 1_u64..20,
        millis in 1_u64..8,
        hurry in 1_u64..20,
        steps in prop::collection::vec((0_u64..1_000, 0..=way, 0..=way, 1_u64..5), 1..60),
    ) -> Story {
        let limit = Limit::new(amount, std::time::Duration::from_millis(millis)).unwrap();
        let limit = match algorithm {
            Algorithm::TokenBucket => limit.with_burst(burst).unwrap(),
            _ => limit.with_algorithm(algorithm).unwrap(),
        };
        let step = |(pause, there, back, cost): (u64, u64, u64, u64)| Step {
            // Mostly close together, sometimes far apart.
            pause: if pause > 970 { pause * 200 } else { pause / hurry },
            there,
            back,
            cost: cost.min(limit.capacity()),
        };
        Story { limit, steps: steps.into_iter().map(step).collect() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn decisions_of_the_model_have_no_findings(story in stories(3_000)) {
        let rule = Rule { limit: story.limit, windows: Windows::Aligned, skew: 0, used: false };
        prop_assert_eq!(judged(&rule, &entries(&told(&story))), (0, 0));
    }

    #[test]
    fn a_clock_within_the_skew_has_no_findings(story in stories(40), off in 0_u64..500) {
        let rule = Rule { limit: story.limit, windows: Windows::Aligned, skew: 500, used: false };
        let mut entries = entries(&told(&story));
        entries.iter_mut().for_each(|entry| entry.sent = entry.sent + off - 250);
        prop_assert_eq!(judged(&rule, &entries), (0, 0));
    }

    #[test]
    fn one_wrong_admission_is_found(story in stories(0), which in any::<prop::sample::Index>()) {
        let mut entries = entries(&told(&story));
        let denied: Vec<usize> =
            (0..entries.len()).filter(|&place| entries[place].answer == Answer::Denied).collect();
        prop_assume!(!denied.is_empty());
        let place = denied[which.index(denied.len())];
        entries[place].answer = Answer::Allowed;
        let rule = Rule { limit: story.limit, windows: Windows::Aligned, skew: 0, used: false };
        let (over, _) = judged(&rule, &entries);
        prop_assert!((1..=u64::from(entries[place].cost)).contains(&over), "{over}");
    }

    #[test]
    fn one_wrong_denial_is_found(story in stories(0), which in any::<prop::sample::Index>()) {
        let mut told = told(&story);
        let mut model = Model::new(story.limit);
        let mut room = Vec::new();
        for (place, (now, entry)) in told.iter().enumerate() {
            model.charge(*now, u64::from(entry.cost), 0);
            let next = told.get(place + 1).map_or(u64::MAX, |next| next.0);
            room.extend((now + 1 < next && model.fits(now + 1, 1)).then_some(now + 1));
        }
        prop_assume!(!room.is_empty());
        let at = room[which.index(room.len())];
        told.push((at, entry(at, 0, 1, Answer::Denied)));
        let rule = Rule { limit: story.limit, windows: Windows::Aligned, skew: 0, used: false };
        prop_assert_eq!(judged(&rule, &entries(&told)), (0, 1));
    }

    #[test]
    fn a_denial_after_a_long_pause_is_found_with_imprecise_times(story in stories(3_000)) {
        let told = told(&story);
        let mut entries = entries(&told);
        let rest = 4_000_000;
        let at = told.last().unwrap().0 + rest;
        entries.push(entry(at, 3_000, 1, Answer::Denied));
        let rule = Rule { limit: story.limit, windows: Windows::Aligned, skew: 0, used: false };
        prop_assert_eq!(judged(&rule, &entries), (0, 1));
    }

    #[test]
    fn decisions_of_an_anchored_window_have_no_findings(story in stories(3_000)) {
        let limit = Limit::new(story.limit.amount(), story.limit.period()).unwrap();
        let (mut now, mut start, mut used) = (START, 0, 0);
        let mut decide = |step: &Step| {
            now += step.pause;
            let cost = step.cost.min(limit.amount());
            if now >= start + limit.period().as_micros() as u64 {
                (start, used) = (now, 0);
            }
            let admitted = used + cost <= limit.amount();
            used += if admitted { cost } else { 0 };
            let answer = if admitted { Answer::Allowed } else { Answer::Denied };
            let took = u32::try_from(step.there + step.back).unwrap();
            entry(now - step.there, took, u32::try_from(cost).unwrap(), answer)
        };
        let entries: Vec<Exchange> = story.steps.iter().map(&mut decide).collect();
        let rule = Rule { limit, windows: Windows::Anchored, skew: 0, used: false };
        prop_assert_eq!(judged(&rule, &entries), (0, 0));
    }
}

#[test]
fn seventeen_admitted_by_a_limit_of_ten_are_seven_over() {
    for limit in [
        "10/minute burst 10",
        "10/minute token-bucket",
        "10/minute",
        "10/minute sliding-window",
        "10/minute sliding-log",
    ] {
        assert_eq!(judged(&rule(limit), &burst(START, 30, 17)), (7, 0), "{limit}");
        assert_eq!(judged(&rule(limit), &burst(START, 30, 10)), (0, 0), "{limit}");
    }
    let anchored = Rule { windows: Windows::Anchored, ..rule("10/minute") };
    assert_eq!(judged(&anchored, &burst(START, 30, 17)), (7, 0));
    // After a pause, it is a first window again.
    let mut twice = burst(START, 30, 10);
    twice.extend(burst(START + 61_000_000, 30, 12));
    assert_eq!(judged(&anchored, &twice), (2, 0));
}

#[test]
fn denials_despite_room_are_wrong() {
    // 8 of 10 were admitted: all 22 denials are wrong, since each of them would have fitted.
    for limit in ["10/minute burst 10", "10/minute", "10/minute sliding-window"] {
        assert_eq!(judged(&rule(limit), &burst(START, 30, 8)), (0, 22), "{limit}");
    }
}

#[test]
fn over_admission_adds_up_over_bursts() {
    let rule = rule("10/second burst 10");
    let bursts = (0..5).flat_map(|n| burst(START + n * 10_000_000, 20, 13));
    assert_eq!(judged(&rule, &bursts.collect::<Vec<_>>()), (15, 0));
}

#[test]
fn twice_the_rate_is_found_without_any_burst() {
    // A request every 50 ms, all admitted by a bucket that refills every 100 ms.
    let entries = (0..200).map(|n| entry(START + n * 50_000, 300, 1, Answer::Allowed));
    let (over, denied) = judged(&rule("10/second burst 5"), &entries.collect::<Vec<_>>());
    // 200 within 9.9503 s, in which 5 + 99 fit.
    assert_eq!((over, denied), (96, 0));
}

#[test]
fn only_the_excess_units_of_a_request_are_counted() {
    let entries = [entry(START, 10, 10, Answer::Allowed), entry(START, 10, 3, Answer::Allowed)];
    assert_eq!(judged(&rule("12/hour burst 12"), &entries), (1, 0));
    assert_eq!(judged(&rule("12/hour"), &entries), (1, 0));
}

#[test]
fn requests_across_a_window_edge_may_belong_to_either_window() {
    // Around the edge of a second: some before it, some possibly on either side, some after it.
    let edge = 2_000_000_000_000;
    let before = burst(edge - 5_000, 10, 10);
    let across = burst(edge - 400, 10, 10);
    let after = burst(edge + 1_000, 10, 10);
    let rule = rule("20/second");
    let all = |parts: &[&[Exchange]]| parts.concat();
    assert_eq!(judged(&rule, &all(&[&before, &across, &after])), (0, 0));
    assert_eq!(judged(&rule, &all(&[&before, &across, &across, &after])), (0, 0));
    assert_eq!(judged(&rule, &all(&[&before, &across, &across, &across, &after])), (10, 0));
    // A full window before the edge takes nothing from requests that may belong to the next window.
    assert_eq!(judged(&rule, &all(&[&before, &before, &across, &after])), (0, 0));
    assert_eq!(judged(&rule, &all(&[&before, &before, &across, &after, &after])), (10, 0));
}

#[test]
fn requests_without_an_outcome_may_have_been_charged_or_not() {
    let rule = rule("10/minute burst 10");
    let mut entries = burst(START, 10, 9);
    entries.push(entry(START - 100, super::super::history::NEVER, 1, Answer::Unknown));
    assert_eq!(judged(&rule, &entries), (0, 0));
    entries.pop();
    assert_eq!(judged(&rule, &entries), (0, 1));
    entries.push(entry(START - 100, 3, 5, Answer::Unknown));
    entries[9].answer = Answer::Allowed;
    assert_eq!(judged(&rule, &entries), (0, 0));
}

#[test]
fn denials_are_not_judged_in_an_incomplete_history() {
    let rule = rule("10/minute burst 10");
    let mut history = History::new(10);
    burst(START, 10, 9).into_iter().for_each(|entry| history.push(entry));
    history.push(entry(START + 100, 900, 1, Answer::Allowed));
    let result = check(&rule, &mut history);
    assert_eq!((result.checked, result.wrongly_denied), (10, 0));
}

#[test]
fn the_first_anchored_window_counts_only_for_fresh_keys() {
    let anchored = Rule { windows: Windows::Anchored, ..rule("10/minute") };
    // A window ends and the next one begins: a correct counter admits twice the amount within a second if it
    // had earlier requests.
    let mut entries = burst(START, 10, 10);
    entries.extend(burst(START + 1_000_000, 10, 10));
    assert_eq!(judged(&anchored, &entries), (10, 0));
    assert_eq!(judged(&Rule { used: true, ..anchored }, &entries), (0, 0));
    let mut history = History::new(20);
    entries.iter().for_each(|&entry| history.push(entry));
    history.push(entry(START - 59_500_000, 10, 1, Answer::Allowed));
    assert_eq!(check(&anchored, &mut history).over_admitted, 0);
}

#[test]
fn denials_of_possibly_used_keys_are_not_judged() {
    let used = Rule { used: true, ..rule("10/minute burst 10") };
    assert_eq!(judged(&used, &burst(START, 30, 4)), (0, 0));
    assert_eq!(judged(&used, &burst(START, 30, 17)), (7, 0));
}

#[test]
fn keys_are_checked_independently() {
    let rule = rule("10/minute");
    let mut history = History::new(usize::MAX);
    for key in 0..5 {
        let admitted = if key == 3 { 14 } else { 10 };
        burst(START, 20, admitted).iter().for_each(|&one| history.push(Exchange { key, ..one }));
    }
    let result = check(&rule, &mut history);
    let expected = CheckResult {
        checked: 100,
        over_admitted: 4,
        wrongly_denied: 0,
        keys_wronged: 1,
        worst: Some((3, 4)),
    };
    assert_eq!(result, expected);
}
