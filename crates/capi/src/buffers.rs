//! Strings and token arrays that the library allocates for the caller.

use std::ffi::c_char;

/// UTF-8 text allocated by the library. The caller must release it with latent_string_free.
#[repr(C)]
pub struct latent_string {
    /// The text, followed by a terminating NUL. The text may itself contain NUL bytes.
    pub data: *mut c_char,
    /// Length of the text in bytes, without the terminating NUL.
    pub length: usize,
}

/// Token ids allocated by the library. The caller must release them with latent_tokens_free.
#[repr(C)]
pub struct latent_tokens {
    /// The token ids.
    pub data: *mut u32,
    /// Number of elements in `data`.
    pub length: usize,
}

impl latent_string {
    pub(crate) fn new(text: String) -> latent_string {
        let length = text.len();
        let mut bytes = text.into_bytes();
        bytes.push(0);
        // A boxed slice has no spare capacity, so that `length` alone suffices to free it.
        latent_string { data: Box::into_raw(bytes.into_boxed_slice()).cast(), length }
    }
}

impl latent_tokens {
    pub(crate) fn new(tokens: Vec<u32>) -> latent_tokens {
        let length = tokens.len();
        latent_tokens { data: Box::into_raw(tokens.into_boxed_slice()).cast(), length }
    }
}

/// Writes the result of `value` to `place`. Does nothing, and does not call `value`, if `place` is
/// NULL.
///
/// # Safety
/// `place` is NULL or can be written to.
pub(crate) unsafe fn give<T>(place: *mut T, value: impl FnOnce() -> T) {
    if !place.is_null() {
        // SAFETY: as the caller promises
        unsafe { place.write(value()) };
    }
}

/// Releases the data of `string`, then sets `data` to NULL and `length` to 0. The struct itself
/// belongs to the caller. Does nothing if `string` or its `data` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_string_free(string: *mut latent_string) {
    // SAFETY: the caller gives NULL or a string of its own
    let Some(string) = (unsafe { string.as_mut() }) else { return };
    if !string.data.is_null() {
        let bytes = std::ptr::slice_from_raw_parts_mut(string.data.cast::<u8>(), string.length + 1);
        // SAFETY: data and length are those of latent_string::new, and data is NULL from now on
        drop(unsafe { Box::from_raw(bytes) });
    }
    // A second free of the same struct does nothing.
    *string = latent_string { data: std::ptr::null_mut(), length: 0 };
}

/// Releases the data of `tokens`, then sets `data` to NULL and `length` to 0. The struct itself
/// belongs to the caller. Does nothing if `tokens` or its `data` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn latent_tokens_free(tokens: *mut latent_tokens) {
    // SAFETY: the caller gives NULL or tokens of its own
    let Some(tokens) = (unsafe { tokens.as_mut() }) else { return };
    if !tokens.data.is_null() {
        let ids = std::ptr::slice_from_raw_parts_mut(tokens.data, tokens.length);
        // SAFETY: data and length are those of latent_tokens::new, and data is NULL from now on
        drop(unsafe { Box::from_raw(ids) });
    }
    *tokens = latent_tokens { data: std::ptr::null_mut(), length: 0 };
}
