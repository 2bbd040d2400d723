//! Lowering of MLA: every `mla_attention` becomes a cache store and the operations of one or two
//! attention paths (docs/mla.md).

use super::remove;
use crate::circuit::{CacheStream, LORA_A, LORA_B};
use crate::config::AttentionShape;
use crate::error::GraphError;
use crate::ir::{
    AttentionPath, Ir, KvLayer, KvLayerId, KvLayerKind, Node, Op, RowCount, Value, ValueId, ValueStorage,
};
use latent_types::{CacheType, ValueType};
use std::fmt;
use std::str::FromStr;

/// The formulation of MLA. All of them give the same result up to rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MlaChoice {
    /// Chosen per sequence span: absorbed for few new rows, naive for many. See [`crossover`].
    #[default]
    Auto,
    /// Queries are projected into latent space; one key/value row per token is shared by all heads.
    Absorbed,
    /// Keys and values of every head are expanded from the cached latents.
    Naive,
    /// Like absorbed, with content and rope scores computed separately.
    SeparateScores,
}

/// Every supported combination of formulation and cache form.
pub const FORMS: [(MlaChoice, CacheForm); 5] = [
    (MlaChoice::Auto, CacheForm::Latent),
    (MlaChoice::Absorbed, CacheForm::Latent),
    (MlaChoice::Naive, CacheForm::Latent),
    (MlaChoice::SeparateScores, CacheForm::Latent),
    (MlaChoice::Naive, CacheForm::Expanded),
];

impl MlaChoice {
    /// All choices with their names.
    pub const ALL: [(MlaChoice, &'static str); 4] = [
        (MlaChoice::Auto, "auto"),
        (MlaChoice::Absorbed, "absorbed"),
        (MlaChoice::Naive, "naive"),
        (MlaChoice::SeparateScores, "separate"),
    ];

    /// The number of new rows of a span from which it takes the naive formulation; `None` if it
    /// never does.
    pub fn naive_from(self, shape: &AttentionShape) -> Option<usize> {
        match self {
            MlaChoice::Naive => Some(0),
            MlaChoice::Auto => crossover(shape),
            MlaChoice::Absorbed | MlaChoice::SeparateScores => None,
        }
    }

    /// The formulation of a span of `new_rows` rows.
    pub fn path(self, new_rows: usize, shape: &AttentionShape) -> AttentionPath {
        match self.naive_from(shape) {
            Some(from) if new_rows >= from => AttentionPath::Naive,
            _ => AttentionPath::Absorbed,
        }
    }

    /// The formulation of a span of `new_rows` rows after `first` cached rows. Rows of a sparse
    /// model attend to selected tokens only. Absorbed, they gather those. Naive, they score all
    /// tokens with keys that are expanded once for all rows, and mask the others. `Auto` takes the
    /// one with fewer FLOPs.
    pub fn path_at(
        self,
        first: usize,
        new_rows: usize,
        form: CacheForm,
        shape: &AttentionShape,
    ) -> AttentionPath {
        match shape.indexer {
            Some(indexer)
                if self == MlaChoice::Auto
                    && form == CacheForm::Latent
                    && gathering_pays(first, new_rows, shape, indexer.topk) =>
            {
                AttentionPath::Absorbed
            }
            _ => self.path(new_rows, shape),
        }
    }

    /// The word that names it.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

impl fmt::Display for MlaChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for MlaChoice {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        // Releases of 2026-11 called it "split". The old name still works.
        let word = if word.eq_ignore_ascii_case("split") { "separate" } else { word };
        let found = Self::ALL.iter().find(|(_, name)| name.eq_ignore_ascii_case(word));
        found.map(|(choice, _)| *choice).ok_or_else(|| {
            format!("unknown formulation {word:?}: expected auto, absorbed, naive or separate")
        })
    }
}

/// What the KV cache stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheForm {
    /// One latent row per token per layer.
    #[default]
    Latent,
    /// Expanded keys and values of every head. Only for the naive formulation, for comparison.
    Expanded,
}

impl CacheForm {
    /// Whether a cache of this type can store it. The int8 type has one scale per latent row, so it
    /// cannot hold expanded rows.
    pub fn stores(self, ty: CacheType) -> bool {
        self == CacheForm::Latent || ty.is_float()
    }
}

/// Cost of a FLOP over gathered rows, relative to one over expanded keys and values. Rows are
/// copied first, and a task has a single query.
// Measured: docs/notes/attention-kernels.md, "Selected tokens in prompts".
const GATHERING: f64 = 1.5;

/// The number of new rows of a sequence from which expanding keys and values takes fewer FLOPs than
/// attending in latent space; `None` if it never does. `kv_lora · (nope + v) / (2 · kv_lora − nope
/// − v)`: 171 for DeepSeek-V3's sizes, 399 for GLM-4.7-Flash's.
///
/// With n cached rows and m new ones, a head takes m·n·(2·kv_lora + rope) multiply-adds in latent
/// space, and n·kv_lora·(nope + v) + m·n·(nope + rope + v) with keys and values expanded once. n
/// cancels, so the crossover does not depend on the context.
pub fn crossover(shape: &AttentionShape) -> Option<usize> {
    let expansion = shape.kv_lora_rank * (shape.nope + shape.v);
    // Negative or zero: a row takes no more FLOPs in latent space, so expansion never pays.
    let saved = (2 * shape.kv_lora_rank).checked_sub(shape.nope + shape.v)?;
    if saved == 0 { None } else { Some(expansion.div_ceil(saved)) }
}

/// Whether gathering the `topk` selected rows takes fewer FLOPs than masking the scores of all
/// rows. Gathering costs `topk` · (2 · kv_lora + rope) per row and head, plus the projections to
/// latent space. Masking costs n · (nope + rope + v) for n visible tokens, plus the row's share of
/// expanding all keys and values.
fn gathering_pays(first: usize, new_rows: usize, shape: &AttentionShape, topk: usize) -> bool {
    let (latent, expanded) = (shape.kv_lora_rank as f64, (shape.nope + shape.v) as f64);
    let (first, rows) = (first as f64, new_rows.max(1) as f64);
    // Up to `topk` tokens the selection is everything, and attention is dense.
    if first + rows <= topk as f64 {
        return false;
    }
    // Mean number of visible tokens over the span.
    let seen = first + rows / 2.0;
    let gathered = GATHERING * seen.min(topk as f64) * (2.0 * latent + shape.rope as f64) + latent * expanded;
    let masked = (first + rows) / rows * latent * expanded + seen * (expanded + shape.rope as f64);
    gathered < masked
}

/// Lowers every `mla_attention` of `ir`.
///
/// Each token stores the row of the stream of [`Ir::streams`] that the attention writes.
///
/// # Errors
/// If an expanded cache is combined with a formulation that reads latents.
pub fn lower_mla(
    mut ir: Ir,
    choice: MlaChoice,
    form: CacheForm,
    shape: &AttentionShape,
) -> Result<Ir, GraphError> {
    if form == CacheForm::Expanded && choice != MlaChoice::Naive {
        return Err(GraphError::Internal {
            pass: "lower_mla",
            problem: format!("an expanded cache supports only the naive formulation, not {choice}"),
        });
    }
    // Positions change with every lowered node, so each pass of the loop searches again.
    loop {
        let unlowered = |node: &Node| match node.op {
            Op::MlaAttention => true,
            Op::IndexStore | Op::IndexSelect => node.kv_layer.is_none(),
            _ => false,
        };
        let Some(at) = ir.nodes.iter().position(unlowered) else { break };
        if ir.nodes[at].op != Op::MlaAttention {
            index_layer(&mut ir, at)?;
            continue;
        }
        let attention = remove(&mut ir, at);
        // Per attention and not per model: an adapter may target `kv_b` of some layers only.
        let adapted = attention.weight(LORA_A).is_some();
        let choice = formulation_of(choice, form, adapted)?;
        let mut lowering = MlaLowering { made: Vec::new(), attention, shape };
        // The store first: attention of the same step reads the rows that it writes.
        let kv_layer = lowering.store(&mut ir, form)?;
        let rope = lowering.take_query_rope(&mut ir);
        // `take_query_rope` removed the query's rope node, which stood before this one.
        let at = at - usize::from(rope.is_some_and(|part| part.rotates));
        if choice != MlaChoice::Naive {
            let split = choice == MlaChoice::SeparateScores;
            lowering.latent(
                &mut ir,
                rope,
                kv_layer,
                if split { Op::AttendSeparate } else { Op::AttendLatent },
            );
        }
        if matches!(choice, MlaChoice::Auto | MlaChoice::Naive) {
            lowering.naive(&mut ir, rope, kv_layer);
        }
        // With one formulation no span takes another path. `All` lets passes treat the nodes like
        // any other.
        if choice != MlaChoice::Auto {
            lowering.made.iter_mut().for_each(|node| node.path = AttentionPath::All);
        }
        ir.nodes.splice(at..at, lowering.made);
    }
    order_kv_layers(&mut ir);
    Ok(ir)
}

/// Numbers KV layers in the order of the layers that own them, so that the KV layers of a model's
/// parts (ranks, offload) have the same order as in the whole model.
fn order_kv_layers(ir: &mut Ir) {
    let mut order: Vec<usize> = (0..ir.kv_layers.len()).collect();
    order.sort_by_key(|id| ir.kv_layers[*id].layer);
    let mut numbers = vec![0; order.len()];
    order.iter().enumerate().for_each(|(number, id)| numbers[*id] = number);
    // A stable sort, so that an indexer's layer stays next to the attention's.
    ir.kv_layers = order.iter().map(|id| ir.kv_layers[*id].clone()).collect();
    for id in ir.nodes.iter_mut().filter_map(|node| node.kv_layer.as_mut()) {
        *id = KvLayerId(numbers[id.0]);
    }
}

/// The formulation of one attention. An adapter of `kv_b` requires the absorbed one, where the
/// adapter's term is added to queries and results with the scale of each row's sequence.
fn formulation_of(choice: MlaChoice, form: CacheForm, adapted: bool) -> Result<MlaChoice, GraphError> {
    match (adapted, form, choice) {
        (false, ..) | (true, CacheForm::Latent, MlaChoice::SeparateScores) => Ok(choice),
        (true, CacheForm::Latent, _) => Ok(MlaChoice::Absorbed),
        (true, CacheForm::Expanded, _) => Err(GraphError::ExpandedAdapter),
    }
}

/// Sets the KV layer of a node that stores or reads an indexer's keys.
fn index_layer(ir: &mut Ir, at: usize) -> Result<(), GraphError> {
    let layer = ir.nodes[at].layer.unwrap_or(0);
    let of_index = |it: &KvLayer| it.layer == layer && it.kind == KvLayerKind::Index;
    // The store comes first and adds the KV layer; the selection finds it.
    let known = ir.kv_layers.iter().position(of_index);
    let kv_layer = match known {
        Some(known) => known,
        None => {
            let width = stream_of(ir, layer, Op::IndexStore)?.width();
            // `rope` is 0, because an indexer's rotated elements are the first ones of a row and
            // `rope` counts from the end. Context shifts treat index rows separately.
            ir.kv_layers.push(KvLayer::of_rows(KvLayerKind::Index, layer, width, 0));
            ir.kv_layers.len() - 1
        }
    };
    ir.nodes[at].kv_layer = Some(KvLayerId(kv_layer));
    Ok(())
}

/// The cache stream that the circuit declares for this operation's writes in a layer.
fn stream_of(ir: &Ir, layer: usize, op: Op) -> Result<&CacheStream, GraphError> {
    let stated = |stream: &&CacheStream| stream.layer == layer && stream.written_by == op.word();
    ir.streams.iter().find(stated).ok_or_else(|| {
        let problem = format!("no cache stream of layer {layer} is written by {}", op.word());
        GraphError::Internal { pass: "lower_mla", problem }
    })
}

/// The part of the query that is multiplied with the shared key.
#[derive(Clone, Copy)]
struct QueryRope {
    part: ValueId,
    /// Whether each attention path rotates it, into its own buffer.
    rotates: bool,
}

struct MlaLowering<'a> {
    made: Vec<Node>,
    attention: Node,
    shape: &'a AttentionShape,
}

impl MlaLowering<'_> {
    fn node(
        &mut self,
        op: Op,
        path: AttentionPath,
        inputs: Vec<ValueId>,
        outputs: Vec<ValueId>,
    ) -> &mut Node {
        let mut node = Node::new(op, self.attention.layer, inputs, outputs);
        node.path = path;
        self.made.push(node);
        let last = self.made.len() - 1;
        &mut self.made[last]
    }

    fn value(&self, ir: &mut Ir, name: &str, width: usize, storage: ValueStorage) -> ValueId {
        ir.add_value(Value {
            name: name.to_owned(),
            layer: self.attention.layer,
            dtype: ValueType::F32,
            rows: RowCount::Rows,
            heads: self.shape.heads,
            width,
            storage,
        })
    }

    /// Adds the KV layer of this attention's stream, and the node that writes it.
    fn store(&mut self, ir: &mut Ir, form: CacheForm) -> Result<KvLayerId, GraphError> {
        let layer = self.attention.layer.unwrap_or(0);
        let stream = stream_of(ir, layer, self.attention.op)?;
        let (kind, op, width, rope) = match form {
            CacheForm::Latent => (KvLayerKind::Latent, Op::LatentStore, stream.width(), stream.shared_key()),
            // Not the declared row but keys and values computed from it. For comparison only (ADR
            // 2).
            CacheForm::Expanded => (KvLayerKind::Expanded, Op::ExpandedStore, self.shape.expanded_width(), 0),
        };
        ir.kv_layers.push(KvLayer::of_rows(kind, layer, width, rope));
        let kv_layer = KvLayerId(ir.kv_layers.len() - 1);
        // Models without a shared key have one input.
        let inputs = ["latent", "k_rope"].iter().filter_map(|port| self.attention.input_at(port)).collect();
        let weights = if form == CacheForm::Expanded { self.attention.weights.clone() } else { Vec::new() };
        let node = self.node(op, AttentionPath::All, inputs, Vec::new());
        node.kv_layer = Some(kv_layer);
        node.weights = weights;
        Ok(kv_layer)
    }

    /// The rope part of the query, if any. Removes the node that rotates it, because each attention
    /// path rotates into its own buffer.
    fn take_query_rope(&self, ir: &mut Ir) -> Option<QueryRope> {
        let part = self.attention.input_at("q_rope")?;
        let maker = ir.maker(part).filter(|index| ir.nodes[*index].op == Op::Rope);
        Some(match maker {
            Some(index) => QueryRope { part: remove(ir, index).inputs[0], rotates: true },
            None => QueryRope { part, rotates: false },
        })
    }

    /// The rope part as a path reads it: rotated into the given storage, or unchanged in models
    /// without rotation.
    fn rotated(
        &mut self,
        ir: &mut Ir,
        rope: QueryRope,
        path: AttentionPath,
        storage: ValueStorage,
    ) -> ValueId {
        if !rope.rotates {
            return rope.part;
        }
        let rotated = self.value(ir, "q_rope", self.shape.rope, storage);
        self.node(Op::Rope, path, vec![rope.part], vec![rotated]);
        rotated
    }

    fn latent(&mut self, ir: &mut Ir, rope: Option<QueryRope>, kv_layer: KvLayerId, attend: Op) {
        let (latent, full) = (self.shape.kv_lora_rank, self.shape.latent_width());
        let rotated = rope.map(|rope| self.rotated(ir, rope, AttentionPath::Absorbed, ValueStorage::Own));
        let query = self.value(ir, "q_latent", full, ValueStorage::Own);
        let mixed = self.value(ir, "latent_mix", latent, ValueStorage::Own);
        let (q_nope, out) = (self.attention.inputs[0], self.attention.outputs[0]);
        let weights = self.attention.weights.clone();
        // A joined `kv_b` has both halves and goes to both nodes; of separate halves each node gets
        // its own.
        let is_own = |slot: &str| slot != LORA_A && slot != LORA_B;
        let by_side = |keep: fn(&str) -> bool| {
            weights.iter().filter(|(slot, _)| is_own(slot) && keep(slot)).cloned().collect()
        };
        let adapters: Vec<_> = weights.iter().filter(|(slot, _)| !is_own(slot)).cloned().collect();
        // `absorb_k` copies the rope part behind the projected query, so the query meets a cached
        // row in one dot product.
        let inputs = [q_nope].into_iter().chain(rotated).collect();
        self.node(Op::AbsorbK, AttentionPath::Absorbed, inputs, vec![query]).weights =
            by_side(|slot| slot != "v_b");
        let mut query = query;
        // The adapter's low-rank term is added to the query, since absorbed attention has no
        // expanded keys to add it to.
        for pair in adapters.chunks_exact(2) {
            let sum = self.value(ir, "q_latent", full, ValueStorage::View { of: query, offset: 0 });
            self.node(Op::LoraAbsorbK, AttentionPath::Absorbed, vec![query, q_nope], vec![sum]).weights =
                pair.to_vec();
            query = sum;
        }
        let inputs = [query].into_iter().chain(self.attention.input_at("selected")).collect();
        self.node(attend, AttentionPath::Absorbed, inputs, vec![mixed]).kv_layer = Some(kv_layer);
        // Each adapter adds its term in place. The last sum is the attention's output, so the
        // earlier ones get values of their own, in the same buffer.
        let mut sums = vec![out];
        for _ in adapters.chunks_exact(2) {
            sums.insert(0, self.value(ir, "attn", self.shape.v, ValueStorage::Own));
        }
        for pair in sums.windows(2) {
            ir.values[pair[1].0].storage = ValueStorage::View { of: pair[0], offset: 0 };
        }
        self.node(Op::AbsorbV, AttentionPath::Absorbed, vec![mixed], vec![sums[0]]).weights =
            by_side(|slot| slot != "k_b");
        for (sums, pair) in sums.windows(2).zip(adapters.chunks_exact(2)) {
            self.node(Op::LoraAbsorbV, AttentionPath::Absorbed, vec![sums[0], mixed], vec![sums[1]])
                .weights = pair.to_vec();
        }
    }

    fn naive(&mut self, ir: &mut Ir, rope: Option<QueryRope>, kv_layer: KvLayerId) {
        // In place: the rows of the two paths are disjoint, so the absorbed path still reads
        // unrotated values.
        let in_place = |rope: QueryRope| ValueStorage::View { of: rope.part, offset: 0 };
        let rotated = rope.map(|rope| self.rotated(ir, rope, AttentionPath::Naive, in_place(rope)));
        let (q_nope, out) = (self.attention.inputs[0], self.attention.outputs[0]);
        // An expanded cache holds keys and values already, so attention needs no weights.
        let weights = if ir.kv_layers[kv_layer.0].kind == KvLayerKind::Latent {
            self.attention.weights.clone()
        } else {
            Vec::new()
        };
        // The naive path masks scores instead of gathering rows.
        let selected = self.attention.input_at("selected");
        let inputs = [q_nope].into_iter().chain(rotated).chain(selected).collect();
        let node = self.node(Op::AttendExpanded, AttentionPath::Naive, inputs, vec![out]);
        node.kv_layer = Some(kv_layer);
        node.weights = weights;
    }
}

#[cfg(test)]
mod tests {
    use super::super::snapshots::{AdaptedTensors, config, lowered_adapted};
    use super::*;
    use crate::audit::{self, Code};
    use crate::circuit::Circuit;
    use crate::ir::ModelSpan;

    #[test]
    fn attention_with_an_adapter_of_kv_b_is_absorbed() {
        let (ir, config) = (lowered_adapted(), config());
        let words = |layer: usize| -> Vec<&str> {
            ir.nodes.iter().filter(|node| node.layer == Some(layer)).map(|node| node.op.word()).collect()
        };
        for op in ["lora_absorb_k", "lora_absorb_v", "lora_add"] {
            assert!(words(0).contains(&op) && !words(1).contains(&op), "{op}");
        }
        assert!(!words(0).contains(&"attend_expanded") && words(1).contains(&"attend_expanded"));
        let (circuit, span) = (Circuit::named("deepseek2").unwrap(), ModelSpan::backbone(&config));
        assert_eq!(audit::ir(&ir, circuit, &span, &config), []);
        // A term of another rank is found.
        let mut broken = ir.clone();
        let wrong = broken.weights.iter_mut().find(|w| w.slot == LORA_B).unwrap();
        wrong.shape[1] = 4;
        let found = audit::ir(&broken, circuit, &span, &config);
        assert!(!found.is_empty());
        // So is a term that nothing adds.
        let mut broken = ir.clone();
        broken.nodes.retain(|node| node.op != Op::LoraAbsorbV);
        let found = audit::ir(&broken, circuit, &span, &config);
        assert!(found.iter().any(|finding| finding.code == Code::A11), "{found:?}");
        let expanded = lower_mla(
            Ir::build(&config, &span, &AdaptedTensors::new()).unwrap(),
            MlaChoice::Naive,
            CacheForm::Expanded,
            &config.attention,
        );
        assert!(expanded.unwrap_err().to_string().contains("latents"));
    }

    #[test]
    fn the_crossover_follows_from_the_dimensions() {
        let shape = |kv_lora_rank, nope, v| AttentionShape {
            heads: 16,
            q_lora_rank: None,
            kv_lora_rank,
            nope,
            rope: 64,
            v,
            softmax_scale: 1.0,
            temperature: None,
            output_gate: None,
            indexer: None,
        };
        assert_eq!(crossover(&shape(512, 128, 128)), Some(171));
        assert_eq!(crossover(&shape(512, 192, 256)), Some(399));
        assert_eq!(crossover(&shape(64, 64, 64)), None);
        assert_eq!(crossover(&shape(32, 64, 64)), None);
        // `auto` expands keys and values only where that saves FLOPs, also for many rows.
        for (shape, from) in
            [(shape(512, 128, 128), Some(171)), (shape(64, 64, 64), None), (shape(32, 64, 64), None)]
        {
            assert_eq!(MlaChoice::Auto.naive_from(&shape), from);
            for rows in [1, 2, 170, 171, 100_000] {
                let naive = from.is_some_and(|from| rows >= from);
                let path = if naive { AttentionPath::Naive } else { AttentionPath::Absorbed };
                assert_eq!(MlaChoice::Auto.path(rows, &shape), path, "{rows} rows");
                assert_eq!(MlaChoice::Absorbed.path(rows, &shape), AttentionPath::Absorbed);
                assert_eq!(MlaChoice::SeparateScores.path(rows, &shape), AttentionPath::Absorbed);
                assert_eq!(MlaChoice::Naive.path(rows, &shape), AttentionPath::Naive);
            }
        }
    }
}
