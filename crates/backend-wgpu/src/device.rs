//! A device that was opened: its queue, its limits, and every call to it with its errors caught.

use crate::adapters::{AdapterDescription, adapter};
use crate::error::GpuError;
use crate::features;
use crate::matmul::variants::Variants;
use crate::pipeline::Pipeline;
use crate::ready::ready;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long the device may take for what it was given in one piece. Drivers reset a GPU far earlier; software adapters never give up.
const PATIENCE: Duration = Duration::from_secs(600);

/// An open device. Its buffers and pipelines share it.
pub(crate) struct Device {
    pub(crate) raw: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) limits: wgpu::Limits,
    pub(crate) description: AdapterDescription,
    /// What products use in the place of what precision and adapter suggest.
    pub(crate) variants: Option<Variants>,
    /// Bytes of the buffers that Latent has there.
    in_use: AtomicU64,
    /// Calls of shaders that it was handed.
    #[cfg(test)]
    pub(crate) calls: AtomicU64,
    /// What is wrong with it since it failed outside of a call.
    fault: Arc<Mutex<Option<String>>>,
    /// Compiled shaders by their whole text.
    pub(crate) pipelines: Mutex<HashMap<String, Arc<Pipeline>>>,
}

impl Device {
    /// Opens the adapter of this number with all that shaders may use of it.
    pub(crate) fn open(index: usize) -> Result<Arc<Device>, GpuError> {
        Device::open_with(index, None)
    }

    /// The same, with other variants of the products.
    pub(crate) fn open_with(index: usize, variants: Option<Variants>) -> Result<Arc<Device>, GpuError> {
        let (adapter, description) = adapter(index)?;
        let limits = adapter.limits();
        if limits.max_compute_workgroup_storage_size < 16384
            || limits.max_compute_invocations_per_workgroup < 256
            || limits.max_storage_buffers_per_shader_stage < 8
        {
            let problem = "shaders need 16 KiB of workgroup memory, workgroups of 256 and 8 storage buffers, which it does not offer";
            return Err(GpuError::Lacking { device: description.name, problem: problem.into() });
        }
        let request = adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("latent"),
            required_features: features::of(&adapter, &description),
            required_limits: limits.clone(),
            experimental_features: features::experimental(&description),
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            trace: wgpu::Trace::Off,
        });
        let not_opened = |problem| GpuError::NotOpened { device: description.name.clone(), problem };
        let (raw, queue) = ready(request)
            .ok_or_else(|| not_opened("it does not answer".into()))?
            .map_err(|error| not_opened(error.to_string()))?;
        let fault = Arc::new(Mutex::new(None));
        // by default wgpu ends the process on either
        let hears = Arc::clone(&fault);
        raw.on_uncaptured_error(Arc::new(move |error: wgpu::Error| note(&hears, &error.to_string())));
        let hears = Arc::clone(&fault);
        raw.set_device_lost_callback(move |reason, message| {
            if reason != wgpu::DeviceLostReason::Destroyed {
                note(&hears, &message);
            }
        });
        let (in_use, pipelines) = (AtomicU64::new(0), Mutex::default());
        Ok(Arc::new(Device {
            raw,
            queue,
            limits,
            description,
            variants,
            in_use,
            #[cfg(test)]
            calls: AtomicU64::new(0),
            fault,
            pipelines,
        }))
    }

    /// Its name, for messages.
    pub(crate) fn name(&self) -> &str {
        &self.description.name
    }

    /// Makes calls to the device; what goes wrong in them is an error.
    pub(crate) fn checked<T>(&self, what: &str, calls: impl FnOnce() -> T) -> Result<T, GpuError> {
        self.alive()?;
        let filters =
            [wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Validation];
        let mut scopes = filters.map(|filter| Some(self.raw.push_error_scope(filter)));
        let made = calls();
        let mut problem = None;
        for scope in scopes.iter_mut().rev() {
            // the innermost scope is popped first, and every scope is
            let caught = scope.take().and_then(|scope| ready(scope.pop()).flatten());
            problem = problem.or(caught);
        }
        let Some(problem) = problem else {
            self.alive()?;
            return Ok(made);
        };
        let (device, what) = (self.name().to_owned(), what.to_owned());
        Err(match problem {
            wgpu::Error::OutOfMemory { .. } => {
                GpuError::OutOfMemory { device, what, bytes: 0, in_use: self.in_use() }
            }
            wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. } => {
                GpuError::Refused { device, what, problem: description }
            }
        })
    }

    /// Refuses a device that was lost.
    fn alive(&self) -> Result<(), GpuError> {
        match self.fault.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            Some(problem) => Err(GpuError::Lost { device: self.name().to_owned(), problem: problem.clone() }),
            None => Ok(()),
        }
    }

    /// Waits until the device has done all that it was given.
    pub(crate) fn wait(&self) -> Result<(), GpuError> {
        let waiting = wgpu::PollType::Wait { submission_index: None, timeout: Some(PATIENCE) };
        let polled = self.checked("waiting for the device", || self.raw.poll(waiting))?;
        let device = self.name().to_owned();
        match polled {
            Ok(_) => Ok(()),
            Err(wgpu::PollError::Timeout) => Err(GpuError::Hung { device, seconds: PATIENCE.as_secs() }),
            Err(error) => {
                Err(GpuError::Refused { device, what: "waiting".into(), problem: error.to_string() })
            }
        }
    }

    /// Bytes of the buffers that Latent has there.
    pub(crate) fn in_use(&self) -> u64 {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Counts a buffer.
    pub(crate) fn taken(&self, bytes: u64) {
        self.in_use.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a buffer that is gone.
    pub(crate) fn released(&self, bytes: u64) {
        self.in_use.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Keeps the first problem: those after it follow from it.
fn note(fault: &Mutex<Option<String>>, problem: &str) {
    fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| problem.to_owned());
}
