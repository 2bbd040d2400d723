//! Shaders: a text and the constants before it, compiled once per device.

use crate::checks::DRIVER_BOUNDS;
use crate::commands::GRID_WIDTH;
use crate::device::Device;
use crate::error::GpuError;
use crate::pipeline::ShaderPipeline;
use std::fmt::Write;
use std::sync::{Arc, PoisonError};

/// The value of a constant of a shader.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ShaderConstant {
    /// `u32`
    Count(u32),
    /// `f32`
    Number(f32),
    /// `bool`
    Flag(bool),
}

/// A shader: its text with the constants that it uses. The entry point is `main`; binding 0 of group 0 is a uniform with the parameters of the
/// call, and the storage buffers follow in order.
#[derive(Clone, Debug)]
pub(crate) struct Shader {
    /// For messages and debuggers.
    pub(crate) name: &'static str,
    /// WGSL without `enable` directives.
    pub(crate) parts: Vec<&'static str>,
    /// Become `const` declarations before the text.
    pub(crate) constants: Vec<(&'static str, ShaderConstant)>,
    /// Whether it computes in f16.
    pub(crate) f16: bool,
}

impl Shader {
    /// A shader of one text in plain WGSL.
    pub(crate) fn new(name: &'static str, source: &'static str) -> Shader {
        Shader { name, parts: vec![source], constants: Vec::new(), f16: false }
    }

    /// The same with a constant more.
    #[must_use]
    pub(crate) fn with(mut self, name: &'static str, value: ShaderConstant) -> Shader {
        self.constants.push((name, value));
        self
    }

    /// The same with a `u32` more.
    #[must_use]
    pub(crate) fn count(self, name: &'static str, value: usize) -> Shader {
        // what does not fit is refused when buffers are made: no size of a model that fits a device is this large
        self.with(name, ShaderConstant::Count(u32::try_from(value).unwrap_or(u32::MAX)))
    }

    /// The same with another text before it: functions that it uses.
    #[must_use]
    pub(crate) fn after(mut self, part: &'static str) -> Shader {
        self.parts.insert(0, part);
        self
    }

    /// The whole text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        if self.f16 {
            text.push_str("enable f16;\n");
        }
        // where a call has more workgroups than one dimension holds: see `grid`
        let _ = writeln!(text, "const GRID_WIDTH: u32 = {GRID_WIDTH}u;");
        for (name, value) in &self.constants {
            // writing to a string does not fail
            let _ = match value {
                ShaderConstant::Count(count) => writeln!(text, "const {name}: u32 = {count}u;"),
                // all digits that the number has, in a form that WGSL reads
                ShaderConstant::Number(number) => writeln!(text, "const {name}: f32 = {number:e}f;"),
                ShaderConstant::Flag(flag) => writeln!(text, "const {name}: bool = {flag};"),
            };
        }
        self.parts.iter().for_each(|part| text.push_str(part));
        text
    }
}

impl Device {
    /// The shader, compiled; the second time the same text is asked for, it is there already.
    pub(crate) fn pipeline(&self, shader: &Shader) -> Result<Arc<ShaderPipeline>, GpuError> {
        self.compiled(shader.name, shader.text())
    }

    /// The same for a text that was put together elsewhere.
    pub(crate) fn compiled(&self, name: &str, text: String) -> Result<Arc<ShaderPipeline>, GpuError> {
        let mut pipelines = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = pipelines.get(&text) {
            return Ok(Arc::clone(compiled));
        }
        let what = format!("compiling the shader {}", name);
        let compiled = self.checked(&what, || {
            let wanted = wgpu::ShaderModuleDescriptor {
                label: Some(name),
                source: wgpu::ShaderSource::Wgsl(text.as_str().into()),
            };
            let module = module(self, wanted);
            let raw = self.raw.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(name),
                layout: None,
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: false,
                    ..wgpu::PipelineCompilationOptions::default()
                },
                cache: None,
            });
            ShaderPipeline::new(name, &text, raw)
        })?;
        let compiled = Arc::new(compiled);
        pipelines.insert(text, Arc::clone(&compiled));
        Ok(compiled)
    }
}

/// A module of a shader of this crate.
#[allow(unsafe_code, reason = "wgpu wants to hear that shaders are right which are not checked")]
fn module(device: &Device, wanted: wgpu::ShaderModuleDescriptor<'_>) -> wgpu::ShaderModule {
    if device.checks || !device.description.bounds_buffers() {
        return device.raw.create_shader_module(wanted);
    }
    // SAFETY: all texts are this crate's own. Their loops end, since they count to sizes that the host has written. Indices into workgroup memory are numbers of
    // threads and constants, or are kept below the length where they are made: the experts that a router has chosen among as many as it has, digits of eight bits, experts
    // of a sort (none is larger than the model has, at most `MAX_EXPERTS`), a thread's number within partly filled subgroups. A test holds modules with and without
    // checks against each other, bit by bit. Buffers are bounded by the driver.
    unsafe { device.raw.create_shader_module_trusted(wanted, DRIVER_BOUNDS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_written_as_wgsl_reads_them() {
        let shader = Shader::new("test", "fn f() {}")
            .count("ROWS", 7)
            .with("EPS", ShaderConstant::Number(1e-6))
            .with("ONE", ShaderConstant::Number(1.0))
            .with("SPLIT", ShaderConstant::Flag(true));
        let text = "const GRID_WIDTH: u32 = 65535u;\nconst ROWS: u32 = 7u;\nconst EPS: f32 = 1e-6f;\nconst ONE: f32 = 1e0f;\nconst SPLIT: bool = true;\nfn f() {}";
        assert_eq!(shader.text(), text);
    }
}
