#![doc = include_str!("../README.md")]

mod args;
mod block;
mod boxed;
mod expand;

use proc_macro::TokenStream;

use crate::{args::Args, block::Item};

/// Runs the function only if its budget has room; otherwise it returns an error at once.
///
/// ```
/// use pacegate::{Denied, Limiter, SharedLimiter};
/// use pacegate_macros::rate_limit;
///
/// struct Mailer {
///     limiter: SharedLimiter,
/// }
///
/// #[derive(Debug)]
/// enum MailError {
///     TooMany(Denied),
/// }
///
/// impl From<Denied> for MailError {
///     fn from(denied: Denied) -> Self {
///         Self::TooMany(denied)
///     }
/// }
///
/// impl Mailer {
///     #[rate_limit("10/minute", "100/day", key = from, cost = to.len(), limiter = self.limiter, name = "mail")]
///     async fn send(&self, from: &str, to: &[&str]) -> Result<(), MailError> {
///         Ok(())
///     }
/// }
///
/// # pollster::block_on(async {
/// let limiter = Limiter::memory("1/second".parse()?).into();
/// let mailer = Mailer { limiter };
/// assert!(mailer.send("alice", &["bob", "carol"]).await.is_ok());
/// # Ok::<(), pacegate::ParseLimitError>(())
/// # }).unwrap();
/// ```
///
/// What it takes:
///
/// - `"10/minute"`, first, one or more: the limits. The compiler checks them. They are charged together or not at all.
/// - `limit = EXPR`: in their place a [`pacegate::Limit`] that is found for each call.
/// - `key = EXPR`: whose budget, any [`pacegate::Key`], by reference; of a tuple, each part by reference. Without it,
///   all calls share one.
/// - `scope = "global"` or `scope = "key"`: says which of the two it is, so that no key is forgotten.
/// - `cost = EXPR`: units, an unsigned integer; 0 asks without charging. Without it, 1.
/// - `name = "mail"`: the policy. Functions of one name share their budgets. Without it, the path of the function.
/// - `limiter = EXPR`: a [`pacegate::Limiter`] or, for async functions, a [`pacegate::SharedLimiter`]. Without it, an
///   async function takes the one that was [installed](pacegate::registry), and all others count in memory.
/// - `limiter = "bulk"`: for async functions, the one [installed](pacegate::registry::install_named) under this name.
/// - `failure = "open"`, `"closed"` or `"local"`, or a constant [`FailureMode`](pacegate::policy::FailureMode): what
///   happens when the store is away. Without it, what the limiter says.
/// - `enabled = EXPR`: a switch, looked at for each call. While it is off, nothing else is.
/// - `on_denied = |denied| ..`: what a denied call returns. Without it, `Err(denied.into())`.
/// - `crate = PATH`: where `pacegate` is found, if not as `::pacegate`: renamed, or reexported by another crate.
///
/// The expressions see the arguments of the function, and are evaluated in this order: `enabled`, `limit`, `key`,
/// `cost`, `limiter`. A limit of concurrency holds its place until the call has returned, or its future is dropped.
///
/// On an `impl` block, the attribute limits every method in it: each has its own budget, unless there is a `name`. The
/// attribute of a method replaces that of the block. The expressions have to compile in every method that uses them.
///
/// ```
/// use pacegate::Denied;
/// use pacegate_macros::rate_limit;
///
/// struct Reports {
///     tenant: String,
/// }
///
/// #[rate_limit("2/day", key = self.tenant)]
/// impl Reports {
///     fn list(&self) -> Result<u32, Denied> {
///         Ok(7)
///     }
///
///     #[rate_limit("1/day", key = self.tenant)]
///     fn export(&self) -> Result<u32, Denied> {
///         Ok(1)
///     }
/// }
///
/// let reports = Reports { tenant: "acme".to_owned() };
/// assert!(reports.list().is_ok() && reports.list().is_ok() && reports.list().is_err());
/// assert!(reports.export().is_ok() && reports.export().is_err());
/// ```
///
/// The path of a function is how this compiler spells it. Where budgets outlive the process, give them a `name`.
///
/// A cost that could never be admitted, and a limit that the store cannot count, are denied for good:
/// [`retry_after`](pacegate::Decision::retry_after) is `None`.
#[proc_macro_attribute]
pub fn rate_limit(args: TokenStream, item: TokenStream) -> TokenStream {
    let untouched = proc_macro2::TokenStream::from(item.clone());
    let expanded = syn::parse::<Item>(item).and_then(|item| {
        let args = syn::parse::<Args>(args)?;
        match item {
            Item::Function(function) => expand::expand(args, &function),
            Item::Block(block) => block::expand(&args, *block),
        }
    });
    expanded
        .unwrap_or_else(|error| {
            // Whoever uses the item should not be told that it is missing.
            let error = error.into_compile_error();
            quote::quote! { #untouched #error }
        })
        .into()
}
