//! Methods that `#[async_trait]` has expanded to functions that return a boxed future. It expands before us, because
//! it is on the impl block.

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};
use syn::Signature;

/// Returns whether a function was async before `#[async_trait]` expanded it.
pub(crate) fn was_async(sig: &Signature) -> bool {
    sig.generics.lifetimes().any(|parameter| parameter.lifetime.ident == "async_trait")
}

/// Inserts `first` before the original body, where the arguments have their original names. The expanded body is
/// `Box::pin(async move { .. let __ret: R = { ORIGINAL }; __ret })`. Returns `None` for any other form, because a call
/// without a limit must not compile.
pub(crate) fn insert(body: TokenStream, first: &TokenStream) -> Option<TokenStream> {
    in_last_after("pin", body, |call| {
        in_last_after("move", call, |future| {
            in_last_after("=", future, |own| Some(first.clone().into_iter().chain(own).collect()))
        })
    })
}

/// Replaces `self` by its name inside of the future.
pub(crate) fn rename_self(tokens: TokenStream) -> TokenStream {
    let renamed = |token| match token {
        TokenTree::Ident(ident) if ident == "self" => Ident::new("__self", ident.span()).into(),
        TokenTree::Group(group) => {
            let inner = rename_self(group.stream());
            with_span_of(&group, inner).into()
        }
        other => other,
    };
    tokens.into_iter().map(renamed).collect()
}

/// Changes the content of the last group in parentheses or braces. Returns `None` if it does not follow `word`.
fn in_last_after(
    word: &str,
    tokens: TokenStream,
    change: impl FnOnce(TokenStream) -> Option<TokenStream>,
) -> Option<TokenStream> {
    let mut tokens: Vec<_> = tokens.into_iter().collect();
    let is_bracket = |group: &Group| group.delimiter() == Delimiter::Bracket;
    let is_one = |token: &TokenTree| matches!(token, TokenTree::Group(group) if !is_bracket(group));
    let place = tokens.iter().rposition(is_one)?;
    let (before, rest) = tokens.split_at_mut(place);
    let TokenTree::Group(group) = &mut rest[0] else { return None };
    if before.last()?.to_string() != word {
        return None;
    }
    *group = with_span_of(group, change(group.stream())?);
    Some(tokens.into_iter().collect())
}

fn with_span_of(group: &Group, inner: TokenStream) -> Group {
    let mut changed = Group::new(group.delimiter(), inner);
    changed.set_span(group.span());
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inserted(body: &str) -> Option<String> {
        let body = body.parse().unwrap();
        insert(body, &"first();".parse().unwrap()).map(|body| body.to_string())
    }

    #[test]
    fn only_what_async_trait_makes_is_taken_for_it() {
        let made = "Box::pin(async move { if let Some(r) = None { return r; } let __self = self; \
                    let __ret: R = { OWN }; #[allow(unreachable_code)] __ret })";
        let found = made.replace("OWN", "first(); OWN");
        let parsed: TokenStream = found.parse().unwrap();
        assert_eq!(inserted(made), Some(parsed.to_string()));
        for other in [
            "",
            "self.inner.call(request)",
            "Box::pin(self.inner.call(request))",
            "Box::pin(async move { self.0.call().await })",
            "Box::pin(async move { if self.0 { a() } else { b() } })",
        ] {
            assert_eq!(inserted(other), None, "{other}");
        }
    }
}
