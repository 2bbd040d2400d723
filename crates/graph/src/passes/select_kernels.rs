//! Kernel selection: exactly one kernel for each weight or operation of a node.

use super::BatchBucket;
use crate::error::GraphError;
use crate::ir::{BoundKernel, Ir, Node, Op};
use crate::ops::{KernelRows, RequiredKernels};
use latent_types::{ActivationType, CacheType, KernelContract, OpKind, TensorType, Tier, WeightLayout};
use std::fmt;
use std::str::FromStr;

/// How exact the arithmetic is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// Everything in f32 from decoded weights: the oracle.
    Exact,
    /// 8-bit activations with quantized weights, f32 with all others.
    #[default]
    Default,
}

impl Precision {
    /// The word that names it.
    pub fn name(self) -> &'static str {
        match self {
            Precision::Exact => "exact",
            Precision::Default => "default",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word.to_ascii_lowercase().as_str() {
            "exact" => Ok(Precision::Exact),
            "default" => Ok(Precision::Default),
            _ => Err(format!("unknown precision {word:?}: expected exact or default")),
        }
    }
}

/// What `select_kernels` may choose from.
#[derive(Clone, Copy, Debug)]
pub struct BindOptions {
    /// How exact the arithmetic is.
    pub precision: Precision,
    /// The highest ISA level allowed.
    pub tier: Tier,
    /// The element type of the KV cache.
    pub cache: CacheType,
}

/// Binds every node of `ir` to kernels of `table`, for steps of one batch bucket.
///
/// Among the kernels that match at an allowed ISA level the highest level wins; a kernel for one weight format wins over one that
/// reads any. An expert sees only some of a step's rows, so where its kernel has a minimum number of rows, a kernel for small
/// batches is bound too.
///
/// # Errors
/// [`GraphError::NoKernel`] and [`GraphError::AmbiguousKernel`], which say what was required and which kernels there are.
pub fn select_kernels(
    mut ir: Ir,
    table: &[KernelContract],
    options: &BindOptions,
    bucket: BatchBucket,
) -> Result<Ir, GraphError> {
    for n in 0..ir.nodes.len() {
        let node = &ir.nodes[n];
        let bucket = binding_bucket(&node.op, bucket);
        let part = node.op.spec().kernel_rows == KernelRows::PartOfBucket;
        let kernels = required_kernels(&ir, node)
            .into_iter()
            .map(|(op, ty)| {
                let mut kernel = choose(table, op, ty, options, bucket)?;
                if part && table[kernel.index].min_rows > 1 {
                    kernel.small_batch = Some(Box::new(choose(table, op, ty, options, BatchBucket::Decode)?));
                }
                Ok(kernel)
            })
            .collect::<Result<Vec<_>, GraphError>>()?;
        ir.nodes[n].kernels = kernels;
    }
    Ok(ir)
}

/// The batch bucket that a node's kernels are selected for. Per-head projections work on the rows of one sequence, of which any step
/// may have few; attention over expanded keys multiplies all cached rows, so its kernels suit the step's bucket.
pub fn binding_bucket(op: &Op, bucket: BatchBucket) -> BatchBucket {
    match op.spec().kernel_rows {
        KernelRows::Any => BatchBucket::Decode,
        KernelRows::Bucket | KernelRows::PartOfBucket => bucket,
    }
}

/// The kernels that a node requires: one for each of its weights, or one for itself.
pub fn required_kernels(ir: &Ir, node: &Node) -> Vec<(OpKind, Option<TensorType>)> {
    match node.op.spec().kernels {
        RequiredKernels::None => Vec::new(),
        RequiredKernels::Own(kind) => vec![(kind, None)],
        RequiredKernels::PerWeight(of, more) => {
            let weights = node.weights.iter().map(|(slot, id)| (of(slot), Some(ir.weight(*id).ty)));
            weights.chain(more.iter().map(|kind| (*kind, None))).collect()
        }
    }
}

/// Chooses the activation type of a matmul. It depends only on weight format and precision, so that every ISA computes the same
/// result; a prefill-only kernel may ask for its own type when the batch is large enough. Attention takes the type of the best
/// kernel allowed, and prefers 16-bit floats to int8.
fn activation(
    table: &[KernelContract],
    op: OpKind,
    ty: Option<TensorType>,
    options: &BindOptions,
    bucket: BatchBucket,
) -> ActivationType {
    let precision = options.precision;
    let Some(ty) = ty else {
        let rounded = |k: &&KernelContract| {
            k.op == op
                && k.activation != ActivationType::F32
                && k.tier <= options.tier
                && k.min_rows <= bucket.min_rows()
                && k.cache.is_none_or(|cache| cache == options.cache)
        };
        let best = table.iter().filter(rounded).max_by_key(|k| (rank(k), k.activation != ActivationType::A8));
        return best
            .filter(|_| precision == Precision::Default)
            .map_or(ActivationType::F32, |k| k.activation);
    };
    let for_many = |k: &&KernelContract| {
        k.op == op
            && k.weight == Some(ty)
            && k.min_rows > 1
            && k.min_rows <= bucket.min_rows()
            && k.tier <= options.tier
            && k.layout == layout(table, ty, precision)
    };
    if let Some(kernel) = table.iter().find(for_many).filter(|_| precision == Precision::Default) {
        return kernel.activation;
    }
    let wanted = wanted(ty, precision);
    let exists = table.iter().any(|k| k.op == op && k.weight == Some(ty) && k.activation == wanted);
    if exists { wanted } else { ActivationType::F32 }
}

/// The activation type that suits a weight format.
fn wanted(ty: TensorType, precision: Precision) -> ActivationType {
    match precision {
        Precision::Default if ty.is_quantized() => ActivationType::A8,
        Precision::Default | Precision::Exact => ActivationType::F32,
    }
}

/// How the weights of a format are laid out in memory, the same for every operation of a session: in tiles, if default precision has
/// a matmul that reads them, else in rows as in the file.
fn layout(table: &[KernelContract], ty: TensorType, precision: Precision) -> WeightLayout {
    let tiles = |k: &KernelContract| {
        k.op == OpKind::Linear
            && k.layout == WeightLayout::Tiles
            && k.weight == Some(ty)
            && k.activation == wanted(ty, precision)
    };
    if precision == Precision::Default && table.iter().any(tiles) {
        WeightLayout::Tiles
    } else {
        WeightLayout::Rows
    }
}

/// What is required of one kernel.
#[derive(Debug)]
pub struct KernelRequest<'a> {
    op: OpKind,
    ty: Option<TensorType>,
    /// The type of the input that the kernel reads.
    pub activation: ActivationType,
    /// None where the kernel takes dequantized rows, from any layout.
    pub layout: Option<WeightLayout>,
    options: &'a BindOptions,
    bucket: BatchBucket,
}

/// The field of a contract that differs from a request.
enum Mismatch {
    Op,
    Weight(TensorType),
    Layout,
    Activation,
    Tier,
    Rows,
    Cache(CacheType),
}

impl<'a> KernelRequest<'a> {
    /// The request for `op` with weights of format `ty`: layout follows from format and precision, the input from the batch bucket too.
    pub fn new(
        table: &[KernelContract],
        (op, ty): (OpKind, Option<TensorType>),
        options: &'a BindOptions,
        bucket: BatchBucket,
    ) -> KernelRequest<'a> {
        // operations that dequantize rows first take them from any layout
        let decodes = matches!(op, OpKind::Embed | OpKind::ExpandKeys);
        let layout = ty.filter(|_| !decodes).map(|ty| layout(table, ty, options.precision));
        KernelRequest {
            op,
            ty,
            activation: activation(table, op, ty, options, bucket),
            layout,
            options,
            bucket,
        }
    }

    /// Why `kernel` does not match; `None` if it does.
    pub fn refusal(&self, kernel: &KernelContract) -> Option<String> {
        Some(match self.mismatch(kernel)? {
            Mismatch::Op => format!("it does {}", kernel.op.name()),
            Mismatch::Weight(ty) => format!("it reads {ty}"),
            Mismatch::Layout => format!("it reads {}", kernel.layout.name()),
            Mismatch::Activation => format!("its input is {}", kernel.activation.name()),
            Mismatch::Tier => format!("it needs {}, and the limit is {}", kernel.tier, self.options.tier),
            Mismatch::Rows => format!("it is for calls of {} rows and more", kernel.min_rows),
            Mismatch::Cache(ty) => format!("its cache is {ty}"),
        })
    }

    /// The first field of `kernel` that differs. Without text: each node of a graph asks every kernel of the table.
    fn mismatch(&self, kernel: &KernelContract) -> Option<Mismatch> {
        if kernel.op != self.op {
            return Some(Mismatch::Op);
        }
        if let Some(ty) = kernel.weight.filter(|ty| Some(*ty) != self.ty) {
            return Some(Mismatch::Weight(ty));
        }
        if self.layout.is_some_and(|layout| layout != kernel.layout) {
            return Some(Mismatch::Layout);
        }
        if kernel.activation != self.activation {
            return Some(Mismatch::Activation);
        }
        if kernel.tier > self.options.tier {
            return Some(Mismatch::Tier);
        }
        if kernel.min_rows > self.bucket.min_rows() {
            return Some(Mismatch::Rows);
        }
        kernel.cache.filter(|ty| *ty != self.options.cache).map(Mismatch::Cache)
    }

    fn matches(&self, kernel: &KernelContract) -> bool {
        self.mismatch(kernel).is_none()
    }

    /// The best kernel that matches.
    pub fn best<'t>(&self, table: &'t [KernelContract]) -> Option<&'t KernelContract> {
        table.iter().filter(|k| self.matches(k)).max_by_key(|k| rank(k))
    }

    /// Why the request is as it is, and why `bound` answers it: a sentence each for input, layout and ISA.
    pub fn why(&self, bound: &KernelContract) -> Vec<String> {
        let mut why = Vec::new();
        if let Some(ty) = self.ty {
            let (input, precision) = (self.activation.name(), self.options.precision);
            why.push(match (self.activation, precision) {
                (ActivationType::F32, Precision::Exact) => "input f32: precision exact".to_owned(),
                (ActivationType::F32, Precision::Default) if wanted(ty, precision) == ActivationType::F32 => {
                    format!("input f32: {ty} is not quantized, so the input is not rounded")
                }
                (ActivationType::F32, Precision::Default) => {
                    format!("input f32: no kernel reads {ty} with a narrower one for this operation")
                }
                (ActivationType::Bf16, _) if bound.min_rows > 1 => {
                    format!(
                        "input {input}: in prefill, {ty} is dequantized to it too, for the processor's tiles"
                    )
                }
                (ActivationType::Bf16 | ActivationType::F16, _) => {
                    format!("input {input}: {ty} has 16 bits, so the input is rounded to as many")
                }
                (ActivationType::A8, _) => {
                    format!(
                        "input {input}: {ty} is quantized, so blocks of the input are quantized to 8 bits"
                    )
                }
            });
            why.push(match self.layout {
                None => "any layout: rows are dequantized first".to_owned(),
                Some(WeightLayout::Rows) => format!("layout rows: {ty} is read as stored in the file"),
                Some(WeightLayout::Tiles) => {
                    format!("layout tiles: {ty} is packed while loading, for every operation of a session")
                }
            });
        }
        if self.ty.is_none() && self.activation == ActivationType::F16 {
            why.push("arithmetic f16: the processor multiplies f16, and the cache stores it".to_owned());
        }
        if self.ty.is_none() && self.activation == ActivationType::Bf16 {
            let how = if bound.tier == Tier::Amx { "tiles" } else { "pairs" };
            why.push(format!("arithmetic bf16: the processor multiplies {how} of it"));
        }
        if self.ty.is_none() && self.activation == ActivationType::A8 {
            why.push(
                "input a8: the cache stores 8-bit quants, which are multiplied with 8-bit queries".to_owned(),
            );
        }
        why.push(if bound.tier == self.options.tier {
            format!("tier {}: the highest allowed", bound.tier)
        } else {
            format!("tier {}: no kernel of a higher one does this, up to {}", bound.tier, self.options.tier)
        });
        why
    }

    fn describe(&self) -> String {
        let format = self.ty.map_or_else(String::new, |ty| format!(" of {ty}"));
        let (op, input, tier) = (self.op.name(), self.activation.name(), self.options.tier);
        format!("{op}{format} with {input} input up to tier {tier}")
    }
}

/// The order of kernels that match: by ISA level, then kernels for one weight format, then for one cache type.
fn rank(k: &KernelContract) -> (Tier, bool, bool) {
    (k.tier, k.weight.is_some(), k.cache.is_some())
}

/// The kernel for one operation on one weight format, for steps of one batch bucket.
pub fn choose(
    table: &[KernelContract],
    op: OpKind,
    ty: Option<TensorType>,
    options: &BindOptions,
    bucket: BatchBucket,
) -> Result<BoundKernel, GraphError> {
    let request = KernelRequest::new(table, (op, ty), options, bucket);
    let best = table.iter().filter(|k| request.matches(k)).map(rank).max();
    let mut found = table.iter().enumerate().filter(|(_, k)| request.matches(k) && Some(rank(k)) == best);
    match (found.next(), found.next()) {
        (None, _) => Err(GraphError::NoKernel { asked: request.describe(), there: there(table, op) }),
        (Some((_, first)), Some((_, second))) => Err(GraphError::AmbiguousKernel {
            asked: request.describe(),
            first: first.name.to_owned(),
            second: second.name.to_owned(),
        }),
        (Some((index, kernel)), None) => {
            let activation = request.activation.name().to_owned();
            Ok(BoundKernel { index, name: kernel.name.to_owned(), activation, small_batch: None })
        }
    }
}

fn there(table: &[KernelContract], op: OpKind) -> String {
    let names: Vec<&str> = table.iter().filter(|k| k.op == op).map(|k| k.name).collect();
    if names.is_empty() {
        "there is none for this operation".into()
    } else {
        format!("there are {}", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latent_types::WeightLayout;

    fn contract(
        weight: Option<TensorType>,
        activation: ActivationType,
        tier: Tier,
        name: &'static str,
    ) -> KernelContract {
        KernelContract {
            op: OpKind::Linear,
            weight,
            layout: WeightLayout::Rows,
            activation,
            cache: None,
            min_rows: 1,
            tier,
            name,
        }
    }

    fn options(precision: Precision, tier: Tier) -> BindOptions {
        BindOptions { precision, tier, cache: CacheType::F32 }
    }

    #[test]
    fn the_highest_tier_allowed_wins_and_activation_does_not_depend_on_it() {
        let q4 = Some(TensorType::Q4_K);
        let table = [
            contract(None, ActivationType::F32, Tier::Portable, "strip"),
            contract(q4, ActivationType::A8, Tier::Portable, "portable_a8"),
            contract(q4, ActivationType::A8, Tier::Avx2, "avx2_a8"),
            contract(q4, ActivationType::F32, Tier::Avx512, "avx512_f32"),
        ];
        let name = |precision, tier, ty| {
            choose(&table, OpKind::Linear, ty, &options(precision, tier), BatchBucket::Prefill).unwrap().name
        };
        assert_eq!(name(Precision::Default, Tier::Avx512, q4), "avx2_a8");
        assert_eq!(name(Precision::Default, Tier::Portable, q4), "portable_a8");
        assert_eq!(name(Precision::Exact, Tier::Avx512, q4), "avx512_f32");
        assert_eq!(name(Precision::Exact, Tier::Avx2, q4), "strip");
        assert_eq!(name(Precision::Default, Tier::Avx512, Some(TensorType::IQ1_S)), "strip");
    }

    #[test]
    fn kernels_for_many_rows_take_over_where_there_are_as_many() {
        let q4 = Some(TensorType::Q4_K);
        let tiles = |kernel: KernelContract| KernelContract { layout: WeightLayout::Tiles, ..kernel };
        let table = [
            contract(None, ActivationType::F32, Tier::Portable, "strip"),
            tiles(contract(q4, ActivationType::A8, Tier::Avx512, "avx512_a8")),
            tiles(KernelContract {
                min_rows: 16,
                ..contract(q4, ActivationType::Bf16, Tier::Amx, "amx_bf16")
            }),
        ];
        let chosen = |precision, tier, bucket| {
            choose(&table, OpKind::Linear, q4, &options(precision, tier), bucket).unwrap()
        };
        let many = chosen(Precision::Default, Tier::Amx, BatchBucket::Prefill);
        assert_eq!((many.name.as_str(), many.activation.as_str()), ("amx_bf16", "bf16"));
        for bucket in [BatchBucket::Decode, BatchBucket::SmallBatch] {
            assert_eq!(chosen(Precision::Default, Tier::Amx, bucket).name, "avx512_a8");
        }
        assert_eq!(chosen(Precision::Default, Tier::Avx512, BatchBucket::Prefill).name, "avx512_a8");
        assert_eq!(chosen(Precision::Exact, Tier::Amx, BatchBucket::Prefill).name, "strip");
    }

    #[test]
    fn none_and_a_tie_are_errors_that_name_the_kernels() {
        let q8 = Some(TensorType::Q8_0);
        let table = [
            contract(q8, ActivationType::F32, Tier::Avx2, "one"),
            contract(q8, ActivationType::F32, Tier::Avx2, "two"),
        ];
        let error = |tier| {
            let options = options(Precision::Exact, tier);
            choose(&table, OpKind::Linear, q8, &options, BatchBucket::Decode).unwrap_err().to_string()
        };
        assert!(error(Tier::Avx2).contains("one and two"));
        assert!(
            error(Tier::Portable).contains("Q8_0") && error(Tier::Portable).contains("there are one, two")
        );
    }
}
