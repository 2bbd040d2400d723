//! Conversion of metadata to Python objects.

use latent_formats::FormatError;
use latent_formats::gguf::{Metadata, MetadataType, Value};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// Converts all keys and values. Arrays of numbers become NumPy arrays, and arrays of strings
/// become lists. Invalid UTF-8 is replaced by U+FFFD.
pub(crate) fn dict<'py>(py: Python<'py>, metadata: &Metadata) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    for (key, value) in metadata.entries() {
        let object = match value {
            Value::Unsigned(value) => value.into_pyobject(py)?.into_any(),
            Value::Signed(value) => value.into_pyobject(py)?.into_any(),
            Value::Float(value) => value.into_pyobject(py)?.into_any(),
            Value::Bool(value) => value.into_pyobject(py)?.to_owned().into_any(),
            Value::String(value) => value.into_pyobject(py)?.into_any(),
            Value::Array(array) => match array.ty {
                MetadataType::String => strings(py, metadata, key)?,
                ty => numbers(py, metadata, key, ty)?,
            },
        };
        all.set_item(key, object)?;
    }
    Ok(all)
}

fn strings<'py>(py: Python<'py>, metadata: &Metadata, key: &str) -> PyResult<Bound<'py, PyAny>> {
    let strings = metadata.strings(key).map_err(|error| raised(py, error))?.unwrap_or_default();
    // Vocabularies may contain tokens that are not valid UTF-8.
    Ok(PyList::new(py, strings.iter().map(|bytes| String::from_utf8_lossy(bytes)))?.into_any())
}

fn numbers<'py>(
    py: Python<'py>,
    metadata: &Metadata,
    key: &str,
    ty: MetadataType,
) -> PyResult<Bound<'py, PyAny>> {
    let dtype = match ty {
        MetadataType::U8 => "u1",
        MetadataType::I8 => "i1",
        MetadataType::U16 => "u2",
        MetadataType::I16 => "i2",
        MetadataType::U32 => "u4",
        MetadataType::I32 => "i4",
        MetadataType::F32 => "f4",
        MetadataType::Bool => "?",
        MetadataType::U64 => "u8",
        MetadataType::I64 => "i8",
        _ => "f8",
    };
    let numpy = py.import("numpy")?;
    // `numbers` are f64, which cannot represent all 64-bit integers.
    if ty == MetadataType::U64 {
        let words = metadata.words(key).map_err(|error| raised(py, error))?.unwrap_or_default();
        return numpy.call_method1("array", (words, dtype));
    }
    let numbers = metadata.numbers(key).map_err(|error| raised(py, error))?.unwrap_or_default();
    numpy.call_method1("array", (numbers,))?.call_method1("astype", (dtype,))
}

fn raised(py: Python<'_>, error: FormatError) -> PyErr {
    crate::errors::exception(py, &error.into())
}
