//! The class `Tensor`.

use crate::arrays::shaped;
use crate::errors::argument;
use crate::gguf::decode::values;
use latent_formats::{Checkpoint, TensorInfo};
use latent_types::TensorType;
use numpy::{PyArray1, PyArrayMethods, ndarray::ArrayView1};
use pyo3::prelude::*;
use std::sync::Arc;

/// A tensor of a GGUF file. It keeps the file mapped. The file must not be truncated meanwhile.
///
/// `numpy.asarray(tensor)` decodes it to float32.
#[pyclass(frozen, module = "latent.gguf")]
pub(crate) struct Tensor {
    checkpoint: Arc<Checkpoint>,
    info: TensorInfo,
}

impl Tensor {
    pub(crate) fn new(checkpoint: Arc<Checkpoint>, info: TensorInfo) -> Tensor {
        Tensor { checkpoint, info }
    }

    fn bytes(&self) -> &[u8] {
        self.checkpoint.tensor(&self.info.name).map_or(&[], |tensor| tensor.data)
    }

    /// NumPy's name of the element type, or `None` for block types and bfloat16.
    fn dtype(&self) -> Option<&'static str> {
        // Files of the other byte order are refused when they are opened. NumPy has no bfloat16.
        Some(match self.info.ty {
            TensorType::F32 => "<f4",
            TensorType::F16 => "<f2",
            TensorType::F64 => "<f8",
            TensorType::I8 => "<i1",
            TensorType::I16 => "<i2",
            TensorType::I32 => "<i4",
            TensorType::I64 => "<i8",
            _ => return None,
        })
    }
}

#[pymethods]
impl Tensor {
    /// Name of the tensor.
    #[getter]
    fn name(&self) -> &str {
        &self.info.name
    }

    /// Name of the element or block type, such as "F32" or "Q4_K".
    #[getter]
    fn r#type(&self) -> &'static str {
        self.info.ty.name()
    }

    /// Shape, outermost dimension first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
        pyo3::types::PyTuple::new(py, &self.info.shape)
    }

    /// Size in the file, in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.info.bytes
    }

    /// Bytes of the tensor: a read-only uint8 array over the mapped file, without a copy.
    #[getter]
    #[allow(unsafe_code, reason = "an array over memory that is not Python's")]
    fn data<'py>(slf: Bound<'py, Self>) -> Bound<'py, PyArray1<u8>> {
        let view = ArrayView1::from(slf.get().bytes());
        // SAFETY: the bytes belong to the mapped file, which the checkpoint of this tensor keeps
        // alive, and the array keeps this tensor. This library does not write them, and the next
        // line makes the array read-only.
        let array = unsafe { PyArray1::borrow_from_array(&view, slf.clone().into_any()) };
        array.readwrite().make_nonwriteable();
        array
    }

    /// Return the elements as an array over the mapped file, without a copy, or None if NumPy lacks
    /// the element type.
    fn view<'py>(slf: Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let tensor = slf.get();
        let Some(dtype) = tensor.dtype() else { return Ok(None) };
        let shape = tensor.shape(slf.py())?;
        // NumPy's views of a read-only array are read-only too.
        Tensor::data(slf.clone()).call_method1("view", (dtype,))?.call_method1("reshape", (shape,)).map(Some)
    }

    /// Decode the tensor to a float32 array of its shape.
    pub(crate) fn decode<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        // A packed file has interleaved rows, which `decode` would return in the wrong order.
        if self.info.tile_rows.is_some() {
            let name = &self.info.name;
            return Err(argument(
                py,
                format!(
                    "{name} is stored in tiles, for Latent's kernels: read the file that it was packed from"
                ),
            ));
        }
        let values = py.detach(|| values(self.info.ty, self.bytes()));
        let values = values.map_err(|problem| argument(py, format!("{}: {problem}", self.info.name)))?;
        shaped(py, values, &self.info.shape)
    }

    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // NumPy 2 passes `copy=False` if the caller forbids a copy.
        if copy == Some(false) {
            return Err(pyo3::exceptions::PyValueError::new_err(
                "a tensor is decoded into a new array: view() has no copy",
            ));
        }
        let values = self.decode(py)?;
        match dtype {
            Some(dtype) => values.call_method1("astype", (dtype,)),
            None => Ok(values),
        }
    }

    fn __repr__(&self) -> String {
        format!("<Tensor {}: {} {:?}>", self.info.name, self.info.ty, self.info.shape)
    }
}
