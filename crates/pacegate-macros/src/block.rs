//! An attribute on an `impl` block: the attribute of each method that has none itself.

use proc_macro2::{Span, TokenStream};
use quote::ToTokens as _;
use syn::{
    Attribute, Error, ImplItem, ImplItemFn, ItemImpl, Result, Token,
    parse::{Parse, ParseStream},
    spanned::Spanned as _,
};

use crate::{
    args::Args,
    expand::{self, Function},
};

/// An item that the attribute can be on.
pub(crate) enum Item {
    Function(Box<Function>),
    Block(Box<ItemImpl>),
}

impl Parse for Item {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let ahead = input.fork();
        ahead.call(Attribute::parse_outer)?;
        // `unsafe` may stand before.
        let _ = ahead.parse::<Token![unsafe]>();
        if ahead.peek(Token![impl]) {
            return Ok(Self::Block(input.parse()?));
        }
        Ok(Self::Function(input.parse()?))
    }
}

pub(crate) fn expand(args: &Args, mut block: ItemImpl) -> Result<TokenStream> {
    if let Some(other) = block.attrs.iter().find(|attr| is_ours(attr)) {
        let what = "an `impl` block has one `rate_limit`: give it all limits, which are then charged together";
        return Err(Error::new(other.span(), what));
    }
    let mut errors: Option<Error> = None;
    let mut methods = 0;
    for item in &mut block.items {
        let ImplItem::Fn(method) = item else { continue };
        methods += 1;
        if method.attrs.iter().any(is_ours) {
            continue;
        }
        match limited(args, method) {
            Ok(tokens) => *item = ImplItem::Verbatim(tokens),
            Err(error) => match &mut errors {
                Some(errors) => errors.combine(error),
                None => errors = Some(error),
            },
        }
    }
    if methods == 0 {
        let what = "this `impl` block has no method to limit";
        return Err(Error::new(Span::call_site(), what));
    }
    match errors {
        Some(errors) => Err(errors),
        None => Ok(block.into_token_stream()),
    }
}

fn limited(args: &Args, method: &ImplItemFn) -> Result<TokenStream> {
    let function: Function = syn::parse2(method.to_token_stream())?;
    expand::expand(args.clone(), &function).map_err(|error| {
        let what = format!("{error}; a method without a limit belongs in another `impl` block");
        Error::new(error.span(), what)
    })
}

fn is_ours(attr: &Attribute) -> bool {
    attr.path().segments.last().is_some_and(|segment| segment.ident == "rate_limit")
}
