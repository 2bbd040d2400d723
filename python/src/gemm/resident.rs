//! The classes `DeviceArray` and `DeviceWeight`: arrays and weights in the memory of a GPU.

use crate::errors::{argument, refused};
use crate::gemm::devices::gpu;
use crate::gemm::keywords::{Decoded, WeightKeywords, decoded};
use crate::gemm::numbers::{count, halves, zeros};
use crate::gemm::weight::{Floats, PackedWeight};
use crate::operand::{Operand, tuple};
use crate::options::{KeywordValue, given, unknown};
use latent_marlin::half::f16;
use latent_marlin::{DeviceArray, GemmDevice, Options, ResidentWeight, Shape};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// Array of float32 or float16 in the memory of a GPU, for inputs and results of products.
///
/// bfloat16 is converted to float32, and so is float16 if the last dimension is odd. Arrays and
/// weights of one device can be combined.
///
/// Parameters
/// ----------
/// x : array of float32, float16 or bfloat16
///     At least one dimension.
/// device : str, default "gpu"
///     "gpu" or "gpu:N".
#[pyclass(frozen, module = "latent", name = "DeviceArray")]
pub(crate) struct PythonDeviceArray {
    pub(crate) array: DeviceArray,
    pub(crate) shape: Vec<usize>,
}

/// 4-bit weight in the memory of a GPU, for `quantized_linear(x, weight)`.
///
/// Parameters
/// ----------
/// packed, scales, group_size, zeros, quant_type, scale_type, tensor_scale
///     The weight, as for `quantized_linear`.
/// device : str, default "gpu"
///     "gpu" or "gpu:N".
/// order : int32 array of shape (K,), optional
///     For checkpoints in act-order: row k of the weight is multiplied by input `order[k]`.
#[pyclass(frozen, module = "latent", name = "DeviceWeight")]
pub(crate) struct PythonDeviceWeight {
    pub(crate) weight: ResidentWeight,
}

impl PythonDeviceArray {
    /// Copies an array to a device.
    pub(crate) fn sent(x: &Bound<'_, PyAny>, name: &'static str, device: &GemmDevice) -> PyResult<Self> {
        let py = x.py();
        let operand = Operand::new(x, name)?;
        let Some((last, leading)) = operand.shape.split_last() else {
            return Err(argument(py, format!("{name} has the shape (), expected at least one dimension")));
        };
        let (floats, m) = (Floats::new(&operand)?, leading.iter().product());
        let input = floats.input()?;
        let array = py.detach(|| device.rows(input, m, *last)).map_err(|error| refused(py, error))?;
        Ok(PythonDeviceArray { array, shape: operand.shape })
    }

    fn dtype_name(&self) -> &'static str {
        if self.array.is_f16() { "float16" } else { "float32" }
    }
}

#[pymethods]
impl PythonDeviceArray {
    #[new]
    #[pyo3(signature = (x, device = "gpu"))]
    fn new(x: &Bound<'_, PyAny>, device: &str) -> PyResult<PythonDeviceArray> {
        PythonDeviceArray::sent(x, "x", &gpu(x.py(), device)?)
    }

    /// Shape of the array.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// NumPy dtype of the elements: float32 or float16.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("numpy")?.call_method1("dtype", (self.dtype_name(),))
    }

    /// Name of the device, such as "gpu:0".
    #[getter]
    fn device(&self) -> String {
        self.array.device().name()
    }

    /// Wait until the device has computed the array, and copy it to a NumPy array.
    pub(crate) fn to_numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let total = self.shape.iter().product();
        if self.array.is_f16() {
            let mut values = zeros::<f16>(py, total)?;
            py.detach(|| self.array.read_f16(&mut values)).map_err(|error| refused(py, error))?;
            return halves(py, &values, &self.shape);
        }
        let mut values = zeros::<f32>(py, total)?;
        py.detach(|| self.array.read(&mut values)).map_err(|error| refused(py, error))?;
        crate::arrays::shaped(py, values, &self.shape)
    }

    /// Return a copy with elements of type float32 or float16 (rounded to nearest even), on the
    /// device.
    fn astype(&self, dtype: &Bound<'_, PyAny>) -> PyResult<PythonDeviceArray> {
        let py = dtype.py();
        let halves = decoded(dtype)? == Decoded::F16;
        let array = py.detach(|| self.array.converted(halves)).map_err(|error| refused(py, error))?;
        Ok(PythonDeviceArray { array, shape: self.shape.clone() })
    }

    fn __repr__(&self) -> String {
        let (shape, dtype, device) = (tuple(&self.shape), self.dtype_name(), self.array.device().name());
        format!("DeviceArray(shape={shape}, dtype={dtype}, device='{device}')")
    }
}

#[pymethods]
impl PythonDeviceWeight {
    #[new]
    #[pyo3(signature = (packed, scales, group_size = 32, device = "gpu", **options))]
    fn new<'py>(
        packed: &Bound<'py, PyAny>,
        scales: &Bound<'py, PyAny>,
        group_size: isize,
        device: &str,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<PythonDeviceWeight> {
        let py = packed.py();
        let (mut keywords, mut order) = (WeightKeywords::default(), None);
        for (name, value) in given(options)? {
            let given = KeywordValue { name: &name, value };
            if name == "order" {
                order = Some(given.value);
            } else if name == "threads" || !keywords.take(&given)? {
                return Err(unknown(
                    py,
                    &name,
                    &["zeros", "quant_type", "scale_type", "tensor_scale", "order"],
                ));
            }
        }
        let packed = PackedWeight::new(packed, scales, count(py, "group_size", group_size)?, &keywords)?;
        let order = order.map(|order| inputs(&order, packed.shape.k)).transpose()?;
        PythonDeviceWeight::sent(py, &packed, order.as_deref(), &gpu(py, device)?)
    }

    /// Shape of the weight: (K, N).
    #[getter]
    fn shape(&self) -> (usize, usize) {
        let Shape { k, n, .. } = self.weight.shape();
        (k, n)
    }

    /// Type of the codes: "fp4", "int4" or "int4_sym".
    #[getter]
    fn quant_type(&self) -> &'static str {
        self.weight.quant().name()
    }

    /// Number of consecutive inputs that share a scale.
    #[getter]
    fn group_size(&self) -> usize {
        self.weight.shape().group
    }

    /// Size of codes, scales and zero points, in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.weight.bytes()
    }

    /// Name of the device, such as "gpu:0".
    #[getter]
    fn device(&self) -> String {
        self.weight.device().name()
    }

    /// Return the name of the kernel for a product of `rows` rows, and its number of slices of K.
    fn kernel(&self, py: Python<'_>, rows: usize) -> PyResult<(&'static str, usize)> {
        let plan = self.weight.plan(&Options::default(), rows).map_err(|error| refused(py, error))?;
        Ok((plan.name, plan.slices))
    }

    /// Decode the weight on the device.
    ///
    /// Parameters
    /// ----------
    /// dtype : {"float32", "float16"}, optional
    ///     By default float32.
    ///
    /// Returns
    /// -------
    /// DeviceArray
    ///     Array of shape (K, N), with rows in the order in which they are stored.
    #[pyo3(signature = (dtype = None))]
    fn dequantize(&self, py: Python<'_>, dtype: Option<&Bound<'_, PyAny>>) -> PyResult<PythonDeviceArray> {
        self.decoded(py, dtype.map(decoded).transpose()? == Some(Decoded::F16))
    }

    fn __repr__(&self) -> String {
        let Shape { k, n, group } = self.weight.shape();
        let (quant, device) = (self.weight.quant().name(), self.weight.device().name());
        format!("DeviceWeight(shape=({k}, {n}), quant_type='{quant}', group_size={group}, device='{device}')")
    }
}

impl PythonDeviceWeight {
    /// Decodes the weight to f32, or to f16 if `halves` is set.
    pub(crate) fn decoded(&self, py: Python<'_>, halves: bool) -> PyResult<PythonDeviceArray> {
        let work = || if halves { self.weight.dequantize_f16() } else { self.weight.dequantize() };
        let array = py.detach(work).map_err(|error| refused(py, error))?;
        let Shape { k, n, .. } = self.weight.shape();
        Ok(PythonDeviceArray { array, shape: vec![k, n] })
    }

    /// Copies a packed weight to a device.
    pub(crate) fn sent(
        py: Python<'_>,
        packed: &PackedWeight<'_>,
        order: Option<&[u32]>,
        device: &GemmDevice,
    ) -> PyResult<PythonDeviceWeight> {
        let view = packed.view(py)?;
        let sent = py.detach(|| match order {
            Some(order) => device.upload_ordered(&view, order),
            None => device.upload(&view),
        });
        Ok(PythonDeviceWeight { weight: sent.map_err(|error| refused(py, error))? })
    }
}

/// Converts an act-order permutation, an int32 array of shape (K,).
fn inputs(order: &Bound<'_, PyAny>, k: usize) -> PyResult<Vec<u32>> {
    let operand = Operand::new(order, "order")?;
    if !matches!(operand.dtype.as_str(), "int32" | "uint32") {
        return Err(operand.unexpected("int32"));
    }
    operand.check_shape(&[k], "(K,), with the K of packed")?;
    // As an unsigned number, a negative one is larger than any K and is refused.
    Ok(operand.read::<u32>("uint32")?.as_slice()?.to_vec())
}

/// Computes a product on a device. The result is a `DeviceArray` if `x` is one, otherwise a NumPy
/// array.
pub(crate) fn multiply<'py>(
    x: &Bound<'py, PyAny>,
    weight: &ResidentWeight,
    bias: Option<&Bound<'py, PyAny>>,
    options: &Options,
) -> PyResult<Bound<'py, PyAny>> {
    let (py, Shape { k, n, .. }) = (x.py(), weight.shape());
    let resident = x.cast::<PythonDeviceArray>().ok().map(|x| x.get());
    let sent = match resident {
        None => {
            // Checked before anything is sent to the device.
            let shape = Operand::new(x, "x")?.shape;
            check_inputs(py, &shape, k)?;
            Some(PythonDeviceArray::sent(x, "x", weight.device())?)
        }
        Some(x) => {
            check_inputs(py, &x.shape, k)?;
            None
        }
    };
    let Some(inputs) = resident.or(sent.as_ref()) else { return Err(argument(py, "x is missing")) };
    // Declared here, so that it lives as long as the reference to its array below.
    let sent_bias;
    let bias = match bias {
        None => None,
        Some(bias) => {
            let array = match bias.cast::<PythonDeviceArray>() {
                Ok(bias) => bias.get(),
                Err(_) => {
                    sent_bias = PythonDeviceArray::sent(bias, "bias", weight.device())?;
                    &sent_bias
                }
            };
            if array.shape != [n] {
                let found = tuple(&array.shape);
                return Err(argument(
                    py,
                    format!("bias has the shape {found}, expected ({n},): (N,), with the N of packed"),
                ));
            }
            Some(array)
        }
    };
    let bias = bias.map(|bias| &bias.array);
    let done = py.detach(|| weight.multiply(options, &inputs.array, bias));
    let array = done.map_err(|error| refused(py, error))?;
    let mut shape = inputs.shape.clone();
    if let Some(last) = shape.last_mut() {
        *last = n;
    }
    let result = PythonDeviceArray { array, shape };
    if resident.is_some() { Ok(Bound::new(py, result)?.into_any()) } else { result.to_numpy(py) }
}

fn check_inputs(py: Python<'_>, shape: &[usize], k: usize) -> PyResult<()> {
    if shape.last() == Some(&k) {
        return Ok(());
    }
    let found = tuple(shape);
    Err(argument(py, format!("x has the shape {found}, expected (…, {k}): K is that of packed")))
}
