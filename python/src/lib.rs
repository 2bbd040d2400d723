//! The Python package `latent`: thin classes over the crate `latent`. The public interface is
//! described in `latent/_latent.pyi` and docs/python.md.
//!
//! * `errors.rs`: exceptions; `waiting.rs`: releases the GIL and handles Ctrl-C.
//! * `model.rs`, `answer.rs`, `stream.rs`, `tokenizer.rs`, `plan.rs`: the classes; `options.rs`:
//!   keyword arguments.
//! * `arrays.rs`: NumPy arrays and token ids; `operand.rs`: arrays that are read without a copy;
//!   `json.rs`: conversion of Python objects to and from JSON.
//! * `gguf/`: GGUF files; `gemm/`: products with 4-bit weights.
#![deny(missing_docs)]

mod answer;
mod arrays;
mod errors;
mod gemm;
mod gguf;
mod json;
mod model;
mod operand;
mod options;
mod plan;
mod stream;
mod tokenizer;
mod waiting;

use pyo3::prelude::*;

#[pymodule]
mod _latent {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::answer::Answer;
    #[pymodule_export]
    use crate::gemm::devices::device_name;
    #[pymodule_export]
    use crate::gemm::functions::{
        dequantize, pack_fp4_weights, pack_u4_sym_weights, pack_u4_weights, quantized_linear,
        quantized_linear_striped,
    };
    #[pymodule_export]
    use crate::gemm::resident::{PythonDeviceArray, PythonDeviceWeight};
    #[pymodule_export]
    use crate::gguf::decode::decode;
    #[pymodule_export]
    use crate::gguf::file::{GgufFile, read};
    #[pymodule_export]
    use crate::gguf::tensor::Tensor;
    #[pymodule_export]
    use crate::model::Model;
    #[pymodule_export]
    use crate::plan::{Operation, Plan};
    #[pymodule_export]
    use crate::stream::Stream;
    #[pymodule_export]
    use crate::tokenizer::Tokenizer;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
