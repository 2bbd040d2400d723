//! NumPy arrays as operands of matrix products.

use crate::errors::{argument, refused};
use crate::gemm::keywords::{ScaleType, WeightKeywords};
use crate::operand::{Operand, tuple};
use latent_marlin::half::slice::HalfBitsSliceExt;
use latent_marlin::half::slice::HalfFloatSliceExt;
use latent_marlin::{Input, QuantType, Scales, Shape, Weight};
use numpy::PyReadonlyArrayDyn;
use pyo3::prelude::*;

/// Returns the elements of an array that was checked to be contiguous.
fn slice<'a, T: numpy::Element>(array: &'a PyReadonlyArrayDyn<'_, T>) -> PyResult<&'a [T]> {
    Ok(array.as_slice()?)
}

/// An array of f32, f16 or bf16.
pub(crate) enum Floats<'py> {
    F32(PyReadonlyArrayDyn<'py, f32>),
    F16(PyReadonlyArrayDyn<'py, u16>),
    Bf16(PyReadonlyArrayDyn<'py, u16>),
}

impl<'py> Floats<'py> {
    pub(crate) fn new(operand: &Operand<'py>) -> PyResult<Floats<'py>> {
        Ok(match operand.dtype.as_str() {
            "float32" => Floats::F32(operand.read("float32")?),
            "float16" => Floats::F16(operand.read("uint16")?),
            "bfloat16" => Floats::Bf16(operand.read("uint16")?),
            _ => return Err(operand.unexpected("float32, float16 or bfloat16")),
        })
    }

    pub(crate) fn input(&self) -> PyResult<Input<'_>> {
        Ok(match self {
            Floats::F32(array) => Input::F32(slice(array)?),
            Floats::F16(array) => Input::F16(slice(array)?.reinterpret_cast()),
            Floats::Bf16(array) => Input::Bf16(slice(array)?.reinterpret_cast()),
        })
    }
}

/// Returns f32 elements: those of the input, or converted ones, which are stored in `room`.
pub(crate) fn widened<'a>(input: Input<'a>, room: &'a mut Vec<f32>) -> &'a [f32] {
    match input {
        Input::F32(values) => return values,
        Input::F16(values) => *room = values.to_f32_vec(),
        Input::Bf16(values) => *room = values.to_f32_vec(),
    }
    room
}

enum ScaleArray<'py> {
    F16(PyReadonlyArrayDyn<'py, u16>),
    E8m0(PyReadonlyArrayDyn<'py, u8>),
    E4m3(PyReadonlyArrayDyn<'py, u8>, f32),
}

/// The arrays of a packed weight.
pub(crate) struct PackedWeight<'py> {
    pub(crate) shape: Shape,
    quant: QuantType,
    words: PyReadonlyArrayDyn<'py, u32>,
    scales: ScaleArray<'py>,
    zeros: Option<PyReadonlyArrayDyn<'py, u8>>,
}

impl<'py> PackedWeight<'py> {
    pub(crate) fn new(
        packed: &Bound<'py, PyAny>,
        scales: &Bound<'py, PyAny>,
        group: usize,
        keywords: &WeightKeywords<'py>,
    ) -> PyResult<PackedWeight<'py>> {
        let py = packed.py();
        let (packed, scales) = (Operand::new(packed, "packed")?, Operand::new(scales, "scales")?);
        // torch had no uint32 for a long time, so its checkpoints store int32.
        if !matches!(packed.dtype.as_str(), "uint32" | "int32") {
            return Err(packed.unexpected("uint32 (or int32 with the same bits)"));
        }
        let &[rows, n] = &packed.shape[..] else {
            let found = tuple(&packed.shape);
            return Err(argument(
                py,
                format!("packed has the shape {found}, expected two dimensions: (K / 8, N)"),
            ));
        };
        // Cannot overflow: the array is in memory, with four bytes per eight codes.
        let shape = Shape { k: 8 * rows, n, group };
        if group == 0 || !shape.k.is_multiple_of(group) {
            return Err(refused(py, latent_marlin::Error::Group { k: shape.k, group }));
        }
        let why = format!("(K / group_size, N), with group_size {group} and packed {}", tuple(&packed.shape));
        let per_group = [shape.groups(), n];
        scales.check_shape(&per_group, &why)?;
        let zeros = keywords.zeros.as_ref().map(|zeros| Operand::new(zeros, "zeros")).transpose()?;
        if let Some(zeros) = &zeros {
            zeros.check_shape(&per_group, &why)?;
            if zeros.dtype != "uint8" {
                return Err(zeros.unexpected("uint8"));
            }
        }
        // Only INT4 has zero points. FP4 and symmetric INT4 look the same, so the latter is named.
        let default = if zeros.is_some() { QuantType::Int4 } else { QuantType::Fp4 };
        Ok(PackedWeight {
            shape,
            quant: keywords.quant.unwrap_or(default),
            words: packed.read("uint32")?,
            scales: scale_array(&scales, keywords)?,
            zeros: zeros.map(|zeros| zeros.read("uint8")).transpose()?,
        })
    }

    /// Borrows the arrays as the weight that kernels read.
    pub(crate) fn view(&self, py: Python<'_>) -> PyResult<Weight<'_>> {
        let scales = match &self.scales {
            ScaleArray::F16(scales) => Scales::F16(slice(scales)?.reinterpret_cast()),
            ScaleArray::E8m0(codes) => Scales::E8m0(slice(codes)?),
            ScaleArray::E4m3(codes, tensor) => Scales::E4m3(slice(codes)?, *tensor),
        };
        let zeros = self.zeros.as_ref().map(slice).transpose()?;
        let weight = Weight::new(self.quant, self.shape, slice(&self.words)?, scales, zeros);
        weight.map_err(|error| refused(py, error))
    }
}

fn scale_array<'py>(scales: &Operand<'py>, keywords: &WeightKeywords<'py>) -> PyResult<ScaleArray<'py>> {
    let stored = match scales.dtype.as_str() {
        "float16" => Some(ScaleType::F16),
        "float8_e8m0fnu" => Some(ScaleType::E8m0),
        "float8_e4m3fn" => Some(ScaleType::E4m3),
        // NumPy has no 8-bit floats, so codes come as bytes, and `scale_type` says which.
        "uint8" => None,
        _ => return Err(scales.unexpected("float16, or uint8 with a scale_type")),
    };
    let chosen = match (stored, keywords.scale_type) {
        (None, Some(ScaleType::F16)) => return Err(scales.unexpected("float16, as scale_type says")),
        (None, None) => {
            return Err(scales.unexpected("float16, or a scale_type: e8m0 (MXFP4) or e4m3 (NVFP4)"));
        }
        (Some(stored), Some(said)) if stored != said => {
            return Err(scales.unexpected("another type, as scale_type says"));
        }
        (stored, said) => stored.or(said),
    };
    match (chosen, keywords.tensor_scale) {
        (Some(ScaleType::E4m3), tensor) => Ok(ScaleArray::E4m3(scales.read("uint8")?, tensor.unwrap_or(1.0))),
        (_, Some(_)) => Err(scales.unexpected("E4M3 scales, which alone have a tensor_scale")),
        (Some(ScaleType::E8m0), None) => Ok(ScaleArray::E8m0(scales.read("uint8")?)),
        _ => Ok(ScaleArray::F16(scales.read("uint16")?)),
    }
}
