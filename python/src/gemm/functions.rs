//! Packing, products and dequantization.

use crate::errors::{argument, exception};
use crate::gemm::keywords::{Decoded, ProductKeywords, WeightKeywords};
use crate::gemm::pools::pool;
use crate::gemm::weight::{Floats, PackedWeight, refused, widened};
use crate::operand::{Operand, tuple};
use latent::{Error, ErrorKind};
use latent_marlin::half::f16;
use latent_marlin::half::slice::HalfFloatSliceExt;
use latent_marlin::{Packed, QuantType, Shape};
use numpy::{IntoPyArray, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

type Array<'py> = Bound<'py, PyAny>;

/// Packs a weight `[K, N]` to FP4 (E2M1): words `[K/8, N]` of eight codes along K, the lowest bits first, and f16 scales `[K/group, N]`.
#[pyfunction]
#[pyo3(signature = (w, group_size = 32))]
pub(crate) fn pack_fp4_weights<'py>(w: &Array<'py>, group_size: isize) -> PyResult<Bound<'py, PyTuple>> {
    pack(QuantType::Fp4, w, group_size)
}

/// Packs a weight `[K, N]` to unsigned 4-bit integers: words, f16 scales, and zero points `[K/group, N]`; value = (code − zero point) · scale.
#[pyfunction]
#[pyo3(signature = (w, group_size = 32))]
pub(crate) fn pack_u4_weights<'py>(w: &Array<'py>, group_size: isize) -> PyResult<Bound<'py, PyTuple>> {
    pack(QuantType::Int4, w, group_size)
}

/// Packs a weight `[K, N]` to unsigned 4-bit integers with the zero point 8: words and f16 scales; value = (code − 8) · scale.
#[pyfunction]
#[pyo3(signature = (w, group_size = 32))]
pub(crate) fn pack_u4_sym_weights<'py>(w: &Array<'py>, group_size: isize) -> PyResult<Bound<'py, PyTuple>> {
    pack(QuantType::Int4Sym, w, group_size)
}

fn pack<'py>(quant: QuantType, w: &Array<'py>, group_size: isize) -> PyResult<Bound<'py, PyTuple>> {
    let py = w.py();
    let operand = Operand::new(w, "w")?;
    let &[k, n] = &operand.shape[..] else {
        let found = tuple(&operand.shape);
        return Err(argument(py, format!("w has the shape {found}, expected two dimensions: (K, N)")));
    };
    let group = count(py, "group_size", group_size)?;
    let (floats, shape) = (Floats::new(&operand)?, Shape { k, n, group });
    let input = floats.input()?;
    let packed = py.detach(|| latent::pack(quant, widened(input, &mut Vec::new()), shape));
    let Packed { words, scales, zeros, .. } = packed.map_err(|error| exception(py, &error))?;
    let words = words.into_pyarray(py).reshape([k / 8, n])?.into_any();
    let scales = halves(py, &scales, &[shape.groups(), n])?;
    if quant == QuantType::Int4 {
        let zeros = zeros.into_pyarray(py).reshape([shape.groups(), n])?.into_any();
        return PyTuple::new(py, [words, scales, zeros]);
    }
    PyTuple::new(py, [words, scales])
}

/// x · W of a packed weight W `[K, N]`: inputs `[…, K]`, results `[…, N]` as f32.
#[pyfunction]
#[pyo3(signature = (x, packed, scales, group_size = 32, **options))]
pub(crate) fn quantized_linear<'py>(
    x: &Array<'py>,
    packed: &Array<'py>,
    scales: &Array<'py>,
    group_size: isize,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Array<'py>> {
    let keywords = ProductKeywords::new(x.py(), options, true)?;
    let weight =
        PackedWeight::new(packed, scales, count(packed.py(), "group_size", group_size)?, &keywords.weight)?;
    multiply(x, &weight, &keywords)
}

/// The same by tiles of the results, with K split into `parallel` slices whose partial sums are reduced in a fixed order.
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
    let mut keywords = ProductKeywords::new(x.py(), options, false)?;
    keywords.options.stripe(count(x.py(), "parallel", parallel)?);
    let weight =
        PackedWeight::new(packed, scales, count(packed.py(), "group_size", group_size)?, &keywords.weight)?;
    multiply(x, &weight, &keywords)
}

fn multiply<'py>(
    x: &Array<'py>,
    weight: &PackedWeight<'py>,
    keywords: &ProductKeywords<'py>,
) -> PyResult<Array<'py>> {
    let py = x.py();
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
    let count = m.checked_mul(n);
    let count = count.ok_or(latent_marlin::Error::Overflow { what: "the result", rows: m, cols: n });
    let mut y = zeros::<f32>(py, count.map_err(|error| refused(py, error))?)?;
    let forced = &keywords.options;
    let done = py.detach(|| {
        let done = pool.multiply(forced, &view, input, m, &mut y);
        if let (Ok(()), Some(bias)) = (&done, bias) {
            let mut room = Vec::new();
            let bias = widened(bias, &mut room);
            for row in y.chunks_exact_mut(n.max(1)) {
                row.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
            }
        }
        done
    });
    done.map_err(|error| exception(py, &error))?;
    crate::arrays::shaped(py, y, &[leading, &[n]].concat())
}

/// The values of a packed weight, `[K, N]`.
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
    let (view, pool) = (weight.view(py)?, pool(py, keywords.threads)?);
    let Shape { k, n, .. } = weight.shape;
    // cannot overflow: it was checked with the weight
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

fn count(py: Python<'_>, name: &str, value: isize) -> PyResult<usize> {
    usize::try_from(value).map_err(|_| argument(py, format!("{name} is {value}, expected at least 1")))
}

/// Allocates zeroed results; raises an exception if memory is insufficient.
fn zeros<T: Copy + Default>(py: Python<'_>, count: usize) -> PyResult<Vec<T>> {
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|_| {
        let bytes = count.saturating_mul(size_of::<T>());
        exception(py, &Error::new(ErrorKind::Memory, format!("the result needs {bytes} bytes of memory")))
    })?;
    values.resize(count, T::default());
    Ok(values)
}

/// An array of NumPy's float16.
fn halves<'py>(py: Python<'py>, values: &[f16], shape: &[usize]) -> PyResult<Array<'py>> {
    let bits = values.reinterpret_cast().to_vec().into_pyarray(py);
    bits.reshape(shape)?.call_method1("view", ("float16",))
}
