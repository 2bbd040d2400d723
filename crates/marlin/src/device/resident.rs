//! Devices, and the weights and arrays in their memory.

use super::build;
use super::device_plan::DevicePlan;
use crate::error::{Error, exactly};
use crate::input::Input;
use crate::plan::Options;
use crate::weight::{QuantType, Shape, Weight};
use half::f16;
use std::sync::Arc;

/// A GPU for products. Clones refer to the same device.
///
/// ```
/// use latent_marlin::{GemmDevice, Input, Options, Shape, pack_fp4};
/// // None for the CPU; an error without a GPU, or without the feature `gpu`.
/// let Some(device) = GemmDevice::named("gpu").ok().flatten() else { return Ok(()) };
/// let shape = Shape { k: 64, n: 48, group: 32 };
/// let packed = pack_fp4(&vec![0.5; 64 * 48], shape)?;
/// let weight = device.upload(&packed.weight()?)?;
/// let x = device.rows(Input::F32(&[1.0; 3 * 64]), 3, 64)?;
/// let y = weight.multiply(&Options::default(), &x, None)?; // Stays on the device.
/// let mut host = vec![0.0; 3 * 48];
/// y.read(&mut host)?;
/// assert!(host.iter().all(|sum| (sum - 32.0).abs() < 0.01));
/// # Ok::<(), latent_marlin::Error>(())
/// ```
#[derive(Clone)]
pub struct GemmDevice {
    index: usize,
    own: Arc<OwnedByProcess<build::Device>>,
}

/// A weight in the memory of a device.
pub struct ResidentWeight {
    device: GemmDevice,
    quant: QuantType,
    shape: Shape,
    bytes: usize,
    own: OwnedByProcess<build::Weight>,
}

/// Rows of f32 or f16 in the memory of a device: inputs of products, or results, which can be
/// inputs of others.
pub struct DeviceArray {
    device: GemmDevice,
    own: OwnedByProcess<build::Rows>,
}

impl GemmDevice {
    /// The number of the adapter with a name: `gpu` (the first), `gpu:N`, or `auto` (the first that
    /// is hardware). None for `cpu`, and for `auto` without such an adapter.
    ///
    /// # Errors
    /// For any other name. The message lists the devices.
    pub fn index(name: &str) -> Result<Option<usize>, Error> {
        match name {
            "cpu" => return Ok(None),
            "auto" => return Ok(build::first_hardware()),
            "gpu" => return Ok(Some(0)),
            _ => {}
        }
        let index = name.strip_prefix("gpu:").and_then(|index| index.parse().ok());
        index
            .map(Some)
            .ok_or_else(|| Error::UnknownDevice { name: name.to_owned(), devices: build::devices() })
    }

    /// Opens the device with a name, as for [`index`](Self::index); none for the CPU.
    ///
    /// # Errors
    /// As for [`index`](Self::index) and [`open`](Self::open).
    pub fn named(name: &str) -> Result<Option<GemmDevice>, Error> {
        GemmDevice::index(name)?.map(GemmDevice::open).transpose()
    }

    /// Opens the adapter with this number.
    ///
    /// # Errors
    /// If the build lacks the feature `gpu`, no adapter has the number, the adapter lacks a feature
    /// that shaders need, or its driver fails.
    pub fn open(index: usize) -> Result<GemmDevice, Error> {
        let own = Arc::new(OwnedByProcess::new(build::open(index)?));
        Ok(GemmDevice { index, own })
    }

    /// Its name: `gpu:0`.
    pub fn name(&self) -> String {
        format!("gpu:{}", self.index)
    }

    /// The name of the adapter, from its driver.
    pub fn adapter(&self) -> String {
        self.own.get().map_or_else(|_| String::new(), build::adapter)
    }

    /// Whether it can be used: it was opened by this process and was not lost.
    pub fn is_usable(&self) -> bool {
        self.own.get().is_ok_and(build::is_usable)
    }

    /// Whether it was opened by another process, from which this one was forked.
    pub fn is_forked(&self) -> bool {
        self.own.get().is_err()
    }

    /// Bytes of its memory that weights and rows use now.
    pub fn memory_in_use(&self) -> u64 {
        self.own.get().map_or(0, build::memory_in_use)
    }

    /// Limits the memory of weights and rows to `bytes`.
    pub fn set_memory_limit(&self, bytes: u64) {
        if let Ok(device) = self.own.get() {
            build::set_memory_limit(device, bytes);
        }
    }

    /// Uploads a weight.
    ///
    /// # Errors
    /// If the device does not have enough memory, a buffer is too large for it, or it fails.
    pub fn upload(&self, w: &Weight<'_>) -> Result<ResidentWeight, Error> {
        self.resident(w, None)
    }

    /// Uploads a weight whose row k is multiplied by input `order[k]`. Checkpoints in act-order
    /// have such an order.
    ///
    /// # Errors
    /// As for [`upload`](Self::upload). Also if `order` does not have K numbers, all less than K.
    pub fn upload_ordered(&self, w: &Weight<'_>, order: &[u32]) -> Result<ResidentWeight, Error> {
        let k = w.shape().k;
        exactly("the order of inputs", (k, 1), order.len())?;
        if let Some(at) = order.iter().position(|input| *input as usize >= k) {
            return Err(Error::Order { at, input: order[at], k });
        }
        self.resident(w, Some(order))
    }

    fn resident(&self, w: &Weight<'_>, order: Option<&[u32]>) -> Result<ResidentWeight, Error> {
        let own = OwnedByProcess::new(build::upload(self.own.get()?, w, order)?);
        Ok(ResidentWeight { device: self.clone(), quant: w.quant(), shape: w.shape(), bytes: w.bytes(), own })
    }

    /// Uploads `m` rows of `k` elements. f32 stays f32, and f16 stays f16 if `k` is even. bf16, and
    /// f16 with an odd `k`, become f32.
    ///
    /// # Errors
    /// If `x` does not have `m` · `k` elements, or the device does not have enough memory or fails.
    pub fn rows(&self, x: Input<'_>, m: usize, k: usize) -> Result<DeviceArray, Error> {
        x.check(m, k)?;
        let own = OwnedByProcess::new(build::rows(self.own.get()?, &x, (m, k))?);
        Ok(DeviceArray { device: self.clone(), own })
    }

    /// Whether both are the same opening of an adapter.
    fn is(&self, other: &GemmDevice) -> bool {
        // Each opening has its own memory, so equal numbers are not enough.
        Arc::ptr_eq(&self.own, &other.own)
    }

    fn check_is(&self, what: &'static str, array: &DeviceArray) -> Result<(), Error> {
        if self.is(&array.device) {
            return Ok(());
        }
        Err(Error::OtherDevice { what, found: array.device.name(), expected: self.name() })
    }
}

impl ResidentWeight {
    /// Its device.
    pub fn device(&self) -> &GemmDevice {
        &self.device
    }

    /// The type of its codes.
    pub fn quant(&self) -> QuantType {
        self.quant
    }

    /// Its shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Bytes of words, scales and zero points.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Plans a product with `m` rows.
    ///
    /// # Errors
    /// If no kernel does what `options` force.
    pub fn plan(&self, options: &Options, m: usize) -> Result<DevicePlan, Error> {
        DevicePlan::new(options, (self.shape, self.quant), m, || self.device.name())
    }

    /// Computes y = x · W + bias, which stays on the device: rows of K inputs give rows of N
    /// results in f32. A bias is one row of N numbers. Weights are not rounded for f32 inputs, and
    /// for f16 inputs only if the device has cooperative matrices: then they are rounded to f16 for
    /// products of more than 8 rows.
    ///
    /// # Errors
    /// If an operand has another length or device, no kernel does what is forced, or the device
    /// does not have enough memory or fails.
    pub fn multiply(
        &self,
        options: &Options,
        x: &DeviceArray,
        bias: Option<&DeviceArray>,
    ) -> Result<DeviceArray, Error> {
        let (m, columns) = x.shape();
        let Shape { k, n, .. } = self.shape;
        // Before shapes are compared: in a forked child, they are 0 × 0.
        let own = self.own.get()?;
        self.device.check_is("the input", x)?;
        if columns != k {
            return Err(Error::Length {
                what: "the input",
                rows: m,
                cols: k,
                expected: m.saturating_mul(k),
                found: m.saturating_mul(columns),
            });
        }
        if let Some(bias) = bias {
            self.device.check_is("the bias", bias)?;
            let (rows, columns) = bias.shape();
            if (rows, columns) != (1, n) {
                return Err(Error::Length {
                    what: "the bias",
                    rows: 1,
                    cols: n,
                    expected: n,
                    found: rows.saturating_mul(columns),
                });
            }
        }
        let plan = self.plan(options, m)?;
        // `m` may be any number if rows have no elements.
        m.checked_mul(n).ok_or(Error::Overflow { what: "the result", rows: m, cols: n })?;
        let bias = bias.map(|bias| bias.own.get()).transpose()?;
        let y = build::multiply(own, (plan.kernel, plan.slices), x.own.get()?, bias)?;
        Ok(DeviceArray { device: self.device.clone(), own: OwnedByProcess::new(y) })
    }

    /// Decodes it to f32 `[K, N]`, in the order in which rows are stored. E2M1 and integers times
    /// an f16 or E8M0 scale are exact.
    ///
    /// # Errors
    /// If the device does not have enough memory or fails.
    pub fn dequantize(&self) -> Result<DeviceArray, Error> {
        self.decoded(false)
    }

    /// Decodes it to f16 `[K, N]`, rounded to nearest even. Values beyond 65504 become infinite.
    ///
    /// # Errors
    /// If the device does not have enough memory or fails.
    pub fn dequantize_f16(&self) -> Result<DeviceArray, Error> {
        self.decoded(true)
    }

    fn decoded(&self, halves: bool) -> Result<DeviceArray, Error> {
        let own = OwnedByProcess::new(build::dequantize(self.own.get()?, halves)?);
        Ok(DeviceArray { device: self.device.clone(), own })
    }
}

impl DeviceArray {
    /// Its device.
    pub fn device(&self) -> &GemmDevice {
        &self.device
    }

    /// The number of rows, and of elements per row.
    pub fn shape(&self) -> (usize, usize) {
        self.own.get().map_or((0, 0), build::shape)
    }

    /// Whether elements are f16.
    pub fn is_f16(&self) -> bool {
        self.own.get().is_ok_and(build::is_f16)
    }

    /// Waits until the device has computed its elements, and copies them to the host.
    ///
    /// # Errors
    /// If `out` has another length, or the device fails.
    pub fn read(&self, out: &mut [f32]) -> Result<(), Error> {
        // Before the length is checked: in a forked child, the shape is 0 × 0.
        let rows = self.own.get()?;
        exactly("the result", self.shape(), out.len())?;
        out.copy_from_slice(&build::read(rows)?);
        Ok(())
    }

    /// Like [`read`](Self::read), but as f16. f32 elements are rounded.
    ///
    /// # Errors
    /// If `out` has another length, or the device fails.
    pub fn read_f16(&self, out: &mut [f16]) -> Result<(), Error> {
        // As in `read`.
        let rows = self.own.get()?;
        exactly("the result", self.shape(), out.len())?;
        let bits = build::read_f16(rows)?;
        out.iter_mut().zip(bits).for_each(|(out, bits)| *out = f16::from_bits(bits));
        Ok(())
    }

    /// Converts its elements to f16 or f32, in a new array on the device.
    ///
    /// # Errors
    /// If the device does not have enough memory or fails.
    pub fn converted(&self, halves: bool) -> Result<DeviceArray, Error> {
        let own = OwnedByProcess::new(build::converted(self.own.get()?, halves)?);
        Ok(DeviceArray { device: self.device.clone(), own })
    }
}

/// A value that only the process that made it may use. A child that is forked from the process
/// neither uses nor drops it, because the driver's threads and handles are not valid there.
struct OwnedByProcess<T> {
    process: u32,
    /// None only while it is dropped.
    value: Option<T>,
}

impl<T> OwnedByProcess<T> {
    fn new(value: T) -> OwnedByProcess<T> {
        OwnedByProcess { process: std::process::id(), value: Some(value) }
    }

    /// # Errors
    /// In a forked child.
    fn get(&self) -> Result<&T, Error> {
        let forked = || Error::Forked { child: std::process::id(), parent: self.process };
        self.value.as_ref().filter(|_| self.process == std::process::id()).ok_or_else(forked)
    }
}

impl<T> Drop for OwnedByProcess<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A fork does not copy the threads of the driver: dropping would wait for them forever.
            std::mem::forget(self.value.take());
        }
    }
}
