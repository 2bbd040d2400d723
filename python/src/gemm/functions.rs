//! Packing, matrix products, and dequantization.

use crate::errors::{argument, exception, refused};
use crate::gemm::devices;
use crate::gemm::keywords::{Decoded, ProductKeywords, WeightKeywords};
use crate::gemm::numbers::{count, halves, zeros};
use crate::gemm::pools::pool;
use crate::gemm::resident::{self, PythonDeviceArray, PythonDeviceWeight};
use crate::gemm::weight::{Floats, PackedWeight, widened};
use crate::operand::{Operand, tuple};
use latent_marlin::half::f16;
use latent_marlin::{GemmDevice, Packed, QuantType, Shape};
use numpy::{IntoPyArray, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

type Array<'py> = Bound<'py, PyAny>;

/// Quantize a weight to FP4 (E2M1).
///
/// The scale of a group is its largest magnitude / 6.
///
/// Parameters
/// ----------
/// w : array of float32, float16 or bfloat16, shape (K, N)
///     K must be a multiple of 8 and of `group_size`.
/// group_size : int, default 32
///     Number of consecutive inputs that share a scale.
/// device : str, optional
///     "gpu" or "gpu:N": copy the result to this GPU.
///
/// Returns
/// -------
/// packed : uint32 array of shape (K / 8, N)
///     Eight codes along K per word, the first in the lowest bits.
/// scales : float16 array of shape (K / group_size, N)
///
/// With a `device`, a `DeviceWeight` instead.
#[pyfunction]
#[pyo3(signature = (w, group_size = 32, device = None))]
pub(crate) fn pack_fp4_weights<'py>(
    w: &Array<'py>,
    group_size: isize,
    device: Option<&str>,
) -> PyResult<Array<'py>> {
    pack(QuantType::Fp4, w, group_size, device)
}

/// Quantize a weight to unsigned 4-bit integers with zero points.
///
/// value = (code - zero point) * scale. The scale of a group is (largest - smallest) / 15 of its
/// values and 0.
///
/// Parameters
/// ----------
/// w : array of float32, float16 or bfloat16, shape (K, N)
///     K must be a multiple of 8 and of `group_size`.
/// group_size : int, default 32
///     Number of consecutive inputs that share a scale and a zero point.
/// device : str, optional
///     "gpu" or "gpu:N": copy the result to this GPU.
///
/// Returns
/// -------
/// packed : uint32 array of shape (K / 8, N)
///     Eight codes along K per word, the first in the lowest bits.
/// scales : float16 array of shape (K / group_size, N)
/// zeros : uint8 array of shape (K / group_size, N)
///
/// With a `device`, a `DeviceWeight` instead.
#[pyfunction]
#[pyo3(signature = (w, group_size = 32, device = None))]
pub(crate) fn pack_u4_weights<'py>(
    w: &Array<'py>,
    group_size: isize,
    device: Option<&str>,
) -> PyResult<Array<'py>> {
    pack(QuantType::Int4, w, group_size, device)
}

/// Quantize a weight to unsigned 4-bit integers with the zero point 8.
///
/// value = (code - 8) * scale. The scale of a group is its largest magnitude / 7.
///
/// Parameters
/// ----------
/// w : array of float32, float16 or bfloat16, shape (K, N)
///     K must be a multiple of 8 and of `group_size`.
/// group_size : int, default 32
///     Number of consecutive inputs that share a scale.
/// device : str, optional
///     "gpu" or "gpu:N": copy the result to this GPU.
///
/// Returns
/// -------
/// packed : uint32 array of shape (K / 8, N)
///     Eight codes along K per word, the first in the lowest bits.
/// scales : float16 array of shape (K / group_size, N)
///
/// With a `device`, a `DeviceWeight` instead.
#[pyfunction]
#[pyo3(signature = (w, group_size = 32, device = None))]
pub(crate) fn pack_u4_sym_weights<'py>(
    w: &Array<'py>,
    group_size: isize,
    device: Option<&str>,
) -> PyResult<Array<'py>> {
    pack(QuantType::Int4Sym, w, group_size, device)
}

fn pack<'py>(
    quant: QuantType,
    w: &Array<'py>,
    group_size: isize,
    device: Option<&str>,
) -> PyResult<Array<'py>> {
    let py = w.py();
    let device = device.map_or(Ok(None), |name| devices::device(py, name))?;
    let operand = Operand::new(w, "w")?;
    let &[k, n] = &operand.shape[..] else {
        let found = tuple(&operand.shape);
        return Err(argument(py, format!("w has the shape {found}, expected two dimensions: (K, N)")));
    };
    let group = count(py, "group_size", group_size)?;
    let (floats, shape) = (Floats::new(&operand)?, Shape { k, n, group });
    let input = floats.input()?;
    let packed = py.detach(|| latent::pack(quant, widened(input, &mut Vec::new()), shape));
    let packed = packed.map_err(|error| exception(py, &error))?;
    if let Some(device) = device {
        let weight = py.detach(|| device.upload(&packed.weight()?)).map_err(|error| refused(py, error))?;
        return Ok(Bound::new(py, PythonDeviceWeight { weight })?.into_any());
    }
    let Packed { words, scales, zeros, .. } = packed;
    let words = words.into_pyarray(py).reshape([k / 8, n])?.into_any();
    let scales = halves(py, &scales, &[shape.groups(), n])?;
    // The other formats have no zero points.
    if quant == QuantType::Int4 {
        let zeros = zeros.into_pyarray(py).reshape([shape.groups(), n])?.into_any();
        return Ok(PyTuple::new(py, [words, scales, zeros])?.into_any());
    }
    Ok(PyTuple::new(py, [words, scales])?.into_any())
}

/// Compute x @ W + bias for a 4-bit weight W of shape (K, N).
///
/// The results have the same bits for any number of threads.
///
/// Parameters
/// ----------
/// x : array of float32, float16 or bfloat16, shape (..., K), or DeviceArray
/// packed : uint32 or int32 array of shape (K / 8, N), or DeviceWeight
///     A `DeviceWeight` includes its scales; omit the arguments that describe the weight.
/// scales : array of shape (K / group_size, N)
///     float16, or uint8 codes of `scale_type`.
/// group_size : int, default 32
///     Number of consecutive inputs that share a scale.
/// zeros : uint8 array of shape (K / group_size, N), optional
///     Zero points of "int4".
/// quant_type : {"fp4", "int4", "int4_sym"}, optional
///     By default "int4" with `zeros`, otherwise "fp4".
/// scale_type : {"f16", "e8m0", "e4m3"}, optional
///     Format of the scales: "e8m0" for MXFP4, "e4m3" for NVFP4.
/// tensor_scale : float, optional
///     Factor of "e4m3" scales. By default 1.
/// bias : array of shape (N,), optional
/// activations : {"auto", "bf16", "int8"}, optional
///     Precision of the inputs. By default their own.
/// kernel : {"auto", "gemm", "fused", "striped"}, optional
///     By default chosen by the shape.
/// isa : {"auto", "portable", "avx2", "avx512", "amx"}, optional
///     Instruction set. Not for a GPU.
/// threads : int, optional
///     Number of threads. Not for a GPU.
/// device : str, optional
///     "gpu" or "gpu:N": copy the weight to this GPU for the product.
///
/// Returns
/// -------
/// numpy.ndarray or DeviceArray
///     float32 array of shape (..., N). A `DeviceArray` if `x` is one.
///
/// Raises
/// ------
/// latent.errors.ArgumentError
///     If a shape, an element type, or an option is invalid.
#[pyfunction]
#[pyo3(signature = (x, packed, scales = None, group_size = 32, **options))]
pub(crate) fn quantized_linear<'py>(
    x: &Array<'py>,
    packed: &Array<'py>,
    scales: Option<&Array<'py>>,
    group_size: isize,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Array<'py>> {
    let py = x.py();
    let keywords = ProductKeywords::new(py, options, true)?;
    if let Ok(weight) = packed.cast::<PythonDeviceWeight>() {
        let weight = &weight.get().weight;
        keywords.check_resident(py, scales, weight)?;
        return resident::multiply(x, weight, keywords.bias.as_ref(), keywords.options.forced());
    }
    let Some(scales) = scales else {
        return Err(argument(py, "scales are missing: only a DeviceWeight has its own"));
    };
    let weight = PackedWeight::new(packed, scales, count(py, "group_size", group_size)?, &keywords.weight)?;
    multiply(x, &weight, &keywords)
}

/// Compute x @ W + bias with the striped kernel.
///
/// It splits K into `parallel` slices and adds their partial sums in a fixed order. The other
/// arguments are those of `quantized_linear`, without `kernel`.
///
/// Parameters
/// ----------
/// parallel : int
///     Number of slices, from 1 to K / 8.
///
/// Returns
/// -------
/// numpy.ndarray or DeviceArray
///     float32 array of shape (..., N). A `DeviceArray` if `x` is one.
#[pyfunction]
#[pyo3(signature = (x, packed, scales, group_size, parallel, **options))]
pub(crate) fn quantized_linear_striped<'py>(
    x: &Array<'py>,
    packed: &Array<'py>,
    scales: &Array<'py>,
    group_size: isize,
    parallel: isize,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Array<'py>> {
    // `parallel` already names the kernel, so the option `kernel` could contradict it.
    let mut keywords = ProductKeywords::new(x.py(), options, false)?;
    keywords.options.stripe(count(x.py(), "parallel", parallel)?);
    let weight =
        PackedWeight::new(packed, scales, count(packed.py(), "group_size", group_size)?, &keywords.weight)?;
    multiply(x, &weight, &keywords)
}

/// Returns the device that was named, or that of `x`. `None` for the CPU.
fn chosen<'py>(
    py: Python<'py>,
    x: Option<&Array<'py>>,
    keywords: &ProductKeywords<'py>,
) -> PyResult<Option<GemmDevice>> {
    let of_inputs =
        x.and_then(|x| x.cast::<PythonDeviceArray>().ok()).map(|x| x.get().array.device().clone());
    let Some(name) = &keywords.weight.device else { return Ok(of_inputs) };
    let device = devices::device(py, name)?;
    match (&device, of_inputs) {
        // `None` is the CPU, which cannot read the memory of a device.
        (None, Some(found)) => {
            let found = found.name();
            Err(argument(py, format!("x is on {found} and device is {name:?}: x.to_numpy() is on the CPU")))
        }
        _ => Ok(device),
    }
}

fn multiply<'py>(
    x: &Array<'py>,
    weight: &PackedWeight<'py>,
    keywords: &ProductKeywords<'py>,
) -> PyResult<Array<'py>> {
    let py = x.py();
    if let Some(device) = chosen(py, Some(x), keywords)? {
        keywords.check_device(py, &device)?;
        let weight = PythonDeviceWeight::sent(py, weight, None, &device)?.weight;
        return resident::multiply(x, &weight, keywords.bias.as_ref(), keywords.options.forced());
    }
    let x = Operand::new(x, "x")?;
    let Shape { k, n, .. } = weight.shape;
    let Some((_, leading)) = x.shape.split_last().filter(|(last, _)| **last == k) else {
        let found = tuple(&x.shape);
        return Err(argument(py, format!("x has the shape {found}, expected (…, {k}): K is that of packed")));
    };
    let m: usize = leading.iter().product();
    let bias = keywords.bias.as_ref().map(|bias| Operand::new(bias, "bias")).transpose()?;
    let bias = match &bias {
        Some(bias) => {
            bias.check_shape(&[n], "(N,), with the N of packed")?;
            Some(Floats::new(bias)?)
        }
        None => None,
    };
    let (floats, pool) = (Floats::new(&x)?, pool(py, keywords.weight.threads)?);
    let (input, view) = (floats.input()?, weight.view(py)?);
    let bias = bias.as_ref().map(Floats::input).transpose()?;
    // Inputs with K = 0 have no bytes, so their number of rows is not limited by memory.
    let count = m.checked_mul(n);
    let count = count.ok_or(latent_marlin::Error::Overflow { what: "the result", rows: m, cols: n });
    let mut y = zeros::<f32>(py, count.map_err(|error| refused(py, error))?)?;
    let forced = &keywords.options;
    let done = py.detach(|| {
        let done = pool.multiply(forced, &view, input, m, &mut y);
        if let (Ok(()), Some(bias)) = (&done, bias) {
            let mut room = Vec::new();
            let bias = widened(bias, &mut room);
            // `chunks_exact_mut` panics for a size of 0.
            for row in y.chunks_exact_mut(n.max(1)) {
                row.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
            }
        }
        done
    });
    done.map_err(|error| exception(py, &error))?;
    crate::arrays::shaped(py, y, &[leading, &[n]].concat())
}

/// Decode a packed weight.
///
/// Parameters
/// ----------
/// packed, scales, group_size, zeros, quant_type, scale_type, tensor_scale
///     The weight, as for `quantized_linear`.
/// dtype : {"float32", "float16"}, optional
///     Element type of the result. float16 is rounded to nearest even. By default float32.
/// threads : int, optional
///     Number of threads. Not for a GPU.
/// device : str, optional
///     "gpu" or "gpu:N": decode on this GPU.
///
/// Returns
/// -------
/// numpy.ndarray
///     Array of shape (K, N).
#[pyfunction]
#[pyo3(signature = (packed, scales, group_size = 32, **options))]
pub(crate) fn dequantize<'py>(
    packed: &Array<'py>,
    scales: &Array<'py>,
    group_size: isize,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Array<'py>> {
    let py = packed.py();
    let (keywords, decoded) = WeightKeywords::with_dtype(py, options)?;
    let weight = PackedWeight::new(packed, scales, count(packed.py(), "group_size", group_size)?, &keywords)?;
    let keywords = ProductKeywords { weight: keywords, ..ProductKeywords::default() };
    if let Some(device) = chosen(py, None, &keywords)? {
        keywords.check_device(py, &device)?;
        let sent = PythonDeviceWeight::sent(py, &weight, None, &device)?;
        return sent.decoded(py, decoded == Decoded::F16)?.to_numpy(py);
    }
    let (view, pool) = (weight.view(py)?, pool(py, keywords.weight.threads)?);
    let Shape { k, n, .. } = weight.shape;
    // `k * n` cannot overflow: it was checked with the weight.
    if decoded == Decoded::F16 {
        let mut values = zeros::<f16>(py, k * n)?;
        let done = py.detach(|| pool.dequantize_f16(&view, &mut values));
        done.map_err(|error| exception(py, &error))?;
        return halves(py, &values, &[k, n]);
    }
    let mut values = zeros::<f32>(py, k * n)?;
    py.detach(|| pool.dequantize(&view, &mut values)).map_err(|error| exception(py, &error))?;
    crate::arrays::shaped(py, values, &[k, n])
}
