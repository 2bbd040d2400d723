//! Instructions: the form to which plans are compiled. Values are operands in buffers, weights are
//! indices, kernels are function pointers. This file holds data only.

use crate::weights::LoadedWeight;
use latent_graph::circuit::AdapterWeight;
use latent_graph::ir::{AttentionPath, Epilogue, RowCount};
use latent_kernels::half::{bf16, f16};
use latent_kernels::{AttendExpandedFn, AttendFn, ElementwiseFn, ExpandKeysFn, MatmulFn, Q8Rows};
use latent_types::ActivationType;

/// The buffer that holds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Buffer {
    /// The plan's arena.
    Arena,
    /// The residual stream.
    Hidden,
    Logits,
}

/// A strided view of a value in its buffer. Offsets and strides count f32 elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperandView {
    pub buffer: Buffer,
    /// First element of the first row.
    pub offset: usize,
    /// Elements from one row to the next.
    pub stride: usize,
    /// Heads per row.
    pub heads: usize,
    /// Elements from one head to the next.
    pub head_stride: usize,
    /// Elements per head.
    pub width: usize,
    /// How the number of rows follows from the batch.
    pub rows: RowCount,
}

/// A weight with the kernel that multiplies by it.
#[derive(Clone, Copy)]
pub(crate) struct WeightKernel {
    /// Index of the weight.
    pub weight: usize,
    pub kernel: MatmulFn,
    /// The type in which the kernel reads its input.
    pub activation: ActivationType,
    /// The kernel for calls of fewer rows than `kernel` supports. Experts of a large batch may have
    /// few rows each.
    pub small_batch: Option<SmallBatchKernel>,
}

/// The kernel for calls of few rows.
#[derive(Clone, Copy)]
pub(crate) struct SmallBatchKernel {
    /// Calls with fewer rows than this use the kernel.
    pub below: usize,
    pub kernel: MatmulFn,
    pub activation: ActivationType,
}

impl WeightKernel {
    /// The kernel for a call of `rows` rows, and the type in which it reads its input.
    pub(crate) fn for_rows(&self, rows: usize) -> (MatmulFn, ActivationType) {
        match self.small_batch {
            Some(small) if rows < small.below => (small.kernel, small.activation),
            _ => (self.kernel, self.activation),
        }
    }

    /// The types in which both kernels read their inputs.
    pub(crate) fn activations(&self) -> impl Iterator<Item = ActivationType> + use<> {
        std::iter::once(self.activation).chain(self.small_batch.map(|small| small.activation))
    }
}

/// W_UK and W_UV of a layer, in either of the layouts that files use.
#[derive(Clone, Copy)]
pub(crate) enum KvWeights {
    /// `k_b` and `v_b`, with one matrix per head each (GGUF files). None if no product reads the
    /// weight.
    Separate(Option<WeightKernel>, Option<WeightKernel>),
    /// `kv_b`: for each head the rows of its keys, then the rows of its values (Hugging Face).
    Combined(WeightKernel),
}

/// The kernels of naive MLA, by the element type of expanded keys and values.
#[derive(Clone, Copy)]
pub(crate) enum ExpandedKernels {
    F32(NaiveMlaKernels<f32>),
    F16(NaiveMlaKernels<f16>),
    Bf16(NaiveMlaKernels<bf16>),
}

/// The kernels of naive MLA for one element type.
#[derive(Clone, Copy)]
pub(crate) struct NaiveMlaKernels<N> {
    /// Computes keys from latents.
    pub keys: ExpandKeysFn<N>,
    pub attend: AttendExpandedFn<N>,
    /// Index of the weight that holds W_UK.
    pub key_weight: usize,
}

/// Looks up rows of the embedding.
pub(crate) struct Embed {
    pub weight: usize,
    pub scale: f32,
    pub out: OperandView,
}

/// RMSNorm of every row.
pub(crate) struct RmsNorm {
    pub input: OperandView,
    pub weight: usize,
    pub out: OperandView,
}

/// Products of one input with one or several weights. `norm` is applied to the input first.
pub(crate) struct Linear {
    pub input: OperandView,
    pub norm: Option<usize>,
    pub products: Vec<WeightKernel>,
    pub outs: Vec<OperandView>,
    pub epilogue: Epilogue,
}

/// Rotation by position, in place or into another value.
pub(crate) struct Rope {
    pub input: OperandView,
    pub out: OperandView,
}

/// Stores rows `[latent | rope key]` in the KV cache.
pub(crate) struct LatentStore {
    pub latent: OperandView,
    pub norm: Option<usize>,
    /// The rope key, shared by all heads. None in models without RoPE.
    pub key: Option<OperandView>,
    pub rotate: bool,
    pub kv_layer: usize,
}

/// Stores rows of keys and values per head in the KV cache.
pub(crate) struct ExpandedStore {
    pub latent: OperandView,
    /// The rope key, shared by all heads. None in models without RoPE.
    pub key: Option<OperandView>,
    pub rotate: bool,
    pub kv: KvWeights,
    pub kv_layer: usize,
}

/// Stores rows of an indexer's keys in the KV cache.
pub(crate) struct IndexStore {
    pub key: OperandView,
    /// Weight and bias of the keys' LayerNorm.
    pub norm: [usize; 2],
    pub kv_layer: usize,
}

/// Selects the tokens that each row attends to (sparse attention).
pub(crate) struct IndexSelect {
    pub query: OperandView,
    pub weights: OperandView,
    pub out: OperandView,
    pub kv_layer: usize,
}

/// Projects queries to latent space: `[W_UKᵀ q_nope | rope(q_rope)]` per head.
pub(crate) struct AbsorbK {
    pub q_nope: OperandView,
    /// The part of the query that meets the rope key. None in models without RoPE.
    pub q_rope: Option<OperandView>,
    pub rotate: bool,
    pub kv: KvWeights,
    pub out: OperandView,
}

/// Attention over cached latents.
pub(crate) struct AttendLatent {
    pub query: OperandView,
    /// The positions that each row attends to, if attention is sparse.
    pub selected: Option<OperandView>,
    pub out: OperandView,
    /// The value that receives partial results of KV splits, if workers share them.
    pub partials: Option<OperandView>,
    pub kv_layer: usize,
    pub kernel: AttendFn,
}

/// Projects results of attention out of latent space: W_UV per head.
pub(crate) struct AbsorbV {
    pub input: OperandView,
    /// Partial results of KV splits, read instead of `input` if attention did not combine them.
    pub partials: Option<OperandView>,
    pub kv: KvWeights,
    pub out: OperandView,
}

/// Attention over expanded keys and values.
pub(crate) struct AttendExpanded {
    pub q_nope: OperandView,
    /// The part of the query that meets the rope key. None in models without RoPE.
    pub q_rope: Option<OperandView>,
    /// The positions that each row attends to, if attention is sparse.
    pub selected: Option<OperandView>,
    /// None if the KV cache holds expanded keys and values.
    pub kv: Option<KvWeights>,
    pub out: OperandView,
    pub kv_layer: usize,
    pub kernels: ExpandedKernels,
}

/// The router: top-k experts per row.
pub(crate) struct Route {
    pub logits: OperandView,
    pub bias: Option<usize>,
    pub topk_ids: OperandView,
    pub topk_weights: OperandView,
    /// Whether every worker routes all rows by itself, because an operation of the same phase reads
    /// the ids: another worker's results would need a barrier.
    pub in_every_worker: bool,
}

/// silu(gate) · up of the chosen experts.
pub(crate) struct ExpertGateUp {
    pub input: OperandView,
    pub norm: Option<usize>,
    /// None if each worker has routed all rows in this phase ([`Route::in_every_worker`]).
    pub topk_ids: Option<OperandView>,
    /// Gate and up, or one product for both, followed by one product with A of each adapter.
    pub products: Vec<WeightKernel>,
    pub adapters: Vec<ExpertAdapter>,
    pub out: OperandView,
}

/// The low-rank term of an adapter in the results of an experts' weight.
pub(crate) struct ExpertAdapter {
    /// Index of the adapted weight in the instruction's products.
    pub target: usize,
    /// Index of A in the instruction's products.
    pub a: usize,
    pub b: WeightKernel,
    pub rank: usize,
    pub of: AdapterWeight,
}

/// Weighted sum over the chosen experts of their down projections.
pub(crate) struct ExpertDown {
    pub input: OperandView,
    pub topk_ids: OperandView,
    pub topk_weights: OperandView,
    /// Down, followed by one product with A of each adapter.
    pub products: Vec<WeightKernel>,
    pub adapters: Vec<ExpertAdapter>,
    pub scale: f32,
    /// Whether the sum is added to `out`.
    pub add: bool,
    pub out: OperandView,
}

/// An elementwise operation that no product took as an epilogue.
pub(crate) struct Elementwise {
    pub kernel: ElementwiseFn,
    /// The input that the kernel overwrites. It is copied to `out` first, unless `out` is its
    /// memory.
    pub overwritten: OperandView,
    /// The other input of operations with two inputs.
    pub other: Option<OperandView>,
    /// The factor of operations that scale, otherwise 1.
    pub factor: f32,
    pub out: OperandView,
}

/// Short causal convolutions of queries, keys and values. Their last inputs are stored as a state.
pub(crate) struct ShortConv {
    pub inputs: [OperandView; 3],
    /// Indices of the weights, each with a row of taps per channel.
    pub taps: [usize; 3],
    pub outs: [OperandView; 3],
    pub kv_layer: usize,
}

/// Scales each head to unit length and multiplies it by a factor, in place.
pub(crate) struct L2Norm {
    pub factor: f32,
    pub out: OperandView,
}

/// The log decay of each row of a head's state.
pub(crate) struct LogDecay {
    pub input: OperandView,
    /// Index of the rates of all heads.
    pub rates: usize,
    /// Whether the rates are stored as logarithms.
    pub log_rates: bool,
    /// Index of the bias, one element per channel.
    pub bias: usize,
    /// The lower bound of the log decay, if it has one.
    pub bound: Option<f32>,
    pub out: OperandView,
}

/// The recurrence of the delta rule.
pub(crate) struct DeltaRule {
    pub q: OperandView,
    pub k: OperandView,
    pub v: OperandView,
    pub log_decay: OperandView,
    /// The logit of β, one per head.
    pub beta: OperandView,
    pub out: OperandView,
    pub kv_layer: usize,
}

/// RMSNorm of each head, times the sigmoid of a gate, in place.
pub(crate) struct GatedNorm {
    pub gate: OperandView,
    pub weight: usize,
    pub out: OperandView,
}

/// Adds the weight to every row of `out`.
pub(crate) struct Bias {
    pub weight: usize,
    pub out: OperandView,
}

/// The low-rank term of an adapter in the result of a product.
pub(crate) struct AdapterSum {
    /// A x.
    pub low: OperandView,
    /// B.
    pub product: WeightKernel,
    pub of: AdapterWeight,
    pub out: OperandView,
}

/// The low-rank term of an adapter of `kv_b`, added per head in latent space or to values.
pub(crate) struct AdapterHeads {
    pub side: AdapterSide,
    /// `q_nope` for [`AdapterSide::Keys`], attention results in latent space for `Values`.
    pub input: OperandView,
    pub a: usize,
    pub b: usize,
    pub of: AdapterWeight,
    pub out: OperandView,
}

/// The half of an adapter of `kv_b`.
#[derive(Clone, Copy)]
pub(crate) enum AdapterSide {
    /// The half of W_UK, added to absorbed queries.
    Keys,
    /// The half of W_UV, added to projected results of attention.
    Values,
}

/// Concatenates the rows of two values.
pub(crate) struct Concat {
    pub parts: [OperandView; 2],
    pub out: OperandView,
}

/// Copies the rows of the residual stream whose logits are wanted.
pub(crate) struct GatherRows {
    pub out: OperandView,
}

/// An exchange of a value with other ranks.
pub(crate) struct RankCollective {
    pub kind: CollectiveKind,
    pub value: OperandView,
}

#[derive(Clone, Copy)]
pub(crate) enum CollectiveKind {
    AllReduce,
    SendRows,
    ReceiveRows,
}

/// One operation, ready to run.
pub(crate) enum Instruction {
    Collective(RankCollective),
    Embed(Embed),
    RmsNorm(RmsNorm),
    Linear(Linear),
    Rope(Rope),
    LatentStore(LatentStore),
    ExpandedStore(ExpandedStore),
    IndexStore(IndexStore),
    IndexSelect(IndexSelect),
    AbsorbK(AbsorbK),
    AttendLatent(AttendLatent),
    AbsorbV(AbsorbV),
    AttendExpanded(AttendExpanded),
    Route(Route),
    ExpertGateUp(ExpertGateUp),
    ExpertDown(ExpertDown),
    Elementwise(Elementwise),
    Concat(Concat),
    Bias(Bias),
    ShortConv(ShortConv),
    L2Norm(L2Norm),
    LogDecay(LogDecay),
    DeltaRule(DeltaRule),
    GatedNorm(GatedNorm),
    GatherRows(GatherRows),
    AdapterSum(AdapterSum),
    AdapterHeads(AdapterHeads),
}

impl Instruction {
    /// The products of the instruction, and the number of their input rows per row of the batch.
    fn products(&self) -> (&[WeightKernel], usize) {
        match self {
            Instruction::Linear(linear) => (&linear.products, 1),
            Instruction::AdapterSum(add) => (std::slice::from_ref(&add.product), 1),
            Instruction::ExpertGateUp(experts) => (&experts.products, 1),
            Instruction::ExpertDown(experts) => (&experts.products, experts.topk_ids.width),
            _ => (&[], 0),
        }
    }
}

/// An instruction and the rows that it works on.
pub(crate) struct ProgramStep {
    /// The index of its node in the plan.
    pub node: usize,
    /// The attention path whose rows it works on.
    pub path: AttentionPath,
    pub instruction: Instruction,
}

/// A compiled plan: phases of instructions.
pub(crate) struct Program {
    /// Each phase ends with a barrier.
    pub phases: Vec<Vec<ProgramStep>>,
    /// The plan's index of each phase. It differs from the index in `phases`, because phases
    /// without instructions are left out: an empty phase would cost a barrier.
    pub numbers: Vec<usize>,
    /// Elements of the arena.
    pub arena: usize,
}

impl Program {
    /// Maximum number of blocks of 32 elements that a product's inputs take per row of the batch,
    /// over all products that read their input as `activation`.
    pub(crate) fn row_blocks(&self, weights: &[LoadedWeight], activation: ActivationType) -> usize {
        let of = |product: &WeightKernel| {
            let reads = product.activations().any(|a| a == activation);
            if reads { Q8Rows::row_blocks(weights[product.weight].inputs()) } else { 0 }
        };
        let blocks = self.phases.iter().flatten().map(|step| {
            let (products, rows) = step.instruction.products();
            rows * products.iter().map(of).max().unwrap_or(0)
        });
        blocks.max().unwrap_or(0)
    }
}
