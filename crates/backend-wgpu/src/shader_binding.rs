//! Buffer bindings of shader calls.

use std::ops::Range;

/// The part of a buffer that a shader accesses.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct ShaderBinding {
    buffer: wgpu::Buffer,
    /// Byte range. The start is a multiple of 256, the alignment that WebGPU requires by default.
    range: Range<u64>,
}

impl ShaderBinding {
    pub(crate) fn new(buffer: wgpu::Buffer, range: Range<u64>) -> ShaderBinding {
        ShaderBinding { buffer, range }
    }

    pub(crate) fn range(&self) -> (&wgpu::Buffer, Range<u64>) {
        (&self.buffer, self.range.clone())
    }
}
