//! What `#[async_trait]` has made of an async function: one that returns a boxed future. It expands first, since it
//! stands at the impl.

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};
use syn::Signature;

/// Whether a function was async before `#[async_trait]` saw it.
pub(crate) fn was_async(sig: &Signature) -> bool {
    sig.generics.lifetimes().any(|parameter| parameter.lifetime.ident == "async_trait")
}

/// Puts `first` before what the function does by itself, where its arguments have their names again. The body is
/// `Box::pin(async move { .. let __ret: R = { OWN }; __ret })`.
pub(crate) fn insert(body: TokenStream, first: &TokenStream) -> TokenStream {
    in_last(body, Delimiter::Parenthesis, |call| {
        in_last(call, Delimiter::Brace, |future| {
            in_last(future, Delimiter::Brace, |own| first.clone().into_iter().chain(own).collect())
        })
    })
}

/// `self` by the name that it has inside of the future.
pub(crate) fn rename_self(tokens: TokenStream) -> TokenStream {
    let renamed = |token| match token {
        TokenTree::Ident(ident) if ident == "self" => Ident::new("__self", ident.span()).into(),
        TokenTree::Group(group) => {
            let inner = rename_self(group.stream());
            with_span_of(&group, inner)
        }
        other => other,
    };
    tokens.into_iter().map(renamed).collect()
}

/// Changes what is in the last group of a kind.
fn in_last(
    tokens: TokenStream,
    delimiter: Delimiter,
    change: impl FnOnce(TokenStream) -> TokenStream,
) -> TokenStream {
    let mut tokens: Vec<_> = tokens.into_iter().collect();
    let is_one = |token: &&mut TokenTree| matches!(token, TokenTree::Group(group) if group.delimiter() == delimiter);
    if let Some(token) = tokens.iter_mut().rev().find(is_one)
        && let TokenTree::Group(group) = token
    {
        *token = with_span_of(group, change(group.stream()));
    }
    tokens.into_iter().collect()
}

fn with_span_of(group: &Group, inner: TokenStream) -> TokenTree {
    let mut changed = Group::new(group.delimiter(), inner);
    changed.set_span(group.span());
    changed.into()
}
