//! Elementwise operations with one or two inputs.

use crate::commands::grid;
use crate::compile::Compiler;
use crate::error::GpuError;
use crate::pipeline::ShaderPipeline;
use crate::run::{GpuOperation, StageRun};
use crate::shader::Shader;
use crate::values::{ShaderOperand, internal};
use crate::weights::DeviceVector;
use latent_backend::BackendError;
use latent_graph::ir::{AttentionPath, Node, Op};
use std::sync::Arc;

const MAIN: &str = include_str!("elementwise.wgsl");

// WebGPU does not allow a buffer to be bound for reading and for writing in one call. So an input
// in the result's buffer is read through the result's binding.
const FIRST_IS_RESULT: &str = "
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
fn first(to: u32, source: u32) -> f32 { return y[to]; }
";
const FIRST: &str = "
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
fn first(to: u32, source: u32) -> f32 { return x[source]; }
";
const NO_SECOND: &str = "
fn second(other: u32) -> f32 { return 0.0; }
";
const SECOND_IN_RESULT: &str = "
fn second(other: u32) -> f32 { return y[other]; }
";
const SECOND: &str = "
@group(0) @binding(3) var<storage, read> z: array<f32>;
fn second(other: u32) -> f32 { return z[other]; }
";

const COPY: &str = "
fn result(x: f32, z: f32) -> f32 { return x; }
";
const RELU2: &str = "
fn result(x: f32, z: f32) -> f32 { return max(x, 0.0) * max(x, 0.0); }
";
const SILU: &str = "
fn result(x: f32, z: f32) -> f32 { return x / (1.0 + exp(-x)); }
";
const SCALE: &str = "
fn result(x: f32, z: f32) -> f32 { return params.factor * x; }
";
const ADD: &str = "
fn result(x: f32, z: f32) -> f32 { return x + params.factor * z; }
";
const SILU_MUL: &str = "
fn result(x: f32, z: f32) -> f32 { return x / (1.0 + exp(-x)) * z; }
";
const SIGMOID_MUL: &str = "
fn result(x: f32, z: f32) -> f32 { return x / (1.0 + exp(-z)); }
";

fn shader(name: &'static str, parts: [&'static str; 3]) -> Shader {
    parts.into_iter().fold(Shader::new(name, MAIN), Shader::after)
}

/// All shaders of this file.
#[cfg(test)]
pub(super) fn shaders() -> Vec<Shader> {
    let mut all = Vec::new();
    for text in [COPY, SILU, RELU2, SCALE, ADD, SILU_MUL, SIGMOID_MUL] {
        for second in [NO_SECOND, SECOND_IN_RESULT, SECOND] {
            all.extend([FIRST_IS_RESULT, FIRST].map(|first| shader("elementwise", [text, second, first])));
        }
    }
    all
}

enum SecondOperand {
    None,
    /// A value and the distance of its elements, which is 0 if one element serves a whole head.
    Value(ShaderOperand, u32),
    /// A vector that every row uses.
    Weight(Arc<DeviceVector>),
}

pub(super) struct Elementwise {
    pipeline: Arc<ShaderPipeline>,
    x: ShaderOperand,
    y: ShaderOperand,
    second: SecondOperand,
    factor: f32,
}

impl Elementwise {
    fn new(
        compiler: &Compiler<'_>,
        (name, text): (&'static str, &'static str),
        x: ShaderOperand,
        y: ShaderOperand,
        second: SecondOperand,
        factor: f64,
    ) -> Result<Elementwise, BackendError> {
        // Through the result's binding, the shader can only read the element that it writes.
        if x.home == y.home && x.address() != y.address() {
            return internal(format!("{name} reads and writes different parts of one buffer"));
        }
        let first = if x.home == y.home { FIRST_IS_RESULT } else { FIRST };
        let other = match &second {
            SecondOperand::None => NO_SECOND,
            SecondOperand::Value(z, _) if z.home == y.home => SECOND_IN_RESULT,
            SecondOperand::Value(..) | SecondOperand::Weight(_) => SECOND,
        };
        let pipeline = compiler.device.pipeline(&shader(name, [text, other, first]))?;
        Ok(Elementwise { pipeline, x, y, second, factor: factor as f32 })
    }

    /// factor · x in place.
    pub(super) fn scale(
        compiler: &Compiler<'_>,
        x: ShaderOperand,
        factor: f64,
    ) -> Result<Elementwise, BackendError> {
        Elementwise::new(compiler, ("scale", SCALE), x, x, SecondOperand::None, factor)
    }

    pub(super) fn copy(
        compiler: &Compiler<'_>,
        x: ShaderOperand,
        y: ShaderOperand,
    ) -> Result<Elementwise, BackendError> {
        Elementwise::new(compiler, ("copy", COPY), x, y, SecondOperand::None, 1.0)
    }

    /// Records a call for `rows` rows from `first` on.
    pub(super) fn call(&self, run: &mut StageRun<'_>, first: usize, rows: usize) -> Result<(), GpuError> {
        let (x, y) = (&self.x, &self.y);
        let mut bindings = vec![(1, run.bind(y))];
        if x.home != y.home {
            bindings.push((2, run.bind(x)));
        }
        let z = match &self.second {
            SecondOperand::None => [0; 4],
            SecondOperand::Value(z, step) => {
                if z.home != y.home {
                    bindings.push((3, run.bind(z)));
                }
                let [offset, row, head] = z.address();
                [offset, row, head, *step]
            }
            SecondOperand::Weight(weight) => {
                bindings.push((3, (&weight.buffer).into()));
                // A vector has no rows: its index is the element within a row.
                [0, 0, y.width, 1]
            }
        };
        let mut params = vec![first as u32, rows as u32, y.heads, y.width];
        params.extend([y.address(), x.address()].concat());
        params.extend(z);
        params.push(self.factor.to_bits());
        let elements = rows * y.row_width() as usize;
        run.commands.call_numbered(&self.pipeline, bindings, &params, grid(elements, 256));
        Ok(())
    }
}

impl GpuOperation for Elementwise {
    fn record(&self, run: &mut StageRun<'_>, path: AttentionPath) -> Result<(), GpuError> {
        for rows in run.ranges(path) {
            self.call(run, rows.start, rows.len())?;
        }
        Ok(())
    }
}

pub(super) fn compile(compiler: &Compiler<'_>, node: &Node) -> Result<Box<dyn GpuOperation>, BackendError> {
    let y = compiler.output(node, 0)?;
    let as_result = |x: ShaderOperand| compiler.cut(x, y.width as usize);
    let x = as_result(compiler.input(node, 0)?)?;
    let second = |i| -> Result<SecondOperand, BackendError> {
        Ok(SecondOperand::Value(as_result(compiler.input(node, i)?)?, 1))
    };
    let made = match node.op {
        Op::SiluMul => Elementwise::new(compiler, ("silu_mul", SILU_MUL), x, y, second(1)?, 1.0),
        Op::SigmoidMul => {
            let gate = compiler.input(node, 1)?;
            let second = match gate.row_width() {
                // One gate per head instead of per element. With a head width of 1 both are the
                // same.
                width if width == y.heads && y.width > 1 => {
                    // The gates of a row's heads are adjacent, and all elements of a head use the
                    // same one.
                    let [offset, row_stride, _] = gate.address();
                    SecondOperand::Value(ShaderOperand { offset, row_stride, head_stride: 1, ..gate }, 0)
                }
                _ => SecondOperand::Value(as_result(gate)?, 1),
            };
            Elementwise::new(compiler, ("sigmoid_mul", SIGMOID_MUL), x, y, second, 1.0)
        }
        Op::Silu => Elementwise::new(compiler, ("silu", SILU), x, y, SecondOperand::None, 1.0),
        Op::Relu2 => Elementwise::new(compiler, ("relu2", RELU2), x, y, SecondOperand::None, 1.0),
        Op::Scale { by } => Elementwise::new(compiler, ("scale", SCALE), x, y, SecondOperand::None, by),
        Op::Add { scale } => Elementwise::new(compiler, ("add", ADD), x, y, second(1)?, scale),
        Op::Bias => {
            let bias = compiler.vector(node)?;
            Elementwise::new(compiler, ("bias", ADD), x, y, SecondOperand::Weight(bias), 1.0)
        }
        _ => return internal(format!("{} is not elementwise", node.op.word())),
    };
    Ok(Box::new(made?))
}

/// Concatenates the rows of two values.
struct Concat([Elementwise; 2]);

impl GpuOperation for Concat {
    fn record(&self, run: &mut StageRun<'_>, path: AttentionPath) -> Result<(), GpuError> {
        self.0.iter().try_for_each(|part| part.record(run, path))
    }
}

pub(super) fn concat(compiler: &Compiler<'_>, node: &Node) -> Result<Box<dyn GpuOperation>, BackendError> {
    let flat = |x: ShaderOperand| compiler.cut(x, x.row_width() as usize);
    let y = flat(compiler.output(node, 0)?)?;
    let (a, b) = (flat(compiler.input(node, 0)?)?, flat(compiler.input(node, 1)?)?);
    let copy = |x: ShaderOperand, from| Elementwise::copy(compiler, x, y.part(from, x.width));
    Ok(Box::new(Concat([copy(a, 0)?, copy(b, a.width)?])))
}
