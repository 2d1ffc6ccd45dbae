//! Stands in for the module `algorithm` of the library, of which the files in `limit` need this type.

/// A custom algorithm. The text of a limit cannot name one, so there is none here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Custom {}

impl Custom {
    pub(crate) fn name(self) -> &'static str {
        match self {}
    }
}
