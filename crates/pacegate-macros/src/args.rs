//! Parses the arguments of the attribute.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::{
    Error, Expr, ExprLit, ExprPath, Ident, Lit, LitStr, Path, Result, Token,
    ext::IdentExt as _,
    parse::{Parse, ParseStream},
    spanned::Spanned as _,
};

use crate::{
    boxed,
    limit::{INLINE_NAME, Limit, check_name},
};

/// The arguments of `#[rate_limit]`, after validation.
#[derive(Clone)]
pub(crate) struct Args {
    pub(crate) limits: Limits,
    pub(crate) key: Option<Expr>,
    pub(crate) cost: Option<Expr>,
    pub(crate) name: Option<LitStr>,
    pub(crate) limiter: Option<Expr>,
    pub(crate) failure: Option<Failure>,
    pub(crate) enabled: Option<Expr>,
    pub(crate) on_denied: Option<Expr>,
    root: Option<Path>,
}

#[derive(Clone)]
pub(crate) enum Limits {
    /// Valid limits as text.
    Fixed(Vec<LitStr>),
    /// The expression of `limit = ..`, evaluated for each call.
    Expression(Box<Expr>),
}

#[derive(Clone)]
pub(crate) enum Failure {
    Open,
    Closed,
    Local,
    /// A constant expression.
    Expression(Box<Expr>),
}

const NAMES: &str = "`limit`, `key`, `cost`, `scope`, `name`, `limiter`, `failure`, `enabled`, `on_denied`, `crate`";

/// The arguments as parsed, before validation.
#[derive(Default)]
struct Raw {
    texts: Vec<LitStr>,
    named: Vec<(Ident, Expr)>,
}

impl Parse for Args {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut raw = Raw::parse(input)?;
        let key = raw.take("key");
        raw.check_scope(key.as_ref())?;
        let args = Self {
            limits: raw.limits(input.span())?,
            key,
            cost: raw.take("cost"),
            name: raw.take("name").map(policy_name).transpose()?,
            limiter: raw.take("limiter"),
            failure: raw.take("failure").map(failure).transpose()?,
            enabled: raw.take("enabled"),
            on_denied: raw.take("on_denied"),
            root: raw.take("crate").map(path).transpose()?,
        };
        match raw.named.first() {
            Some((name, _)) => Err(Error::new(
                name.span(),
                format!("`{name}` is not an argument of `rate_limit`; there are {NAMES}"),
            )),
            None => Ok(args),
        }
    }
}

impl Args {
    /// Replaces `self` in all expressions by the name that it has inside of a boxed future.
    pub(crate) fn renamed(self) -> Result<Self> {
        let expr = |value: Expr| syn::parse2(boxed::rename_self(value.into_token_stream()));
        Ok(Self {
            limits: match self.limits {
                Limits::Expression(found) => Limits::Expression(Box::new(expr(*found)?)),
                fixed @ Limits::Fixed(_) => fixed,
            },
            key: self.key.map(expr).transpose()?,
            cost: self.cost.map(expr).transpose()?,
            limiter: self.limiter.map(expr).transpose()?,
            enabled: self.enabled.map(expr).transpose()?,
            on_denied: self.on_denied.map(expr).transpose()?,
            ..self
        })
    }

    /// Returns the path of the `pacegate` crate.
    pub(crate) fn root(&self) -> TokenStream {
        self.root.as_ref().map_or_else(|| quote! { ::pacegate }, Path::to_token_stream)
    }

    /// Returns [`Args::root`] with the span `at`, so that the compiler shows errors of calls through this path there.
    pub(crate) fn root_at(&self, at: Span) -> TokenStream {
        let Some(root) = &self.root else { return quote_spanned! {at=> ::pacegate } };
        let moved = root.to_token_stream().into_iter().map(|mut token| {
            token.set_span(at.resolved_at(token.span()));
            token
        });
        moved.collect()
    }
}

impl Raw {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut raw = Self::default();
        while !input.is_empty() {
            if input.peek(Ident::peek_any) && input.peek2(Token![=]) {
                let name = input.call(Ident::parse_any)?;
                input.parse::<Token![=]>()?;
                if raw.named.iter().any(|(other, _)| *other == name) {
                    return Err(Error::new(name.span(), format!("`{name}` is given twice")));
                }
                raw.named.push((name, bare(input.parse()?)));
            } else {
                raw.texts.push(text(&bare(input.parse()?), TEXT_OR_NAME)?);
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(raw)
    }

    fn take(&mut self, name: &str) -> Option<Expr> {
        let place = self.named.iter().position(|(other, _)| other == name)?;
        Some(self.named.remove(place).1)
    }

    fn limits(&mut self, end: Span) -> Result<Limits> {
        let texts = std::mem::take(&mut self.texts);
        match (self.take("limit"), texts.first()) {
            (Some(found), None) => Ok(Limits::Expression(Box::new(found))),
            (Some(found), Some(_)) => Err(Error::new(
                found.span(),
                "the limit is given twice: write it as text or as `limit = ..`, not both",
            )),
            (None, Some(_)) => {
                check_limits(&texts)?;
                Ok(Limits::Fixed(texts))
            }
            (None, None) => Err(Error::new(
                end,
                "missing limit: start with text such as `\"100/minute\"`, or write `limit = ..`",
            )),
        }
    }

    fn check_scope(&mut self, key: Option<&Expr>) -> Result<()> {
        let Some(scope) = self.take("scope") else { return Ok(()) };
        let scope = text(&scope, "`scope` must be `\"global\"` or `\"key\"`")?;
        match (scope.value().as_str(), key) {
            ("global", None) | ("key", Some(_)) => Ok(()),
            ("global", Some(key)) => {
                Err(Error::new(key.span(), "a global scope has no key: remove `key` or `scope`"))
            }
            ("key", None) => Err(Error::new(
                scope.span(),
                "missing key: add `key = ..`, an expression over the arguments of the function",
            )),
            _ => Err(Error::new(
                scope.span(),
                "a scope is `\"global\"`, one budget for all, or `\"key\"`, one for each `key`; \
                 for one budget per user write `key = user.id`",
            )),
        }
    }
}

const TEXT_OR_NAME: &str =
    "expected a limit such as `\"100/minute\"`, or a named argument such as `key = user`";

/// Unwraps the invisible group around a macro fragment such as `$limit:literal`.
fn bare(value: Expr) -> Expr {
    match value {
        Expr::Group(group) => bare(*group.expr),
        other => other,
    }
}

fn text(value: &Expr, otherwise: &str) -> Result<LitStr> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Ok(text.clone()),
        other => Err(Error::new(other.span(), otherwise)),
    }
}

fn path(value: Expr) -> Result<Path> {
    match value {
        Expr::Path(ExprPath { qself: None, path, .. }) => Ok(path),
        other => Err(Error::new(
            other.span(),
            "invalid `crate`: expected the path of the `pacegate` crate, such as `crate = shop::pacegate`",
        )),
    }
}

fn check_limits(texts: &[LitStr]) -> Result<()> {
    let mut known: Vec<Limit> = Vec::new();
    for text in texts {
        let limit: Limit = text.value().parse().map_err(|error| Error::new(text.span(), error))?;
        if let Some(other) = known.iter().find(|other| other.counts_like(&limit)) {
            return Err(Error::new(
                text.span(),
                format!("`{limit}` and `{other}` would share a counter: keep the tighter one"),
            ));
        }
        known.push(limit);
    }
    Ok(())
}

fn policy_name(value: Expr) -> Result<LitStr> {
    let name = text(&value, "`name` must be a string, such as `\"mail\"`")?;
    match check_name(&name.value()) {
        Ok(()) if name.value() == INLINE_NAME => Err(Error::new(
            name.span(),
            "the name `inline` is reserved for inline limits: choose another name",
        )),
        Ok(()) => Ok(name),
        Err(error) => Err(Error::new(name.span(), error)),
    }
}

fn failure(value: Expr) -> Result<Failure> {
    let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = &value else {
        return Ok(Failure::Expression(Box::new(value)));
    };
    match text.value().as_str() {
        "open" => Ok(Failure::Open),
        "closed" => Ok(Failure::Closed),
        "local" => Ok(Failure::Local),
        other => Err(Error::new(
            text.span(),
            format!(
                "`{}` is not a failure mode: write `open`, `closed` or `local`",
                other.escape_debug()
            ),
        )),
    }
}
