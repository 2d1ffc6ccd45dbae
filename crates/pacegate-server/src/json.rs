//! Answers as one line of JSON each.

use std::{
    fmt::{self, Display, Formatter, Write},
    io::Write as _,
    time::Duration,
};

use pacegate::{Algorithm, Decision, Limit};
pub(crate) use pacegate_http::headers::write_number;

/// A decision as an object: who decided, what remains, and when to come back. Times are seconds with all six digits of
/// their microseconds, and not through a float, where long ones would lose some.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JsonDecision(pub(crate) Decision);

struct Text<T>(T);

/// Passes text on with what JSON does not allow in a string escaped.
struct Escape<'a, 'f>(&'a mut Formatter<'f>);

impl JsonDecision {
    /// Adds the members of the object to `out`, without its braces. As quick as it gets: the listeners answer with it.
    pub(crate) fn write_members(&self, out: &mut Vec<u8>) {
        let Self(decision) = self;
        out.extend_from_slice(b"\"allowed\":");
        write_bool(out, decision.is_allowed());
        out.extend_from_slice(b",\"policy\":");
        match decision.policy() {
            // A policy's name has nothing in it that needs escaping.
            Some(policy) => write_parts(out, [b"\"", policy.as_str().as_bytes(), b"\""]),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"limit\":");
        match decision.limit() {
            Some(limit) => write_limit(out, &limit),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"remaining\":");
        match decision.limit() {
            Some(_) => write_number(out, decision.remaining()),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"retry_after\":");
        match decision.retry_after() {
            Some(wait) => write_seconds(out, wait),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"reset_after\":");
        write_seconds(out, decision.reset_after());
        let source = decision.source().as_str().as_bytes();
        write_parts(out, [b",\"source\":\"", source, b"\",\"shadow_denied\":"]);
        write_bool(out, decision.is_shadow_denied());
        out.extend_from_slice(b",\"degraded\":");
        write_bool(out, decision.is_degraded());
    }
}

impl Display for JsonDecision {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut members = Vec::new();
        self.write_members(&mut members);
        write!(f, "{{{}}}", String::from_utf8_lossy(&members))
    }
}

/// Adds text as a JSON string.
pub(crate) fn write_text(out: &mut Vec<u8>, text: impl Display) {
    // Writing into a vector cannot fail.
    let _ = write!(out, "{}", Text(text));
}

/// Adds seconds with six decimals.
fn write_seconds(out: &mut Vec<u8>, time: Duration) {
    write_number(out, time.as_secs());
    let mut micros = time.subsec_micros();
    let mut digits = *b".000000";
    for digit in digits[1..].iter_mut().rev() {
        *digit = b'0' + (micros % 10) as u8;
        micros /= 10;
    }
    out.extend_from_slice(&digits);
}

fn write_limit(out: &mut Vec<u8>, limit: &Limit) {
    // Writing into a vector cannot fail.
    let _ = match limit.algorithm() {
        Algorithm::Custom(_) => write!(out, "{}", Text(limit)),
        _ => write!(out, "\"{limit}\""),
    };
}

fn write_bool(out: &mut Vec<u8>, value: bool) {
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

fn write_parts(out: &mut Vec<u8>, parts: [&[u8]; 3]) {
    parts.into_iter().for_each(|part| out.extend_from_slice(part));
}

impl<T: Display> Display for Text<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        write!(Escape(f), "{}", self.0)?;
        f.write_char('"')
    }
}

impl Write for Escape<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|char| match char {
            '"' | '\\' => write!(self.0, "\\{char}"),
            '\0'..' ' => write!(self.0, "\\u{:04x}", u32::from(char)),
            _ => self.0.write_char(char),
        })
    }
}

#[cfg(test)]
mod tests {
    use pacegate::{Limiter, ManualClock, PolicySet, Request};

    use super::*;

    #[test]
    fn decisions_tell_everything_to_the_microsecond() {
        let clock = ManualClock::default();
        let limiter =
            Limiter::builder().limit("1/minute sliding-log").clock(clock.clone()).build().unwrap();
        let middle =
            r#""policy":"default","limit":"1/minute sliding-log","remaining":0,"retry_after""#;
        let end = r#""source":"store","shadow_denied":false,"degraded":false"#;
        assert_eq!(
            JsonDecision(limiter.check("k")).to_string(),
            format!(r#"{{"allowed":true,{middle}:null,"reset_after":60.000000,{end}}}"#)
        );
        clock.advance(Duration::from_micros(1));
        let times = r#"59.999999,"reset_after":59.999999"#;
        assert_eq!(
            JsonDecision(limiter.check("k")).to_string(),
            format!(r#"{{"allowed":false,{middle}:{times},{end}}}"#)
        );
    }

    #[test]
    fn what_is_denied_for_good_has_no_time_to_retry() {
        let never = Limiter::memory(Limit::per_second(0)).check("k");
        assert!(JsonDecision(never).to_string().contains(r#""retry_after":null"#));
    }

    #[test]
    fn without_a_limit_nothing_is_counted_down() {
        let limiter = Limiter::builder().policies(PolicySet::new([]).unwrap()).build().unwrap();
        let decision = limiter.check_request(&Request::new()).unwrap();
        let expected =
            r#"{"allowed":true,"policy":null,"limit":null,"remaining":null,"retry_after":null,"#;
        let rest = r#""reset_after":0.000000,"source":"unlimited","shadow_denied":false,"degraded":false}"#;
        assert_eq!(JsonDecision(decision).to_string(), format!("{expected}{rest}"));
    }

    #[test]
    fn numbers_are_written_in_full() {
        for number in [0, 9, 10, 1_000_000_007, u64::MAX] {
            let mut out = Vec::new();
            write_number(&mut out, number);
            assert_eq!(out, number.to_string().into_bytes());
        }
    }

    #[test]
    fn somebody_elses_text_cannot_end_the_string() {
        let text = Text("a\"b\\c\nd\u{1}ä").to_string();
        assert_eq!(text, r#""a\"b\\c\u000ad\u0001ä""#);
    }
}
