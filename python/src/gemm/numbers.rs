//! Checks of counts, and allocation of results.

use crate::errors::{argument, exception};
use latent::{Error, ErrorKind};
use latent_marlin::half::f16;
use latent_marlin::half::slice::HalfFloatSliceExt;
use numpy::{IntoPyArray, PyArrayMethods};
use pyo3::prelude::*;

pub(crate) fn count(py: Python<'_>, name: &str, value: isize) -> PyResult<usize> {
    usize::try_from(value).map_err(|_| argument(py, format!("{name} is {value}, expected at least 1")))
}

/// Allocates zeroed results; raises an exception if memory is insufficient.
pub(crate) fn zeros<T: Copy + Default>(py: Python<'_>, count: usize) -> PyResult<Vec<T>> {
    // `vec!` would abort the interpreter if the memory is insufficient.
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|_| {
        let bytes = count.saturating_mul(size_of::<T>());
        exception(py, &Error::new(ErrorKind::Memory, format!("the result needs {bytes} bytes of memory")))
    })?;
    values.resize(count, T::default());
    Ok(values)
}

/// Copies values to a NumPy array of float16.
pub(crate) fn halves<'py>(py: Python<'py>, values: &[f16], shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    // rust-numpy has no element type for `half`'s f16, so the bits are u16 until the view.
    let bits = values.reinterpret_cast().to_vec().into_pyarray(py);
    bits.reshape(shape)?.call_method1("view", ("float16",))
}
