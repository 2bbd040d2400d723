//! Lowering of MLA: every `mla_attention` becomes a cache store and the operations of one or two attention paths.

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

/// Which formulation of MLA a session runs. All give the same result up to rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MlaChoice {
    /// Per sequence span: absorbed for few new rows, naive for many. See [`crossover`].
    #[default]
    Auto,
    /// Queries projected into latent space; one key/value row per token, shared by all heads.
    Absorbed,
    /// Keys and values of every head, expanded from the cached latents.
    Naive,
    /// Like absorbed, with content and rope scores computed separately.
    SeparateScores,
}

/// Every formulation with the cache form that it runs on.
pub const FORMS: [(MlaChoice, CacheForm); 5] = [
    (MlaChoice::Auto, CacheForm::Latent),
    (MlaChoice::Absorbed, CacheForm::Latent),
    (MlaChoice::Naive, CacheForm::Latent),
    (MlaChoice::SeparateScores, CacheForm::Latent),
    (MlaChoice::Naive, CacheForm::Expanded),
];

impl MlaChoice {
    /// All choices with the words that name them.
    pub const ALL: [(MlaChoice, &'static str); 4] = [
        (MlaChoice::Auto, "auto"),
        (MlaChoice::Absorbed, "absorbed"),
        (MlaChoice::Naive, "naive"),
        (MlaChoice::SeparateScores, "separate"),
    ];

    /// The formulation that a span of `new_rows` rows runs in.
    pub fn path(self, new_rows: usize, shape: &AttentionShape) -> AttentionPath {
        match self {
            MlaChoice::Naive => AttentionPath::Naive,
            MlaChoice::Auto if new_rows >= crossover(shape).unwrap_or(2) => AttentionPath::Naive,
            MlaChoice::Auto | MlaChoice::Absorbed | MlaChoice::SeparateScores => AttentionPath::Absorbed,
        }
    }

    /// The formulation of a span of `new_rows` rows behind `first` cached ones. Rows of a sparse model attend to selected tokens alone: absorbed,
    /// they gather these; naive, they score all tokens with keys that are expanded for all rows together, and mask the others. `Auto` takes
    /// what costs fewer FLOPs.
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
        // "split" is the name of 2026-11
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
    /// One latent row per token and layer.
    #[default]
    Latent,
    /// Expanded keys and values of every head. Only for the naive formulation, for comparison.
    Expanded,
}

impl CacheForm {
    /// Whether a cache of this type can store it: int8 with one scale per row is for latents only.
    pub fn stores(self, ty: CacheType) -> bool {
        self == CacheForm::Latent || ty.is_float()
    }
}

/// What a FLOP costs that attends to gathered rows, in those over expanded keys and values: rows are copied, and a task has one query.
// measured: docs/notes/attention-kernels.md "Selected tokens in prompts"
const GATHERING: f64 = 1.5;

/// The number of new rows of a sequence from which expanding keys and values costs fewer FLOPs than attending in latent space;
/// none where it never does. `kv_lora · (nope + v) / (2 · kv_lora − nope − v)`: 171 for DeepSeek-V3's sizes, 398 for GLM-4.7-Flash's.
///
/// With n cached rows and m new ones, a head takes m·n·(2·kv_lora + rope) multiply-adds in latent space, and
/// n·kv_lora·(nope + v) + m·n·(nope + rope + v) with keys and values expanded once.
pub fn crossover(shape: &AttentionShape) -> Option<usize> {
    let expansion = shape.kv_lora_rank * (shape.nope + shape.v);
    let saved = (2 * shape.kv_lora_rank).checked_sub(shape.nope + shape.v)?;
    if saved == 0 { None } else { Some(expansion.div_ceil(saved)) }
}

/// Whether rows of a sparse model cost fewer FLOPs that gather the `topk` cached rows they attend to than rows that mask scores of all: per
/// row and head, `topk` · (2 · kv_lora + rope) and the projections to latent space against n · (nope + rope + v) for n tokens seen, and the share of a row in the expansion of
/// all keys and values.
fn gathering_pays(first: usize, new_rows: usize, shape: &AttentionShape, topk: usize) -> bool {
    let (latent, expanded) = (shape.kv_lora_rank as f64, (shape.nope + shape.v) as f64);
    let (first, rows) = (first as f64, new_rows.max(1) as f64);
    if first + rows <= topk as f64 {
        return false;
    }
    let seen = first + rows / 2.0;
    let gathered = GATHERING * seen.min(topk as f64) * (2.0 * latent + shape.rope as f64) + latent * expanded;
    let masked = (first + rows) / rows * latent * expanded + seen * (expanded + shape.rope as f64);
    gathered < masked
}

/// Lowers every `mla_attention` of `ir`.
///
/// What is stored per token is the stream of [`Ir::streams`] that the attention writes.
///
/// # Errors
/// When an expanded cache is combined with a formulation that reads latents.
pub fn lower_mla(
    mut ir: Ir,
    choice: MlaChoice,
    form: CacheForm,
    shape: &AttentionShape,
) -> Result<Ir, GraphError> {
    if form == CacheForm::Expanded && choice != MlaChoice::Naive {
        return Err(GraphError::Internal {
            pass: "lower_mla",
            problem: format!("an expanded cache serves the naive formulation, not {choice}"),
        });
    }
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
        let adapted = attention.weight(LORA_A).is_some();
        let choice = choice_of(choice, form, adapted)?;
        let mut lowering = MlaLowering { made: Vec::new(), attention, shape };
        let kv_layer = lowering.store(&mut ir, form)?;
        let rope = lowering.take_query_rope(&mut ir);
        let at = at - usize::from(rope.is_some_and(|part| part.rotates)); // the query's rope node is gone
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
        if choice != MlaChoice::Auto {
            lowering.made.iter_mut().for_each(|node| node.path = AttentionPath::All);
        }
        ir.nodes.splice(at..at, lowering.made);
    }
    order_kv_layers(&mut ir);
    Ok(ir)
}

/// Numbers KV layers by the layers that own them, so that the layers of several parts of a model stand in the order of the whole.
fn order_kv_layers(ir: &mut Ir) {
    let mut order: Vec<usize> = (0..ir.kv_layers.len()).collect();
    order.sort_by_key(|id| ir.kv_layers[*id].layer);
    let mut numbers = vec![0; order.len()];
    order.iter().enumerate().for_each(|(number, id)| numbers[*id] = number);
    ir.kv_layers = order.iter().map(|id| ir.kv_layers[*id].clone()).collect();
    for id in ir.nodes.iter_mut().filter_map(|node| node.kv_layer.as_mut()) {
        *id = KvLayerId(numbers[id.0]);
    }
}

/// The formulation of one attention. With an adapter of `kv_b` it is absorbed: the adapter's term is added to queries and results, whose rows
/// have scales of their own.
fn choice_of(choice: MlaChoice, form: CacheForm, adapted: bool) -> Result<MlaChoice, GraphError> {
    match (adapted, form, choice) {
        (false, ..) | (true, CacheForm::Latent, MlaChoice::SeparateScores) => Ok(choice),
        (true, CacheForm::Latent, _) => Ok(MlaChoice::Absorbed),
        (true, CacheForm::Expanded, _) => Err(GraphError::ExpandedAdapter),
    }
}

/// Gives a store or reader of an indexer's keys the KV layer of its stream.
fn index_layer(ir: &mut Ir, at: usize) -> Result<(), GraphError> {
    let layer = ir.nodes[at].layer.unwrap_or(0);
    let of_index = |it: &KvLayer| it.layer == layer && it.kind == KvLayerKind::Index;
    let known = ir.kv_layers.iter().position(of_index);
    let kv_layer = match known {
        Some(known) => known,
        None => {
            let width = stream_of(ir, layer, Op::IndexStore)?.width();
            // the rotated elements are the first ones: a shift rotates whole rows again
            ir.kv_layers.push(KvLayer::of_rows(KvLayerKind::Index, layer, width, 0));
            ir.kv_layers.len() - 1
        }
    };
    ir.nodes[at].kv_layer = Some(KvLayerId(kv_layer));
    Ok(())
}

/// The cache stream that the circuit states for what this operation writes in a layer.
fn stream_of(ir: &Ir, layer: usize, op: Op) -> Result<&CacheStream, GraphError> {
    let stated = |stream: &&CacheStream| stream.layer == layer && stream.written_by == op.word();
    ir.streams.iter().find(stated).ok_or_else(|| {
        let problem = format!("no cache stream of layer {layer} is written by {}", op.word());
        GraphError::Internal { pass: "lower_mla", problem }
    })
}

/// The part of the query that meets the key of all heads.
#[derive(Clone, Copy)]
struct QueryRope {
    part: ValueId,
    /// Whether each attention path rotates it, in its own place.
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

    /// The KV layer of the stream that the circuit states for this attention, and the node that writes it.
    fn store(&mut self, ir: &mut Ir, form: CacheForm) -> Result<KvLayerId, GraphError> {
        let layer = self.attention.layer.unwrap_or(0);
        let stream = stream_of(ir, layer, self.attention.op)?;
        let (kind, op, width, rope) = match form {
            CacheForm::Latent => (KvLayerKind::Latent, Op::LatentStore, stream.width(), stream.shared_key()),
            // not the stated row but what is computed from it: keys and values, for comparison only
            CacheForm::Expanded => (KvLayerKind::Expanded, Op::ExpandedStore, self.shape.expanded_width(), 0),
        };
        ir.kv_layers.push(KvLayer::of_rows(kind, layer, width, rope));
        let kv_layer = KvLayerId(ir.kv_layers.len() - 1);
        let inputs = ["latent", "k_rope"].iter().filter_map(|port| self.attention.input_at(port)).collect();
        let weights = if form == CacheForm::Expanded { self.attention.weights.clone() } else { Vec::new() };
        let node = self.node(op, AttentionPath::All, inputs, Vec::new());
        node.kv_layer = Some(kv_layer);
        node.weights = weights;
        Ok(kv_layer)
    }

    /// The rope part of the query, where it has one. The node that rotates it goes, because each attention path rotates in its own place.
    fn take_query_rope(&self, ir: &mut Ir) -> Option<QueryRope> {
        let part = self.attention.input_at("q_rope")?;
        let maker = ir.maker(part).filter(|index| ir.nodes[*index].op == Op::Rope);
        Some(match maker {
            Some(index) => QueryRope { part: remove(ir, index).inputs[0], rotates: true },
            None => QueryRope { part, rotates: false },
        })
    }

    /// The rope part as a path reads it: rotated, into the given storage, where the model rotates.
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
        let is_own = |slot: &str| slot != LORA_A && slot != LORA_B;
        let by_side = |keep: fn(&str) -> bool| {
            weights.iter().filter(|(slot, _)| is_own(slot) && keep(slot)).cloned().collect()
        };
        let adapters: Vec<_> = weights.iter().filter(|(slot, _)| !is_own(slot)).cloned().collect();
        let inputs = [q_nope].into_iter().chain(rotated).collect();
        self.node(Op::AbsorbK, AttentionPath::Absorbed, inputs, vec![query]).weights =
            by_side(|slot| slot != "v_b");
        let mut query = query;
        for pair in adapters.chunks_exact(2) {
            let sum = self.value(ir, "q_latent", full, ValueStorage::View { of: query, offset: 0 });
            self.node(Op::LoraAbsorbK, AttentionPath::Absorbed, vec![query, q_nope], vec![sum]).weights =
                pair.to_vec();
            query = sum;
        }
        let inputs = [query].into_iter().chain(self.attention.input_at("selected")).collect();
        self.node(attend, AttentionPath::Absorbed, inputs, vec![mixed]).kv_layer = Some(kv_layer);
        // the last sum is the attention's result
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
        let in_place = |rope: QueryRope| ValueStorage::View { of: rope.part, offset: 0 };
        let rotated = rope.map(|rope| self.rotated(ir, rope, AttentionPath::Naive, in_place(rope)));
        let (q_nope, out) = (self.attention.inputs[0], self.attention.outputs[0]);
        let weights = if ir.kv_layers[kv_layer.0].kind == KvLayerKind::Latent {
            self.attention.weights.clone()
        } else {
            Vec::new()
        };
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
        // a term of another rank is found
        let mut broken = ir.clone();
        let wrong = broken.weights.iter_mut().find(|w| w.slot == LORA_B).unwrap();
        wrong.shape[1] = 4;
        let found = audit::ir(&broken, circuit, &span, &config);
        assert!(!found.is_empty());
        // and so is one that nothing adds
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
    }
}
