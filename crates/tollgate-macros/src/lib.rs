#![doc = include_str!("../README.md")]

mod args;
mod expand;

use proc_macro::TokenStream;
use syn::parse_macro_input;

use crate::{args::Args, expand::Function};

/// Runs the function only if its budget has room.
#[proc_macro_attribute]
pub fn rate_limit(args: TokenStream, function: TokenStream) -> TokenStream {
    let untouched = proc_macro2::TokenStream::from(function.clone());
    let function = parse_macro_input!(function as Function);
    let expanded = syn::parse::<Args>(args).and_then(|args| expand::expand(&args, &function));
    expanded
        .unwrap_or_else(|error| {
            // Whoever calls the function should not be told that it is missing.
            let error = error.into_compile_error();
            quote::quote! { #untouched #error }
        })
        .into()
}
