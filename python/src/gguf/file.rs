//! The class `File`.

use crate::errors::argument;
use crate::gguf::metadata;
use crate::gguf::tensor::Tensor;
use crate::waiting::waiting;
use latent_formats::{Checkpoint, CheckpointSource};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::Arc;

/// A memory-mapped GGUF file, or set of shards. `file[name]` is a tensor, and `len(file)` the
/// number of tensors.
#[pyclass(frozen, name = "File", module = "latent.gguf")]
pub(crate) struct GgufFile {
    checkpoint: Arc<Checkpoint>,
}

/// Open a GGUF file.
///
/// Parameters
/// ----------
/// path : str or os.PathLike, optional
///     The file, or any shard of a split file. If None, open the built-in demo model.
///
/// Returns
/// -------
/// File
///
/// Raises
/// ------
/// latent.errors.ModelNotFoundError
///     If `path` does not exist.
/// latent.errors.FileError
///     If the file cannot be read or is malformed.
#[pyfunction]
#[pyo3(signature = (path = None))]
pub(crate) fn read(py: Python<'_>, path: Option<PathBuf>) -> PyResult<GgufFile> {
    let checkpoint = waiting(py, |_| path.as_deref().map_or_else(latent::open_demo, latent::open))?;
    match checkpoint.source() {
        CheckpointSource::Gguf(_) => Ok(GgufFile { checkpoint }),
        CheckpointSource::HuggingFace(_) => {
            let name = checkpoint.display_name();
            Err(argument(
                py,
                format!(
                    "{name}: not a GGUF file but a folder of safetensors: the package safetensors reads those"
                ),
            ))
        }
    }
}

#[pymethods]
impl GgufFile {
    /// Metadata as a dict. Arrays of numbers are NumPy arrays, and arrays of strings are lists.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        match self.checkpoint.source() {
            CheckpointSource::Gguf(source) => metadata::dict(py, &source.metadata),
            // Not reached: `read` refuses folders.
            CheckpointSource::HuggingFace(_) => Ok(PyDict::new(py)),
        }
    }

    /// Tensors by name, in the order of the file.
    #[getter]
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for info in self.checkpoint.tensors() {
            all.set_item(&info.name, Tensor::new(Arc::clone(&self.checkpoint), info.clone()))?;
        }
        Ok(all)
    }

    /// Return the tensor with this name. Raises KeyError if the file has none.
    fn __getitem__(&self, name: &str) -> PyResult<Tensor> {
        let tensor = self.checkpoint.tensor(name);
        let info = tensor.ok_or_else(|| pyo3::exceptions::PyKeyError::new_err(name.to_owned()))?.info;
        Ok(Tensor::new(Arc::clone(&self.checkpoint), info.clone()))
    }

    fn __len__(&self) -> usize {
        self.checkpoint.tensors().len()
    }

    fn __repr__(&self) -> String {
        format!("<File {}: {} tensors>", self.checkpoint.display_name(), self.checkpoint.tensors().len())
    }
}
