//! Rules for the order of operations in Multi-head Latent Attention.

use super::findings::Findings;
use super::rules::Code;
use super::trace::{ResolvedIr, rows};
use crate::config::ModelConfig;
use crate::ir::{AttentionPath, KvLayerKind, ModelSpan, Node, Op, ValueId};

pub(super) fn check(
    trace: &ResolvedIr<'_>,
    span: &ModelSpan,
    config: &ModelConfig,
    phases: Option<&[usize]>,
    found: &mut Findings<'_>,
) {
    let mut layers = vec![MlaLayerNodes::default(); config.layers.max(span.layers.end)];
    for (n, node) in trace.ir.nodes.iter().enumerate() {
        if node.inputs.len() != node.input_count() {
            continue; // A16 was reported.
        }
        // Models without rotation (NoPE) must not rotate at all.
        let ropes = usize::from(config.rope.dims > 0);
        if let Some(latent) = node.input_at("latent") {
            cached(trace, n, (latent, node.input_at("k_rope")), ropes, found);
        }
        if let (Some(nope), Some(key)) = (node.input_at("k_nope"), node.input_at("k_rope")) {
            let projection = expanded_from(trace, nope, node.path);
            shared_key(trace, n, (key, projection), ropes, found);
        }
        if let Some(nope) = node.input_at("q_nope") {
            query(trace, n, (nope, node.input_at("q_rope")), ropes, found);
        }
        expansion(trace, n, found);
        kv_layer(trace, n, found);
        note(n, node, &mut layers);
    }
    for (layer, seen) in layers.iter().enumerate().take(span.layers.end).skip(span.layers.start) {
        // Recurrent layers neither store rows nor attend.
        if config.is_recurrent(layer) {
            continue; // A84
        }
        once(layer, seen, found);
        seen.in_order(trace, phases, found);
    }
    owners(trace, span, found);
}

/// Stores and attentions of one layer.
#[derive(Clone, Default)]
struct MlaLayerNodes {
    /// Stores and readers of an indexer's keys.
    index_stores: Vec<usize>,
    index_reads: Vec<usize>,
    stores: Vec<usize>,
    attends: Vec<usize>,
    /// Rows that attend (a set of [`rows`]), and whether some attend twice.
    rows: u8,
    twice: bool,
}

fn note(n: usize, node: &Node, layers: &mut [MlaLayerNodes]) {
    let Some(layer) = node.layer.and_then(|layer| layers.get_mut(layer)) else { return };
    let kv = node.op.spec().kv;
    if kv.is_recurrent() {
        return; // A84
    }
    match node.op {
        Op::IndexStore => return layer.index_stores.push(n),
        Op::IndexSelect => return layer.index_reads.push(n),
        _ => {}
    }
    if kv.stores {
        layer.stores.push(n);
    }
    if kv.attends {
        layer.attends.push(n);
        // Nodes of different paths have disjoint bits and may both attend.
        layer.twice |= layer.rows & rows(node.path) != 0;
        layer.rows |= rows(node.path);
    }
}

/// A44: one store per layer, and one attention per row.
fn once(layer: usize, seen: &MlaLayerNodes, found: &mut Findings<'_>) {
    if seen.stores.len() != 1 {
        let problem = format!("the layer stores {} times in a step", seen.stores.len());
        found.add(Code::A44, Some(layer), Some("store".into()), problem);
    }
    // A layer that shares another layer's selection neither stores nor reads index keys.
    if seen.index_stores.len() > 1 || seen.index_stores.len() != seen.index_reads.len() {
        let (stores, reads) = (seen.index_stores.len(), seen.index_reads.len());
        let problem = format!(
            "the layer stores keys of an indexer {stores} times in a step, and selects by them {reads} times"
        );
        found.add(Code::A44, Some(layer), Some("indexer".into()), problem);
    }
    // Both bits: every row attends, on exactly one path.
    if seen.rows != 3 || seen.twice {
        let problem = if seen.twice { "some rows attend twice" } else { "some rows take no attention path" };
        found.add(Code::A44, Some(layer), Some("attention".into()), problem.into());
    }
}

impl MlaLayerNodes {
    /// A45: the store comes first, with a barrier in between.
    fn in_order(&self, trace: &ResolvedIr<'_>, phases: Option<&[usize]>, found: &mut Findings<'_>) {
        let pairs = [(&self.stores, &self.attends), (&self.index_stores, &self.index_reads)];
        for (store, attends) in
            pairs.into_iter().flat_map(|(stores, attends)| stores.iter().map(move |it| (*it, attends)))
        {
            for &attend in attends.iter().filter(|a| **a != store) {
                // Nodes of one phase run concurrently, so the same phase is too early for a reader.
                let late = store > attend || phases.is_some_and(|phases| phases[store] >= phases[attend]);
                if late {
                    let problem =
                        format!("it reads the cache before (or while) node {store} writes this step's rows");
                    found.at(Code::A45, trace.ir, attend, None, problem);
                }
            }
        }
    }
}

/// The origin of a value, before norms and rotations.
pub(super) struct ValueOrigin {
    /// The value before them.
    raw: ValueId,
    norms: usize,
    pub(super) ropes: usize,
}

pub(super) fn origin(trace: &ResolvedIr<'_>, mut raw: ValueId, path: AttentionPath) -> ValueOrigin {
    let (mut norms, mut ropes) = (0, 0);
    // Bounded by the number of nodes, because a broken IR may compute a value from itself.
    for _ in 0..trace.ir.nodes.len() {
        let Some(node) = trace.maker(raw, path).map(|n| &trace.ir.nodes[n]) else { break };
        match (node.op, node.inputs.first()) {
            (Op::RmsNorm, Some(input)) => (norms, raw) = (norms + 1, *input),
            (Op::Rope, Some(input)) => (ropes, raw) = (ropes + 1, *input),
            _ => break,
        }
    }
    ValueOrigin { raw, norms, ropes }
}

/// The projection that `part` is split from, and the offset of its first element. `None` if no
/// split produces it.
fn cut_from(trace: &ResolvedIr<'_>, part: ValueId, path: AttentionPath) -> Option<(ValueId, usize)> {
    let node = &trace.ir.nodes[trace.maker(part, path)?];
    let whole = *node.inputs.first().filter(|_| node.op.spec().is_view)?;
    Some((whole, trace.places[part.0].from - trace.places[whole.0].from))
}

/// A40 to A43 for cached values: the normalized latent, and the shared key from the raw projection,
/// rotated `ropes` times.
fn cached(
    trace: &ResolvedIr<'_>,
    n: usize,
    (latent, key): (ValueId, Option<ValueId>),
    ropes: usize,
    found: &mut Findings<'_>,
) {
    let node = &trace.ir.nodes[n];
    let from = origin(trace, latent, node.path);
    let norms = from.norms + usize::from(node.prologue.norm.is_some());
    let slot = Some("latent".to_owned());
    // Shapes are right without the norm too, so only this rule notices.
    if norms == 0 {
        found.at(Code::A40, trace.ir, n, slot.clone(), "the latent was not normed".into());
    } else if norms > 1 {
        found.at(Code::A41, trace.ir, n, slot.clone(), format!("the latent is normed {norms} times"));
    }
    if from.ropes > 0 {
        found.at(Code::A43, trace.ir, n, slot.clone(), "the latent is rotated".into());
    }
    let projection = cut_from(trace, from.raw, node.path);
    match projection {
        Some((_, 0)) => {}
        _ => found.at(Code::A40, trace.ir, n, slot, "it is not the first part of a projection".into()),
    }
    if let Some(key) = key {
        shared_key(trace, n, (key, projection), ropes, found);
    }
}

/// A42 and A43 for the shared key, which is split from the same projection as the latent.
fn shared_key(
    trace: &ResolvedIr<'_>,
    n: usize,
    (key, projection): (ValueId, Option<(ValueId, usize)>),
    ropes: usize,
    found: &mut Findings<'_>,
) {
    let path = trace.ir.nodes[n].path;
    let from = origin(trace, key, path);
    rotated(trace, n, (&from, "k_rope"), ropes, found);
    let raw = cut_from(trace, from.raw, path);
    raw_part(trace, n, (&from, "k_rope"), raw.zip(projection), found);
}

/// The projection of the latent from which the keys without position are expanded.
fn expanded_from(trace: &ResolvedIr<'_>, nope: ValueId, path: AttentionPath) -> Option<(ValueId, usize)> {
    let latent = trace.ir.nodes[trace.maker(nope, path)?].input_at("latent")?;
    cut_from(trace, origin(trace, latent, path).raw, path)
}

/// A42 and A43 for a query.
fn query(
    trace: &ResolvedIr<'_>,
    n: usize,
    (nope, rope): (ValueId, Option<ValueId>),
    ropes: usize,
    found: &mut Findings<'_>,
) {
    let path = trace.ir.nodes[n].path;
    let content = origin(trace, nope, path);
    if content.ropes > 0 {
        found.at(
            Code::A43,
            trace.ir,
            n,
            Some("q_nope".into()),
            "the part without position is rotated".into(),
        );
    }
    let Some(rope) = rope else { return };
    let from = origin(trace, rope, path);
    rotated(trace, n, (&from, "q_rope"), ropes, found);
    let parts = cut_from(trace, from.raw, path).zip(cut_from(trace, content.raw, path));
    raw_part(trace, n, (&from, "q_rope"), parts, found);
}

/// The operation that produces a value, before a bias and adapter terms.
fn product_of(trace: &ResolvedIr<'_>, value: ValueId, path: AttentionPath) -> Option<Op> {
    let maker = |value| trace.maker(value, path).map(|n| &trace.ir.nodes[n]);
    let mut made = maker(value)?;
    while matches!(made.op, Op::Bias | Op::LoraAdd) {
        made = maker(*made.inputs.first()?)?;
    }
    Some(made.op)
}

/// A43: a rope part is rotated once, or never in a model without rotation.
fn rotated(
    trace: &ResolvedIr<'_>,
    n: usize,
    (from, slot): (&ValueOrigin, &str),
    expected: usize,
    found: &mut Findings<'_>,
) {
    let ropes = from.ropes + usize::from(trace.ir.nodes[n].prologue.rope);
    if ropes != expected {
        let problem = match ropes {
            0 => "it is not rotated".to_owned(),
            _ if expected == 0 => "it is rotated, but the model has no rotation".to_owned(),
            _ => format!("it is rotated {ropes} times"),
        };
        found.at(Code::A43, trace.ir, n, Some(slot.into()), problem);
    }
}

/// A42: a rope part and its content part are split from the same matmul, the rope part after the
/// other, without a norm.
fn raw_part(
    trace: &ResolvedIr<'_>,
    n: usize,
    (from, slot): (&ValueOrigin, &str),
    parts: Option<((ValueId, usize), (ValueId, usize))>,
    found: &mut Findings<'_>,
) {
    let problem = match parts {
        _ if from.norms > 0 => "it comes from a normed value".to_owned(),
        None => "it is not a part of a projection".to_owned(),
        Some(((whole, _), (other, _))) if whole != other => {
            format!("it is cut from {}, its content part from {}", trace.name(whole), trace.name(other))
        }
        // The rope part follows the content part in `kv_a` and in each query head.
        Some(((_, 0), _)) => "it is the content part itself".to_owned(),
        Some(((whole, _), _)) => match product_of(trace, whole, trace.ir.nodes[n].path) {
            Some(Op::Linear) => return,
            other => {
                let word = other.map_or("nothing", |op| op.word());
                format!("{} is made by {word}, not by a projection", trace.name(whole))
            }
        },
    };
    found.at(Code::A42, trace.ir, n, Some(slot.into()), problem);
}

/// A48, and A46 for a node: its KV layer is of its kind and its layer.
fn kv_layer(trace: &ResolvedIr<'_>, n: usize, found: &mut Findings<'_>) {
    let node = &trace.ir.nodes[n];
    let kinds = node.op.spec().kv.layers;
    let Some(id) = node.kv_layer else {
        if !kinds.is_empty() {
            found.at(Code::A48, trace.ir, n, Some("KV layer".into()), "it has no KV layer".into());
        }
        return;
    };
    let kv_layer = &trace.ir.kv_layers[id.0];
    if !kinds.contains(&kv_layer.kind) {
        let problem = format!("it cannot use a {:?} KV layer", kv_layer.kind);
        found.at(Code::A48, trace.ir, n, Some("KV layer".into()), problem);
    }
    if node.layer != Some(kv_layer.layer) {
        let problem = format!("its KV layer belongs to layer {}", kv_layer.layer);
        found.at(Code::A46, trace.ir, n, Some("KV layer".into()), problem);
    }
}

/// A46: each KV layer belongs to one layer, and each layer has at most one of a kind: one for
/// attention, one for an indexer, or states.
fn owners(trace: &ResolvedIr<'_>, span: &ModelSpan, found: &mut Findings<'_>) {
    let mut owned: Vec<Vec<KvLayerKind>> = vec![Vec::new(); span.layers.end];
    for kv_layer in &trace.ir.kv_layers {
        let layer = kv_layer.layer;
        let problem = match owned.get_mut(layer) {
            Some(taken) if span.layers.contains(&layer) => {
                // Latent and expanded rows exclude each other. Indexers and states are separate
                // groups.
                let group = |kind: KvLayerKind| match kind {
                    KvLayerKind::Latent | KvLayerKind::Expanded => KvLayerKind::Latent,
                    other => other,
                };
                let mixed = |kind: &KvLayerKind| kind.is_recurrent() != kv_layer.kind.is_recurrent();
                let alone = !taken.iter().any(|kind| group(*kind) == group(kv_layer.kind) || mixed(kind));
                taken.push(kv_layer.kind);
                if alone {
                    continue;
                }
                "the layer has two KV layers"
            }
            _ => "the KV layer belongs to a layer outside the span",
        };
        found.add(Code::A46, Some(layer), Some("KV layer".into()), problem.into());
    }
}

/// A49: the nodes of attention have the halves of W_UK and W_UV that they need.
fn expansion(trace: &ResolvedIr<'_>, n: usize, found: &mut Findings<'_>) {
    let node = &trace.ir.nodes[n];
    let has = |slot: &str| node.op.spec().slots.iter().any(|of| of.name == slot);
    let (keys, values) = (has("k_b"), has("v_b"));
    // A16 checks whether there should be any.
    if node.weights.is_empty() || !(keys || values) {
        return;
    }
    let mut slots: Vec<&str> = node.weights.iter().map(|(slot, _)| slot.as_str()).collect();
    slots.sort_unstable();
    let split = [("k_b", keys), ("v_b", values)];
    let split: Vec<&str> = split.iter().filter(|(_, wanted)| *wanted).map(|(slot, _)| *slot).collect();
    if slots != split && slots != ["kv_b"] {
        let problem = format!("its weights are {slots:?}, expected {split:?} or [\"kv_b\"]");
        found.at(Code::A49, trace.ir, n, None, problem);
    }
}
