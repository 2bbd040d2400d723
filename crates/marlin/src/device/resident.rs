//! Devices, and the weights and arrays in their memory.

use super::build;
use super::device_plan::DevicePlan;
use crate::error::{Error, exactly};
use crate::input::Input;
use crate::plan::Options;
use crate::weight::{QuantType, Shape, Weight};
use half::f16;
use std::sync::Arc;

/// A GPU for products. Clones are the same device.
///
/// ```
/// use latent_marlin::{GemmDevice, Input, Options, Shape, pack_fp4};
/// // none for the CPU; an error without a GPU, or without the feature `gpu`
/// let Some(device) = GemmDevice::named("gpu").ok().flatten() else { return Ok(()) };
/// let shape = Shape { k: 64, n: 48, group: 32 };
/// let packed = pack_fp4(&vec![0.5; 64 * 48], shape)?;
/// let weight = device.upload(&packed.weight()?)?;
/// let x = device.rows(Input::F32(&[1.0; 3 * 64]), 3, 64)?;
/// let y = weight.multiply(&Options::default(), &x, None)?; // stays there
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

/// Rows of f32 or f16 in the memory of a device: inputs, results of products and inputs of further ones.
pub struct DeviceArray {
    device: GemmDevice,
    own: OwnedByProcess<build::Rows>,
}

impl GemmDevice {
    /// The number of the adapter that a name means: `gpu` (the first), `gpu:N`, or `auto` (the first that is hardware). None for `cpu`, and for `auto`
    /// without such an adapter.
    ///
    /// # Errors
    /// Any other name; the message lists the devices.
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

    /// Opens the device of a name, as for [`index`](Self::index); none for the CPU.
    ///
    /// # Errors
    /// An unknown name, or what [`open`](Self::open) refuses.
    pub fn named(name: &str) -> Result<Option<GemmDevice>, Error> {
        GemmDevice::index(name)?.map(GemmDevice::open).transpose()
    }

    /// Opens the adapter of this number.
    ///
    /// # Errors
    /// A build without the feature `gpu`; a number that no adapter has; an adapter that lacks what shaders need, or whose driver fails.
    pub fn open(index: usize) -> Result<GemmDevice, Error> {
        let own = Arc::new(OwnedByProcess::new(build::open(index)?));
        Ok(GemmDevice { index, own })
    }

    /// Its name: `gpu:0`.
    pub fn name(&self) -> String {
        format!("gpu:{}", self.index)
    }

    /// The name that its driver gives it.
    pub fn adapter(&self) -> String {
        self.own.get().map_or_else(|_| String::new(), build::adapter)
    }

    /// Whether it still takes work: it was not lost, and this process opened it.
    pub fn is_usable(&self) -> bool {
        self.own.get().is_ok_and(build::is_usable)
    }

    /// Whether another process opened it, from which this one was forked.
    pub fn is_forked(&self) -> bool {
        self.own.get().is_err()
    }

    /// Bytes of its memory that weights and rows have now.
    pub fn memory_in_use(&self) -> u64 {
        self.own.get().map_or(0, build::memory_in_use)
    }

    /// Limits the memory of weights and rows to `bytes`.
    pub fn set_memory_limit(&self, bytes: u64) {
        if let Ok(device) = self.own.get() {
            build::set_memory_limit(device, bytes);
        }
    }

    /// Sends a weight.
    ///
    /// # Errors
    /// Too little memory, a buffer that is too large for the device, a device that fails.
    pub fn upload(&self, w: &Weight<'_>) -> Result<ResidentWeight, Error> {
        self.resident(w, None)
    }

    /// Sends a weight whose row k along K is multiplied with input `order[k]`: that of a checkpoint in act-order.
    ///
    /// # Errors
    /// The same, and an order that is not one of K inputs.
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

    /// Sends `m` rows of `k` elements. f32 and f16 are kept as they are (f16 with an odd number of columns, and bf16, as f32).
    ///
    /// # Errors
    /// Another number of elements, too little memory, a device that fails.
    pub fn rows(&self, x: Input<'_>, m: usize, k: usize) -> Result<DeviceArray, Error> {
        x.check(m, k)?;
        let own = OwnedByProcess::new(build::rows(self.own.get()?, &x, (m, k))?);
        Ok(DeviceArray { device: self.clone(), own })
    }

    fn is(&self, other: &GemmDevice) -> bool {
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

    /// What its codes mean.
    pub fn quant(&self) -> QuantType {
        self.quant
    }

    /// Its sizes.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Bytes of words, scales and zero points.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How `m` rows would be multiplied.
    ///
    /// # Errors
    /// When no kernel does what `options` force.
    pub fn plan(&self, options: &Options, m: usize) -> Result<DevicePlan, Error> {
        DevicePlan::new(options, (self.shape, self.quant), m, || self.device.name())
    }

    /// y = x · W + bias, which stays on the device: rows of K inputs, rows of N results in f32. A bias is one row of N numbers in f32. f32 inputs are
    /// multiplied exactly. f16 inputs are too, unless the device has cooperative matrices: then weights are rounded to f16 for products of more than 8 rows.
    ///
    /// # Errors
    /// Operands of another length or device, no kernel for what is forced, too little memory, a device that fails.
    pub fn multiply(
        &self,
        options: &Options,
        x: &DeviceArray,
        bias: Option<&DeviceArray>,
    ) -> Result<DeviceArray, Error> {
        let (m, columns) = x.shape();
        let Shape { k, n, .. } = self.shape;
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
        m.checked_mul(n).ok_or(Error::Overflow { what: "the result", rows: m, cols: n })?;
        let bias = bias.map(|bias| bias.own.get()).transpose()?;
        let y = build::multiply(own, (plan.kernel, plan.slices), x.own.get()?, bias)?;
        Ok(DeviceArray { device: self.device.clone(), own: OwnedByProcess::new(y) })
    }

    /// Its values `[K, N]` in f32, as it is stored. E2M1 and integers times an f16 or E8M0 scale are exact.
    ///
    /// # Errors
    /// Too little memory, a device that fails.
    pub fn dequantize(&self) -> Result<DeviceArray, Error> {
        self.decoded(false)
    }

    /// The same in f16, rounded to nearest even; beyond 65504 infinite.
    ///
    /// # Errors
    /// Too little memory, a device that fails.
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

    /// Rows, and elements of each.
    pub fn shape(&self) -> (usize, usize) {
        self.own.get().map_or((0, 0), build::shape)
    }

    /// Whether elements are f16.
    pub fn is_f16(&self) -> bool {
        self.own.get().is_ok_and(build::is_f16)
    }

    /// Copies its elements to the host, once the device has computed them.
    ///
    /// # Errors
    /// When `out` has another length, a device that fails.
    pub fn read(&self, out: &mut [f32]) -> Result<(), Error> {
        let rows = self.own.get()?;
        exactly("the result", self.shape(), out.len())?;
        out.copy_from_slice(&build::read(rows)?);
        Ok(())
    }

    /// The same rounded to f16, or as f16 if they are.
    ///
    /// # Errors
    /// When `out` has another length, a device that fails.
    pub fn read_f16(&self, out: &mut [f16]) -> Result<(), Error> {
        let rows = self.own.get()?;
        exactly("the result", self.shape(), out.len())?;
        let bits = build::read_f16(rows)?;
        out.iter_mut().zip(bits).for_each(|(out, bits)| *out = f16::from_bits(bits));
        Ok(())
    }

    /// Its elements in f16, or in f32, as an array of their own on the device.
    ///
    /// # Errors
    /// Too little memory, a device that fails.
    pub fn converted(&self, halves: bool) -> Result<DeviceArray, Error> {
        let own = OwnedByProcess::new(build::converted(self.own.get()?, halves)?);
        Ok(DeviceArray { device: self.device.clone(), own })
    }
}

/// A value that only the process that made it uses. A child that is forked from it neither uses nor drops it.
struct OwnedByProcess<T> {
    process: u32,
    /// None while it is dropped.
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
            // threads of the driver are not here: waiting for them would never end
            std::mem::forget(self.value.take());
        }
    }
}
