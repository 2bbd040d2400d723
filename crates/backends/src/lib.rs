//! The backends that this build has: the one crate that names them all. Programs take a backend from here and give it to the engine.
//!
//! ```
//! let backend = latent_backends::by_name("cpu").unwrap();
//! assert_eq!(backend.name(), "cpu");
//! assert!(latent_backends::by_name("gpu").err().unwrap().to_string().contains("cpu, reference"));
//! ```
#![forbid(unsafe_code)]

use latent_backend::{Backend, BackendError, Limits};
use latent_backend_cpu::CpuBackend;
use latent_testing::reference::ReferenceBackend;
use latent_threads::Placement;
use latent_types::Tier;

pub use latent_backend_cpu::{Packed, pack};

/// Every name that [`by_name`] knows, the default first.
pub const NAMES: [&str; 2] = ["cpu", "reference"];

/// The CPU of this host.
pub fn cpu() -> Box<dyn Backend> {
    Box::new(CpuBackend::new())
}

/// The interpreter of plain f32 that other backends are held against: slow, and short enough to read.
pub fn reference() -> Box<dyn Backend> {
    Box::new(ReferenceBackend::default())
}

/// The backend of this name, as `--device` gives it.
///
/// # Errors
/// [`BackendError::Unsupported`], which lists the names, for any other one.
pub fn by_name(name: &str) -> Result<Box<dyn Backend>, BackendError> {
    match name {
        "cpu" => Ok(cpu()),
        "reference" => Ok(reference()),
        _ => Err(BackendError::Unsupported(format!(
            "no device is called {name:?}; there are {}",
            NAMES.join(", ")
        ))),
    }
}

/// What the machine can do where the threads of `backend` run. A backend that measures nothing runs on the CPU of this host.
///
/// # Errors
/// What the backend says of a measurement that fails.
pub fn limits(backend: &dyn Backend, placement: &Placement, tier: Tier) -> Result<Limits, BackendError> {
    match backend.limits(placement, tier) {
        Err(BackendError::Unsupported(_)) => cpu().limits(placement, tier),
        measured => measured,
    }
}
