//! NumPy arrays, and conversion of objects to token ids and strings.

use crate::errors::argument;
use numpy::{IntoPyArray, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString};

/// Converts values to a NumPy array of the given shape, without a copy.
pub(crate) fn shaped<'py>(py: Python<'py>, values: Vec<f32>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    Ok(values.into_pyarray(py).reshape(shape)?.into_any())
}

/// Converts a tensor of another library to a NumPy array over the same memory, by DLPack. Returns
/// other objects unchanged.
pub(crate) fn through_dlpack<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let numpy = object.py().import("numpy")?;
    // NumPy's own arrays also have `__dlpack__` but need no conversion.
    if object.is_instance(&numpy.getattr("ndarray")?)? || !object.hasattr("__dlpack__")? {
        return Ok(object.clone());
    }
    numpy.call_method1("from_dlpack", (object,))
}

/// Maximum number of token ids in one call. No model has a longer context, and an iterator may be
/// infinite.
const MAX_TOKENS: usize = 1 << 24;

/// Maximum number of texts in one call.
const MAX_TEXTS: usize = 1 << 20;

/// Converts a sequence of integers, a NumPy array of integers, or a tensor of another library to
/// token ids.
pub(crate) fn tokens(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<u32>> {
    let py = object.py();
    let expected = || {
        argument(py, format!("{name}: expected token ids: a sequence or a one-dimensional array of integers"))
    };
    // Both are iterable, but over characters and keys.
    if object.is_instance_of::<PyString>() || object.is_instance_of::<PyDict>() {
        return Err(expected());
    }
    let object = through_dlpack(object)?;
    // One call for the whole array. Iterating it would create a NumPy scalar per element.
    let object = match object.getattr_opt("tolist")? {
        Some(to_list) => to_list.call0()?,
        None => object,
    };
    let mut tokens = Vec::new();
    for (at, item) in object.try_iter().map_err(|_| expected())?.enumerate() {
        let item = item?;
        // `bool` is a subclass of `int`. True is hardly meant as token 1.
        if item.is_instance_of::<PyBool>() {
            return Err(expected());
        }
        // i128, so that negative and large integers get an error with their value.
        let id: i128 = item.extract().map_err(|_| expected())?;
        let id = u32::try_from(id)
            .map_err(|_| argument(py, format!("{name}: invalid token ID {id} at index {at}")))?;
        if at == MAX_TOKENS {
            return Err(argument(py, format!("{name}: more than {MAX_TOKENS} token ids")));
        }
        // An iterator of the caller may run for long, and Ctrl-C must stop it.
        if at % 65_536 == 65_535 {
            py.check_signals()?;
        }
        tokens.push(id);
    }
    Ok(tokens)
}

/// Converts an iterable to at most [`MAX_TEXTS`] strings. Allocates nothing in advance, since
/// `__len__` of the object may be wrong.
pub(crate) fn strings(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<String>> {
    let expected = || argument(object.py(), format!("{name}: expected a text or a list of texts"));
    if object.is_instance_of::<PyDict>() {
        return Err(expected());
    }
    let mut texts = Vec::new();
    for (at, item) in object.try_iter().map_err(|_| expected())?.enumerate() {
        if at == MAX_TEXTS {
            return Err(argument(object.py(), format!("{name}: more than {MAX_TEXTS} texts")));
        }
        texts.push(item?.extract().map_err(|_| expected())?);
    }
    Ok(texts)
}
