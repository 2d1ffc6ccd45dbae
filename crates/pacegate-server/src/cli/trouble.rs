use std::fmt;

/// The error of a failed command, with a hint for the user.
#[derive(Debug)]
pub(super) struct Trouble {
    error: anyhow::Error,
    hint: &'static str,
}

impl Trouble {
    pub(super) fn new(
        error: impl Into<anyhow::Error>,
        context: &'static str,
        hint: &'static str,
    ) -> Self {
        Self { error: error.into().context(context), hint }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {:#}\nhint: {}", self.error, self.hint)
    }
}
