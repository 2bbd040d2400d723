//! Decoding of quantized blocks.

use crate::arrays::{shaped, through_dlpack};
use crate::errors::argument;
use crate::gguf::tensor::Tensor;
use crate::operand::Operand;
use latent_types::TensorType;
use pyo3::prelude::*;

/// Decodes whole blocks of a type to f32.
pub(crate) fn values(ty: TensorType, bytes: &[u8]) -> Result<Vec<f32>, String> {
    let block = ty.block_bytes();
    if !bytes.len().is_multiple_of(block) {
        return Err(format!(
            "{} bytes are not a multiple of the {ty} block size ({block} bytes)",
            bytes.len()
        ));
    }
    let mut values = vec![0.0; bytes.len() / block * ty.block_len()];
    latent_quant::decode(ty, bytes, &mut values).map_err(|error| error.to_string())?;
    Ok(values)
}

/// Decode a tensor, or bytes of a given type, to float32.
///
/// Parameters
/// ----------
/// data : Tensor, array of uint8, buffer, or tensor with DLPack support
///     A tensor of a file, or the bytes of whole blocks.
/// type : str, optional
///     Type of the blocks, such as "Q4_K". Required for bytes; not allowed for a `Tensor`.
/// shape : sequence of int, optional
///     Shape of the result. By default one-dimensional. Not allowed for a `Tensor`.
///
/// Returns
/// -------
/// numpy.ndarray
///     float32 array.
///
/// Raises
/// ------
/// latent.errors.ArgumentError
///     If the bytes are not whole blocks, or do not have the number of elements of `shape`.
#[pyfunction]
#[pyo3(signature = (data, r#type = None, *, shape = None))]
pub(crate) fn decode<'py>(
    data: &Bound<'py, PyAny>,
    r#type: Option<&str>,
    shape: Option<Vec<usize>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = data.py();
    if let Ok(tensor) = data.cast::<Tensor>() {
        if r#type.is_some() || shape.is_some() {
            return Err(argument(
                py,
                "a tensor of a file has its own type and shape: omit `type` and `shape`",
            ));
        }
        return tensor.get().decode(py);
    }
    let ty = r#type.ok_or_else(|| argument(py, "bytes need a type, such as \"Q4_K\""))?;
    let ty = TensorType::from_name(ty).map_err(|error| argument(py, error.to_string()))?;
    let numpy = py.import("numpy")?;
    let object = through_dlpack(data)?;
    let array = if object.is_instance(&numpy.getattr("ndarray")?)? {
        object
    } else {
        // `bytes`, `memoryview` and other buffers, without a copy.
        numpy.call_method1("frombuffer", (object, "uint8"))?
    };
    let operand = Operand::new(&array, "data")?;
    if operand.dtype != "uint8" {
        return Err(operand.unexpected("uint8"));
    }
    let bytes = operand.read::<u8>("uint8")?;
    let values = values(ty, bytes.as_slice()?).map_err(|problem| argument(py, problem))?;
    let shape = shape.unwrap_or_else(|| vec![values.len()]);
    // Checked, since a wrapped product of the caller's sizes could equal the number of values.
    if shape.iter().try_fold(1usize, |all, n| all.checked_mul(*n)) != Some(values.len()) {
        return Err(argument(py, format!("{} values do not match the shape {shape:?}", values.len())));
    }
    shaped(py, values, &shape)
}
