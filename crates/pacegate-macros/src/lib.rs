#![doc = include_str!("../README.md")]

mod algorithm;
mod args;
mod block;
mod boxed;
mod expand;
// A symbolic link to the files of the library, so that limits have one grammar and one set of messages.
#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    private_interfaces,
    reason = "the macro needs only the parser of these files"
)]
mod limit;

use proc_macro::TokenStream;

use crate::{args::Args, block::Item};

/// Limits how often a function runs. A call above the limit returns an error at once and does not run the function.
///
/// ```
/// use pacegate::{Denied, Limiter, SharedLimiter, rate_limit};
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
/// Arguments:
///
/// - `"10/minute"`: one or more limits, before the other arguments. Invalid limits are compile errors. All limits are
///   charged, or none.
/// - `limit = EXPR`: a `pacegate::Limit` instead of text, evaluated for each call.
/// - `key = EXPR`: the key to count by, any `pacegate::Key`. It is borrowed, and so is each part of a tuple. Default:
///   all calls share one counter.
/// - `scope = "global"` or `scope = "key"`: declares that there is no key, or that there is one. The compiler reports
///   an error if `key` contradicts it.
/// - `cost = EXPR`: the units to charge, an unsigned integer. 0 checks without charging. Default: 1.
/// - `name = "mail"`: the name of the policy. Functions with the same name share counters. Default: the path of the
///   function.
/// - `limiter = EXPR`: a `pacegate::Limiter` or, for async functions, a `pacegate::SharedLimiter`. Default: async
///   functions use the installed limiter, others count in memory.
/// - `limiter = "bulk"`: for async functions, the limiter installed under this
///   name.
/// - `failure = "open"`, `"closed"` or `"local"`, or a constant `FailureMode`: the
///   decision if the store is unavailable. Default: the failure mode of the limiter.
/// - `enabled = EXPR`: a switch, evaluated for each call. If it is `false`, the call is not limited.
/// - `on_denied = |denied| ..`: the return value of a denied call. Default: `Err(denied.into())`.
/// - `crate = PATH`: the path of the crate `pacegate`, if it is renamed or reexported. Default: `::pacegate`.
///
/// The expressions can use the arguments of the function. They are evaluated in this order: `enabled`, `limit`, `key`,
/// `cost`, `limiter`. A concurrency limit holds its permit until the call returns or its future is dropped.
///
/// On an `impl` block, the attribute limits every method in it. The methods have separate counters, unless there is a
/// `name`. An attribute on a method replaces that of the block. The expressions must compile in every method.
///
/// ```
/// use pacegate::{Denied, rate_limit};
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
/// # Denials and failures
///
/// A denied call evaluates no statement of the function and charges nothing. The return type must be a `Result` whose
/// error implements `From<Denied>`, unless there is an `on_denied`:
///
/// ```
/// use pacegate_macros::rate_limit;
///
/// #[rate_limit("1/hour", on_denied = |_| "busy")]
/// fn status() -> &'static str {
///     "ready"
/// }
///
/// assert_eq!((status(), status()), ("ready", "busy"));
/// ```
///
/// If the store of an async function fails, the failure mode decides, and the call is not an error for that reason. If
/// the future of a call is dropped while it waits for the store, the units may have been charged.
///
/// To start each test with unused limits, call `pacegate::registry::reset`. To switch limits off in tests, use
/// `enabled`.
///
/// The path of a function may change with the compiler version. Set a `name` if the counters are in a shared store.
///
/// If the cost is above the limit, or if the store cannot count the limit, no retry can succeed:
/// `retry_after` of the denial is `None`.
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
            // Keep the item, so that the compiler reports no further errors where it is used.
            let error = error.into_compile_error();
            quote::quote! { #untouched #error }
        })
        .into()
}
