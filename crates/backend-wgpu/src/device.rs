//! A device that was opened: its queue, its limits, and every call to it with its errors caught.

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

/// How long the device may take for what it was given at once. Drivers reset a GPU far earlier; software adapters never give up.
const PATIENCE: Duration = Duration::from_secs(600);

/// An open device. Its buffers and pipelines share it.
pub(crate) struct Device {
    pub(crate) raw: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) limits: wgpu::Limits,
    pub(crate) description: AdapterDescription,
    /// What products use in the place of what precision and adapter suggest.
    pub(crate) variants: Option<KernelVariants>,
    /// Whether buffers have no memory and take no content: for looking at what would run.
    pub(crate) hollow: bool,
    /// Whether shaders check their indices and loops even where they need not.
    pub(crate) checks: bool,
    /// How long it may take for a list.
    patience: Duration,
    /// Bytes of the buffers that Latent has there.
    in_use: AtomicU64,
    /// Calls of shaders that it was handed.
    #[cfg(test)]
    pub(crate) calls: AtomicU64,
    /// Lists that it was handed.
    #[cfg(test)]
    pub(crate) lists: AtomicU64,
    /// Most bytes that they may have together.
    most: AtomicU64,
    /// What is wrong with it since it failed outside of a call.
    fault: Arc<Mutex<Option<DeviceFault>>>,
    /// Whether it widens f16 exactly, once that was tried.
    pub(crate) exact_f16: OnceLock<bool>,
    /// Kinds of cooperative matrices that were tried, and whether it multiplies them as it should.
    pub(crate) tried_matrices: Mutex<HashMap<CoopMatrix, bool>>,
    /// Compiled shaders by their whole text.
    pub(crate) pipelines: Mutex<HashMap<String, Arc<ShaderPipeline>>>,
    /// Bind groups that steps repeat.
    calls_made: Mutex<CallCache>,
    /// What says what the driver makes of shaders.
    #[cfg(any(windows, target_os = "linux"))]
    executables: OnceLock<Option<CompilerDevice>>,
}

impl Device {
    /// Opens the adapter of this number with all that shaders may use of it.
    pub(crate) fn open(index: usize) -> Result<Arc<Device>, GpuError> {
        Device::open_with(index, None)
    }

    /// The same, with other variants of the products.
    pub(crate) fn open_with(index: usize, variants: Option<KernelVariants>) -> Result<Arc<Device>, GpuError> {
        Device::opened(index, variants, false).map(Arc::new)
    }

    /// The same without memory behind its buffers: a model that fits no device can be looked at.
    pub(crate) fn open_hollow(index: usize) -> Result<Arc<Device>, GpuError> {
        Device::opened(index, None, true).map(Arc::new)
    }

    /// The same with shaders that check their indices and loops, whether or not they need to.
    #[cfg(test)]
    pub(crate) fn checking(index: usize, variants: Option<KernelVariants>) -> Result<Arc<Device>, GpuError> {
        Ok(Arc::new(Device { checks: true, ..Device::opened(index, variants, false)? }))
    }

    fn opened(index: usize, variants: Option<KernelVariants>, hollow: bool) -> Result<Device, GpuError> {
        let (adapter, description) = adapter(index)?;
        let adapter = if hollow { imitation(&adapter, &description)? } else { adapter };
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
        raw.on_uncaptured_error(Arc::new(move |error: wgpu::Error| note(&hears, DeviceFault::of(&error))));
        let hears = Arc::clone(&fault);
        raw.set_device_lost_callback(move |_, message| {
            let reason = if message.is_empty() { "the driver gives no reason" } else { &message };
            note(&hears, DeviceFault::Lost(reason.to_owned()));
        });
        let (in_use, most, pipelines) = (AtomicU64::new(0), AtomicU64::new(u64::MAX), Mutex::default());
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
            most,
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

    /// What the adapter's driver makes of a text, as far as it says; nothing where shaders are to run.
    pub(crate) fn executable(&self, text: &str) -> CompiledKernel {
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

    /// Its name, for messages.
    pub(crate) fn name(&self) -> &str {
        &self.description.name
    }

    /// Makes calls to the device; what goes wrong in them is an error.
    pub(crate) fn checked<T>(&self, what: &str, calls: impl FnOnce() -> T) -> Result<T, GpuError> {
        self.alive()?;
        let (made, problem) = ready::caught(&self.raw, calls);
        if problem.is_some() {
            // a device that is lost refuses calls before it says that it is; what it does not answer here it has said before
            let _ = self.raw.poll(wgpu::PollType::Poll);
        }
        self.alive()?;
        problem.map_or(Ok(made), |problem| Err(self.refused(what, problem)))
    }

    /// Runs calls that allocate `bytes` bytes. The bytes are counted until
    /// [`released`](Self::released).
    pub(crate) fn memory<T>(&self, what: &str, bytes: u64, calls: impl FnOnce() -> T) -> Result<T, GpuError> {
        // what it lacked before is not what it lacks now
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

    /// What was wrong with a call.
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

    /// Refuses a device that was lost.
    pub(crate) fn alive(&self) -> Result<(), GpuError> {
        match self.fault.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            Some(DeviceFault::Lost(problem)) => {
                Err(GpuError::Lost { device: self.name().to_owned(), problem: problem.clone() })
            }
            Some(DeviceFault::Full) => {
                let (device, what) = (self.name().to_owned(), "what it was asked for last".to_owned());
                Err(GpuError::OutOfMemory { device, what, bytes: None, in_use: self.in_use() })
            }
            None => Ok(()),
        }
    }

    /// Waits until the device has done all that it was given.
    pub(crate) fn wait(&self) -> Result<(), GpuError> {
        self.wait_until(None)
    }

    /// Waits until the device has done this.
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
                // later calls fail at once
                note(&self.fault, DeviceFault::Lost(error.to_string()));
                // wgpu must not wait either: dropping the last handle of a queue blocks until the
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
        self.most.load(Ordering::Relaxed)
    }

    pub(crate) fn set_memory_limit(&self, bytes: u64) {
        self.most.store(bytes, Ordering::Relaxed);
    }

    /// Bytes of the buffers that Latent has there.
    pub(crate) fn in_use(&self) -> u64 {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Bind groups of earlier calls, and what makes others.
    pub(crate) fn call_cache(&self) -> (MutexGuard<'_, CallCache>, CallContext<'_>) {
        let alignment = self.limits.min_uniform_buffer_offset_alignment.max(16).into();
        let context = CallContext { device: &self.raw, queue: &self.queue, alignment };
        (self.calls_made.lock().unwrap_or_else(PoisonError::into_inner), context)
    }

    /// Counts a buffer that is gone.
    pub(crate) fn released(&self, bytes: u64) {
        self.in_use.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Why a device that failed outside of a call is used no more.
enum DeviceFault {
    /// It is gone, as this says.
    Lost(String),
    /// It had no memory for something, which it says later than it was asked: browsers do. What was to be there is not.
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

/// Keeps the first problem: those after it follow from it.
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
        // seconds on a CPU, and longer on any GPU than no time at all
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
        // dropping the device does not wait for the shader: a dropped queue reports when it is idle
        let (says, idle) = std::sync::mpsc::channel();
        device.queue.on_submitted_work_done(move || says.send(()).unwrap());
        drop((results, multiply, device));
        assert_eq!(idle.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty), "the queue was waited for");
    }

    #[test]
    fn memory_that_there_is_not_is_an_error_that_says_how_much() {
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
    fn memory_that_is_missed_later_is_no_lost_device() {
        let Some(_) = device() else { return };
        let device = Device::opened(0, None, false).map(Arc::new).unwrap();
        note(&device.fault, DeviceFault::of(&wgpu::Error::OutOfMemory { source: "no memory".into() }));
        // what follows from it
        note(&device.fault, DeviceFault::Lost("a buffer is invalid".into()));
        let error = Buffer::new(&device, "weights", 16).err().unwrap();
        assert!(matches!(error, GpuError::OutOfMemory { bytes: None, .. }), "{error}");
        assert!(device.wait().is_err_and(|error| error.to_string().contains("takes more than is left")));
    }

    #[test]
    fn a_hollow_device_has_no_memory_and_takes_every_call() {
        let Some(_) = device() else { return };
        let device = Device::open_hollow(0).unwrap();
        let most = crate::buffers::largest_binding(&device.limits);
        // more than any machine has
        let buffers: Vec<Buffer> = (0..64).map(|_| Buffer::new(&device, "weights", most).unwrap()).collect();
        assert!(buffers.iter().all(|buffer| buffer.bytes() == most));
        buffers[0].write("weights", most - 4, &[1, 2, 3, 4]).unwrap();
    }
}
