//! Structs that may grow: they begin with their size, so that a program and a library of different
//! ages understand each other.

use crate::border::null;
use latent::Error;

/// A struct of C that begins with `size: usize`, whose fields may hold any bytes, zeros among them,
/// and whose later versions are longer.
///
/// # Safety
/// That is so.
pub(crate) unsafe trait SizedStruct: Copy {
    /// Its name in C.
    const NAME: &str;
}

/// Reads a struct of a caller that may be older or newer; none for NULL. What an older one lacks is
/// as in `default`.
///
/// # Errors
/// A size that is none; a newer one with fields set that this library does not know.
///
/// # Safety
/// `given` is NULL, or points to a size and as many bytes as it says.
pub(crate) unsafe fn read<T: SizedStruct>(given: *const T, default: T) -> Result<Option<T>, Error> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: it begins with its size
    // Only the size is read before it is checked: the rest may be shorter than T.
    let size = unsafe { given.cast::<usize>().read_unaligned() };
    check_size::<T>(size)?;
    let known = size_of::<T>();
    // SAFETY: as many bytes as the caller says
    let bytes = unsafe { std::slice::from_raw_parts(given.cast::<u8>(), size) };
    if bytes.iter().skip(known).any(|byte| *byte != 0) {
        return Err(Error::argument(format!(
            "{} of {size} bytes sets fields that this library does not know: it knows {known} bytes; use a newer liblatent",
            T::NAME
        )));
    }
    let mut value = default;
    // SAFETY: any bytes are a value of T; no more of them than either has
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut value).cast::<u8>(), size.min(known)) };
    Ok(Some(value))
}

/// Writes a struct to a caller that may be older or newer: as much of it as there is room for.
/// `given` says in its size how much that is.
///
/// # Safety
/// As for [`read`], and the bytes can be written to.
pub(crate) unsafe fn write<T: SizedStruct>(given: *mut T, size: usize, value: &T) -> Result<(), Error> {
    if given.is_null() {
        return Err(null(T::NAME));
    }
    check_size::<T>(size)?;
    let bytes = given.cast::<u8>();
    let known = size_of::<T>();
    // SAFETY: there are `size` bytes, and no more than `known` are read
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), bytes, size.min(known));
        // Fields that this library does not know become 0, and the size stays the caller's.
        bytes.add(size.min(known)).write_bytes(0, size.saturating_sub(known));
        given.cast::<usize>().write_unaligned(size);
    }
    Ok(())
}

/// Maximum size of a struct.
const MAX_STRUCT_BYTES: usize = 4096;

fn check_size<T: SizedStruct>(size: usize) -> Result<(), Error> {
    if (size_of::<usize>()..=MAX_STRUCT_BYTES).contains(&size) {
        return Ok(());
    }
    Err(Error::argument(format!("{}: size is {size}: set it to sizeof({})", T::NAME, T::NAME)))
}
