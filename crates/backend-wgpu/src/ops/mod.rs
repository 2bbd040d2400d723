//! The operations of a plan as shader calls, one file each.

mod attention;
mod cache_rows;
mod delta;
pub(crate) mod delta_rule;
mod elementwise;
mod embed;
mod expansion;
mod experts;
pub(crate) mod flash;
mod gather;
mod head_products;
mod heads;
mod indexer;
pub(crate) mod latent_attention;
mod linear;
mod rms_norm;
mod rope;
mod route;

pub(crate) use embed::rows as embedded_rows;

use crate::compile::{Compiler, ScratchLimits};
use crate::matmul::products::ProductContext;
use crate::matmul::tiles::MAX_GEMV_ROWS;
use crate::memory::{BufferSizes, SCRATCHES};
use crate::run::GpuOperation;
#[cfg(test)]
use crate::shader::Shader;
use crate::values::internal;
use latent_backend::BackendError;
#[cfg(test)]
use latent_graph::config::{AttentionShape, MoeShape};
use latent_graph::ir::{Node, Op};

/// All shaders of the operations, for the attention and experts of a model.
#[cfg(test)]
pub(crate) fn shaders(a: &AttentionShape, moe: &MoeShape) -> Vec<Shader> {
    // 7168 is the hidden size of DeepSeek-V3.
    let mut all = vec![gather::shader(), experts::shader(), rms_norm::shader(7168, 1e-6)];
    all.extend(route::shaders(moe));
    for of_attention in
        [latent_attention::shaders, flash::shaders, expansion::shaders, cache_rows::shaders, indexer::shaders]
    {
        all.extend(of_attention(a));
    }
    all.extend(rope::shaders());
    all.extend(elementwise::shaders());
    all.extend(delta::shaders());
    all.extend(delta_rule::shaders());
    all
}

/// Grows the shared buffers to the sizes that an operation needs.
pub(crate) fn needs(
    sizes: &ScratchLimits<'_>,
    products: &ProductContext,
    node: &Node,
    needs: &mut BufferSizes,
) {
    let kv_layer = node.kv_layer.map(|id| &sizes.plan.ir.kv_layers[id.0]);
    // Number of rows whose inputs are quantized in one call, and slots (heads) of each.
    let (scratch, (rows, slots)) = match node.op {
        Op::ExpertMlp => {
            let (scratch, sorted, quantized) = experts::needs(sizes, products, node);
            needs.sorted.iter_mut().zip(sorted).for_each(|(size, bytes)| *size = bytes.max(*size));
            needs.quantized = needs.quantized.max(quantized);
            (scratch, (0, 0))
        }
        Op::AttendLatent | Op::AttendSeparate => (attention::scratch(sizes), (0, 0)),
        Op::IndexSelect => (indexer::scratch(sizes), (0, 0)),
        Op::DeltaRule => (delta::scratch(sizes, node), (0, 0)),
        Op::AttendExpanded => {
            let found = kv_layer.map(|layer| expansion::needs(sizes, layer)).unwrap_or_default();
            (found.0, (found.1, 1))
        }
        Op::ExpandedStore => {
            let (scratch, rows) = cache_rows::needs(sizes);
            (scratch, (rows, 1))
        }
        Op::AbsorbK | Op::AbsorbV => ([0; SCRATCHES], (sizes.rows(), sizes.config.attention.heads)),
        Op::Linear => ([0; SCRATCHES], (sizes.rows(), 1)),
        _ => return,
    };
    needs.scratch(scratch);
    for (_, id) in &node.weights {
        let weight = sizes.plan.ir.weight(*id);
        let bytes = products.quantized_bytes((weight.ty, weight.inputs()), (rows, MAX_GEMV_ROWS), slots);
        needs.quantized = needs.quantized.max(bytes);
    }
}

/// Compiles a node. None if its results are only views of its input.
pub(crate) fn compile(
    compiler: &Compiler<'_>,
    node: &Node,
) -> Result<Option<Box<dyn GpuOperation>>, BackendError> {
    Ok(Some(match node.op {
        Op::Split => return Ok(None),
        Op::Embed { .. } => embed::compile(compiler, node)?,
        Op::RmsNorm => rms_norm::compile(compiler, node)?,
        Op::Linear => linear::compile(compiler, node)?,
        Op::Rope => rope::compile(compiler, node)?,
        Op::Silu
        | Op::SiluMul
        | Op::SigmoidMul
        | Op::Relu2
        | Op::Add { .. }
        | Op::Bias
        | Op::Scale { .. } => elementwise::compile(compiler, node)?,
        Op::Concat => elementwise::concat(compiler, node)?,
        Op::GatherRows => gather::compile(compiler, node)?,
        Op::Route => route::compile(compiler, node)?,
        Op::ExpertMlp => experts::compile(compiler, node)?,
        Op::LatentStore => cache_rows::latent(compiler, node)?,
        Op::ExpandedStore => cache_rows::expanded(compiler, node)?,
        Op::AbsorbK => heads::absorb_query(compiler, node)?,
        Op::AbsorbV => heads::project_value(compiler, node)?,
        Op::AttendLatent | Op::AttendSeparate => attention::latent(compiler, node)?,
        Op::AttendExpanded => expansion::compile(compiler, node)?,
        Op::ShortConv
        | Op::L2Norm { .. }
        | Op::SoftplusDecay
        | Op::BoundedDecay { .. }
        | Op::DeltaRule
        | Op::GatedNorm => delta::compile(compiler, node)?,
        Op::IndexStore => indexer::store(compiler, node)?,
        Op::IndexSelect => indexer::select(compiler, node)?,
        Op::MlaAttention
        | Op::ExpertGateUp
        | Op::KvLoraDecompress
        | Op::PartialRopeConcat
        | Op::KeyValueStore
        // The target of this backend has no adapters, so a model with adapters is refused earlier.
        | Op::LoraAdd
        | Op::LoraAbsorbK
        | Op::LoraAbsorbV
        | Op::ExpertDown
        | Op::AllReduce
        | Op::SendRows
        | Op::ReceiveRows => {
            return internal(format!("{} is not an operation of its plans", node.op.word()));
        }
    }))
}
