//! Lists of shader calls and copies that are submitted together.

use crate::buffers::{Buffer, Readback};
use crate::device::Device;
use crate::error::GpuError;
use crate::kernel_facts::KernelFacts;
use crate::pipeline::ShaderPipeline;
use crate::ready::{self, QueueSubmission};
pub(crate) use crate::shader_binding::ShaderBinding;
use crate::timestamps::PassTimestamps;
use latent_backend::{Instant, KernelCalls};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

struct ShaderCall {
    pipeline: Arc<ShaderPipeline>,
    bindings: Vec<(u32, ShaderBinding)>,
    /// Range of its bytes in [`Commands::params`].
    params: Range<usize>,
    groups: [u32; 3],
}

enum Command {
    Call(ShaderCall),
    /// Copies bytes between two buffers, in whole words.
    Copy {
        from: ShaderBinding,
        to: wgpu::Buffer,
        at: u64,
    },
}

impl Command {
    fn is_call(&self) -> bool {
        matches!(self, Command::Call(_))
    }
}

/// A copy to a readback buffer: destination, source, source range, offset in the destination.
pub(crate) type ReadbackCopy<'r> = (&'r Readback, &'r Buffer, Range<u64>, u64);

/// Shader calls and copies in order. Each sees the writes of those before it: wgpu inserts the
/// barriers.
pub(crate) struct Commands {
    device: Arc<Device>,
    commands: Vec<Command>,
    /// Parameters of all calls, each padded to a multiple of 16 bytes (the layout of uniforms).
    params: Vec<u8>,
    /// (index of a command, number): from this command on, time counts for the number.
    timed: Vec<(usize, usize)>,
    /// Unique number of this list.
    number: u64,
}

impl Commands {
    pub(crate) fn new(device: &Arc<Device>) -> Commands {
        static LISTS: AtomicU64 = AtomicU64::new(0);
        // Relaxed: the numbers need only be unique.
        let number = LISTS.fetch_add(1, Ordering::Relaxed);
        let (commands, params, timed) = (Vec::new(), Vec::new(), Vec::new());
        Commands { device: Arc::clone(device), commands, params, timed, number }
    }

    /// Identifies the present end of this list. A later call returns the same value only if nothing
    /// was added, and no other list returns it.
    pub(crate) fn end(&self) -> (u64, usize) {
        (self.number, self.commands.len())
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn len(&self) -> usize {
        self.commands.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Calls a shader with `groups` workgroups. The parameters are binding 0, the buffers are
    /// bindings from 1 on. A call of 0 workgroups is omitted.
    pub(crate) fn call(
        &mut self,
        pipeline: &Arc<ShaderPipeline>,
        bindings: impl IntoIterator<Item = ShaderBinding>,
        params: &[u32],
        groups: [u32; 3],
    ) {
        self.call_numbered(pipeline, (1..).zip(bindings), params, groups);
    }

    /// As [`call`](Self::call), for a shader whose bindings are not numbered consecutively.
    pub(crate) fn call_numbered(
        &mut self,
        pipeline: &Arc<ShaderPipeline>,
        bindings: impl IntoIterator<Item = (u32, ShaderBinding)>,
        params: &[u32],
        groups: [u32; 3],
    ) {
        if groups.contains(&0) {
            return;
        }
        let start = self.params.len();
        self.params.extend(params.iter().flat_map(|param| param.to_le_bytes()));
        // At least 16 bytes, since a binding must not be empty.
        let end = self.params.len().next_multiple_of(16).max(start + 16);
        self.params.resize(end, 0);
        self.commands.push(Command::Call(ShaderCall {
            pipeline: Arc::clone(pipeline),
            bindings: bindings.into_iter().collect(),
            params: start..end,
            groups,
        }));
    }

    /// The calls from the command `first` on. Equal ones are counted together.
    pub(crate) fn kernels(&self, first: usize) -> Vec<KernelCalls> {
        let mut found: Vec<KernelCalls> = Vec::new();
        for command in self.commands.iter().skip(first) {
            let (kernel, workgroups, facts) = match command {
                Command::Call(call) => {
                    let groups = call.groups.iter().map(|n| u64::from(*n)).product();
                    let compile = |text: &str| self.device.executable(text);
                    (call.pipeline.name.as_str(), groups, call.pipeline.facts(&compile))
                }
                Command::Copy { .. } => ("copy", 0, KernelFacts::default()),
            };
            let KernelFacts { threads, memory, conflicts, compiled } = facts;
            let alike = |other: &&mut KernelCalls| {
                (other.kernel.as_str(), other.threads, other.memory) == (kernel, threads, memory)
            };
            match found.iter_mut().find(alike) {
                Some(known) => {
                    known.calls += 1;
                    known.workgroups += workgroups;
                }
                None => {
                    let kernel = kernel.to_owned();
                    let calls = 1;
                    found.push(KernelCalls {
                        kernel,
                        calls,
                        workgroups,
                        threads,
                        memory,
                        conflicts,
                        compiled,
                    });
                }
            }
        }
        found
    }

    /// Copies bytes to `at` of another buffer.
    pub(crate) fn copy(&mut self, from: &Buffer, range: Range<u64>, to: &Buffer, at: u64) {
        self.commands.push(Command::Copy { from: ShaderBinding::part(from, range), to: to.raw.clone(), at });
    }

    /// Lets the time of the following calls count for this number.
    pub(crate) fn timed(&mut self, number: usize) {
        self.timed.push((self.commands.len(), number));
    }

    /// Submits the list, followed by copies of results.
    pub(crate) fn submit(self, results: &[ReadbackCopy<'_>]) -> Result<(), GpuError> {
        self.encode(results, None).map(drop)
    }

    /// Submits the list as a submission that can be waited for separately.
    pub(crate) fn submit_portion(self) -> Result<QueueSubmission, GpuError> {
        let device = Arc::clone(&self.device);
        let index = self.encode(&[], None)?;
        Ok(ready::submitted(&device.queue, index))
    }

    /// As [`submit`](Self::submit) on a device with timestamps. Waits and returns (number,
    /// nanoseconds) pairs; a number may occur several times. Copies between buffers are not timed.
    pub(crate) fn submit_timed(self, results: &[ReadbackCopy<'_>]) -> Result<Vec<(usize, u64)>, GpuError> {
        // As in `encode`, a pass is a row of calls: it ends at a copy, and where the number
        // changes.
        let calls = |i: usize| matches!(self.commands[i], Command::Call(_));
        let begins = |range: &Range<usize>, i: usize| calls(i) && (i == range.start || !calls(i - 1));
        let passes = self.stretches().into_iter();
        let passes = passes.map(|(_, range)| range.clone().filter(|i| begins(&range, *i)).count()).sum();
        let mut timestamps = PassTimestamps::new(&self.device, passes)?;
        self.encode(results, Some(&mut timestamps))?;
        timestamps.nanos()
    }

    /// Runs the list and returns its seconds, by the device's clock or else by the host's.
    pub(crate) fn seconds(self) -> Result<f64, GpuError> {
        let (device, start) = (Arc::clone(&self.device), Instant::now());
        let nanos = match device.description.timestamps {
            true => self.submit_timed(&[])?.into_iter().map(|(_, nanos)| nanos).sum(),
            false => self.submit(&[]).map(|()| 0)?,
        };
        device.wait()?;
        // A list of copies alone has no timestamps.
        Ok(if nanos > 0 { 1e-9 * nanos as f64 } else { start.elapsed().as_secs_f64() })
    }

    /// The ranges of consecutive commands whose time counts for the same number.
    fn stretches(&self) -> Vec<(usize, Range<usize>)> {
        // Commands before the first number count for 0.
        let starts = std::iter::once((0, 0)).chain(self.timed.iter().copied());
        let ends = self.timed.iter().map(|(at, _)| *at).chain([self.len()]);
        starts.zip(ends).map(|((start, number), end)| (number, start..end)).collect()
    }

    fn encode(
        self,
        results: &[ReadbackCopy<'_>],
        mut timestamps: Option<&mut PassTimestamps>,
    ) -> Result<wgpu::SubmissionIndex, GpuError> {
        let stretches = self.stretches();
        let Commands { device, commands, params, .. } = self;
        #[cfg(test)]
        device.calls.fetch_add(
            commands.iter().filter(|command| command.is_call()).count() as u64,
            std::sync::atomic::Ordering::Relaxed,
        );
        #[cfg(test)]
        device.lists.fetch_add(1, Ordering::Relaxed);
        let submitted = device.checked("a step", || {
            let mut encoder = device.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            let mut commands = commands.into_iter().peekable();
            for (number, range) in stretches {
                let mut left = range.len();
                while left > 0 {
                    if let Some(Command::Copy { from, to, at }) =
                        commands.next_if(|command| !command.is_call())
                    {
                        let (buffer, range) = from.range();
                        encoder.copy_buffer_to_buffer(buffer, range.start, &to, at, range.end - range.start);
                        left -= 1;
                        continue;
                    }
                    // Timestamps can only be written at the ends of a pass, so a timed list has a
                    // pass per number.
                    let timestamp_writes = timestamps.as_mut().and_then(|stamps| stamps.pass(number));
                    let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes };
                    let mut pass = encoder.begin_compute_pass(&descriptor);
                    let calls = std::iter::from_fn(|| match commands.next_if(Command::is_call) {
                        Some(Command::Call(call)) => Some(call),
                        _ => None,
                    });
                    for call in calls.take(left) {
                        record(&device, &mut pass, call, &params);
                        left -= 1;
                    }
                }
            }
            // `write_buffer` takes effect before the next submission, so this may follow the
            // recording.
            let (mut cache, context) = device.call_cache();
            cache.send_parameters(&context);
            drop(cache);
            for (readback, from, range, at) in results {
                readback.copy(&mut encoder, from, range.clone(), *at);
            }
            if let Some(timestamps) = &timestamps {
                timestamps.resolve(&mut encoder);
            }
            device.queue.submit([encoder.finish()])
        });
        // The refused call may have used a cached bind group, which would fail in every later step.
        submitted.inspect_err(|_| device.call_cache().0.clear())
    }
}

/// Adds a call to a pass. `params` are the parameters of all calls of the list.
fn record(device: &Device, pass: &mut wgpu::ComputePass<'_>, call: ShaderCall, params: &[u8]) {
    let ShaderCall { pipeline, bindings, params: own, groups: [x, y, z] } = call;
    pass.set_pipeline(&pipeline.raw);
    let (mut cache, context) = device.call_cache();
    pass.set_bind_group(0, cache.bind_group(&context, &pipeline, bindings, &params[own]), &[]);
    pass.dispatch_workgroups(x, y, z);
}

/// Workgroups for `count` invocations, `size` per workgroup, over two dimensions if one is too
/// small. A shader takes `y * 65535 + x` as the number of its workgroup and compares it with the
/// amount of work.
pub(crate) fn grid(count: usize, size: usize) -> [u32; 3] {
    let groups = count.div_ceil(size);
    // Sizes of models fit; a larger count exceeds the device's limit and is refused with an error.
    let clamp = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    match groups {
        0..=GRID_WIDTH => [clamp(groups), 1, 1],
        _ => [GRID_WIDTH as u32, clamp(groups.div_ceil(GRID_WIDTH)), 1],
    }
}

/// Maximum workgroups in the first dimension of a [`grid`]: the limit that WebGPU guarantees.
pub(crate) const GRID_WIDTH: usize = 65535;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::float_bytes;
    use crate::shader::{Shader, ShaderConstant};
    use crate::testing::device;

    const ADD: &str = "
@group(0) @binding(0) var<uniform> params: vec4<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < params.x) { y[id.x] = y[id.x] + SCALE * x[id.x]; }
}";

    #[test]
    fn calls_see_the_writes_of_earlier_calls() {
        let Some(device) = device() else { return };
        let x: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        let from = Buffer::with(&device, "x", &float_bytes(&x)).unwrap();
        let to = Buffer::new(&device, "y", 4000).unwrap();
        assert_eq!(device.in_use(), 8000);
        let shader = |scale| Shader::new("add", ADD).with("SCALE", ShaderConstant::Number(scale));
        let (once, twice) = (device.pipeline(&shader(1.0)).unwrap(), device.pipeline(&shader(2.0)).unwrap());
        assert!(Arc::ptr_eq(&once, &device.pipeline(&shader(1.0)).unwrap()));
        let mut commands = Commands::new(&device);
        for pipeline in [&once, &twice, &once] {
            commands.call(pipeline, [&from, &to].map(ShaderBinding::from), &[1000], grid(1000, 64));
        }
        commands.submit(&[]).unwrap();
        let expected: Vec<f32> = x.iter().map(|x| 4.0 * x).collect();
        assert_eq!(to.read("y", 0..4000).unwrap(), float_bytes(&expected));
        drop((from, to));
        assert_eq!(device.in_use(), 0);
    }

    #[test]
    fn repeated_calls_share_a_bind_group_until_a_buffer_is_freed() {
        let Some(_) = device() else { return };
        let device = Device::open(0).unwrap();
        let add =
            device.pipeline(&Shader::new("add", ADD).with("SCALE", ShaderConstant::Number(1.0))).unwrap();
        let x = Buffer::with(&device, "x", &float_bytes(&[1.0; 64])).unwrap();
        let y = Buffer::new(&device, "y", 256).unwrap();
        let add_to = |y: &Buffer, elements: &[u32]| {
            let mut commands = Commands::new(&device);
            for elements in elements {
                commands.call(&add, [&x, y].map(ShaderBinding::from), &[*elements], [1, 1, 1]);
            }
            commands.submit(&[]).unwrap();
        };
        for _ in 0..3 {
            add_to(&y, &[64, 32, 64]);
        }
        assert_eq!(device.call_cache().0.len(), 2);
        let expected: Vec<f32> = (0..64).map(|i| if i < 32 { 9.0 } else { 6.0 }).collect();
        assert_eq!(y.read("y", 0..256).unwrap(), float_bytes(&expected));
        let other = Buffer::new(&device, "other", 256).unwrap();
        add_to(&other, &[64]);
        assert_eq!(device.call_cache().0.len(), 3);
        drop(y);
        assert_eq!(device.call_cache().0.len(), 1);
        // More parameters than fit into one buffer. Earlier calls keep theirs.
        let mut commands = Commands::new(&device);
        let others = 2 << 14;
        for own in 0..others {
            commands.call(&add, [&x, &other].map(ShaderBinding::from), &[64, own], [1, 1, 1]);
        }
        commands.submit(&[]).unwrap();
        assert_eq!(other.read("other", 0..256).unwrap(), float_bytes(&[1.0 + others as f32; 64]));
        drop(x);
        assert_eq!(device.call_cache().0.len(), 0);
    }

    #[test]
    fn timestamps_measure_each_number() {
        let Some(device) = device() else { return };
        if !device.description.timestamps {
            println!("SKIPPED: {} has no timestamps", device.name());
            return;
        }
        let x = Buffer::new(&device, "x", 4 << 20).unwrap();
        let y = Buffer::new(&device, "y", 4 << 20).unwrap();
        let add = Shader::new("add", ADD).with("SCALE", ShaderConstant::Number(1.0));
        let add = device.pipeline(&add).unwrap();
        // More passes than one query set holds.
        let mut commands = Commands::new(&device);
        for number in 0..3000 {
            commands.timed(number);
            let elements = if number == 2999 { 1 << 20 } else { 64 };
            commands.call(&add, [&x, &y].map(ShaderBinding::from), &[elements], grid(elements as usize, 64));
        }
        let start = Instant::now();
        let nanos = commands.submit_timed(&[]).unwrap();
        let wall = start.elapsed().as_nanos() as u64;
        assert!(nanos.iter().map(|(number, _)| *number).eq(0..3000));
        // Some of the small calls may have waited for other programs of this machine.
        let mut small: Vec<u64> = nanos[..2999].iter().map(|(_, nanos)| *nanos).collect();
        small.sort_unstable();
        assert!(nanos[2999].1 > small[1500], "{} of {:?}", small[1500], &nanos[2990..]);
        assert!(nanos.iter().map(|(_, nanos)| nanos).sum::<u64>() <= wall, "{wall}");
        // Copies alone are not timed.
        let mut commands = Commands::new(&device);
        commands.timed(7);
        commands.copy(&x, 0..16, &y, 0);
        assert_eq!(commands.submit_timed(&[]).unwrap(), []);
    }

    #[test]
    fn a_refused_call_is_an_error_and_the_device_still_works() {
        let Some(device) = device() else { return };
        let broken = device.pipeline(&Shader::new("broken", "fn main() { let x = nowhere; }"));
        let error = broken.err().unwrap().to_string();
        assert!(error.contains("compiling the shader broken") && error.contains("nowhere"), "{error}");
        let error = Buffer::new(&device, "far too much", 1 << 60).err().unwrap();
        assert!(matches!(error, GpuError::TooLarge { .. }), "{error}");
        let buffer = Buffer::with(&device, "few", &[1, 2, 3, 4, 5]).unwrap();
        assert_eq!(buffer.read("few", 0..8).unwrap(), [1, 2, 3, 4, 5, 0, 0, 0]);
    }

    #[test]
    fn threads_that_share_a_device_get_their_own_results() {
        let Some(device) = device() else { return };
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let device = &device;
                scope.spawn(move || {
                    let buffer = Buffer::with(device, "few", &[thread; 16]).unwrap();
                    for _ in 0..100 {
                        assert_eq!(buffer.read("few", 0..16).unwrap(), [thread; 16]);
                    }
                });
            }
        });
    }

    #[test]
    fn calls_to_a_lost_device_fail() {
        let Some(_) = device() else { return };
        let device = Device::open(0).unwrap();
        let buffer = Buffer::with(&device, "few", &[0; 16]).unwrap();
        device.raw.destroy();
        for _ in 0..2 {
            let error = buffer.read("few", 0..16).unwrap_err();
            assert!(matches!(error, GpuError::Lost { .. }), "{error}");
            let error = error.to_string();
            assert!(error.contains(device.name()) && error.contains("load the model again"), "{error}");
        }
        let error = Buffer::new(&device, "more", 16).err().unwrap();
        assert!(matches!(error, GpuError::Lost { .. }), "{error}");
    }
}
