//! A cache of parameters and bind groups of shader calls. Most calls of a decode step repeat those
//! of the previous step, with the same buffers and the same parameters.

use crate::pipeline::ShaderPipeline;
use crate::shader_binding::ShaderBinding;
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of a buffer of parameters. A full buffer is replaced. Recorded calls keep the old one
/// alive.
const PARAMETER_BYTES: u64 = 1 << 20;

#[derive(PartialEq, Eq, Hash)]
struct BindGroupKey {
    /// The address of the pipeline.
    pipeline: usize,
    /// Offset of the parameters.
    params: u64,
    bindings: Vec<(u32, ShaderBinding)>,
}

/// The bind groups of a device.
#[derive(Default)]
pub(crate) struct CallCache {
    uniforms: Option<wgpu::Buffer>,
    /// Offsets of parameters in the buffer, by their bytes.
    offsets: HashMap<Vec<u8>, u64>,
    /// The buffer's content.
    content: Vec<u8>,
    /// Number of bytes of `content` that are on the device.
    written: usize,
    groups: HashMap<BindGroupKey, wgpu::BindGroup>,
}

/// The device and queue with which the cache creates bind groups and uploads parameters.
pub(crate) struct CallContext<'d> {
    pub(crate) device: &'d wgpu::Device,
    pub(crate) queue: &'d wgpu::Queue,
    /// Alignment of parameters in a uniform buffer.
    pub(crate) alignment: u64,
}

impl CallCache {
    /// The bind group of a call. The length of `params` is a multiple of 16.
    pub(crate) fn bind_group(
        &mut self,
        context: &CallContext<'_>,
        pipeline: &Arc<ShaderPipeline>,
        bindings: Vec<(u32, ShaderBinding)>,
        params: &[u8],
    ) -> &wgpu::BindGroup {
        let (uniforms, offset) = self.parameters(context, params);
        // The device never frees pipelines, so an address is never reused for another one.
        let key = BindGroupKey { pipeline: Arc::as_ptr(pipeline) as usize, params: offset, bindings };
        // On an H100, a new bind group for each call slowed decoding of a 2B model from 106 to
        // about 80 tokens/s.
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

    /// The buffer and offset of these parameters, which are added if they are new.
    fn parameters(&mut self, context: &CallContext<'_>, params: &[u8]) -> (wgpu::Buffer, u64) {
        // Equal parameters share an offset, so that a repeated call finds its bind group again.
        if let (Some(uniforms), Some(offset)) = (&self.uniforms, self.offsets.get(params)) {
            return (uniforms.clone(), *offset);
        }
        let end = |offset: u64| offset + params.len() as u64;
        let mut offset = (self.content.len() as u64).next_multiple_of(context.alignment);
        if self.uniforms.is_none() || end(offset) > PARAMETER_BYTES {
            // The recorded calls refer to the old buffer, so its content must be uploaded first.
            // Bind groups of the old buffer are dropped with it.
            self.send_parameters(context);
            *self = CallCache::default();
            offset = 0;
        }
        let uniforms = self.uniforms.get_or_insert_with(|| {
            context.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("parameters"),
                // The parameters of a single call may exceed the usual size.
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

    /// Uploads parameters that are not on the device yet. The upload takes effect before the next
    /// submission.
    pub(crate) fn send_parameters(&mut self, context: &CallContext<'_>) {
        if let Some(uniforms) = &self.uniforms
            && self.written < self.content.len()
        {
            // Copies need offsets and lengths that are multiples of 4. Both are multiples of 16
            // here.
            context.queue.write_buffer(uniforms, self.written as u64, &self.content[self.written..]);
            self.written = self.content.len();
        }
    }

    /// Drops the bind groups of a buffer, which would keep its memory alive.
    pub(crate) fn forget(&mut self, buffer: &wgpu::Buffer) {
        self.groups.retain(|key, _| key.bindings.iter().all(|(_, binding)| binding.range().0 != buffer));
    }

    /// Drops all bind groups.
    pub(crate) fn clear(&mut self) {
        self.groups.clear();
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.groups.len()
    }
}
