//! An open device: its queue and limits. Errors of every call to it are caught.

use crate::adapters::{AdapterDescription, adapter, imitation};
use crate::call_cache::{CallCache, CallContext};
use crate::coop_matrix::CoopMatrix;
use crate::error::GpuError;
#[cfg(any(windows, target_os = "linux"))]
use crate::executables::CompilerDevice;
use crate::features;
use crate::pipeline::ShaderPipeline;
use crate::ready::{self, QueueSubmission, ready};
use crate::variants::KernelVariants;
use latent_backend::CompiledKernel;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Maximum time of one submission. Drivers reset a GPU far earlier. Software adapters have no
/// limit, so a shader that does not end would block forever.
const PATIENCE: Duration = Duration::from_secs(600);

/// An open device. Its buffers and pipelines share it.
pub(crate) struct Device {
    pub(crate) raw: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) limits: wgpu::Limits,
    pub(crate) description: AdapterDescription,
    /// Variants of product kernels. None: those that follow from precision and adapter.
    pub(crate) variants: Option<KernelVariants>,
    /// Whether buffers have no memory and writes are ignored. Used to list calls without running
    /// them.
    pub(crate) hollow: bool,
    /// Whether shaders check their indices and loops even if the driver does.
    pub(crate) checks: bool,
    /// Maximum time of one submission.
    patience: Duration,
    /// Total bytes of this process's buffers on the device.
    in_use: AtomicU64,
    /// Number of submitted shader calls.
    #[cfg(test)]
    pub(crate) calls: AtomicU64,
    /// Number of submitted lists.
    #[cfg(test)]
    pub(crate) lists: AtomicU64,
    /// Maximum of `in_use`.
    max_in_use: AtomicU64,
    /// The first failure outside of a call. The device is not used after it.
    fault: Arc<Mutex<Option<DeviceFault>>>,
    /// Whether the device converts f16 to f32 exactly. Set by the first probe.
    pub(crate) exact_f16: OnceLock<bool>,
    /// Tried kinds of cooperative matrices, and whether the device multiplies them correctly.
    pub(crate) tried_matrices: Mutex<HashMap<CoopMatrix, bool>>,
    /// Compiled shaders by their whole text.
    pub(crate) pipelines: Mutex<HashMap<String, Arc<ShaderPipeline>>>,
    /// Bind groups that steps repeat.
    calls_made: Mutex<CallCache>,
    /// Reports the driver's statistics of compiled shaders.
    #[cfg(any(windows, target_os = "linux"))]
    executables: OnceLock<Option<CompilerDevice>>,
}

impl Device {
    /// Opens the adapter of this number with all features that shaders may use.
    pub(crate) fn open(index: usize) -> Result<Arc<Device>, GpuError> {
        Device::open_with(index, None)
    }

    /// As [`open`](Self::open), with these variants of product kernels.
    pub(crate) fn open_with(index: usize, variants: Option<KernelVariants>) -> Result<Arc<Device>, GpuError> {
        Device::opened(index, variants, false).map(Arc::new)
    }

    /// As [`open`](Self::open), without memory behind the buffers, so that the calls of a model
    /// that fits no device can be listed.
    pub(crate) fn open_hollow(index: usize) -> Result<Arc<Device>, GpuError> {
        Device::opened(index, None, true).map(Arc::new)
    }

    /// As [`open_with`](Self::open_with), with shaders that always check their indices and loops.
    #[cfg(test)]
    pub(crate) fn checking(index: usize, variants: Option<KernelVariants>) -> Result<Arc<Device>, GpuError> {
        Ok(Arc::new(Device { checks: true, ..Device::opened(index, variants, false)? }))
    }

    fn opened(index: usize, variants: Option<KernelVariants>, hollow: bool) -> Result<Device, GpuError> {
        let (adapter, description) = adapter(index)?;
        let adapter = if hollow { imitation(&adapter, &description)? } else { adapter };
        let limits = adapter.limits();
        // These are WebGPU's default limits, which every conforming adapter offers.
        if limits.max_compute_workgroup_storage_size < 16384
            || limits.max_compute_invocations_per_workgroup < 256
            || limits.max_storage_buffers_per_shader_stage < 8
        {
            let problem = "shaders need 16 KiB of workgroup memory, workgroups of 256 and 8 storage buffers, \
                           which it does not support";
            return Err(GpuError::Lacking { device: description.name, problem: problem.into() });
        }
        let request = adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("latent"),
            required_features: features::of(&adapter, &description),
            // All that the adapter offers: by default, WebGPU limits a binding to 128 MiB.
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
        // Without these callbacks, wgpu ends the process on either.
        let of_errors = Arc::clone(&fault);
        raw.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            note(&of_errors, DeviceFault::of(&error));
        }));
        let of_loss = Arc::clone(&fault);
        raw.set_device_lost_callback(move |_, message| {
            let reason = if message.is_empty() { "the driver did not report a reason" } else { &message };
            note(&of_loss, DeviceFault::Lost(reason.to_owned()));
        });
        let (in_use, max_in_use) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        let pipelines = Mutex::default();
        Ok(Device {
            raw,
            queue,
            limits,
            description,
            variants,
            hollow,
            checks: false,
            patience: PATIENCE,
            in_use,
            max_in_use,
            #[cfg(test)]
            calls: AtomicU64::new(0),
            #[cfg(test)]
            lists: AtomicU64::new(0),
            fault,
            pipelines,
            exact_f16: OnceLock::new(),
            tried_matrices: Mutex::default(),
            calls_made: Mutex::default(),
            #[cfg(any(windows, target_os = "linux"))]
            executables: OnceLock::new(),
        })
    }

    /// The driver's statistics of a shader's text. Empty if the driver reports none, and on devices
    /// that run shaders.
    pub(crate) fn executable(&self, text: &str) -> CompiledKernel {
        // Only a hollow device lists calls, and only it needs the statistics.
        #[cfg(any(windows, target_os = "linux"))]
        if self.hollow {
            let open = || CompilerDevice::open(&self.description.name);
            let executables = self.executables.get_or_init(open).as_ref();
            return executables
                .map_or_else(CompiledKernel::default, |executables| executables.compiled(text));
        }
        let _ = text;
        CompiledKernel::default()
    }

    pub(crate) fn name(&self) -> &str {
        &self.description.name
    }

    /// Makes calls to the device, and returns their first error. `what` names them in messages.
    pub(crate) fn checked<T>(&self, what: &str, calls: impl FnOnce() -> T) -> Result<T, GpuError> {
        self.alive()?;
        let (made, problem) = ready::caught(&self.raw, calls);
        if problem.is_some() {
            // A lost device refuses calls before it reports the loss, which is the better error.
            // Polling runs the callback that stores it. A result of the poll itself adds nothing.
            let _ = self.raw.poll(wgpu::PollType::Poll);
        }
        self.alive()?;
        problem.map_or(Ok(made), |problem| Err(self.refused(what, problem)))
    }

    /// Runs calls that allocate `bytes` bytes. The bytes are counted until
    /// [`released`](Self::released).
    pub(crate) fn memory<T>(&self, what: &str, bytes: u64, calls: impl FnOnce() -> T) -> Result<T, GpuError> {
        // First: an earlier fault for lack of memory must not be reported with this call's name and
        // size.
        self.alive()?;
        let (device, named, in_use) = (self.name().to_owned(), what.to_owned(), self.in_use());
        let full = GpuError::OutOfMemory { device, what: named, bytes: Some(bytes), in_use };
        if in_use.saturating_add(bytes) > self.memory_limit() {
            return Err(full);
        }
        let made = self.checked(what, calls).map_err(|error| match error {
            GpuError::OutOfMemory { .. } => full,
            error => error,
        })?;
        self.in_use.fetch_add(bytes, Ordering::Relaxed);
        Ok(made)
    }

    /// Converts wgpu's error.
    fn refused(&self, what: &str, problem: wgpu::Error) -> GpuError {
        let (device, what) = (self.name().to_owned(), what.to_owned());
        match problem {
            wgpu::Error::OutOfMemory { .. } => {
                GpuError::OutOfMemory { device, what, bytes: None, in_use: self.in_use() }
            }
            wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. } => {
                GpuError::Refused { device, what, problem: description }
            }
        }
    }

    /// Returns the error of a device that has failed.
    pub(crate) fn alive(&self) -> Result<(), GpuError> {
        match self.fault.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            Some(DeviceFault::Lost(problem)) => {
                Err(GpuError::Lost { device: self.name().to_owned(), problem: problem.clone() })
            }
            Some(DeviceFault::Full) => {
                let (device, what) = (self.name().to_owned(), "the last allocation".to_owned());
                Err(GpuError::OutOfMemory { device, what, bytes: None, in_use: self.in_use() })
            }
            None => Ok(()),
        }
    }

    /// Waits until the device has completed all submissions.
    pub(crate) fn wait(&self) -> Result<(), GpuError> {
        self.wait_until(None)
    }

    /// Waits until the device has completed this submission.
    pub(crate) fn wait_for(&self, submitted: QueueSubmission) -> Result<(), GpuError> {
        self.wait_until(Some(submitted))
    }

    fn wait_until(&self, submitted: Option<QueueSubmission>) -> Result<(), GpuError> {
        let waiting = || ready::done(&self.raw, &self.queue, submitted, self.patience);
        let polled = self.checked("waiting for the device", waiting)?;
        let device = self.name().to_owned();
        match polled {
            Ok(()) => Ok(()),
            Err(wgpu::PollError::Timeout) => {
                let error = GpuError::Hung { device, seconds: self.patience.as_secs() };
                // Later calls fail immediately instead of waiting again.
                note(&self.fault, DeviceFault::Lost(error.to_string()));
                // Wgpu must not wait either: dropping the last handle of a queue blocks until the
                // queue is idle. The device's memory is leaked, but the process can continue on the
                // CPU.
                std::mem::forget((self.raw.clone(), self.queue.clone()));
                Err(error)
            }
            Err(error) => {
                Err(GpuError::Refused { device, what: "waiting".into(), problem: error.to_string() })
            }
        }
    }

    /// Maximum total size of buffers in bytes; `u64::MAX` if unlimited.
    pub(crate) fn memory_limit(&self) -> u64 {
        self.max_in_use.load(Ordering::Relaxed)
    }

    pub(crate) fn set_memory_limit(&self, bytes: u64) {
        self.max_in_use.store(bytes, Ordering::Relaxed);
    }

    /// Total bytes of this process's buffers on the device.
    pub(crate) fn in_use(&self) -> u64 {
        self.in_use.load(Ordering::Relaxed)
    }

    /// The cache of bind groups, and the context in which it creates others.
    pub(crate) fn call_cache(&self) -> (MutexGuard<'_, CallCache>, CallContext<'_>) {
        // At least 16: `CallCache` copies parameters in multiples of 16 bytes.
        let alignment = self.limits.min_uniform_buffer_offset_alignment.max(16).into();
        let context = CallContext { device: &self.raw, queue: &self.queue, alignment };
        (self.calls_made.lock().unwrap_or_else(PoisonError::into_inner), context)
    }

    /// Counts a freed buffer.
    pub(crate) fn released(&self, bytes: u64) {
        self.in_use.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A failure outside of a call, after which the device is not used.
enum DeviceFault {
    /// The device was lost, for this reason.
    Lost(String),
    /// An allocation failed and was reported after the call, as browsers do. Its buffer is invalid.
    Full,
}

impl DeviceFault {
    fn of(error: &wgpu::Error) -> DeviceFault {
        match error {
            wgpu::Error::OutOfMemory { .. } => DeviceFault::Full,
            error => DeviceFault::Lost(error.to_string()),
        }
    }
}

/// Stores the first problem only: later ones are its consequences.
fn note(fault: &Mutex<Option<DeviceFault>>, problem: DeviceFault) {
    fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(problem);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::Buffer;
    use crate::commands::Commands;
    use crate::shader::Shader;
    use crate::testing::device;

    #[test]
    fn a_shader_that_does_not_end_is_an_error() {
        let Some(_) = device() else { return };
        let hasty = Device { patience: Duration::ZERO, ..Device::opened(0, None, false).unwrap() };
        let device = Arc::new(hasty);
        // Seconds on a CPU, and longer than 0 s on any GPU.
        let multiply = Shader::new("multiply", include_str!("limits/multiply.wgsl"));
        let multiply = multiply.after("alias Element = f32;\n");
        let turns = if device.description.is_software() { 1 << 12 } else { 1 << 20 };
        let multiply = device.pipeline(&multiply).unwrap();
        let results = Buffer::new(&device, "results", 4 * 256 * 256).unwrap();
        let mut commands = Commands::new(&device);
        commands.call(&multiply, [(&results).into()], &[256, turns], [256, 1, 1]);
        commands.submit(&[]).unwrap();
        let error = device.wait().unwrap_err().to_string();
        assert!(error.contains("no answer within 0 s") && error.contains(device.name()), "{error}");
        // Dropping the device does not wait for the shader: a dropped queue reports when it is
        // idle.
        let (sender, idle) = std::sync::mpsc::channel();
        device.queue.on_submitted_work_done(move || sender.send(()).unwrap());
        drop((results, multiply, device));
        assert_eq!(idle.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty), "the queue was waited for");
    }

    #[test]
    fn an_allocation_that_exceeds_the_limit_is_an_error_with_its_size() {
        let Some(device) = device() else { return };
        let none = wgpu::Error::OutOfMemory { source: "no memory".into() };
        let error = device.refused("the KV cache", none).to_string();
        assert!(error.contains("out of device memory: the KV cache takes more than is left"), "{error}");
        assert!(error.contains("in use") && !error.contains("0 bytes more"), "{error}");
        let device = Device::opened(0, None, false).map(Arc::new).unwrap();
        device.set_memory_limit(20 << 20);
        let held = Buffer::new(&device, "weights", 16 << 20).unwrap();
        for refused in [
            Buffer::new(&device, "the KV cache", 15 << 20).err().unwrap(),
            crate::buffers::Readback::new(&device, 15 << 20).err().unwrap(),
        ] {
            let refused = refused.to_string();
            assert!(refused.contains("takes 15 MiB more, with 16 MiB already in use"), "{refused}");
        }
        drop(held);
        assert_eq!(device.in_use(), 0);
    }

    #[test]
    fn a_late_out_of_memory_error_is_not_reported_as_a_lost_device() {
        let Some(_) = device() else { return };
        let device = Device::opened(0, None, false).map(Arc::new).unwrap();
        note(&device.fault, DeviceFault::of(&wgpu::Error::OutOfMemory { source: "no memory".into() }));
        // A consequence of the first fault.
        note(&device.fault, DeviceFault::Lost("a buffer is invalid".into()));
        let error = Buffer::new(&device, "weights", 16).err().unwrap();
        assert!(matches!(error, GpuError::OutOfMemory { bytes: None, .. }), "{error}");
        assert!(device.wait().is_err_and(|error| error.to_string().contains("takes more than is left")));
    }

    #[test]
    fn a_hollow_device_allocates_nothing_and_accepts_every_call() {
        let Some(_) = device() else { return };
        let device = Device::open_hollow(0).unwrap();
        let most = crate::buffers::largest_binding(&device.limits);
        // More than any machine has.
        let buffers: Vec<Buffer> = (0..64).map(|_| Buffer::new(&device, "weights", most).unwrap()).collect();
        assert!(buffers.iter().all(|buffer| buffer.bytes() == most));
        buffers[0].write("weights", most - 4, &[1, 2, 3, 4]).unwrap();
    }
}
