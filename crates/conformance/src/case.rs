//! Cases: an operation with sizes, formats and an error bound.

use crate::attention::{ExpandedCase, KeysCase, LatentCase};
use crate::product::ProductCase;
use crate::rows::{RowCase, RowOp};
use latent_types::WeightLayout;
use serde::Serialize;

/// The error bound: |found − true| ≤ error · size, where the operation defines the size of a result (for a sum, the sum of its terms' magnitudes).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Relative error; 0: equal.
    pub error: f64,
    /// Which ISAs give the same bits.
    pub same_bits: SameBits,
    /// The source of the error.
    pub reason: &'static str,
}

/// Which kernels give bit-identical results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameBits {
    /// All.
    All,
    /// All but those of the lowest level, which has no FMA.
    AboveLowest,
    /// None.
    None,
}

/// An operation with its sizes and formats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Case {
    /// A matmul.
    Product(ProductCase),
    /// MLA decode attention in latent space.
    Latent(LatentCase),
    /// MLA prefill attention over expanded keys and values.
    Expanded(ExpandedCase),
    /// Expansion of latents to keys.
    Keys(KeysCase),
    /// A row-wise operation.
    Row(RowCase),
}

/// An operation with its formats.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Family {
    /// The operation's name.
    pub operation: &'static str,
    /// Weight format or KV cache type.
    pub format: String,
    /// Layout of the weight.
    pub layout: &'static str,
    /// Activation type.
    pub input: &'static str,
}

/// The name of a layout.
pub(crate) fn layout(layout: WeightLayout) -> &'static str {
    match layout {
        WeightLayout::Rows => "rows",
        WeightLayout::Tiles => "tiles",
    }
}

/// The arithmetic whose peak rate bounds a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// int8.
    Integers,
    /// f32.
    F32,
    /// f16.
    F16,
    /// bf16, on AMX or AVX512-BF16.
    Bf16,
}

impl Arithmetic {
    /// The arithmetic on inputs of an activation type.
    pub(crate) fn of(activation: latent_types::ActivationType) -> Arithmetic {
        match activation {
            latent_types::ActivationType::F16 => Arithmetic::F16,
            latent_types::ActivationType::Bf16 => Arithmetic::Bf16,
            latent_types::ActivationType::F32 | latent_types::ActivationType::A8 => Arithmetic::F32,
        }
    }
}

/// The minimum work of one call.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Bytes read of weights or KV cache; for row-wise operations, all bytes read and written.
    pub bytes: f64,
    /// Multiplications and additions.
    pub flops: f64,
    /// Their kind.
    pub arithmetic: Arithmetic,
    /// Whether the bytes come from memory. Row-wise operations find theirs in cache.
    pub from_memory: bool,
}

macro_rules! each {
    ($case:expr, $it:ident => $value:expr) => {
        match $case {
            Case::Product($it) => $value,
            Case::Latent($it) => $value,
            Case::Expanded($it) => $value,
            Case::Keys($it) => $value,
            Case::Row($it) => $value,
        }
    };
}

impl Case {
    /// Its name, unique in the table: `linear(Q4_0, tiles, a8, m=23, k=160, n=37)`.
    pub fn name(&self) -> String {
        each!(self, case => case.name())
    }

    /// The name of its operation.
    pub fn operation(&self) -> &'static str {
        each!(self, case => case.operation())
    }

    /// The case without its sizes: what a kernel supports or not.
    pub fn family(&self) -> Family {
        let operation = self.operation();
        let words = |format: &str, layout: &'static str, input: &'static str| Family {
            operation,
            format: format.to_owned(),
            layout,
            input,
        };
        match self {
            Case::Product(case) => words(case.weight.name(), layout(case.layout), case.activation.name()),
            Case::Latent(case) => words(case.cache.name(), "pages", case.activation.name()),
            Case::Expanded(case) => words(case.activation.name(), "lines", "f32"),
            Case::Keys(case) => words(case.activation.name(), "lines", "f32"),
            Case::Row(RowCase { op: RowOp::Embed(ty, lie), .. }) => words(ty.name(), layout(*lie), "ids"),
            Case::Row(RowCase { op: RowOp::Store(ty) | RowOp::Load(ty), .. }) => {
                words(ty.name(), "rows", "f32")
            }
            Case::Row(_) => words("f32", "rows", "f32"),
        }
    }

    /// Its error bound.
    pub fn bound(&self) -> Bound {
        each!(self, case => case.bound())
    }

    /// The work of one call.
    pub fn work(&self) -> Work {
        each!(self, case => case.work())
    }

    /// Its operands, with `copies` copies of what is read from memory.
    pub fn operands(&self, copies: usize) -> Operands {
        match self {
            Case::Product(case) => Operands::Product(case.operands(copies)),
            Case::Latent(case) => Operands::Latent(case.operands(copies)),
            Case::Expanded(case) => Operands::Expanded(case.operands()),
            Case::Keys(case) => Operands::Keys(case.operands()),
            Case::Row(case) => Operands::Row(case.operands()),
        }
    }

    /// The reference results, by plain sums in f64.
    ///
    /// # Panics
    /// When the operands belong to another kind of case.
    pub fn truth(&self, operands: &Operands) -> Truth {
        match (self, operands) {
            (Case::Product(case), Operands::Product(operands)) => case.truth(operands),
            (Case::Latent(case), Operands::Latent(operands)) => case.truth(operands),
            (Case::Expanded(case), Operands::Expanded(operands)) => case.truth(operands),
            (Case::Keys(case), Operands::Keys(operands)) => case.truth(operands),
            (Case::Row(case), Operands::Row(operands)) => case.truth(operands),
            _ => panic!("operands of another case than {}", self.name()),
        }
    }
}

/// The operands of a case.
pub enum Operands {
    /// Of a matmul.
    Product(crate::product::ProductOperands),
    /// Of decode attention.
    Latent(crate::attention::LatentOperands),
    /// Of prefill attention.
    Expanded(crate::attention::ExpandedOperands),
    /// Of key expansion.
    Keys(crate::attention::KeysOperands),
    /// Of a row-wise operation.
    Row(crate::rows::RowOperands),
}

/// Reference results, and the size that each error is relative to.
#[derive(Default)]
pub struct Truth {
    values: Vec<f64>,
    sizes: Vec<f64>,
}

impl Truth {
    pub(crate) fn push(&mut self, value: f64, size: f64) {
        self.values.push(value);
        self.sizes.push(size);
    }

    /// Adds a result that must be matched exactly.
    pub(crate) fn exact(&mut self, value: f32) {
        self.push(f64::from(value), 0.0);
    }

    /// The largest error of `found`, as a fraction of what `bound` allows (1: at the bound).
    ///
    /// # Errors
    /// Names the first result beyond the bound, or a wrong number of results.
    pub fn compare(&self, found: &[f32], bound: &Bound) -> Result<f64, String> {
        if found.len() != self.values.len() {
            return Err(format!("{} results, not {}", found.len(), self.values.len()));
        }
        let mut worst = 0.0f64;
        for (i, found) in found.iter().copied().map(f64::from).enumerate() {
            let (truth, size) = (self.values[i], self.sizes[i]);
            if (found.is_nan() && truth.is_nan()) || found == truth {
                continue;
            }
            let (error, allowed) = ((found - truth).abs(), bound.error * size);
            if error.is_nan() || error > allowed {
                return Err(format!(
                    "result {i} is {found:e}, not {truth:e}: off by {error:.1e}, allowed {allowed:.1e}"
                ));
            }
            worst = worst.max(error / allowed);
        }
        Ok(worst)
    }
}
