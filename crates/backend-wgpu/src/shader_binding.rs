//! What a call of a shader is bound to.

use std::ops::Range;

/// Part of a buffer, as a shader sees it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct ShaderBinding {
    buffer: wgpu::Buffer,
    /// Its bytes; the start is a multiple of 256.
    range: Range<u64>,
}

impl ShaderBinding {
    /// Some bytes of a buffer, from a multiple of 256 on.
    pub(crate) fn new(buffer: wgpu::Buffer, range: Range<u64>) -> ShaderBinding {
        ShaderBinding { buffer, range }
    }

    /// The buffer, and the bytes of it.
    pub(crate) fn range(&self) -> (&wgpu::Buffer, Range<u64>) {
        (&self.buffer, self.range.clone())
    }
}
