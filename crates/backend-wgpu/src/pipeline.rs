//! A compiled shader.

/// A compiled shader.
pub(crate) struct Pipeline {
    pub(crate) name: String,
    pub(crate) raw: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
}
