//! The functions that JavaScript calls. Text passes through one buffer: JavaScript writes the input into it, and reads
//! the output from it.
//!
//! A name that other code can link to counts as unsafe code, because two functions could have the same name. There is
//! no unsafe block here: JavaScript accesses the memory of the module, Rust only returns addresses.
#![expect(
    unsafe_code,
    reason = "exports need `no_mangle`; wasm-bindgen would need a second program to build"
)]

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The input, then the output. One byte in front of the output says whether it is an error.
static BUFFER: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Makes room for an input of this many bytes, and returns its address.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn reserve(bytes: usize) -> *mut u8 {
    let mut buffer = buffer();
    *buffer = vec![0; bytes];
    buffer.as_mut_ptr()
}

/// Replaces the input by the output, and returns its address: `+` and the decisions, or `-` and an error.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn decide() -> *const u8 {
    let mut buffer = buffer();
    let output = match super::decide(&String::from_utf8_lossy(&buffer)) {
        Ok(decisions) => format!("+{decisions}"),
        Err(error) => format!("-{error}"),
    };
    *buffer = output.into_bytes();
    buffer.as_ptr()
}

/// Returns the number of bytes of the output.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn output_bytes() -> usize {
    buffer().len()
}

fn buffer() -> MutexGuard<'static, Vec<u8>> {
    BUFFER.lock().unwrap_or_else(PoisonError::into_inner)
}
