//! A compiled shader.

use crate::kernel_facts::{KernelFacts, kernel_facts};
use std::sync::OnceLock;

/// A compiled shader.
pub(crate) struct Pipeline {
    pub(crate) name: String,
    pub(crate) raw: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
    text: String,
    /// Read from the text when somebody asks.
    facts: OnceLock<KernelFacts>,
}

impl Pipeline {
    pub(crate) fn new(name: &str, text: &str, raw: wgpu::ComputePipeline) -> Pipeline {
        let layout = raw.get_bind_group_layout(0);
        Pipeline { name: name.to_owned(), raw, layout, text: text.to_owned(), facts: OnceLock::new() }
    }

    /// What its text says of its workgroups.
    pub(crate) fn facts(&self) -> KernelFacts {
        *self.facts.get_or_init(|| kernel_facts(&self.text))
    }
}
