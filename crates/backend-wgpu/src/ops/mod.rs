//! The operations of a plan as calls of shaders: one file each.

mod attention;
mod cache_rows;
mod elementwise;
mod embed;
mod expansion;
mod experts;
mod flash;
mod gather;
mod head_products;
mod heads;
mod linear;
mod rms_norm;
mod rope;
mod route;

pub(crate) use embed::rows as embedded_rows;

use crate::compile::Compiler;
use crate::run::Operation;
use crate::values::internal;
use latent_backend::BackendError;
use latent_graph::ir::{Node, Op};

/// The operation of a node; none of one that only gives values another shape.
///
/// # Errors
/// When nothing here does what the node does.
pub(crate) fn compile(
    compiler: &mut Compiler<'_>,
    node: &Node,
) -> Result<Option<Box<dyn Operation>>, BackendError> {
    Ok(Some(match node.op {
        Op::Split => return Ok(None),
        Op::Embed { .. } => embed::compile(compiler, node)?,
        Op::RmsNorm => rms_norm::compile(compiler, node)?,
        Op::Linear => linear::compile(compiler, node)?,
        Op::Rope => rope::compile(compiler, node)?,
        Op::SiluMul | Op::SigmoidMul | Op::Relu2 | Op::Add { .. } | Op::Bias | Op::Scale { .. } => {
            elementwise::compile(compiler, node)?
        }
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
        Op::MlaAttention
        | Op::ExpertGateUp
        | Op::ExpertDown
        | Op::AllReduce
        | Op::SendRows
        | Op::ReceiveRows => {
            return internal(format!("{} is not an operation of its plans", node.op.word()));
        }
    }))
}
