use crate::program::{Dialogue, Finished, run, without_times};

/// A log has no window whose end a test could run into.
const LIMIT: &str = "2/hour sliding-log";
const TWO_AN_HOUR: [&str; 3] = ["serve", "--limit", LIMIT];

#[test]
fn a_session_answers_every_line_and_sums_up() {
    let input = [
        "alice\nalice\nalice\nbob\t2\nbob\tmany\nbob\t3\n\ncarol\t0\n".as_bytes(),
        &[b'x'; 65_537],
        b"\ndora\r\ndora",
    ];
    let finished = run(&TWO_AN_HOUR, &input.concat());
    let expected = [
        allowed(LIMIT, 1),
        allowed(LIMIT, 0),
        denied(LIMIT, 0),
        allowed(LIMIT, 0),
        r#"{"error":"the cost `many` is not a whole number up to 18446744073709551615"}"#.to_owned(),
        r#"{"error":"a cost of 3 can never be admitted: policy `default` takes at most 2 at once"}"#.to_owned(),
        r#"{"error":"the line has no key: write a key, or a key, a tab and a cost"}"#.to_owned(),
        allowed(LIMIT, 2),
        r#"{"error":"the line is longer than 65536 bytes"}"#.to_owned(),
        allowed(LIMIT, 1),
        allowed(LIMIT, 0),
    ];
    assert_eq!(without_times(&finished.stdout).lines().collect::<Vec<_>>(), expected);
    assert_eq!(
        finished.stderr,
        "limiting each key to 2/hour sliding-log, in memory, for up to 1000000 keys\n\
         each line is a key, or a key, a tab and a cost; try one: alice\n\
         policy default: 5 allowed, 1 denied\n"
    );
    assert_eq!(finished.code, Some(0));
}

#[test]
fn each_answer_comes_before_the_next_line_is_complete() {
    let mut dialogue = Dialogue::start(&TWO_AN_HOUR);
    for expected in ["true", "true", "false"] {
        dialogue.write("ali");
        dialogue.write("ce\nnot yet complete");
        let answer = dialogue.read();
        assert!(answer.starts_with(&format!("{{\"allowed\":{expected},")), "{answer}");
        dialogue.write("\n");
        assert!(dialogue.read().ends_with("}\n"));
    }
}

#[test]
fn several_limits_must_all_have_room() {
    let args = ["serve", "--limit", "1/day sliding-log", "--limit", "5/hour sliding-log"];
    let finished = run(&args, b"alice\nalice\n");
    let expected = [allowed("1/day sliding-log", 0), denied("1/day sliding-log", 0)];
    assert_eq!(without_times(&finished.stdout).lines().collect::<Vec<_>>(), expected);
    let greeting = "limiting each key to 1/day sliding-log and 5/hour sliding-log, in memory";
    assert!(finished.stderr.starts_with(greeting), "{}", finished.stderr);
}

#[test]
fn without_a_limit_it_is_ten_a_second() {
    let finished = run(&["serve", "--max-keys", "5"], b"");
    assert_eq!(
        finished,
        Finished {
            code: Some(0),
            stdout: String::new(),
            stderr: "limiting each key to 10/second, in memory, for up to 5 keys\n\
                     each line is a key, or a key, a tab and a cost; try one: alice\n\
                     policy default: 0 allowed, 0 denied\n"
                .to_owned(),
        }
    );
}

#[test]
fn a_reader_that_has_read_enough_is_no_trouble() {
    let mut dialogue = Dialogue::start(&TWO_AN_HOUR);
    dialogue.write("alice\n");
    dialogue.read();
    assert_eq!(dialogue.hang_up(b"alice\n"), Some(0));
}

#[test]
fn no_room_for_any_key_is_refused() {
    let finished = run(&["serve", "--max-keys", "0"], b"");
    assert_eq!((finished.code, &*finished.stdout), (Some(2), ""));
    assert!(finished.stderr.starts_with("error: invalid value '0' for '--max-keys <N>'"));
}

fn allowed(limit: &str, remaining: u64) -> String {
    decision(limit, remaining, ["true", "null"])
}

fn denied(limit: &str, remaining: u64) -> String {
    decision(limit, remaining, ["false", "T"])
}

fn decision(limit: &str, remaining: u64, [allowed, retry_after]: [&str; 2]) -> String {
    format!(
        r#"{{"allowed":{allowed},"policy":"default","limit":"{limit}","remaining":{remaining},"#
    ) + &format!(r#""retry_after":{retry_after},"reset_after":T,"source":"store","#)
        + r#""shadow_denied":false,"degraded":false}"#
}
