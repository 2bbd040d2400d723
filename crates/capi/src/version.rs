//! Versions of the interface and of the library.

use std::ffi::{CStr, c_char};

/// The interface that this header describes. Functions, fields at the end of structs that begin
/// with `size`, and codes are added without a new number; what changes or goes away brings one.
pub const LATENT_ABI_VERSION: u32 = 1;

/// The interface that the library has: compare it with LATENT_ABI_VERSION.
#[unsafe(no_mangle)]
pub extern "C" fn latent_abi_version() -> u32 {
    LATENT_ABI_VERSION
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// The version of Latent, such as "0.1.0". It is the library's: do not free it.
#[unsafe(no_mangle)]
pub extern "C" fn latent_version() -> *const c_char {
    VERSION.as_ptr()
}
