//! The engine of the playground: decides a list of requests under one limit, with the library that servers use.
//!
//! `cargo xtask site` compiles it to WebAssembly and embeds it in `playground.html`.

#[cfg(target_arch = "wasm32")]
mod abi;

use std::{fmt::Write, num::ParseIntError};

use pacegate::{
    Algorithm, BuildError, Clock, CostError, Limit, Limiter, ManualClock, ParseLimitError,
    Timestamp,
};

/// Maximum number of requests in one call.
pub const MAX_REQUESTS: usize = 100_000;

/// The reason why no request was decided.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaygroundError {
    /// The first line is not a limit.
    #[error(transparent)]
    Limit(#[from] ParseLimitError),
    /// The limit counts permits, and requests in the playground have no duration.
    #[error("the playground does not support concurrency limits: its requests have no duration")]
    Concurrency,
    /// A request is not a time and a cost.
    #[error("invalid request `{line}`: expected MICROSECONDS COST")]
    Request {
        /// The invalid line.
        line: String,
        /// The number that cannot be parsed; `None` if it is missing.
        source: Option<ParseIntError>,
    },
    /// The cost exceeds the capacity of the limit.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// There are more than [`MAX_REQUESTS`].
    #[error("too many requests: the playground decides at most {MAX_REQUESTS}")]
    TooMany,
    /// The engine does not accept the limit.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// Decides requests of one key in the order of the lines.
///
/// The first line of the input is a limit. Each other line is a request: microseconds since the start of a window, and
/// a cost. The first line of the output has the period in microseconds and the capacity of the limit. Each other line
/// is a decision: `1` or `0` for allowed, the remaining units, and the microseconds until a retry succeeds, or `-`.
///
/// # Errors
///
/// If the limit or a request is invalid.
pub fn decide(input: &str) -> Result<String, PlaygroundError> {
    let mut lines = input.lines();
    let limit: Limit = lines.next().unwrap_or_default().parse()?;
    if limit.algorithm() == Algorithm::Concurrency {
        return Err(PlaygroundError::Concurrency);
    }
    let clock = ManualClock::new();
    let start = clock.now().as_micros();
    let limiter = Limiter::builder().limit(limit).max_keys(16).clock(clock.clone()).build()?;
    let mut output = format!("{} {}\n", limit.period().as_micros(), limit.capacity());
    for (count, line) in lines.enumerate() {
        if count == MAX_REQUESTS {
            return Err(PlaygroundError::TooMany);
        }
        let (at, cost) = parse_request(line)?;
        clock.set(Timestamp::from_micros(start.saturating_add(at)));
        let decision = limiter.check_cost("key", cost)?;
        let allowed = u8::from(decision.is_allowed());
        let retry = decision.retry_after().map(|retry| retry.as_micros().to_string());
        let (remaining, retry) = (decision.remaining(), retry.as_deref().unwrap_or("-"));
        // Writing to a string cannot fail.
        let _ = writeln!(output, "{allowed} {remaining} {retry}");
    }
    Ok(output)
}

fn parse_request(line: &str) -> Result<(u64, u64), PlaygroundError> {
    let invalid = |source| PlaygroundError::Request { line: line.to_owned(), source };
    let (at, cost) = line.split_once(' ').ok_or_else(|| invalid(None))?;
    let number = |text: &str| text.parse().map_err(|error| invalid(Some(error)));
    Ok((number(at)?, number(cost)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_those_of_the_library() {
        let output = decide("2/10s\n0 1\n1000000 1\n4000000 1\n10000000 2\n10000001 1").unwrap();
        let decisions = ["10000000 2", "1 1 -", "1 0 -", "0 0 6000000", "1 0 -", "0 0 9999999"];
        assert_eq!(output.lines().collect::<Vec<_>>(), decisions);
    }

    #[test]
    fn invalid_input_is_reported() {
        for (input, error) in [
            ("", "write an amount and a period"),
            ("5/minute concurrency\n0 1", "concurrency limits"),
            ("5/minute\n0", "invalid request `0`: expected MICROSECONDS COST"),
            ("5/minute\n0 -1", "invalid request `0 -1`"),
            ("5/minute\n0 6", "6"),
        ] {
            let found = decide(input).unwrap_err().to_string();
            assert!(found.contains(error), "{input}: {found}");
        }
        let many = "\n0 1".repeat(MAX_REQUESTS + 1);
        let found = decide(&format!("5/minute{many}")).unwrap_err().to_string();
        assert!(found.contains("too many requests"), "{found}");
    }
}
