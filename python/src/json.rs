//! Conversion of Python objects to and from JSON, by Python's module `json`.

use crate::errors::argument;
use pyo3::prelude::*;
use serde_json::Value;

/// Converts an object to JSON.
pub(crate) fn from_python(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Value> {
    let py = object.py();
    // Python's own module handles all JSON types, and its errors are those that users know.
    let text: String =
        py.import("json")?.call_method1("dumps", (object,)).and_then(|text| text.extract()).map_err(
            |error| argument(py, format!("{name} cannot be written as JSON: {}", error.value(py))),
        )?;
    latent_formats::json::parse(&text).map_err(|problem| argument(py, format!("{name}: {problem}")))
}

/// Converts JSON to Python objects.
pub(crate) fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (value.to_string(),))
}
