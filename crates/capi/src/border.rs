//! Checks at the C boundary: catches panics and validates pointers.

use crate::error::{latent_error, latent_status};
use latent::Error;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of an exported function, and converts its error or panic to a status. Stores the
/// error object in `*error` unless `error` is NULL.
///
/// # Safety
/// `error` is NULL or can be written to.
pub(crate) unsafe fn guarded(
    error: *mut *mut latent_error,
    body: impl FnOnce() -> Result<(), Error>,
) -> latent_status {
    let done = caught(body);
    let failed = done.as_ref().err().map(latent_error::new);
    let status = failed.as_ref().map_or(latent_status::LATENT_OK, latent_error::status);
    if !error.is_null() {
        // NULL after a success, so that a caller can test `*error` without initializing it.
        let failed = failed.map_or(std::ptr::null_mut(), |failed| Box::into_raw(Box::new(failed)));
        // SAFETY: the caller of the function gave a place for the error
        unsafe { error.write(failed) };
    }
    status
}

/// Runs `body`, and converts a panic to an error.
pub(crate) fn caught<T>(body: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(Error::panicked(&*panic)))
}

/// Moves the result of `make` to the heap and stores its pointer in `*place`. The caller releases
/// it with [`free`]. Sets `*place` to NULL if `make` fails.
///
/// # Safety
/// `place` is NULL or can be written to.
pub(crate) unsafe fn hand_out<T>(
    place: *mut *mut T,
    name: &str,
    make: impl FnOnce() -> Result<T, Error>,
) -> Result<(), Error> {
    if place.is_null() {
        return Err(null(name));
    }
    // SAFETY: as the caller promises
    unsafe { place.write(std::ptr::null_mut()) };
    // `make` comes after the write above: if it fails, the caller finds NULL and not garbage.
    let owned = Box::into_raw(Box::new(make()?));
    // SAFETY: as above
    unsafe { place.write(owned) };
    Ok(())
}

/// Drops an object that [`hand_out`] created. Does nothing if `owned` is NULL.
///
/// # Safety
/// `owned` is NULL, or was created by `hand_out` and has not been freed.
pub(crate) unsafe fn free<T>(owned: *mut T) {
    if owned.is_null() {
        return;
    }
    // SAFETY: as the caller promises
    let owned = unsafe { Box::from_raw(owned) };
    // A free function has no way to report a panic, which must not unwind into C.
    let _ = caught(|| {
        drop(owned);
        Ok(())
    });
}

/// Borrows the object that an argument points to. Fails if the pointer is NULL.
///
/// # Safety
/// `pointer` is NULL, or points to a `T` that no thread changes during the call.
pub(crate) unsafe fn given<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Error> {
    // SAFETY: as the caller promises
    unsafe { pointer.as_ref() }.ok_or_else(|| null(name))
}

/// Borrows an input array. `data` may be NULL if `count` is 0.
///
/// # Safety
/// `data` points to `count` elements that no thread changes during the call, or `count` is 0.
pub(crate) unsafe fn elements<'a, T>(data: *const T, count: usize, name: &str) -> Result<&'a [T], Error> {
    // C's empty arrays may be NULL or dangling, which a Rust slice must not be.
    if count == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(null(name));
    }
    check_count::<T>(count, name)?;
    if !data.is_aligned() {
        return Err(Error::argument(format!("{name} is not aligned to {} bytes", align_of::<T>())));
    }
    // SAFETY: as the caller promises; not NULL, aligned, and not longer than memory can be
    Ok(unsafe { std::slice::from_raw_parts(data, count) })
}

/// Borrows an output array. `data` may be NULL if `count` is 0.
///
/// # Safety
/// `data` points to `count` elements that no other thread reads or writes during the call, or
/// `count` is 0.
pub(crate) unsafe fn elements_mut<'a, T>(
    data: *mut T,
    count: usize,
    name: &str,
) -> Result<&'a mut [T], Error> {
    // SAFETY: as the caller promises, which includes reading
    unsafe { elements(data.cast_const(), count, name) }?;
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: checked as above; the caller has exclusive access to them
    Ok(unsafe { std::slice::from_raw_parts_mut(data, count) })
}

/// Borrows a UTF-8 text of `length` bytes.
///
/// # Safety
/// As for [`elements`].
pub(crate) unsafe fn text<'a>(data: *const c_char, length: usize, name: &str) -> Result<&'a str, Error> {
    // SAFETY: as the caller promises
    let bytes = unsafe { elements(data.cast::<u8>(), length, name) }?;
    utf8(bytes, name)
}

/// Borrows a NUL-terminated UTF-8 string. Returns `None` for NULL.
///
/// # Safety
/// `data` is NULL, or points to NUL-terminated bytes that no thread changes during the call.
pub(crate) unsafe fn word<'a>(data: *const c_char, name: &str) -> Result<Option<&'a str>, Error> {
    if data.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises
    utf8(unsafe { CStr::from_ptr(data) }.to_bytes(), name).map(Some)
}

fn utf8<'a>(bytes: &'a [u8], name: &str) -> Result<&'a str, Error> {
    std::str::from_utf8(bytes).map_err(|error| {
        Error::argument(format!("{name} is not UTF-8: byte {} of {}", error.valid_up_to(), bytes.len()))
    })
}

pub(crate) fn null(name: &str) -> Error {
    Error::argument(format!("{name} is NULL"))
}

fn check_count<T>(count: usize, name: &str) -> Result<(), Error> {
    // A slice of more than isize::MAX bytes is undefined behavior. It is usually a negative length
    // in C.
    let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
    bytes
        .map(|_| ())
        .ok_or_else(|| Error::argument(format!("{name}: {count} elements exceed the address space")))
}
