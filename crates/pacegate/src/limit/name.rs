use std::convert::Infallible;

/// Error of parsing a [`PolicyName`](crate::PolicyName). Its message quotes at most 80 characters of the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a policy name: write 1 to 64 of A-Z a-z 0-9 _ . -", .0.escape_debug())]
pub struct PolicyNameError(String);

/// The name under which inline limits are counted, which no policy can have.
pub(crate) const INLINE_NAME: &str = "inline";

/// Returns an error unless the name has 1 to 64 of the allowed characters.
pub(crate) fn check_name(name: &str) -> Result<(), PolicyNameError> {
    let fits = (1..=64).contains(&name.len());
    if !fits || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte)) {
        return Err(PolicyNameError(name.chars().take(80).collect()));
    }
    Ok(())
}

/// Lets a function that accepts text also accept a policy name, whose conversion cannot fail.
impl From<Infallible> for PolicyNameError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
