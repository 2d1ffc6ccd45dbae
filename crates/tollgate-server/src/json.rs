//! Answers as one line of JSON each.

use std::{
    fmt::{self, Display, Formatter, Write},
    time::Duration,
};

use tollgate::Decision;
use tollgate_redis::doctor::{Finding, Report, ServerReport};

/// A decision as an object: who decided, what remains, and when to come back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JsonDecision(pub(crate) Decision);

/// What could not be decided, as `{"error": "..."}`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JsonError<E>(pub(crate) E);

/// What the doctor found, as one object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JsonReport<'a> {
    /// Without user and password.
    pub(crate) url: &'a str,
    pub(crate) report: &'a Report,
}

/// A list of what `T` makes of each element.
struct List<'a, E, T>(&'a [E], fn(&'a E) -> T);

struct JsonServer<'a>(&'a ServerReport);

struct JsonFinding<'a>(&'a Finding);

/// A value, or `null`.
struct Maybe<T>(Option<T>);

struct Text<T>(T);

/// Seconds as a number with all six digits: through a float, long periods would lose some.
struct Seconds(Duration);

/// Passes text on with what JSON does not allow in a string escaped.
struct Escape<'a, 'f>(&'a mut Formatter<'f>);

impl Display for JsonDecision {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(decision) = self;
        write!(
            f,
            "{{\"allowed\":{},\"policy\":{},\"limit\":{},\"remaining\":{},\
             \"retry_after\":{},\"reset_after\":{},\"source\":\"{}\"}}",
            decision.is_allowed(),
            Maybe(decision.policy().map(Text)),
            Maybe(decision.limit().map(Text)),
            decision.remaining(),
            Maybe(decision.retry_after().map(Seconds)),
            Seconds(decision.reset_after()),
            decision.source().as_str(),
        )
    }
}

impl<E: Display> Display for JsonError<E> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{{\"error\":{}}}", Text(&self.0))
    }
}

impl Display for JsonReport<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { url, report } = self;
        write!(
            f,
            "{{\"url\":{},\"level\":\"{}\",\"reached\":{},\"setup\":{},\"servers\":{}}}",
            Text(url),
            report.worst(),
            report.is_reached(),
            List(&report.setup, JsonFinding),
            List(&report.servers, JsonServer),
        )
    }
}

impl Display for JsonServer<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(server) = self;
        write!(
            f,
            "{{\"address\":{},\"part\":\"{}\",\"name\":{},\"reached\":{},\"findings\":{}}}",
            Text(&server.address),
            server.part,
            Maybe(server.name.as_ref().map(Text)),
            server.is_reached,
            List(&server.findings, JsonFinding),
        )
    }
}

impl Display for JsonFinding<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(finding) = self;
        write!(
            f,
            "{{\"level\":\"{}\",\"subject\":\"{}\",\"text\":{},\"advice\":{}}}",
            finding.level,
            finding.subject,
            Text(&finding.text),
            Maybe(finding.advice.as_ref().map(Text)),
        )
    }
}

impl<'a, E, T: Display> Display for List<'a, E, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(elements, show) = self;
        f.write_char('[')?;
        for (place, element) in elements.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            write!(f, "{comma}{}", show(element))?;
        }
        f.write_char(']')
    }
}

impl<T: Display> Display for Maybe<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("null"),
        }
    }
}

impl<T: Display> Display for Text<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        write!(Escape(f), "{}", self.0)?;
        f.write_char('"')
    }
}

impl Display for Seconds {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0.as_secs(), self.0.subsec_micros())
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
    use tollgate::{Limit, Limiter, ManualClock};

    use super::*;

    #[test]
    fn decisions_tell_everything_to_the_microsecond() {
        let clock = ManualClock::default();
        let limiter =
            Limiter::builder().limit("1/minute sliding-log").clock(clock.clone()).build().unwrap();
        let middle =
            r#""policy":"default","limit":"1/minute sliding-log","remaining":0,"retry_after""#;
        assert_eq!(
            JsonDecision(limiter.check("k")).to_string(),
            format!(r#"{{"allowed":true,{middle}:null,"reset_after":60.000000,"source":"store"}}"#)
        );
        clock.advance(Duration::from_micros(1));
        let times = r#"59.999999,"reset_after":59.999999"#;
        assert_eq!(
            JsonDecision(limiter.check("k")).to_string(),
            format!(r#"{{"allowed":false,{middle}:{times},"source":"store"}}"#)
        );
    }

    #[test]
    fn what_is_denied_for_good_has_no_time_to_retry() {
        let never = Limiter::memory(Limit::per_second(0)).check("k");
        assert!(JsonDecision(never).to_string().contains(r#""retry_after":null"#));
    }

    #[test]
    fn somebody_elses_text_cannot_end_the_string() {
        let error = JsonError("a\"b\\c\nd\u{1}ä").to_string();
        assert_eq!(error, r#"{"error":"a\"b\\c\u000ad\u0001ä"}"#);
    }
}
