use std::{
    fmt::{self, Display},
    io::{self, Write},
};

use anstyle::{AnsiColor, Style};

/// The error of a failed command, with a hint for the user.
#[derive(Debug)]
pub(super) struct CommandError {
    error: anyhow::Error,
    hint: &'static str,
    /// True if the reader of standard output closed it, as `head` does. Then no message is printed.
    output_closed: bool,
}

/// The same styles as in clap's messages.
const ERROR: Style = AnsiColor::Red.on_default().bold();
const HINT: Style = AnsiColor::Green.on_default();

impl CommandError {
    pub(super) fn new(
        error: impl Into<anyhow::Error>,
        context: &'static str,
        hint: &'static str,
    ) -> Self {
        Self { error: error.into().context(context), hint, output_closed: false }
    }

    /// Creates the error of a failed write to standard output.
    pub(super) fn output(error: io::Error, context: &'static str) -> Self {
        let output_closed = error.kind() == io::ErrorKind::BrokenPipe;
        Self { output_closed, ..Self::new(error, context, "check where standard output goes") }
    }

    pub(super) fn is_output_closed(&self) -> bool {
        self.output_closed
    }
}

/// Writes colour codes; `anstream` removes them where the output is not a terminal.
impl Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { error, hint, .. } = self;
        write!(f, "{ERROR}error:{ERROR:#} {error:#}\n{HINT}hint:{HINT:#} {hint}")
    }
}

/// Prints a text on standard output. `context` describes a failure, such as "cannot print the page".
pub(super) fn print(text: impl Display, context: &'static str) -> Result<(), CommandError> {
    let mut output = io::BufWriter::new(anstream::stdout().lock());
    let written = write!(output, "{text}").and_then(|()| output.flush());
    written.map_err(|error| CommandError::output(error, context))
}
