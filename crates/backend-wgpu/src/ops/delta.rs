//! Kimi Delta Attention: short convolutions, norms of heads, decays, and the delta rule over
//! recurrent states (`delta_rule`).

use crate::commands::{ShaderBinding, grid};
use crate::compile::{Compiler, ScratchLimits};
use crate::error::GpuError;
use crate::memory::SCRATCHES;
use crate::ops::delta_rule::{DeltaCall, DeltaShaders, MAX_WIDTH, with_spans};
use crate::ops::rms_norm::with_norm;
use crate::pipeline::ShaderPipeline;
use crate::run::{GpuOperation, StageRun};
use crate::shader::{Shader, ShaderConstant};
use crate::values::{ShaderOperand, internal};
use crate::weights::DeviceVector;
use latent_backend::BackendError;
use latent_graph::ir::{AttentionPath, Node, Op};
use std::sync::Arc;

/// Epsilon of the L2 norm, added to the sum of squares under the root.
const L2_EPS: f64 = 1e-6;

const IN_PLACE: &str = "
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
fn element(source: u32, to: u32) -> f32 { return y[to]; }
";
const COPY: &str = "
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
fn element(source: u32, to: u32) -> f32 { return x[source]; }
";
const PLAIN: &str = "
fn scale(gate: u32, i: u32) -> f32 { return 1.0; }
";
const GATED: &str = "
@group(0) @binding(3) var<storage, read> weight: array<f32>;
@group(0) @binding(4) var<storage, read> z: array<f32>;
fn scale(gate: u32, i: u32) -> f32 { return weight[i] / (1.0 + exp(-z[gate])); }
";

fn conv_shader(taps: usize) -> Shader {
    with_spans(Shader::new("short_conv", include_str!("short_conv.wgsl"))).count("TAPS", taps)
}

/// The shader of an L2 norm, or of an RMSNorm with this epsilon and a gate.
fn norm_shader(in_place: bool, width: usize, gated: Option<f64>) -> Shader {
    // The divisor of the sum of squares: 1 for the L2 norm, which has no mean.
    let (name, scale, divisor, eps) = match gated {
        Some(eps) => ("gated_norm", GATED, width, eps),
        None => ("l2_norm", PLAIN, 1, L2_EPS),
    };
    let shader = Shader::new(name, include_str!("head_norm.wgsl"))
        .after(scale)
        .after(if in_place { IN_PLACE } else { COPY })
        .count("WIDTH", width);
    with_norm(shader, divisor, eps)
}

fn decay_shader(in_place: bool, width: usize, log_rate: bool, bound: Option<f64>) -> Shader {
    Shader::new("log_decay", include_str!("decay.wgsl"))
        .after(if in_place { IN_PLACE } else { COPY })
        .count("WIDTH", width)
        .with("LOG_RATE", ShaderConstant::Flag(log_rate))
        .with("BOUNDED", ShaderConstant::Flag(bound.is_some()))
        // Without a bound, the shader does not read the constant.
        .with("BOUND", ShaderConstant::Number(bound.unwrap_or_default() as f32))
}

/// All shaders of this file.
#[cfg(test)]
pub(super) fn shaders() -> Vec<Shader> {
    let mut all = vec![conv_shader(4), conv_shader(2)];
    for in_place in [false, true] {
        all.extend([None, Some(1e-5)].map(|gated| norm_shader(in_place, 128, gated)));
        for log_rate in [false, true] {
            all.extend([None, Some(-5.0)].map(|bound| decay_shader(in_place, 128, log_rate, bound)));
        }
    }
    all
}

/// Compiles a node of delta attention.
pub(super) fn compile(compiler: &Compiler<'_>, node: &Node) -> Result<Box<dyn GpuOperation>, BackendError> {
    match node.op {
        Op::ShortConv => short_conv(compiler, node),
        Op::DeltaRule => delta_rule(compiler, node),
        Op::L2Norm { scale } => head_norm(compiler, node, scale),
        Op::GatedNorm => head_norm(compiler, node, 1.0),
        Op::SoftplusDecay => log_decay(compiler, node, None),
        Op::BoundedDecay { bound } => log_decay(compiler, node, Some(bound)),
        _ => internal(format!("{} is not delta attention", node.op.word())),
    }
}

/// Whether a result overwrites its input.
fn in_place(node: &Node, x: &ShaderOperand, y: &ShaderOperand) -> Result<bool, BackendError> {
    // WebGPU does not allow a buffer to be bound for reading and for writing in one call.
    if x.home == y.home && x.address() != y.address() {
        return internal(format!("{} reads and writes different parts of one buffer", node.op.word()));
    }
    Ok(x.home == y.home)
}

/// The bindings of [`IN_PLACE`] or [`COPY`].
fn result_and_input(run: &StageRun<'_>, y: &ShaderOperand, x: &ShaderOperand) -> Vec<(u32, ShaderBinding)> {
    let copied = (x.home != y.home).then(|| (2, run.bind(x)));
    [(1, run.bind(y))].into_iter().chain(copied).collect()
}

/// A view of a value with one head per row.
fn flat(compiler: &Compiler<'_>, operand: ShaderOperand) -> Result<ShaderOperand, BackendError> {
    compiler.cut(operand, operand.row_width() as usize)
}

struct ShortConvShader {
    pipeline: Arc<ShaderPipeline>,
    /// (input, taps, result) of queries, keys and values.
    thirds: Vec<(ShaderOperand, Arc<DeviceVector>, ShaderOperand)>,
    kv_layer: usize,
}

fn short_conv(compiler: &Compiler<'_>, node: &Node) -> Result<Box<dyn GpuOperation>, BackendError> {
    let mut thirds = Vec::new();
    let mut taps = 1;
    for (i, (_, id)) in node.weights.iter().enumerate() {
        let (x, y) = (flat(compiler, compiler.input(node, i)?)?, flat(compiler, compiler.output(node, i)?)?);
        // The shader binds inputs for reading and results for writing: see `in_place`.
        if x.home == y.home {
            return internal("a convolution reads and writes one buffer".into());
        }
        let weight = compiler.plan.ir.weight(*id);
        taps = weight.inputs();
        thirds.push((x, compiler.weights.vector(weight)?, y));
    }
    let (kv_layer, _) = compiler.kv_layer(node)?;
    Ok(Box::new(ShortConvShader {
        pipeline: compiler.device.pipeline(&conv_shader(taps))?,
        thirds,
        kv_layer,
    }))
}

impl GpuOperation for ShortConvShader {
    fn record(&self, run: &mut StageRun<'_>, _path: AttentionPath) -> Result<(), GpuError> {
        let (spans, count) = run.step.states;
        for (third, (x, taps, y)) in self.thirds.iter().enumerate() {
            let channels = x.width;
            let params =
                [spans, count, channels, third as u32, x.offset, x.row_stride, y.offset, y.row_stride];
            let bindings: [ShaderBinding; 5] = [
                run.step_buffer.into(),
                run.bind(x),
                (&taps.buffer).into(),
                run.bind(y),
                run.kv.layer(run.first_kv_layer + self.kv_layer).into(),
            ];
            // One thread computes all rows of a span in one channel, because each row needs the
            // inputs of the rows before it.
            let threads = count as usize * channels as usize;
            run.commands.call(&self.pipeline, bindings, &params, grid(threads, 64));
        }
        Ok(())
    }
}

struct DeltaRule {
    shaders: DeltaShaders,
    /// Queries, keys, values and decays.
    inputs: [ShaderOperand; 4],
    beta: ShaderOperand,
    y: ShaderOperand,
    kv_layer: usize,
}

fn delta_rule(compiler: &Compiler<'_>, node: &Node) -> Result<Box<dyn GpuOperation>, BackendError> {
    let y = compiler.output(node, 0)?;
    let width = y.width as usize;
    if width > MAX_WIDTH {
        return Err(BackendError::Unsupported(format!(
            "the GPU backend does not support a recurrent state with heads of {width} elements, more than \
             {MAX_WIDTH}: use the CPU"
        )));
    }
    let input = |i| compiler.cut(compiler.input(node, i)?, width);
    let inputs = [input(0)?, input(1)?, input(2)?, input(3)?];
    let beta = flat(compiler, compiler.input(node, 4)?)?;
    // As in `in_place`, a buffer cannot be bound for reading and for writing.
    if inputs.iter().chain([&beta]).any(|x| x.home == y.home) {
        return internal("the delta rule reads and writes one buffer".into());
    }
    let (kv_layer, _) = compiler.kv_layer(node)?;
    let shaders = DeltaShaders::new(compiler.device, width)?;
    Ok(Box::new(DeltaRule { shaders, inputs, beta, y, kv_layer }))
}

/// Bytes of scratch buffers, which hold the scores of chunks.
pub(super) fn scratch(sizes: &ScratchLimits<'_>, node: &Node) -> [u64; SCRATCHES] {
    let heads = node.outputs.first().map_or(0, |id| sizes.plan.ir.value(*id).heads);
    [DeltaShaders::score_bytes(sizes.rows(), heads), 0, 0, 0]
}

impl GpuOperation for DeltaRule {
    fn record(&self, run: &mut StageRun<'_>, _path: AttentionPath) -> Result<(), GpuError> {
        let bound = |x: &ShaderOperand| (run.bind(x), x.address());
        let call = DeltaCall {
            step: run.step_buffer.into(),
            inputs: self.inputs.each_ref().map(bound),
            beta: (run.bind(&self.beta), [self.beta.offset, self.beta.row_stride]),
            y: bound(&self.y),
            heads: self.y.heads,
            states: run.kv.layer(run.first_kv_layer + self.kv_layer).into(),
            scores: (&run.memory.scratch[0]).into(),
        };
        self.shaders.record(run.commands, &call, &run.step.rounds);
        Ok(())
    }
}

struct HeadNorm {
    pipeline: Arc<ShaderPipeline>,
    x: ShaderOperand,
    y: ShaderOperand,
    gate: Option<(Arc<DeviceVector>, ShaderOperand)>,
    factor: f32,
}

fn head_norm(
    compiler: &Compiler<'_>,
    node: &Node,
    factor: f64,
) -> Result<Box<dyn GpuOperation>, BackendError> {
    let (x, y) = (compiler.input(node, 0)?, compiler.output(node, 0)?);
    let width = y.width as usize;
    let x = compiler.cut(x, width)?;
    let gate = match node.op {
        Op::GatedNorm => {
            let gate = compiler.cut(compiler.input(node, 1)?, width)?;
            if gate.home == y.home {
                return internal("a gated norm writes over its gate".into());
            }
            Some((compiler.vector(node)?, gate))
        }
        _ => None,
    };
    let eps = gate.is_some().then_some(compiler.config.rms_eps);
    let shader = norm_shader(in_place(node, &x, &y)?, width, eps);
    let pipeline = compiler.device.pipeline(&shader)?;
    Ok(Box::new(HeadNorm { pipeline, x, y, gate, factor: factor as f32 }))
}

impl GpuOperation for HeadNorm {
    fn record(&self, run: &mut StageRun<'_>, path: AttentionPath) -> Result<(), GpuError> {
        let (x, y) = (&self.x, &self.y);
        for rows in run.ranges(path) {
            let mut bindings = result_and_input(run, y, x);
            let mut params = vec![rows.start as u32, rows.len() as u32, y.heads];
            params.extend([y.address(), x.address()].concat());
            match &self.gate {
                Some((weight, gate)) => {
                    bindings.extend([(3, (&weight.buffer).into()), (4, run.bind(gate))]);
                    params.extend(gate.address());
                }
                // The address of the gate: norms with and without one share the shader's
                // parameters.
                None => params.extend([0; 3]),
            }
            // Parameters are words. The shader declares this one as f32.
            params.push(self.factor.to_bits());
            let groups = grid(rows.len() * y.heads as usize, 1);
            run.commands.call_numbered(&self.pipeline, bindings, &params, groups);
        }
        Ok(())
    }
}

struct LogDecayShader {
    pipeline: Arc<ShaderPipeline>,
    x: ShaderOperand,
    y: ShaderOperand,
    rates: Arc<DeviceVector>,
    bias: Arc<DeviceVector>,
}

fn log_decay(
    compiler: &Compiler<'_>,
    node: &Node,
    bound: Option<f64>,
) -> Result<Box<dyn GpuOperation>, BackendError> {
    let [(slot, rates), (_, bias)] = &node.weights[..] else {
        return internal(format!("{} needs rates and biases", node.op.word()));
    };
    let vector = |id| compiler.weights.vector(compiler.plan.ir.weight(id));
    let (rates, bias) = (vector(*rates)?, vector(*bias)?);
    // There is a rate per head, and a bias per element.
    let width = bias.len / rates.len.max(1);
    let (x, y) = (flat(compiler, compiler.input(node, 0)?)?, flat(compiler, compiler.output(node, 0)?)?);
    // safetensors store the logarithm of the rate in `A_log`, GGUF files the rate itself in
    // `ssm_a`.
    let shader = decay_shader(in_place(node, &x, &y)?, width.max(1), slot == "a_log", bound);
    Ok(Box::new(LogDecayShader { pipeline: compiler.device.pipeline(&shader)?, x, y, rates, bias }))
}

impl GpuOperation for LogDecayShader {
    fn record(&self, run: &mut StageRun<'_>, path: AttentionPath) -> Result<(), GpuError> {
        let (x, y) = (&self.x, &self.y);
        for rows in run.ranges(path) {
            let mut bindings = result_and_input(run, y, x);
            bindings.extend([(3, (&self.rates.buffer).into()), (4, (&self.bias.buffer).into())]);
            let params = [rows.start, rows.len()].map(|n| n as u32).into_iter();
            let params = params.chain([y.width, y.offset, y.row_stride, x.offset, x.row_stride]);
            let params: Vec<u32> = params.collect();
            let elements = rows.len() * y.width as usize;
            run.commands.call_numbered(&self.pipeline, bindings, &params, grid(elements, 64));
        }
        Ok(())
    }
}
