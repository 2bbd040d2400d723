//! Rules for cache streams: those of the circuit against KV layers, stores and reads of an IR.

use super::findings::Findings;
use super::mla::origin;
use super::rules::Code;
use super::trace::ResolvedIr;
use crate::circuit::{CacheStream, Circuit, LayerGroup};
use crate::config::ModelConfig;
use crate::ir::{AttentionPath, KvLayer, KvLayerKind, ModelSpan, Node, Op, ValueId};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

pub(super) fn check(
    trace: &ResolvedIr<'_>,
    circuit: &Circuit,
    span: &ModelSpan,
    config: &ModelConfig,
    found: &mut Findings<'_>,
) {
    // Otherwise A80 was reported.
    let Ok(groups) = circuit.layer_groups(config, span.layers.clone()) else { return };
    let nodes = &trace.ir.nodes;
    // Before `lower_mla` a layer has no KV layers yet.
    let unlowered: HashSet<usize> =
        nodes.iter().filter(|node| node.op == Op::MlaAttention).filter_map(|node| node.layer).collect();
    let mut stated: HashMap<usize, Rc<[CacheStream]>> = HashMap::new();
    for LayerGroup { layers, vars, spec } in &groups {
        // Otherwise A81 was reported.
        let Ok(streams) = circuit.streams(&spec.attention, layers[0], vars) else { continue };
        let streams: Rc<[CacheStream]> = streams.into();
        stated.extend(layers.iter().map(|layer| (*layer, streams.clone())));
    }
    for layer in span.layers.clone().filter(|layer| !unlowered.contains(layer)) {
        if let Some(streams) = stated.get(&layer) {
            kv_layers(trace, layer, streams, found);
        }
    }
    states(trace, span, config, found);
    let stores = |(_, node): &(usize, &Node)| {
        let kv = node.op.spec().kv;
        kv.stores && !kv.is_recurrent()
    };
    for (n, node) in nodes.iter().enumerate().filter(stores) {
        if let Some(streams) = node.layer.and_then(|layer| stated.get(&layer)) {
            store(trace, n, streams, found);
        }
    }
}

/// A82: the KV layers of a layer are its streams, in order. (Expanded rows are checked by A27.)
fn kv_layers(trace: &ResolvedIr<'_>, layer: usize, streams: &[CacheStream], found: &mut Findings<'_>) {
    let own: Vec<_> = trace.ir.kv_layers.iter().filter(|kv_layer| kv_layer.layer == layer).collect();
    // A missing KV layer would shift every later one, and saved caches would not fit.
    if own.len() != streams.len() {
        let names: Vec<&str> = streams.iter().map(|stream| stream.name.as_str()).collect();
        let problem =
            format!("the layer has {} KV layers, but its attention block declares {names:?}", own.len());
        found.add(Code::A82, Some(layer), Some("KV layer".into()), problem);
    }
    for (kv_layer, stream) in
        own.iter().zip(streams).filter(|(it, stream)| it.state.is_some() || stream.state.is_some())
    {
        if kv_layer.state != stream.state
            || stream.state.is_none_or(|state| state.elements() != kv_layer.width)
        {
            let problem = format!(
                "a state is {:?} with {} elements, but the circuit declares {:?}",
                kv_layer.state, kv_layer.width, stream.state
            );
            found.add(Code::A82, Some(layer), Some(format!("stream {}", stream.name)), problem);
        }
    }
    let rows = |(it, _): &(&KvLayer, &CacheStream)| it.kind != KvLayerKind::Expanded && it.state.is_none();
    for (kv_layer, stream) in own.into_iter().zip(streams).filter(rows) {
        let (stated, has) = ((stream.width(), stream.shared_key()), (kv_layer.width, kv_layer.rope));
        if stated != has {
            let problem = format!(
                "a cached row has {} elements, {} of them of the shared key; the circuit declares {} and {}",
                has.0, has.1, stated.0, stated.1
            );
            found.add(Code::A82, Some(layer), Some(format!("stream {}", stream.name)), problem);
        }
    }
}

/// A84: each recurrent state is read and replaced once per step, for every row, by an operation of
/// its kind.
fn states(trace: &ResolvedIr<'_>, span: &ModelSpan, config: &ModelConfig, found: &mut Findings<'_>) {
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); trace.ir.kv_layers.len()];
    for (n, node) in trace.ir.nodes.iter().enumerate().filter(|(_, node)| node.op.spec().kv.is_recurrent()) {
        if let Some(users) = node.kv_layer.and_then(|id| users.get_mut(id.0)) {
            users.push(n);
        }
        // A state is a sum over all rows of a sequence, so a node must not skip some.
        if node.path != AttentionPath::All {
            found.at(
                Code::A84,
                trace.ir,
                n,
                None,
                "it works on some rows only, but the state needs all rows".into(),
            );
        }
        if node.layer.is_none_or(|layer| !config.is_recurrent(layer)) {
            found.at(
                Code::A84,
                trace.ir,
                n,
                None,
                "the layer has no recurrent state according to the config".into(),
            );
        }
    }
    for (kv_layer, users) in
        trace.ir.kv_layers.iter().zip(&users).filter(|(kv_layer, _)| kv_layer.kind.is_recurrent())
    {
        // A second reader would see the state after the first one's update.
        if users.len() != 1 {
            let problem = format!("{} operations change it in a step", users.len());
            found.add(Code::A84, Some(kv_layer.layer), Some(kv_layer.kind.name().into()), problem);
        }
    }
    for layer in span.layers.clone().filter(|layer| config.is_recurrent(*layer)) {
        let has =
            |kind| trace.ir.kv_layers.iter().any(|kv_layer| (kv_layer.layer, kv_layer.kind) == (layer, kind));
        for kind in [KvLayerKind::ConvInputs, KvLayerKind::DeltaState].into_iter().filter(|kind| !has(*kind))
        {
            let problem = "the layer has no such state".to_owned();
            found.add(Code::A84, Some(layer), Some(kind.name().into()), problem);
        }
    }
}

/// The parts of the declared row from which expanded keys and values are computed. Empty if key and
/// value come from different latents.
fn expanded_parts(trace: &ResolvedIr<'_>, store: &Node) -> Vec<(&'static str, ValueId)> {
    let maker = |id: ValueId| trace.maker(id, store.path).map(|n| &trace.ir.nodes[n]);
    let parts = || {
        let concat = maker(store.input_at("key")?)?;
        let (keys, values) = (maker(concat.input_at("k_nope")?)?, maker(store.input_at("value")?)?);
        let latent = keys.input_at("latent").filter(|latent| values.input_at("latent") == Some(*latent))?;
        let key = concat.input_at("k_rope").map(|key| ("k_rope", key));
        Some([("latent", latent)].into_iter().chain(key).collect())
    };
    parts().unwrap_or_default()
}

/// A83: the inputs of a store.
fn store(trace: &ResolvedIr<'_>, n: usize, streams: &[CacheStream], found: &mut Findings<'_>) {
    let node = &trace.ir.nodes[n];
    let spec = node.op.spec();
    if node.inputs.len() != node.input_count() {
        return; // A16 was reported.
    }
    // `lower_mla` creates stores of latents from the attention, which is the declared writer.
    let written = if node.op == Op::IndexStore { Op::IndexStore } else { Op::MlaAttention };
    let own: Vec<&CacheStream> = streams.iter().filter(|it| it.written_by == written.word()).collect();
    let [stream] = own[..] else {
        let problem = format!("its block declares {} streams of its kind, expected one", own.len());
        return found.at(Code::A83, trace.ir, n, None, problem);
    };
    let stated: Vec<&str> = stream.row.iter().map(|part| part.port).collect();
    let parts = match node.op {
        Op::KeyValueStore => expanded_parts(trace, node),
        _ => node.input_ports().map(|port| port.name).zip(node.inputs.iter().copied()).collect(),
    };
    // An operation that also attends has queries among its inputs.
    let names = parts.iter().map(|(name, _)| *name);
    let stored: Vec<&str> = match spec.kv.attends {
        true => names.filter(|name| stated.contains(name)).collect(),
        false => names.collect(),
    };
    // Context shifts rely on the order: they rotate the last elements of a latent row.
    if stored != stated {
        let problem = format!("it stores {stored:?}, but the circuit declares the row {stated:?}");
        return found.at(Code::A83, trace.ir, n, Some(format!("stream {}", stream.name)), problem);
    }
    for part in &stream.row {
        let Some(at) = parts.iter().position(|(name, _)| *name == part.port) else { continue };
        let last = at + 1 == node.inputs.len();
        // Rotated by a node, by the store's prologue, or always by `index_store`.
        let rotated = origin(trace, parts[at].1, node.path).ropes > 0
            || (node.prologue.rope && last)
            || node.op == Op::IndexStore;
        if rotated != part.rotated {
            let words = |rotated| if rotated { "rotated" } else { "not rotated" };
            let (is, says) = (words(rotated), words(part.rotated));
            let problem = format!("it is {is} by position, but the circuit declares it as {says}");
            found.at(Code::A83, trace.ir, n, Some(part.port.into()), problem);
        }
    }
}
