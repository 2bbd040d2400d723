//! What a case is: an operation with its sizes, and how near to the truth its results must be.

use crate::attention::{ExpandedCase, KeysCase, LatentCase};
use crate::product::ProductCase;
use crate::rows::{RowCase, RowOp};
use latent_types::WeightLayout;
use serde::Serialize;

/// How near results must be to the truth: |found − true| ≤ error · size, where an operation says what the size of a result is (for a
/// sum, the sum of its terms' magnitudes).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// The factor; 0: equal.
    pub error: f64,
    /// Which instruction sets give the same bits.
    pub same_bits: SameBits,
    /// Where the error comes from.
    pub reason: &'static str,
}

/// Between which kernels results are equal to the bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameBits {
    /// All.
    All,
    /// All but those of the lowest level, which has no multiplication and addition in one operation.
    AboveLowest,
    /// None.
    None,
}

/// An operation with its sizes and formats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Case {
    /// Rows times a weight.
    Product(ProductCase),
    /// Attention in latent space.
    Latent(LatentCase),
    /// Attention over expanded keys and values.
    Expanded(ExpandedCase),
    /// Keys from latents.
    Keys(KeysCase),
    /// What works on single rows.
    Row(RowCase),
}

/// An operation and the formats that it works on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Family {
    /// The operation's word.
    pub operation: &'static str,
    /// The format of the weight or of the cache.
    pub format: String,
    /// How it lies in memory.
    pub layout: &'static str,
    /// How the input is read.
    pub input: &'static str,
}

/// The word for a layout.
pub(crate) fn layout(layout: WeightLayout) -> &'static str {
    match layout {
        WeightLayout::Rows => "rows",
        WeightLayout::Tiles => "tiles",
    }
}

/// Which of the machine's limits bounds arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// 8-bit integers.
    Integers,
    /// f32.
    F32,
    /// f16.
    F16,
    /// bf16, by tiles or in vectors.
    Bf16,
}

impl Arithmetic {
    /// What bounds arithmetic on numbers that are rounded in this way.
    pub(crate) fn of(activation: latent_types::ActivationType) -> Arithmetic {
        match activation {
            latent_types::ActivationType::F16 => Arithmetic::F16,
            latent_types::ActivationType::Bf16 => Arithmetic::Bf16,
            latent_types::ActivationType::F32 | latent_types::ActivationType::A8 => Arithmetic::F32,
        }
    }
}

/// What one call costs at least.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Bytes of weights or cached rows that are read; of row-wise operations, all that is read and written.
    pub bytes: f64,
    /// Multiplications and additions.
    pub flops: f64,
    /// Of what kind.
    pub arithmetic: Arithmetic,
    /// Whether the bytes come from memory when the operands exceed the caches: row-wise operations find theirs in the cache.
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

    /// The word of its operation.
    pub fn operation(&self) -> &'static str {
        each!(self, case => case.operation())
    }

    /// What it is without its sizes: what a kernel supports or not.
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

    /// How near to the truth its results must be.
    pub fn bound(&self) -> Bound {
        each!(self, case => case.bound())
    }

    /// What one call costs.
    pub fn work(&self) -> Work {
        each!(self, case => case.work())
    }

    /// Its operands, `copies` times where they would be read from memory.
    pub fn operands(&self, copies: usize) -> Operands {
        match self {
            Case::Product(case) => Operands::Product(case.operands(copies)),
            Case::Latent(case) => Operands::Latent(case.operands(copies)),
            Case::Expanded(case) => Operands::Expanded(case.operands()),
            Case::Keys(case) => Operands::Keys(case.operands()),
            Case::Row(case) => Operands::Row(case.operands()),
        }
    }

    /// The true results, by plain sums in f64.
    ///
    /// # Panics
    /// When the operands are of another case.
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
    /// Of a product.
    Product(crate::product::ProductOperands),
    /// Of attention in latent space.
    Latent(crate::attention::LatentOperands),
    /// Of attention over expanded keys.
    Expanded(crate::attention::ExpandedOperands),
    /// Of the expansion of keys.
    Keys(crate::attention::KeysOperands),
    /// Of a row-wise operation.
    Row(crate::rows::RowOperands),
}

/// True results, and the size that the error of each is measured by.
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

    /// A result that must be met exactly.
    pub(crate) fn exact(&mut self, value: f32) {
        self.push(f64::from(value), 0.0);
    }

    /// The largest error of `found`, in parts of a result's size, as a share of what `bound` allows (1: at the bound).
    ///
    /// # Errors
    /// The first result beyond the bound, or another number of results than there should be.
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
