//! Versions of the C interface and of the library.

use std::ffi::{CStr, c_char};

/// Version of the binary interface that this header describes.
///
/// New functions, new codes, and new fields at the end of structs that begin with `size` do not
/// change it. It is incremented for every incompatible change. Compare it with
/// latent_abi_version().
pub const LATENT_ABI_VERSION: u32 = 1;

/// Returns the version of the binary interface of the loaded library. A program must not call any
/// other function if it differs from LATENT_ABI_VERSION.
#[unsafe(no_mangle)]
pub extern "C" fn latent_abi_version() -> u32 {
    LATENT_ABI_VERSION
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// Returns the version of the library, such as "0.1.0".
///
/// The string is NUL-terminated and statically allocated. Do not free it.
#[unsafe(no_mangle)]
pub extern "C" fn latent_version() -> *const c_char {
    VERSION.as_ptr()
}
