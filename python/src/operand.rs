//! Arrays that are read without a copy: those of NumPy, and tensors of other libraries.

use crate::arrays::through_dlpack;
use crate::errors::argument;
use numpy::{Element, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn};
use pyo3::prelude::*;

/// A C-contiguous array.
pub(crate) struct Operand<'py> {
    name: &'static str,
    array: Bound<'py, PyAny>,
    /// NumPy's name of the element type, or that of ml_dtypes for types that NumPy lacks.
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
}

impl<'py> Operand<'py> {
    /// Converts an argument. Raises `ArgumentError` if it is not an array, not contiguous, or not
    /// aligned.
    pub(crate) fn new(object: &Bound<'py, PyAny>, name: &'static str) -> PyResult<Operand<'py>> {
        let py = object.py();
        let wrong = |problem: String| argument(py, format!("{name} {problem}"));
        // First, since NumPy's `from_dlpack` refuses bfloat16 and float8.
        let (object, foreign) = known_to_numpy(object)?;
        let array =
            through_dlpack(&object).map_err(|error| wrong(format!("cannot be read: {}", error.value(py))))?;
        if !array.is_instance(&py.import("numpy")?.getattr("ndarray")?)? {
            let found = object.get_type().qualname()?;
            return Err(wrong(format!(
                "is a {found}, expected an array of NumPy or a tensor of another library"
            )));
        }
        let stored = array.getattr("dtype")?;
        let dtype = match foreign {
            Some(dtype) => dtype.to_owned(),
            None => stored.getattr("name")?.extract()?,
        };
        if !stored.getattr("isnative")?.extract::<bool>()? {
            return Err(wrong(format!("is an array of {dtype} in the byte order of other machines")));
        }
        let shape: Vec<usize> = array.getattr("shape")?.extract()?;
        let flags = array.getattr("flags")?;
        // Copies are not made silently: weights may have gigabytes.
        if !flags.getattr("c_contiguous")?.extract::<bool>()? {
            let strides = array.getattr("strides")?;
            return Err(wrong(format!(
                "of shape {} is not contiguous, with strides of {strides} bytes: numpy.ascontiguousarray copies it so",
                tuple(&shape)
            )));
        }
        if !flags.getattr("aligned")?.extract::<bool>()? {
            return Err(wrong(format!("is not aligned for elements of {dtype}: a copy would be")));
        }
        Ok(Operand { name, array, dtype, shape })
    }

    /// Borrows the elements as NumPy's type `stored`, which has the same size as the element type.
    pub(crate) fn read<T: Element>(&self, stored: &str) -> PyResult<PyReadonlyArrayDyn<'py, T>> {
        let py = self.array.py();
        let wrong = |problem: String| argument(py, format!("{}: {problem}", self.name));
        // The view has NumPy's integer type of the same size, for element types that NumPy lacks.
        let array = self.array.call_method1("view", (stored,))?;
        let array = array.cast::<PyArrayDyn<T>>().map_err(|error| wrong(error.to_string()))?;
        array.try_readonly().map_err(|error| wrong(error.to_string()))
    }

    /// Makes the error for an unsupported element type.
    pub(crate) fn unexpected(&self, expected: &str) -> PyErr {
        let Operand { name, dtype, array, .. } = self;
        argument(array.py(), format!("{name} is an array of {dtype}, expected {expected}"))
    }

    /// Returns an error unless the array has the expected shape.
    pub(crate) fn check_shape(&self, expected: &[usize], why: &str) -> PyResult<()> {
        if self.shape == expected {
            return Ok(());
        }
        let (name, found) = (self.name, tuple(&self.shape));
        let message = format!("{name} has the shape {found}, expected {}: {why}", tuple(expected));
        Err(argument(self.array.py(), message))
    }
}

/// Formats a shape as Python does.
pub(crate) fn tuple(shape: &[usize]) -> String {
    let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
    format!("({}{})", sizes.join(", "), if shape.len() == 1 { "," } else { "" })
}

/// Converts a torch tensor with an element type that NumPy lacks to an integer tensor over the same
/// memory, and returns the name of its element type. Returns other objects unchanged.
fn known_to_numpy<'py>(object: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, Option<&'static str>)> {
    let Some(dtype) = object.getattr_opt("dtype")? else { return Ok((object.clone(), None)) };
    let (name, stored) = match dtype.to_string().as_str() {
        "torch.bfloat16" => ("bfloat16", "int16"),
        "torch.float8_e4m3fn" => ("float8_e4m3fn", "uint8"),
        "torch.float8_e8m0fnu" => ("float8_e8m0fnu", "uint8"),
        _ => return Ok((object.clone(), None)),
    };
    // torch was imported by the caller, who has created the tensor.
    let stored = object.py().import("torch")?.getattr(stored)?;
    Ok((object.call_method1("view", (stored,))?, Some(name)))
}
