//! [`ShaderPipeline`], a compiled shader.

use crate::kernel_facts::{KernelFacts, kernel_facts};
use latent_backend::CompiledKernel;
use std::sync::OnceLock;

/// A compiled shader.
pub(crate) struct ShaderPipeline {
    pub(crate) name: String,
    pub(crate) raw: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
    text: String,
    /// Computed from the text on the first request.
    facts: OnceLock<KernelFacts>,
}

impl ShaderPipeline {
    pub(crate) fn new(name: &str, text: &str, raw: wgpu::ComputePipeline) -> ShaderPipeline {
        // wgpu derives the layout from the text: see `Device::compiled`.
        let layout = raw.get_bind_group_layout(0);
        ShaderPipeline { name: name.to_owned(), raw, layout, text: text.to_owned(), facts: OnceLock::new() }
    }

    /// The properties of its workgroups, with the statistics that `compile` returns for its text.
    pub(crate) fn facts(&self, compile: &dyn Fn(&str) -> CompiledKernel) -> KernelFacts {
        let facts = || KernelFacts { compiled: compile(&self.text), ..kernel_facts(&self.text) };
        *self.facts.get_or_init(facts)
    }
}
