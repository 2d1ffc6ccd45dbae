//! Writes synthetic traffic as a log.

use std::{
    io::{self, Write},
    str::FromStr,
};

use clap::ValueEnum;

use super::{CountError, Crowd, Pattern, Visit, spec};
use crate::simulate::traffic::{
    Format,
    instant::{common_text, timestamp},
};

/// Format and number of lines of a generated log.
#[derive(Clone, Copy, Debug)]
pub struct Generate {
    format: Format,
    /// Number of lines.
    pub lines: u64,
}

/// Maximum number of lines.
const MAX_LINES: u64 = 1_000_000_000_000;

/// A text that is not a format and a number of lines.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant documents it")]
pub enum GenerateError {
    #[error("expected FORMAT:LINES, such as combined:10M")]
    NoLines,
    #[error("unknown log format `{0}`: expected common, combined, json or csv")]
    Format(String),
    #[error("invalid number of lines: {0}")]
    Lines(#[from] CountError),
}

impl FromStr for Generate {
    type Err = GenerateError;

    fn from_str(text: &str) -> Result<Self, GenerateError> {
        let (name, lines) = text.split_once(':').ok_or(GenerateError::NoLines)?;
        let format = <Format as ValueEnum>::from_str(name, false).ok();
        let format = format.filter(|format| *format != Format::Auto);
        let format = format.ok_or_else(|| GenerateError::Format(name.to_owned()))?;
        Ok(Self { format, lines: spec::count(lines, MAX_LINES)? })
    }
}

impl Generate {
    /// Writes the requests of these patterns, up to the number of lines.
    pub fn write(
        &self,
        patterns: &[Pattern],
        start: u64,
        seed: u64,
        mut output: impl Write,
    ) -> io::Result<()> {
        let mut crowd = Crowd::new(patterns, start, seed);
        if self.format == Format::Csv {
            writeln!(output, "time,ip,user,method,path,status,user_agent")?;
        }
        for _ in 0..self.lines {
            let Some(visit) = crowd.visit() else { break };
            self.write_line(&visit, &mut output)?;
            crowd.answer(&visit, None);
        }
        output.flush()
    }

    fn write_line(&self, visit: &Visit, output: &mut impl Write) -> io::Result<()> {
        let Visit { at, ip, user, method, path, user_agent, .. } = visit;
        let time = match self.format {
            Format::Json | Format::Csv => format!("{:.6}", timestamp(*at)),
            _ => common_text(*at),
        };
        let bytes = 200 + path.len() * 37;
        match self.format {
            Format::Json => writeln!(
                output,
                "{{\"time\":\"{time}\",\"ip\":\"{ip}\",\"user\":\"{user}\",\"method\":\"{method}\",\
                 \"path\":\"{path}\",\"status\":200,\"user_agent\":\"{user_agent}\"}}"
            ),
            Format::Csv => {
                writeln!(output, "{time},{ip},{user},{method},{path},200,\"{user_agent}\"")
            }
            Format::Common => {
                writeln!(output, "{ip} - - [{time}] \"{method} {path} HTTP/1.1\" 200 {bytes}")
            }
            Format::Auto | Format::Combined => writeln!(
                output,
                "{ip} - - [{time}] \"{method} {path} HTTP/1.1\" 200 {bytes} \"-\" \"{user_agent}\""
            ),
        }
    }
}
