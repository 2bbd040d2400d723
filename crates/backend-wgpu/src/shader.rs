//! Shaders: WGSL texts with constants before them, compiled once per device.

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

/// A WGSL text with its constants. The entry point is `main`. In group 0, binding 0 is a uniform
/// with the parameters of the call, and the storage buffers follow in order.
#[derive(Clone, Debug)]
pub(crate) struct Shader {
    /// For messages and debuggers.
    pub(crate) name: &'static str,
    /// WGSL without `enable` directives, which must precede the constants.
    pub(crate) parts: Vec<&'static str>,
    /// Written as `const` declarations before the text.
    pub(crate) constants: Vec<(&'static str, ShaderConstant)>,
    /// Whether it needs `enable f16`.
    pub(crate) f16: bool,
}

impl Shader {
    /// Creates a shader from one text in plain WGSL.
    pub(crate) fn new(name: &'static str, source: &'static str) -> Shader {
        Shader { name, parts: vec![source], constants: Vec::new(), f16: false }
    }

    /// Adds a constant.
    #[must_use]
    pub(crate) fn with(mut self, name: &'static str, value: ShaderConstant) -> Shader {
        self.constants.push((name, value));
        self
    }

    /// Adds a `u32` constant.
    #[must_use]
    pub(crate) fn count(self, name: &'static str, value: usize) -> Shader {
        // A size beyond u32 cannot occur in a shader that runs: its buffer would exceed the largest
        // binding and is refused first.
        self.with(name, ShaderConstant::Count(u32::try_from(value).unwrap_or(u32::MAX)))
    }

    /// Inserts another text before this one, with functions that it uses.
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
        // Used by shaders whose calls may exceed one dimension of workgroups (see `grid`).
        let _ = writeln!(text, "const GRID_WIDTH: u32 = {GRID_WIDTH}u;");
        for (name, value) in &self.constants {
            // Writing to a string does not fail.
            let _ = match value {
                ShaderConstant::Count(count) => writeln!(text, "const {name}: u32 = {count}u;"),
                // The shortest digits that give the same f32; the exponent makes it a WGSL float
                // literal.
                ShaderConstant::Number(number) => writeln!(text, "const {name}: f32 = {number:e}f;"),
                ShaderConstant::Flag(flag) => writeln!(text, "const {name}: bool = {flag};"),
            };
        }
        self.parts.iter().for_each(|part| text.push_str(part));
        text
    }
}

impl Device {
    /// Compiles a shader, or returns the pipeline of an equal text.
    pub(crate) fn pipeline(&self, shader: &Shader) -> Result<Arc<ShaderPipeline>, GpuError> {
        self.compiled(shader.name, shader.text())
    }

    /// As [`pipeline`](Self::pipeline), for a complete text.
    pub(crate) fn compiled(&self, name: &str, text: String) -> Result<Arc<ShaderPipeline>, GpuError> {
        // Locked while compiling, so that two threads do not compile the same text.
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
                    // Every shader writes its workgroup memory before it reads it.
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

/// Creates the module of a shader of this crate, without run-time checks if the driver bounds
/// buffers.
#[allow(unsafe_code, reason = "wgpu omits run-time checks of shaders by an unsafe function")]
fn module(device: &Device, wanted: wgpu::ShaderModuleDescriptor<'_>) -> wgpu::ShaderModule {
    if device.checks || !device.description.bounds_buffers() {
        return device.raw.create_shader_module(wanted);
    }
    // SAFETY: all texts are this crate's own. Their loops end, since they count to sizes that the
    // host writes. Indices into workgroup memory are computed from thread indices and constants, or
    // are bounded where they are computed: experts that the router selects among its own, digits of
    // eight bits, experts of a sort (below the model's number, at most `MAX_EXPERTS`), thread
    // indices within partly filled subgroups. A test compares modules with and without checks bit
    // by bit. The driver bounds buffers.
    unsafe { device.raw.create_shader_module_trusted(wanted, DRIVER_BOUNDS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_written_as_wgsl_declarations() {
        let shader = Shader::new("test", "fn f() {}")
            .count("ROWS", 7)
            .with("EPS", ShaderConstant::Number(1e-6))
            .with("ONE", ShaderConstant::Number(1.0))
            .with("SPLIT", ShaderConstant::Flag(true));
        let text = "const GRID_WIDTH: u32 = 65535u;\nconst ROWS: u32 = 7u;\nconst EPS: f32 = 1e-6f;\nconst ONE: f32 = 1e0f;\nconst SPLIT: bool = true;\nfn f() {}";
        assert_eq!(shader.text(), text);
    }
}
