//! Parameters and bind groups of shader calls, kept between steps. Most calls of a decode step repeat those of the step before, with the same
//! buffers and the same parameters.

use crate::pipeline::ShaderPipeline;
use crate::shader_binding::ShaderBinding;
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of a buffer of parameters. A full one is replaced: calls that were recorded keep the old one.
const PARAMETER_BYTES: u64 = 1 << 20;

/// What a bind group is made of.
#[derive(PartialEq, Eq, Hash)]
struct BindGroupKey {
    /// The address of the pipeline, which the device keeps as long as this cache.
    pipeline: usize,
    /// Where the parameters begin.
    params: u64,
    bindings: Vec<(u32, ShaderBinding)>,
}

/// The bind groups of a device.
#[derive(Default)]
pub(crate) struct CallCache {
    uniforms: Option<wgpu::Buffer>,
    /// Where parameters stand in the buffer, by their bytes.
    offsets: HashMap<Vec<u8>, u64>,
    /// The bytes of all of them, and how many are on the device.
    content: Vec<u8>,
    written: usize,
    groups: HashMap<BindGroupKey, wgpu::BindGroup>,
}

/// What the cache calls to make what it lacks.
pub(crate) struct CallContext<'d> {
    pub(crate) device: &'d wgpu::Device,
    pub(crate) queue: &'d wgpu::Queue,
    /// Multiple at which parameters begin.
    pub(crate) alignment: u64,
}

impl CallCache {
    /// The bind group of a call. `params` has a multiple of 16 bytes.
    pub(crate) fn bind_group(
        &mut self,
        context: &CallContext<'_>,
        pipeline: &Arc<ShaderPipeline>,
        bindings: Vec<(u32, ShaderBinding)>,
        params: &[u8],
    ) -> &wgpu::BindGroup {
        let (uniforms, offset) = self.parameters(context, params);
        let key = BindGroupKey { pipeline: Arc::as_ptr(pipeline) as usize, params: offset, bindings };
        self.groups.entry(key).or_insert_with_key(|key| {
            let parameters = (0, &uniforms, offset..offset + params.len() as u64);
            let others = key.bindings.iter().map(|(number, binding)| {
                let (buffer, range) = binding.range();
                (*number, buffer, range)
            });
            let entry = |(binding, buffer, range): (u32, _, std::ops::Range<u64>)| wgpu::BindGroupEntry {
                binding,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer,
                    offset: range.start,
                    size: std::num::NonZeroU64::new(range.end - range.start),
                }),
            };
            let entries: Vec<_> = std::iter::once(parameters).chain(others).map(entry).collect();
            context.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some(&pipeline.name),
                layout: &pipeline.layout,
                entries: &entries,
            })
        })
    }

    /// Where these parameters stand.
    fn parameters(&mut self, context: &CallContext<'_>, params: &[u8]) -> (wgpu::Buffer, u64) {
        if let (Some(uniforms), Some(offset)) = (&self.uniforms, self.offsets.get(params)) {
            return (uniforms.clone(), *offset);
        }
        let end = |offset: u64| offset + params.len() as u64;
        let mut offset = (self.content.len() as u64).next_multiple_of(context.alignment);
        if self.uniforms.is_none() || end(offset) > PARAMETER_BYTES {
            self.send_parameters(context);
            *self = CallCache::default();
            offset = 0;
        }
        let uniforms = self.uniforms.get_or_insert_with(|| {
            context.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("parameters"),
                size: PARAMETER_BYTES.max(end(0)),
                usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        });
        self.content.resize(offset as usize, 0);
        self.content.extend_from_slice(params);
        self.offsets.insert(params.to_vec(), offset);
        (uniforms.clone(), offset)
    }

    /// Sends parameters that are not on the device yet. They are there before the next submission.
    pub(crate) fn send_parameters(&mut self, context: &CallContext<'_>) {
        if let Some(uniforms) = &self.uniforms
            && self.written < self.content.len()
        {
            // offsets and lengths of copies are multiples of 4; both are multiples of 16 here
            context.queue.write_buffer(uniforms, self.written as u64, &self.content[self.written..]);
            self.written = self.content.len();
        }
    }

    /// Forgets the bind groups of a buffer, which would keep its memory.
    pub(crate) fn forget(&mut self, buffer: &wgpu::Buffer) {
        self.groups.retain(|key, _| key.bindings.iter().all(|(_, binding)| binding.range().0 != buffer));
    }

    /// Forgets all bind groups.
    pub(crate) fn clear(&mut self) {
        self.groups.clear();
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.groups.len()
    }
}
