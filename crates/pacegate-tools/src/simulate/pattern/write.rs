//! Writes synthetic traffic as a log.

use std::{
    io::{self, Write},
    str::FromStr,
};

use super::{Crowd, Pattern, Visit, spec};
use crate::simulate::traffic::{
    Format,
    instant::{common_text, rfc3339_text},
};

/// Format and number of lines of a generated log.
#[derive(Clone, Copy, Debug)]
pub struct Generate {
    format: Format,
    /// Number of lines.
    pub lines: u64,
}

/// Writes requests as log lines.
#[derive(Debug)]
pub(crate) struct Writer<W> {
    format: Format,
    output: W,
    /// The last second that was formatted, and its text.
    second: u64,
    text: String,
}

impl FromStr for Generate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (format, lines) = text.split_once(':').ok_or_else(|| {
            format!("invalid value `{text}`: expected FORMAT:LINES, such as combined:10M")
        })?;
        let format = match format {
            "common" => Format::Common,
            "combined" => Format::Combined,
            "json" => Format::Json,
            "csv" => Format::Csv,
            _ => {
                return Err(format!(
                    "unknown log format `{format}`: expected common, combined, json or csv"
                ));
            }
        };
        Ok(Self { format, lines: spec::count(lines)? })
    }
}

impl Generate {
    /// Writes the requests of these patterns, up to the number of lines.
    pub fn write(
        &self,
        patterns: &[Pattern],
        start: u64,
        seed: u64,
        output: impl Write,
    ) -> io::Result<u64> {
        let mut crowd = Crowd::new(patterns, start, seed);
        let mut writer =
            Writer { format: self.format, output, second: u64::MAX, text: String::new() };
        writer.heading()?;
        let mut lines = 0;
        while lines < self.lines {
            let Some(visit) = crowd.visit() else { break };
            writer.write(&visit)?;
            crowd.answer(&visit, None);
            lines += 1;
        }
        writer.output.flush()?;
        Ok(lines)
    }
}

impl<W: Write> Writer<W> {
    fn heading(&mut self) -> io::Result<()> {
        match self.format {
            Format::Csv => writeln!(self.output, "time,ip,user,method,path,status,user_agent"),
            _ => Ok(()),
        }
    }

    fn write(&mut self, visit: &Visit) -> io::Result<()> {
        let Visit { at, ip, user, method, path, user_agent, .. } = visit;
        if self.second != at / 1_000_000 {
            self.second = at / 1_000_000;
            self.text = match self.format {
                Format::Json | Format::Csv => rfc3339_text(*at).replace('Z', ""),
                _ => common_text(*at),
            };
        }
        let Self { output, text, .. } = self;
        let (micros, bytes) = (at % 1_000_000, 200 + path.len() * 37);
        match self.format {
            Format::Json => writeln!(
                output,
                "{{\"time\":\"{text}.{micros:06}Z\",\"ip\":\"{ip}\",\"user\":\"{user}\",\"method\":\"{method}\",\
                 \"path\":\"{path}\",\"status\":200,\"user_agent\":\"{user_agent}\"}}"
            ),
            Format::Csv => writeln!(
                output,
                "{text}.{micros:06}Z,{ip},{user},{method},{path},200,\"{user_agent}\""
            ),
            Format::Common => {
                writeln!(output, "{ip} - - [{text}] \"{method} {path} HTTP/1.1\" 200 {bytes}")
            }
            Format::Auto | Format::Combined => writeln!(
                output,
                "{ip} - - [{text}] \"{method} {path} HTTP/1.1\" 200 {bytes} \"-\" \"{user_agent}\""
            ),
        }
    }
}
