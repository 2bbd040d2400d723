//! GPUs, which stay open between calls. Arrays and weights work together only if they were made
//! with the same opened device.

use crate::errors::{argument, refused};
use latent_marlin::GemmDevice;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// One open device per adapter. The lock is taken with the GIL held and released before the GIL is,
/// so that it is free in a child that Python forks.
static DEVICES: Mutex<BTreeMap<usize, GemmDevice>> = Mutex::new(BTreeMap::new());

/// Returns the device with a name, opened if necessary, or `None` for the CPU.
pub(crate) fn device(py: Python<'_>, name: &str) -> PyResult<Option<GemmDevice>> {
    let Some(index) = GemmDevice::index(name).map_err(|error| refused(py, error))? else { return Ok(None) };
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = devices.get(&index) {
        // A forked child must not open a device: the driver's state is the parent's. The device's
        // own error explains that.
        if device.is_usable() || device.is_forked() {
            return Ok(Some(device.clone()));
        }
    }
    let device = GemmDevice::open(index).map_err(|error| refused(py, error))?;
    devices.insert(index, device.clone());
    Ok(Some(device))
}

/// Returns the GPU with a name. Raises `ArgumentError` for the CPU.
pub(crate) fn gpu(py: Python<'_>, name: &str) -> PyResult<GemmDevice> {
    device(py, name)?.ok_or_else(|| {
        argument(py, format!("device {name:?} is the CPU, whose arrays are NumPy's: expected gpu or gpu:N"))
    })
}

/// Open a device, and return its name.
///
/// Parameters
/// ----------
/// device : str
///     "cpu", "gpu", "gpu:N" or "auto".
///
/// Returns
/// -------
/// str or None
///     "gpu:N", or None for the CPU: for "cpu", and for "auto" on a machine without a GPU.
#[pyfunction]
pub(crate) fn device_name(py: Python<'_>, device: &str) -> PyResult<Option<String>> {
    Ok(self::device(py, device)?.map(|device| device.name()))
}
