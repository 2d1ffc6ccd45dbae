//! Dates of HTTP headers.

use std::time::UNIX_EPOCH;

use pacegate::Timestamp;

/// Parses a date in one of the three formats of RFC 9110. Dates before 1970 are invalid.
pub(super) fn parse(text: &str) -> Option<Timestamp> {
    let date = httpdate::parse_http_date(text).ok()?;
    Some(Timestamp::from_secs(date.duration_since(UNIX_EPOCH).ok()?.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_all_three_formats() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse(text), Some(Timestamp::from_secs(784_111_777)), "{text}");
        }
    }

    #[test]
    fn rejects_other_text() {
        for text in
            ["", "tomorrow", "Sun, 06 Foo 1994 08:49:37 GMT", "Sun, 06 Nov 1969 08:49:37 GMT"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
