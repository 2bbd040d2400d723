//! Test cases: an operation with its sizes and formats.

use crate::attention::{ExpandedCase, KeysCase, LatentCase};
use crate::product::ProductCase;
use crate::reference::{ErrorBound, ReferenceResults};
use crate::rows::{RowCase, RowOp};
use crate::w4::W4Case;
use crate::work::{CallCost, layout};
use serde::Serialize;

/// An operation with its sizes and formats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KernelCase {
    /// Rows times a weight.
    Product(ProductCase),
    /// Attention in latent space.
    Latent(LatentCase),
    /// Attention over expanded keys and values.
    Expanded(ExpandedCase),
    /// Keys from latents.
    Keys(KeysCase),
    /// A row-wise operation.
    Row(RowCase),
    /// An operation on 4-bit weights with group scales.
    W4(W4Case),
}

/// An operation and its formats.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct OperationFamily {
    /// Name of the operation.
    pub operation: &'static str,
    /// Format of the weight or of the cache.
    pub format: String,
    /// Memory layout.
    pub layout: &'static str,
    /// Type of the input.
    pub input: &'static str,
}

macro_rules! each {
    ($case:expr, $it:ident => $value:expr) => {
        match $case {
            KernelCase::Product($it) => $value,
            KernelCase::Latent($it) => $value,
            KernelCase::Expanded($it) => $value,
            KernelCase::Keys($it) => $value,
            KernelCase::Row($it) => $value,
            KernelCase::W4($it) => $value,
        }
    };
}

impl KernelCase {
    /// Unique name in the table: `linear(Q4_0, tiles, a8, m=23, k=160, n=37)`.
    pub fn name(&self) -> String {
        each!(self, case => case.name())
    }

    /// Name of the operation.
    pub fn operation(&self) -> &'static str {
        each!(self, case => case.operation())
    }

    /// The case without its sizes: the granularity of kernel support.
    pub fn family(&self) -> OperationFamily {
        let operation = self.operation();
        let words = |format: &str, layout: &'static str, input: &'static str| OperationFamily {
            operation,
            format: format.to_owned(),
            layout,
            input,
        };
        match self {
            KernelCase::Product(case) => {
                words(case.weight.name(), layout(case.layout), case.activation.name())
            }
            KernelCase::Latent(case) => words(case.cache.name(), "blocks", case.activation.name()),
            KernelCase::Expanded(case) => words(case.activation.name(), "lines", "f32"),
            KernelCase::Keys(case) => words(case.activation.name(), "lines", "f32"),
            KernelCase::Row(RowCase { op: RowOp::Embed(ty, stored), .. }) => {
                words(ty.name(), layout(*stored), "ids")
            }
            KernelCase::Row(RowCase { op: RowOp::Store(ty) | RowOp::Load(ty), .. }) => {
                words(ty.name(), "rows", "f32")
            }
            KernelCase::Row(_) => words("f32", "rows", "f32"),
            KernelCase::W4(case) => {
                let (format, input) = case.formats();
                words(format, "marlin", input)
            }
        }
    }

    /// The allowed error of the results.
    pub fn bound(&self) -> ErrorBound {
        each!(self, case => case.bound())
    }

    /// Cost of one call.
    pub fn work(&self) -> CallCost {
        each!(self, case => case.work())
    }

    /// Whether its kernels select their ISA by a process-wide limit, so that only one thread can
    /// run them.
    pub(crate) fn limits_process(&self) -> bool {
        match self {
            KernelCase::Row(_) => true,
            KernelCase::W4(case) => case.limits_process(),
            _ => false,
        }
    }

    /// Creates the operands, with `copies` copies of those that are read from memory.
    pub fn operands(&self, copies: usize) -> CaseOperands {
        match self {
            KernelCase::Product(case) => CaseOperands::Product(case.operands(copies)),
            KernelCase::Latent(case) => CaseOperands::Latent(case.operands(copies)),
            KernelCase::Expanded(case) => CaseOperands::Expanded(case.operands()),
            KernelCase::Keys(case) => CaseOperands::Keys(case.operands()),
            KernelCase::Row(case) => CaseOperands::Row(case.operands()),
            KernelCase::W4(case) => CaseOperands::W4(case.operands(copies)),
        }
    }

    /// Reference results, by plain sums in f64.
    ///
    /// # Panics
    /// If the operands belong to another case.
    pub fn truth(&self, operands: &CaseOperands) -> ReferenceResults {
        match (self, operands) {
            (KernelCase::Product(case), CaseOperands::Product(operands)) => case.truth(operands),
            (KernelCase::Latent(case), CaseOperands::Latent(operands)) => case.truth(operands),
            (KernelCase::Expanded(case), CaseOperands::Expanded(operands)) => case.truth(operands),
            (KernelCase::Keys(case), CaseOperands::Keys(operands)) => case.truth(operands),
            (KernelCase::Row(case), CaseOperands::Row(operands)) => case.truth(operands),
            (KernelCase::W4(case), CaseOperands::W4(operands)) => case.truth(operands),
            _ => panic!("operands of another case than {}", self.name()),
        }
    }
}

pub enum CaseOperands {
    Product(crate::product::ProductOperands),
    /// Operands of attention in latent space.
    Latent(crate::attention::LatentOperands),
    /// Operands of attention over expanded keys.
    Expanded(crate::attention::ExpandedOperands),
    /// Operands of the expansion of keys.
    Keys(crate::attention::KeysOperands),
    /// Operands of a row-wise operation.
    Row(crate::rows::RowOperands),
    /// Operands of an operation on 4-bit weights.
    W4(crate::w4::W4Operands),
}
