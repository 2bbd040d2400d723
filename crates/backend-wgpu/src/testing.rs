//! The device of tests.

use crate::device::Device;
use crate::error::GpuError;
use std::sync::{Arc, Mutex};

/// A device of its own for a test, if there is an adapter; says so where there is none, and fails there if `REQUIRE_GPU` is set.
pub(crate) fn device() -> Option<Arc<Device>> {
    // drivers that load one another at the same time are not what is tested here
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    match Device::open(0) {
        Ok(device) => Some(device),
        Err(GpuError::NoAdapter) if std::env::var_os("REQUIRE_GPU").is_none() => {
            println!("SKIPPED: no adapter");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
