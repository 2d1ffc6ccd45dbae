//! Expands a function to one that checks its limits first.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::{
    AttrStyle, Attribute, Error, Expr, ExprLit, Ident, Lit, LitStr, Result, ReturnType, Signature,
    Token, Type, Visibility,
    parse::{Parse, ParseStream},
    spanned::Spanned as _,
};

use crate::{
    args::{Args, Failure, Limits},
    boxed,
};

/// A free function or a method. The body is not inspected.
pub(crate) struct Function {
    attrs: Vec<Attribute>,
    vis: Visibility,
    sig: Signature,
    body: TokenStream,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut attrs = input.call(Attribute::parse_outer)?;
        let vis = input.parse()?;
        if !starts_function(input) {
            return Err(input.error("`rate_limit` is for functions, methods and `impl` blocks"));
        }
        let sig = input.parse()?;
        if input.peek(Token![;]) {
            let what = "`rate_limit` needs a function with a body: put it on the implementation";
            return Err(input.error(what));
        }
        let content;
        syn::braced!(content in input);
        attrs.extend(content.call(Attribute::parse_inner)?);
        Ok(Self { attrs, vis, sig, body: content.parse()? })
    }
}

fn starts_function(input: ParseStream<'_>) -> bool {
    let ahead = input.fork();
    // `const`, `async`, `unsafe`, `extern "C"` may stand before.
    while ahead.parse::<Token![const]>().is_ok()
        || ahead.parse::<Token![async]>().is_ok()
        || ahead.parse::<Token![unsafe]>().is_ok()
        || ahead.parse::<syn::Abi>().is_ok()
    {}
    ahead.peek(Token![fn])
}

pub(crate) fn expand(args: Args, function: &Function) -> Result<TokenStream> {
    function.check(&args)?;
    let is_boxed = boxed::was_async(&function.sig);
    let args = if is_boxed { args.renamed()? } else { args };
    let Function { attrs, vis, sig, body } = function;
    let (inner, outer): (Vec<_>, Vec<_>) =
        attrs.iter().partition(|attr| matches!(attr.style, AttrStyle::Inner(_)));
    // Spelt so that the body can neither see nor shadow it.
    let pass = Ident::new("_pass", Span::mixed_site());
    let admission = admission(&args, sig);
    let first = quote! { let #pass = #admission; };
    let body = match is_boxed {
        true => boxed::insert(body.clone(), &first).ok_or_else(|| {
            let what = "unsupported expansion of `#[async_trait]`: limit a function that this \
                        method calls";
            Error::new(sig.ident.span(), what)
        })?,
        false => quote! { #first #body },
    };
    Ok(quote! {
        #(#outer)*
        #vis #sig {
            #(#inner)*
            #body
        }
    })
}

impl Function {
    fn check(&self, args: &Args) -> Result<()> {
        if let Some(constness) = &self.sig.constness {
            let what = "a `const` function cannot be limited, because it may run at compile time";
            return Err(Error::new(constness.span(), what));
        }
        let other = self.attrs.iter().find(|attr| {
            attr.path().segments.last().is_some_and(|segment| segment.ident == "rate_limit")
        });
        if let Some(other) = other
            && args.name.is_none()
        {
            let what = "two `rate_limit` on one function would share a counter: give each a `name`, or \
                        put both limits into one attribute, which charges them together";
            return Err(Error::new(other.span(), what));
        }
        if args.on_denied.is_none() && returns_nothing(&self.sig.output) {
            let what = "the return type cannot represent a denial: return a `Result<_, E>` with \
                        `E: From<pacegate::Denied>`, or add `on_denied = |denied| ..`";
            return Err(Error::new(self.sig.ident.span(), what));
        }
        let named = args.limiter.as_ref().and_then(name_of);
        if let Some(name) = named
            && !waits(&self.sig)
        {
            let what = "a limiter that is named may have to wait for its store: make the function \
                        async, or pass a `pacegate::Limiter`";
            return Err(Error::new(name.span(), what));
        }
        Ok(())
    }
}

fn waits(sig: &Signature) -> bool {
    sig.asyncness.is_some() || boxed::was_async(sig)
}

fn returns_nothing(output: &ReturnType) -> bool {
    match output {
        ReturnType::Default => true,
        ReturnType::Type(_, of) => matches!(&**of, Type::Tuple(tuple) if tuple.elems.is_empty()),
    }
}

/// Returns the expression that checks the limit before the body runs.
fn admission(args: &Args, sig: &Signature) -> TokenStream {
    let (site, ask) = (site(args), ask(args));
    let [charges, pass, refusal, enabled] =
        ["charges", "pass", "denied", "enabled"].map(|name| Ident::new(name, Span::mixed_site()));
    let decided = decided(args, sig, &charges);
    let denied = denied(args, sig, &refusal);
    // What the expressions leave behind is gone before anything waits.
    let admitted = quote! {
        let #charges = #ask;
        match #decided {
            ::core::result::Result::Ok(#pass) => #pass,
            ::core::result::Result::Err(#refusal) => return #denied,
        }
    };
    match &args.enabled {
        Some(switch) => quote! {{
            #site
            let #enabled: ::core::primitive::bool = #switch;
            if #enabled { #admitted } else { ::core::default::Default::default() }
        }},
        None => quote! {{ #site #admitted }},
    }
}

fn site(args: &Args) -> TokenStream {
    let limits = match &args.limits {
        Limits::Fixed(texts) => texts.as_slice(),
        Limits::Expression(_) => &[],
    };
    let name = match &args.name {
        Some(name) => quote! { ::core::option::Option::Some(#name) },
        None => quote! { ::core::option::Option::None },
    };
    let root = args.root();
    let mode = quote! { #root::policy::FailureMode };
    let failure = args.failure.as_ref().map(|failure| match failure {
        Failure::Open => quote! { #mode::Open },
        Failure::Closed => quote! { #mode::Closed },
        Failure::Local => quote! { #root::attribute::LOCAL },
        Failure::Expression(given) => given.to_token_stream(),
    });
    let failure = match failure {
        Some(failure) => quote! { ::core::option::Option::Some(#failure) },
        None => quote! { ::core::option::Option::None },
    };
    quote! {
        static __PACEGATE_SITE: #root::attribute::Site =
            #root::attribute::Site::new(&[#(#limits),*], #name, #failure);
        fn __pacegate_here() {}
    }
}

fn ask(args: &Args) -> TokenStream {
    let key = match &args.key {
        Some(key) => by_reference(key),
        None => quote! { &() },
    };
    let cost = match &args.cost {
        Some(cost) => {
            let cost = with_suffix(cost);
            let root = args.root_at(cost.span());
            quote_spanned! {cost.span()=> #root::attribute::units(#cost) }
        }
        None => quote! { 1 },
    };
    match &args.limits {
        Limits::Fixed(_) => quote! { __PACEGATE_SITE.ask(&__pacegate_here, #key, #cost) },
        Limits::Expression(limit) => {
            quote! { __PACEGATE_SITE.ask_limit(&__pacegate_here, #limit, #key, #cost) }
        }
    }
}

/// A tuple would move its parts, which the function still needs.
fn by_reference(key: &Expr) -> TokenStream {
    match key {
        Expr::Paren(inner) => by_reference(&inner.expr),
        Expr::Group(inner) => by_reference(&inner.expr),
        Expr::Tuple(tuple) => {
            let parts = tuple.elems.iter().map(by_reference);
            quote_spanned! {key.span()=> &(#(#parts,)*) }
        }
        other => quote_spanned! {key.span()=> &(#other) },
    }
}

/// A plain number would be taken for an `i32`.
fn with_suffix(cost: &Expr) -> TokenStream {
    if let Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) = cost
        && number.suffix().is_empty()
    {
        let number = syn::LitInt::new(&format!("{number}u64"), number.span());
        return number.to_token_stream();
    }
    cost.to_token_stream()
}

fn decided(args: &Args, sig: &Signature, charges: &Ident) -> TokenStream {
    let waits = waits(sig);
    let root = args.root();
    let limiter = match (&args.limiter, waits) {
        (None, true) => quote! { &#root::attribute::Installed },
        (None, false) => quote! { #root::registry::memory() },
        (Some(limiter), _) => match name_of(limiter) {
            Some(name) => quote! { &#root::attribute::Named(#name) },
            None => quote_spanned! {limiter.span()=> &(#limiter) },
        },
    };
    if waits {
        quote! { #root::attribute::admit(#limiter, #charges).await }
    } else {
        quote! { #root::attribute::decide(#limiter, #charges) }
    }
}

fn name_of(limiter: &Expr) -> Option<&LitStr> {
    match limiter {
        Expr::Lit(ExprLit { lit: Lit::Str(name), .. }) => Some(name),
        _ => None,
    }
}

fn denied(args: &Args, sig: &Signature, denied: &Ident) -> TokenStream {
    match &args.on_denied {
        Some(answer) => {
            let root = args.root();
            quote! { #root::attribute::answer(#denied, #answer) }
        }
        None => {
            let at = match &sig.output {
                // The return type was generated by `async_trait`, so it has no useful span.
                _ if boxed::was_async(sig) => sig.ident.span(),
                ReturnType::Default => Span::call_site(),
                ReturnType::Type(_, of) => of.span(),
            };
            let root = args.root_at(at);
            quote_spanned! {at=> #root::attribute::deny(#denied) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(args: &str, function: &str) -> String {
        let args = syn::parse_str(args).unwrap();
        expand(args, &syn::parse_str(function).unwrap()).unwrap().to_string()
    }

    #[test]
    fn every_path_begins_where_the_library_is() {
        let of = |args: &str, root: &str| {
            let args = format!("{args}, crate = {root}");
            let sync = "fn send(to: &[u8]) -> Result<(), Denied> { Ok(()) }";
            [expanded(&args, sync), expanded(&args, &format!("async {sync}"))]
        };
        for args in [
            r#""1/minute", failure = "local""#,
            r#""1/minute", failure = "open", cost = to.len(), key = to"#,
            r#"limit = limit(), limiter = LIMITER, on_denied = |_| Ok(())"#,
        ] {
            for (own, renamed) in of(args, "::pacegate").into_iter().zip(of(args, "shop::limits")) {
                assert!(own.contains(":: pacegate :: attribute"), "{own}");
                assert!(!renamed.contains("pacegate ::"), "{renamed}");
                assert_eq!(renamed.replace("shop :: limits", ":: pacegate"), own);
            }
        }
        let plain = "async fn send() -> Result<(), Denied> { Ok(()) }";
        assert_eq!(
            expanded(r#""1/minute", limiter = "bulk""#, plain),
            expanded(r#""1/minute", limiter = "bulk", crate = ::pacegate"#, plain)
        );
    }
}
