use std::fmt;

/// Why a command could not do its work, in one sentence, and what to do about it.
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
