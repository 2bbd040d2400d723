//! Structs that begin with their size, so that later versions can append fields. A program and a
//! library of different versions then agree on the fields that both know.

use crate::border::null;
use latent::Error;

/// A C struct whose first field is `size: usize`. Later versions append fields.
///
/// # Safety
/// The struct is `#[repr(C)]`, begins with `size`, and is valid for any bytes, including zeros.
pub(crate) unsafe trait SizedStruct: Copy {
    /// Name of the struct in C, for error messages.
    const NAME: &str;
}

/// Reads a struct of a caller that was built with an older or newer header. Returns `None` for
/// NULL. Fields that an older struct lacks have the values of `default`.
///
/// # Errors
/// If the size is invalid, or a newer struct sets fields that this library does not know.
///
/// # Safety
/// `given` is NULL, or points to a struct whose first field is its size in bytes.
pub(crate) unsafe fn read<T: SizedStruct>(given: *const T, default: T) -> Result<Option<T>, Error> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: the struct begins with its size
    // Only the size is read before it is checked: the struct may be shorter than T.
    let size = unsafe { given.cast::<usize>().read_unaligned() };
    check_size::<T>(size)?;
    let known = size_of::<T>();
    // SAFETY: as many bytes as the caller says
    let bytes = unsafe { std::slice::from_raw_parts(given.cast::<u8>(), size) };
    if bytes.iter().skip(known).any(|byte| *byte != 0) {
        return Err(Error::argument(format!(
            "{} of {size} bytes sets fields that this library does not support: expected at most {known} \
             bytes; use a newer liblatent",
            T::NAME
        )));
    }
    let mut value = default;
    // SAFETY: any bytes are a valid T, and the count exceeds neither struct
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut value).cast::<u8>(), size.min(known)) };
    Ok(Some(value))
}

/// Writes the first `size` bytes of a struct to a caller that was built with an older or newer
/// header.
///
/// # Safety
/// `given` is NULL, or `size` bytes can be written to it.
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

/// Maximum size of a struct, in bytes.
const MAX_STRUCT_BYTES: usize = 4096;

fn check_size<T: SizedStruct>(size: usize) -> Result<(), Error> {
    if (size_of::<usize>()..=MAX_STRUCT_BYTES).contains(&size) {
        return Ok(());
    }
    Err(Error::argument(format!("{}: size is {size}: set it to sizeof({})", T::NAME, T::NAME)))
}
