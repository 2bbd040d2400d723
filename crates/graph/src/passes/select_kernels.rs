//! Kernel selection: exactly one kernel per weight or operation of a node.

use super::BatchBucket;
use crate::error::GraphError;
use crate::ir::{BoundKernel, Ir, Node, Op};
use crate::kernel_timings::{KernelTimings, ProductShape};
use crate::ops::{KernelRows, RequiredKernels};
use crate::target::BackendTarget;
use latent_types::{ActivationType, CacheType, KernelContract, OpKind, TensorType, Tier, WeightLayout};
use std::fmt;
use std::str::FromStr;

/// Precision of the arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// f32 arithmetic over decoded weights, the reference for tests and `compare`.
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

/// Limits on the kernels that `select_kernels` may choose.
#[derive(Clone, Copy, Debug)]
pub struct BindOptions {
    /// Precision of the arithmetic.
    pub precision: Precision,
    /// The highest ISA level allowed.
    pub tier: Tier,
    /// The element type of the KV cache.
    pub cache: CacheType,
}

/// Measured times, and the matmul shape that they are looked up for.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredProduct<'t> {
    pub timings: &'t KernelTimings,
    pub shape: ProductShape,
}

/// Binds every node of `ir` to kernels of `target`, for steps of one batch bucket.
///
/// Of the kernels that match at an allowed ISA level, the highest level wins. If the target has
/// measured times of that kernel and of another one with the same bits, the fastest wins. A kernel
/// for one weight format wins over one that reads any. An expert sees only some of a step's rows,
/// so if its kernel has a minimum number of rows, a kernel for small batches is bound too.
///
/// # Errors
/// [`GraphError::NoKernel`] and [`GraphError::AmbiguousKernel`], with the request and the
/// candidates.
pub fn select_kernels(
    mut ir: Ir,
    target: &BackendTarget,
    options: &BindOptions,
    bucket: BatchBucket,
) -> Result<Ir, GraphError> {
    let table = target.contracts();
    for n in 0..ir.nodes.len() {
        let node = &ir.nodes[n];
        let bucket = binding_bucket(&node.op, bucket);
        // Only experts: other nodes always get all rows of the step.
        let part = node.op.spec().kernel_rows == KernelRows::PartOfBucket;
        let kernels = required_kernels(&ir, node)
            .into_iter()
            .enumerate()
            .map(|(w, required)| {
                let choose = |bucket| {
                    let measured = measured_product(&ir, (node, w), target, required.0, bucket);
                    choose(table, required, options, bucket, measured)
                };
                let mut kernel = choose(bucket)?;
                if part && table[kernel.index].min_rows > 1 {
                    // At run time an expert gets between zero and all rows of the step. A decode
                    // kernel has no minimum, so it serves any smaller count.
                    kernel.small_batch = Some(Box::new(choose(BatchBucket::Decode)?));
                }
                Ok(kernel)
            })
            .collect::<Result<Vec<_>, GraphError>>()?;
        ir.nodes[n].kernels = kernels;
    }
    Ok(ir)
}

/// The batch bucket for which a node's kernels are selected. Per-head projections work on the rows
/// of one sequence, and any step may have few of them. Attention over expanded keys multiplies all
/// cached rows, so its kernels suit the step's bucket.
pub fn binding_bucket(op: &Op, bucket: BatchBucket) -> BatchBucket {
    match op.spec().kernel_rows {
        KernelRows::Any => BatchBucket::Decode,
        KernelRows::Bucket | KernelRows::PartOfBucket => bucket,
    }
}

/// The measured times of `target` and the shape in which weight `w` of a node takes part. `None`
/// without times, and for operations other than matmuls.
pub fn measured_product<'t>(
    ir: &Ir,
    (node, w): (&Node, usize),
    target: &'t BackendTarget,
    op: OpKind,
    bucket: BatchBucket,
) -> Option<MeasuredProduct<'t>> {
    let (timings, (_, id)) = (target.tuned.as_deref()?, node.weights.get(w)?);
    // Experts have three dimensions; the last two are those of one matmul.
    let [.., first, last] = ir.weight(*id).shape[..] else { return None };
    let (inputs, outputs) = match op {
        OpKind::Linear => (last, first),
        // A product across rows takes the weight's rows as inputs.
        OpKind::LinearT => (first, last),
        _ => return None,
    };
    // Representative row counts within each bucket. An expert gets a small share of a step's rows,
    // so it is looked up with fewer.
    let part = node.op.spec().kernel_rows == KernelRows::PartOfBucket;
    let rows = match bucket {
        BatchBucket::Decode => 1,
        BatchBucket::SmallBatch => {
            if part {
                2
            } else {
                8
            }
        }
        BatchBucket::Prefill => {
            if part {
                32
            } else {
                512
            }
        }
    };
    Some(MeasuredProduct { timings, shape: ProductShape { rows, inputs, outputs } })
}

/// The kernels that a node requires: one per weight, or one for itself.
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

/// Chooses the activation type of a matmul. It depends only on weight format and precision, so that
/// every ISA computes the same result. A prefill-only kernel may ask for its own type if the batch
/// is large enough. Attention takes the type of the best kernel allowed, and prefers 16-bit floats
/// to int8.
fn activation(
    table: &[KernelContract],
    op: OpKind,
    ty: Option<TensorType>,
    options: &BindOptions,
    bucket: BatchBucket,
) -> ActivationType {
    let precision = options.precision;
    let Some(ty) = ty else {
        // Attention without weights: the type follows the cache, since a kernel for one cache type
        // reads its rows unconverted.
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
    // Prefill kernels on AMX tiles multiply bf16, whatever the weight format. Only batches above
    // `min_rows` use them, so decode has the same bits on every tier.
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
    // Any tier counts, not only the allowed ones. Otherwise a lower ISA limit would change the
    // activation type, and with it the result.
    // A general kernel (`weight: None`) decodes rows to f32, so it does not count.
    let exists = table.iter().any(|k| k.op == op && k.weight == Some(ty) && k.activation == wanted);
    if exists { wanted } else { ActivationType::F32 }
}

/// The activation type that suits a weight format, whether or not a kernel for it exists.
fn wanted(ty: TensorType, precision: Precision) -> ActivationType {
    match precision {
        Precision::Default if ty.is_quantized() => ActivationType::A8,
        Precision::Default | Precision::Exact => ActivationType::F32,
    }
}

/// The memory layout of a weight format, the same for every operation of a session because a weight
/// is packed once. Tiles if default precision has a matmul that reads them, otherwise rows as in
/// the file.
fn layout(table: &[KernelContract], ty: TensorType, precision: Precision) -> WeightLayout {
    let tiles = |k: &KernelContract| {
        k.op == OpKind::Linear
            && k.layout == WeightLayout::Tiles
            && k.weight == Some(ty)
            && k.activation == wanted(ty, precision)
    };
    // Exact precision reads the file as stored, without packing.
    if precision == Precision::Default && table.iter().any(tiles) {
        WeightLayout::Tiles
    } else {
        WeightLayout::Rows
    }
}

/// A kernel of a lower tier is chosen if its time is below this fraction of the highest tier's.
// A smaller lead may be noise: medians of one kernel from the CPU's cache differ by 1 to 4 %
// between runs.
const FASTER: f64 = 0.97;

/// The requirements of one kernel.
#[derive(Debug)]
pub struct KernelRequest<'a> {
    op: OpKind,
    ty: Option<TensorType>,
    /// Type in which the kernel reads its input.
    pub activation: ActivationType,
    /// `None` if the kernel takes dequantized rows, from any layout.
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
    /// The request for `op` with weights of format `ty`. The layout follows from format and
    /// precision, the input type from the batch bucket too.
    pub fn new(
        table: &[KernelContract],
        (op, ty): (OpKind, Option<TensorType>),
        options: &'a BindOptions,
        bucket: BatchBucket,
    ) -> KernelRequest<'a> {
        // These operations dequantize rows first, from any layout.
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

    /// The reason why `kernel` does not match; `None` if it does.
    pub fn refusal(&self, kernel: &KernelContract) -> Option<String> {
        Some(match self.mismatch(kernel)? {
            Mismatch::Op => format!("it implements {}", kernel.op.name()),
            Mismatch::Weight(ty) => format!("it reads {ty}"),
            Mismatch::Layout => format!("it reads {}", kernel.layout.name()),
            Mismatch::Activation => format!("its input is {}", kernel.activation.name()),
            Mismatch::Tier => format!("it needs {}, but the limit is {}", kernel.tier, self.options.tier),
            Mismatch::Rows => format!("it needs at least {} rows per call", kernel.min_rows),
            Mismatch::Cache(ty) => format!("its cache is {ty}"),
        })
    }

    /// The first field of `kernel` that differs. It builds no text, because every node compares all
    /// kernels of the table.
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

    /// The index of the best kernel that matches, and the times that decided, if any.
    pub fn best(
        &self,
        table: &[KernelContract],
        measured: Option<MeasuredProduct<'_>>,
    ) -> Option<(usize, Option<String>)> {
        // `max_by_key` returns the last maximum; `choose` has excluded ties.
        let matching = table.iter().enumerate().filter(|(_, k)| self.matches(k));
        let (highest, _) = matching.max_by_key(|(_, k)| rank(k))?;
        let fastest = measured.and_then(|measured| self.fastest(table, highest, measured));
        Some(fastest.map_or((highest, None), |(index, times)| (index, Some(times))))
    }

    /// The fastest kernel that computes the same bits as the highest one, and its times; `None` if
    /// they are not known.
    fn fastest(
        &self,
        table: &[KernelContract],
        highest: usize,
        measured: MeasuredProduct<'_>,
    ) -> Option<(usize, String)> {
        let ty = self.ty?;
        // Float kernels over tiles sum with fused multiply-add on every tier but portable, which
        // rounds twice and so gives other bits. Integer kernels agree on all tiers.
        let fused_only = self.layout == Some(WeightLayout::Tiles) && !ty.is_quantized();
        let rivals = table.iter().enumerate().filter(|(i, k)| {
            *i != highest
                && self.matches(k)
                && k.weight == table[highest].weight
                && !(fused_only && k.tier == Tier::Portable)
        });
        let mut rivals: Vec<usize> = rivals.map(|(i, _)| i).collect();
        // `min_by` returns the first minimum, so of equal times the higher tier wins.
        rivals.sort_by_key(|i| std::cmp::Reverse(table[*i].tier));
        rivals.insert(0, highest);
        // GEMV and GEMM kernels rank differently, so times of other buckets say nothing about this
        // one.
        let bucket = BatchBucket::of(measured.shape.rows);
        let rows = bucket.min_rows()..=bucket.max_rows(usize::MAX);
        let names: Vec<&str> = rivals.iter().map(|i| table[*i].name).collect();
        let found = measured.timings.nearest(ty, measured.shape, rows, &names)?;
        let times = || rivals.iter().zip(&found.micros).filter_map(|(i, micros)| Some((*i, (*micros)?)));
        let of_highest = times().find(|(i, _)| *i == highest)?;
        let fastest = times().min_by(|(_, a), (_, b)| a.total_cmp(b))?;
        let (chosen, micros) = if fastest.1 < FASTER * of_highest.1 { fastest } else { of_highest };
        let mut text = format!("measured {micros:.1} µs");
        for (i, micros) in times().filter(|(i, _)| *i != chosen) {
            text += &format!(", {} {micros:.1} µs", table[i].name);
        }
        Some((chosen, text + &format!(" at {}", found.shape)))
    }

    /// Explains the request and its answer: one sentence each for input, layout and ISA. `times` is
    /// the text of the times that decided.
    pub fn why(&self, bound: &KernelContract, times: Option<&str>) -> Vec<String> {
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
        why.push(match times {
            Some(times) => format!("tier {}: {times}", bound.tier),
            None if bound.tier == self.options.tier => format!("tier {}: the highest allowed", bound.tier),
            None => {
                format!(
                    "tier {}: no kernel of a higher one does this, up to {}",
                    bound.tier, self.options.tier
                )
            }
        });
        why
    }

    fn describe(&self) -> String {
        let format = self.ty.map_or_else(String::new, |ty| format!(" of {ty}"));
        let (op, input, tier) = (self.op.name(), self.activation.name(), self.options.tier);
        format!("{op}{format} with {input} input up to tier {tier}")
    }
}

/// The order of matching kernels: by ISA level, then kernels for one weight format before general
/// ones, then kernels for one cache type.
fn rank(k: &KernelContract) -> (Tier, bool, bool) {
    (k.tier, k.weight.is_some(), k.cache.is_some())
}

/// Chooses the kernel for one operation on one weight format, for steps of one batch bucket.
/// Measured times decide between instruction sets.
pub fn choose(
    table: &[KernelContract],
    (op, ty): (OpKind, Option<TensorType>),
    options: &BindOptions,
    bucket: BatchBucket,
    measured: Option<MeasuredProduct<'_>>,
) -> Result<BoundKernel, GraphError> {
    let request = KernelRequest::new(table, (op, ty), options, bucket);
    let best = table.iter().filter(|k| request.matches(k)).map(rank).max();
    let mut found = table.iter().enumerate().filter(|(_, k)| request.matches(k) && Some(rank(k)) == best);
    match (found.next(), found.next()) {
        (None, _) => Err(GraphError::NoKernel { asked: request.describe(), there: candidates(table, op) }),
        // Two kernels of one rank would make the choice depend on the order of the table.
        (Some((_, first)), Some((_, second))) => Err(GraphError::AmbiguousKernel {
            asked: request.describe(),
            first: first.name.to_owned(),
            second: second.name.to_owned(),
        }),
        (Some((highest, _)), None) => {
            let (index, decided_by) = request.best(table, measured).unwrap_or((highest, None));
            let (name, activation) = (table[index].name.to_owned(), request.activation.name().to_owned());
            Ok(BoundKernel { index, name, activation, small_batch: None, decided_by })
        }
    }
}

fn candidates(table: &[KernelContract], op: OpKind) -> String {
    let names: Vec<&str> = table.iter().filter(|k| k.op == op).map(|k| k.name).collect();
    if names.is_empty() {
        "no kernel implements this operation".into()
    } else {
        format!("candidates: {}", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_timings::KernelTiming;
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
            choose(&table, (OpKind::Linear, ty), &options(precision, tier), BatchBucket::Prefill, None)
                .unwrap()
                .name
        };
        assert_eq!(name(Precision::Default, Tier::Avx512, q4), "avx2_a8");
        assert_eq!(name(Precision::Default, Tier::Portable, q4), "portable_a8");
        assert_eq!(name(Precision::Exact, Tier::Avx512, q4), "avx512_f32");
        assert_eq!(name(Precision::Exact, Tier::Avx2, q4), "strip");
        assert_eq!(name(Precision::Default, Tier::Avx512, Some(TensorType::IQ1_S)), "strip");
    }

    #[test]
    fn kernels_with_a_row_minimum_bind_in_larger_buckets() {
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
            choose(&table, (OpKind::Linear, q4), &options(precision, tier), bucket, None).unwrap()
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
    fn measured_times_choose_between_tiers_that_compute_the_same_bits() {
        let (q4, bf16) = (TensorType::Q4_K, TensorType::BF16);
        let tiles = |kernel: KernelContract| KernelContract { layout: WeightLayout::Tiles, ..kernel };
        let table = [
            contract(None, ActivationType::F32, Tier::Portable, "strip"),
            tiles(contract(Some(q4), ActivationType::A8, Tier::Portable, "portable_a8")),
            tiles(contract(Some(q4), ActivationType::A8, Tier::Avx2, "avx2_a8")),
            tiles(contract(Some(q4), ActivationType::A8, Tier::Avx512, "avx512_a8")),
            tiles(contract(Some(bf16), ActivationType::F32, Tier::Portable, "portable_bf16")),
            tiles(contract(Some(bf16), ActivationType::F32, Tier::Avx2, "avx2_bf16")),
            tiles(contract(Some(bf16), ActivationType::F32, Tier::Avx512, "avx512_bf16")),
        ];
        let timings = |rows: &[(&str, TensorType, usize, f64)]| {
            let timing = |(kernel, ty, inputs, micros): &(&str, TensorType, usize, f64)| KernelTiming {
                op: "linear".into(),
                weight: ty.name().into(),
                layout: "tiles".into(),
                kernel: (*kernel).into(),
                shape: ProductShape { rows: 1, inputs: *inputs, outputs: 2048 },
                micros: *micros,
            };
            KernelTimings::new("cpu".into(), Tier::Avx512, 1, rows.iter().map(timing).collect())
        };
        let chosen = |timings: &KernelTimings, ty, tier, rows, inputs| {
            let shape = ProductShape { rows, inputs, outputs: 2048 };
            let options = options(Precision::Default, tier);
            let measured = Some(MeasuredProduct { timings, shape });
            let bound = choose(&table, (OpKind::Linear, Some(ty)), &options, BatchBucket::of(rows), measured);
            let bound = bound.unwrap();
            assert_eq!(table[bound.index].name, bound.name);
            (bound.name, bound.decided_by.unwrap_or_default())
        };
        let lower = timings(&[
            ("avx512_a8", q4, 1024, 47.0),
            ("avx2_a8", q4, 1024, 41.2),
            ("portable_a8", q4, 1024, 300.0),
            ("avx512_a8", q4, 8192, 100.0),
            ("avx2_a8", q4, 8192, 100.0),
            ("strip", q4, 1024, 0.1),
        ]);
        let (name, why) = chosen(&lower, q4, Tier::Avx512, 1, 1500);
        let expected = "measured 41.2 µs, avx512_a8 47.0 µs, portable_a8 300.0 µs at m=1, k=1024, n=2048";
        assert_eq!((&*name, &*why), ("avx2_a8", expected));
        // Another shape is nearer, and equal times keep the highest tier.
        let (name, why) = chosen(&lower, q4, Tier::Avx512, 1, 6000);
        assert_eq!(
            (&*name, &*why),
            ("avx512_a8", "measured 100.0 µs, avx2_a8 100.0 µs at m=1, k=8192, n=2048")
        );
        // A lead of 2 % is within the noise of measurements.
        let near = timings(&[("avx512_a8", q4, 1024, 47.0), ("avx2_a8", q4, 1024, 46.0)]);
        let (name, why) = chosen(&near, q4, Tier::Avx512, 1, 1024);
        assert_eq!(
            (&*name, &*why),
            ("avx512_a8", "measured 47.0 µs, avx2_a8 46.0 µs at m=1, k=1024, n=2048")
        );
        // The ISA limit holds, and other buckets have no times.
        assert_eq!(chosen(&lower, q4, Tier::Portable, 1, 1024), ("portable_a8".into(), String::new()));
        assert_eq!(chosen(&lower, q4, Tier::Avx512, 512, 1024), ("avx512_a8".into(), String::new()));
        // Times that do not include the highest tier do not replace it.
        let others = timings(&[("avx2_a8", q4, 1024, 1.0), ("portable_a8", q4, 1024, 2.0)]);
        assert_eq!(chosen(&others, q4, Tier::Avx512, 1, 1024), ("avx512_a8".into(), String::new()));
        let alone = timings(&[("avx512_a8", q4, 1024, 1.0)]);
        assert_eq!(chosen(&alone, q4, Tier::Avx512, 1, 1024), ("avx512_a8".into(), String::new()));
        // The portable kernel of floats in tiles gives other bits, so it is never a candidate.
        let floats = timings(&[
            ("avx512_bf16", bf16, 1024, 3.0),
            ("avx2_bf16", bf16, 1024, 2.0),
            ("portable_bf16", bf16, 1024, 1.0),
        ]);
        assert_eq!(chosen(&floats, bf16, Tier::Avx512, 1, 1024).0, "avx2_bf16");
        let request = KernelRequest::new(
            &table,
            (OpKind::Linear, Some(q4)),
            &options(Precision::Default, Tier::Avx512),
            BatchBucket::Decode,
        )
        .why(&table[2], Some("measured 1.0 µs"));
        assert_eq!(request.last().unwrap(), "tier avx2: measured 1.0 µs");
    }

    #[test]
    fn missing_and_ambiguous_kernels_are_errors_that_name_the_kernels() {
        let q8 = Some(TensorType::Q8_0);
        let table = [
            contract(q8, ActivationType::F32, Tier::Avx2, "one"),
            contract(q8, ActivationType::F32, Tier::Avx2, "two"),
        ];
        let error = |tier| {
            let options = options(Precision::Exact, tier);
            choose(&table, (OpKind::Linear, q8), &options, BatchBucket::Decode, None).unwrap_err().to_string()
        };
        assert!(error(Tier::Avx2).contains("one and two"));
        assert!(
            error(Tier::Portable).contains("Q8_0") && error(Tier::Portable).contains("candidates: one, two")
        );
    }
}
