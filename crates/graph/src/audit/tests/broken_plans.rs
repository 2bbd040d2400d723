//! Plans, broken.

use super::*;
use crate::circuit::Weight;
use crate::ir::{
    AttentionPath, Epilogue, KvLayerId, KvLayerKind, Node, Op, RowCount, Value, ValueId, ValueStorage,
    WeightId,
};

/// Index of the first node of `op` in a layer.
fn node(plan: &Plan, layer: usize, word: &str) -> usize {
    let found = plan.ir.nodes.iter().position(|n| n.layer == Some(layer) && n.op.word() == word);
    found.unwrap_or_else(|| panic!("no {word} in layer {layer}"))
}

/// Index of the node that uses this slot in a layer.
fn user(plan: &Plan, layer: usize, slot: &str) -> usize {
    let uses = |n: &Node| n.layer == Some(layer) && n.weight(slot).is_some();
    plan.ir.nodes.iter().position(uses).unwrap_or_else(|| panic!("nothing uses {slot}"))
}

fn at<'a>(plan: &'a mut Plan, layer: usize, word: &str) -> &'a mut Node {
    let n = node(plan, layer, word);
    &mut plan.ir.nodes[n]
}

/// The weight of a slot, to be changed.
fn weight<'a>(plan: &'a mut Plan, layer: usize, slot: &str) -> &'a mut Weight {
    let found = plan.ir.weights.iter_mut().find(|w| w.layer == Some(layer) && w.slot == slot);
    found.unwrap_or_else(|| panic!("no weight {slot}"))
}

/// The value that a node reads or makes, to be changed.
fn value(plan: &mut Plan, id: ValueId) -> &mut Value {
    &mut plan.ir.values[id.0]
}

fn swap(plan: &mut Plan, a: usize, b: usize) {
    plan.ir.nodes.swap(a, b);
    plan.phases.swap(a, b);
}

fn remove(plan: &mut Plan, n: usize) -> Node {
    plan.phases.remove(n);
    plan.ir.nodes.remove(n)
}

fn insert(plan: &mut Plan, n: usize, node: Node, phase: usize) {
    plan.phases.insert(n, phase);
    plan.ir.nodes.insert(n, node);
}

/// The norm of layer 1's latent, with its slot.
fn slot_of_norm(plan: &Plan) -> (String, WeightId) {
    let norm = |w: &Weight| w.layer == Some(1) && w.slot == "kv_a_norm";
    ("kv_a_norm".to_owned(), WeightId(plan.ir.weights.iter().position(norm).unwrap()))
}

/// A new value like another.
fn alike(plan: &mut Plan, id: ValueId, name: &str) -> ValueId {
    let value = Value { name: name.into(), storage: ValueStorage::Own, ..plan.ir.value(id).clone() };
    plan.arena.offsets.push(Some(plan.arena.bytes));
    plan.arena.bytes += 1 << 18;
    plan.ir.add_value(value)
}

type PlanBreak = (Code, &'static str, fn(&mut Plan));

/// Each breaks the decode plan of the layers.
const BREAKS: &[PlanBreak] = &[
    (Code::A10, "an input that does not exist", |p| at(p, 0, "linear").inputs[0] = ValueId(99_999)),
    (Code::A10, "a weight that does not exist", |p| at(p, 0, "linear").weights[0].1 = WeightId(99_999)),
    (Code::A10, "a KV layer that does not exist", |p| {
        at(p, 0, "latent_store").kv_layer = Some(KvLayerId(99))
    }),
    (Code::A10, "a result that does not exist", |p| p.ir.outputs[0].1 = ValueId(99_999)),
    (Code::A11, "two products change places", |p| {
        let (a, b) = (user(p, 0, "q_a"), user(p, 0, "q_b"));
        swap(p, a, b);
    }),
    (Code::A11, "a product is gone", |p| {
        let n = user(p, 1, "router");
        remove(p, n);
    }),
    (Code::A12, "a node stands twice", |p| {
        let n = user(p, 1, "q_b");
        let (again, phase) = (p.ir.nodes[n].clone(), p.phases[n]);
        insert(p, n + 1, again, phase);
    }),
    (Code::A13, "a formulation is gone", |p| {
        let n = node(p, 0, "attend_expanded");
        remove(p, n);
    }),
    (Code::A14, "a rotation in place comes before another reader", |p| {
        let (absorb, rope) = (node(p, 0, "absorb_k"), node(p, 0, "rope"));
        p.ir.nodes[rope].path = AttentionPath::All;
        swap(p, absorb, rope);
    }),
    (Code::A15, "a norm is left behind", |p| {
        let q = p.ir.nodes[user(p, 0, "q_b")].inputs[0];
        let norm = weight_id(p, 0, "q_a_norm");
        let out = alike(p, q, "left");
        let mut left = Node::new(Op::RmsNorm, Some(0), vec![q], vec![out]);
        left.weights = vec![("q_a_norm".into(), norm)];
        let n = user(p, 0, "q_b");
        insert(p, n, left, 2);
    }),
    (Code::A16, "an output too few", |p| at(p, 0, "linear").outputs.truncate(1)),
    (Code::A16, "an input too many", |p| at(p, 0, "absorb_v").inputs.push(ValueId(0))),
    (Code::A16, "a weight too many", |p| {
        let id = weight_id(p, 1, "expert_up");
        at(p, 1, "expert_down").weights.push(("expert_up".into(), id));
    }),
    (Code::A16, "a sum into another value than it adds to", |p| {
        let n = user(p, 0, "attn_out");
        let other = p.ir.nodes[n].inputs[0];
        p.ir.nodes[n].inputs[1] = other;
    }),
    (Code::A17, "a layer reads another layer's value", |p| {
        let attn = p.ir.nodes[node(p, 0, "absorb_v")].outputs[0];
        let n = user(p, 1, "attn_out");
        p.ir.nodes[n].inputs[0] = attn;
    }),
    (Code::A18, "row and choice change places", |p| at(p, 1, "expert_gate_up").inputs.swap(0, 1)),
    (Code::A18, "choice and weights change places", |p| at(p, 1, "expert_down").inputs.swap(1, 2)),
    (Code::A18, "ids of experts stored as f32", |p| {
        let topk_ids = p.ir.nodes[node(p, 1, "route")].outputs[0];
        value(p, topk_ids).dtype = latent_types::ValueType::F32;
    }),
    (Code::A19, "a product that should rotate", |p| at(p, 0, "linear").prologue.rope = true),
    (Code::A19, "a rotation that should norm", |p| {
        let norm = weight_id(p, 0, "q_a_norm");
        at(p, 0, "rope").prologue.norm = Some(norm);
    }),
    (Code::A19, "an absorption that should activate", |p| at(p, 0, "absorb_v").epilogue = Epilogue::Relu2),
    (Code::A20, "a weight takes other rows", |p| weight(p, 0, "attn_out").shape[1] += 1),
    (Code::A20, "an expert takes other rows", |p| weight(p, 1, "expert_down").shape[2] += 1),
    (Code::A21, "a weight gives other rows", |p| weight(p, 0, "q_b").shape[0] += 4),
    (Code::A21, "an expert gives other rows", |p| weight(p, 1, "expert_up").shape[1] += 1),
    (Code::A22, "a rotation changes the width", |p| {
        let out = p.ir.nodes[node(p, 0, "rope")].outputs[0];
        value(p, out).width -= 2;
    }),
    (Code::A22, "the parts of a split change places", |p| {
        let n = user(p, 0, "kv_a");
        let split = (n..p.ir.nodes.len()).find(|n| p.ir.nodes[*n].op == Op::Split).unwrap();
        p.ir.nodes[split].outputs.swap(0, 1);
    }),
    (Code::A23, "a norm of another width", |p| weight(p, 0, "kv_a_norm").shape[0] += 1),
    (Code::A24, "a view past its parent", |p| {
        let key = p.ir.nodes[node(p, 0, "latent_store")].inputs[1];
        if let ValueStorage::View { offset, .. } = &mut value(p, key).storage {
            *offset += 1;
        }
    }),
    (Code::A24, "a view of itself", |p| {
        let key = p.ir.nodes[node(p, 0, "latent_store")].inputs[1];
        value(p, key).storage = ValueStorage::View { of: key, offset: 0 };
    }),
    (Code::A25, "activations of too few experts", |p| {
        let out = p.ir.nodes[node(p, 1, "expert_gate_up")].outputs[0];
        value(p, out).rows = RowCount::Times(2);
    }),
    (Code::A26, "a query without its rope part", |p| {
        let out = p.ir.nodes[node(p, 0, "absorb_k")].outputs[0];
        value(p, out).width -= 16;
    }),
    (Code::A26, "a result as wide as the cached row", |p| {
        let out = p.ir.nodes[node(p, 1, "attend_latent")].outputs[0];
        value(p, out).width += 16;
    }),
    (Code::A26, "keys expanded from too few latents", |p| weight(p, 0, "k_b").shape[1] -= 1),
    (Code::A27, "a cached row without its key", |p| p.ir.kv_layers[1].width -= 16),
    (Code::A28, "a choice of too many experts", |p| {
        let out = p.ir.nodes[node(p, 1, "route")].outputs[0];
        value(p, out).width += 1;
    }),
    (Code::A28, "experts undone by another choice", |p| {
        let topk_ids = p.ir.nodes[node(p, 1, "route")].outputs[0];
        let other = alike(p, topk_ids, "other");
        at(p, 1, "expert_down").inputs[1] = other;
    }),
    (Code::A28, "a bias from another slot", |p| {
        let (route, norm) = (node(p, 1, "route"), slot_of_norm(p));
        p.ir.nodes[route].weights[0] = norm;
    }),
    (Code::A21, "a gate without up", |p| drop(at(p, 1, "expert_gate_up").weights.pop())),
    (Code::A28, "a bias for too few experts", |p| weight(p, 1, "router_bias").shape[0] -= 1),
    (Code::A28, "a matrix too few", |p| weight(p, 1, "expert_gate").shape[0] -= 1),
    (Code::A29, "a result under another name", |p| p.ir.outputs[0].0 = "output".into()),
    (Code::A29, "no result", |p| p.ir.outputs.clear()),
    (Code::A29, "a result that is not the residual stream", |p| {
        p.ir.outputs[0].1 = p.ir.nodes[node(p, 1, "absorb_v")].outputs[0];
    }),
    (Code::A32, "another layer's weight", |p| {
        let id = weight_id(p, 0, "attn_out");
        let n = user(p, 1, "attn_out");
        p.ir.nodes[n].weights[0].1 = id;
    }),
    (Code::A32, "another layer's norm", |p| {
        let id = weight_id(p, 0, "kv_a_norm");
        at(p, 1, "latent_store").prologue.norm = Some(id);
    }),
    (Code::A33, "a bias that is not used", |p| at(p, 1, "route").weights.clear()),
    (Code::A34, "a weight in another slot", |p| at(p, 0, "absorb_k").weights[0].0 = "kv_b".into()),
    (Code::A35, "gate and up change places", |p| {
        let n = user(p, 0, "gate");
        p.ir.nodes[n].weights.swap(0, 1);
    }),
    (Code::A35, "the experts' gate and up change places", |p| at(p, 1, "expert_gate_up").weights.swap(0, 1)),
    (Code::A37, "a weight of two tensors", |p| {
        let weight = weight(p, 0, "down");
        let part = weight.parts[0].clone();
        weight.parts.push(part);
    }),
    (Code::A38, "a layer without its shared expert", |p| {
        let n = user(p, 1, "shared_gate");
        remove(p, n);
        let n = user(p, 1, "shared_down");
        let gone = remove(p, n);
        // The sum of the shared expert was the layer's output. Its other operand takes its place.
        let base = gone.inputs[1];
        p.ir.outputs[0].1 = base;
    }),
    (Code::A39, "a slot filled twice", |p| {
        let again = weight(p, 0, "attn_out").clone();
        p.ir.weights.push(again);
        let id = WeightId(p.ir.weights.len() - 1);
        let n = user(p, 0, "q_b");
        p.ir.nodes[n].prologue.norm = Some(id);
    }),
    (Code::A40, "a latent that is not normed", |p| at(p, 0, "latent_store").prologue.norm = None),
    (Code::A40, "a latent from another projection", |p| {
        let q = p.ir.nodes[node(p, 0, "absorb_k")].inputs[0];
        let n = node(p, 0, "latent_store");
        p.ir.nodes[n].inputs[0] = p.ir.nodes[user(p, 0, "q_b")].inputs[0];
        assert_ne!(p.ir.nodes[n].inputs[0], q);
    }),
    (Code::A41, "a latent normed twice", |p| {
        let store = node(p, 0, "latent_store");
        let raw = p.ir.nodes[store].inputs[0];
        let normed = alike(p, raw, "latent");
        let mut norm = Node::new(Op::RmsNorm, Some(0), vec![raw], vec![normed]);
        norm.weights = vec![("kv_a_norm".into(), weight_id(p, 0, "kv_a_norm"))];
        p.ir.nodes[store].inputs[0] = normed;
        insert(p, store, norm, 1);
    }),
    (Code::A42, "a key from the latent", |p| {
        let n = node(p, 0, "latent_store");
        p.ir.nodes[n].inputs[1] = p.ir.nodes[n].inputs[0];
    }),
    (Code::A42, "a key that is normed", |p| {
        let store = node(p, 0, "latent_store");
        let raw = p.ir.nodes[store].inputs[1];
        let normed = alike(p, raw, "k_normed");
        let mut norm = Node::new(Op::RmsNorm, Some(0), vec![raw], vec![normed]);
        norm.weights = vec![("kv_a_norm".into(), weight_id(p, 0, "kv_a_norm"))];
        p.ir.nodes[store].inputs[1] = normed;
        insert(p, store, norm, 1);
    }),
    (Code::A42, "a key from the query's projection", |p| {
        let q_pe = p.ir.nodes[node(p, 0, "absorb_k")].inputs[1];
        at(p, 0, "latent_store").inputs[1] = q_pe;
    }),
    (Code::A43, "a key that is not rotated", |p| at(p, 1, "latent_store").prologue.rope = false),
    (Code::A43, "a query that is not rotated", |p| at(p, 0, "absorb_k").prologue.rope = false),
    (Code::A43, "a query rotated twice", |p| {
        let rotated = p.ir.nodes[node(p, 0, "rope")].outputs[0];
        at(p, 0, "absorb_k").inputs[1] = rotated;
        at(p, 0, "rope").path = AttentionPath::All;
    }),
    (Code::A43, "the part without position is rotated", |p| {
        let n = node(p, 0, "rope");
        p.ir.nodes[n].inputs[0] = p.ir.nodes[node(p, 0, "absorb_k")].inputs[0];
        let out = p.ir.nodes[n].outputs[0];
        let m = node(p, 0, "attend_expanded");
        p.ir.nodes[m].inputs[0] = out;
    }),
    (Code::A44, "a layer that does not store", |p| {
        let n = node(p, 0, "latent_store");
        remove(p, n);
    }),
    (Code::A44, "a layer that stores twice", |p| {
        let n = node(p, 0, "latent_store");
        let (again, phase) = (p.ir.nodes[n].clone(), p.phases[n] + 1);
        insert(p, n + 1, again, phase);
    }),
    (Code::A44, "rows that attend twice", |p| at(p, 0, "attend_expanded").path = AttentionPath::All),
    (Code::A44, "rows that do not attend", |p| at(p, 0, "attend_expanded").path = AttentionPath::Absorbed),
    (Code::A45, "attention before the store", |p| {
        let (store, attend) = (node(p, 0, "latent_store"), node(p, 0, "attend_latent"));
        swap(p, store, attend);
    }),
    (Code::A45, "attention in the store's phase", |p| {
        let (store, attend) = (node(p, 0, "latent_store"), node(p, 0, "attend_latent"));
        p.phases[store] = p.phases[attend];
    }),
    (Code::A82, "a KV layer without a rotated part", |p| p.ir.kv_layers[1].rope = 0),
    (Code::A82, "a KV layer that no stream states", |p| {
        let again = p.ir.kv_layers[1].clone();
        p.ir.kv_layers.push(again);
    }),
    (Code::A83, "a cached key that is not rotated", |p| at(p, 0, "latent_store").prologue.rope = false),
    (Code::A46, "a KV layer of another layer", |p| at(p, 1, "latent_store").kv_layer = Some(KvLayerId(0))),
    (Code::A46, "two KV layers of one layer", |p| p.ir.kv_layers[1].layer = 0),
    (Code::A46, "a KV layer of a layer that does not exist", |p| p.ir.kv_layers[1].layer = 7),
    (Code::A47, "a kernel for another type of cache", |p| {
        let n = node(p, 0, "attend_latent");
        p.ir.nodes[n].kernels[0].index = 6;
        p.ir.nodes[n].kernels[0].name = "attend_f32".into();
    }),
    (Code::A48, "latents from an expanded cache", |p| p.ir.kv_layers[0].kind = KvLayerKind::Expanded),
    (Code::A48, "attention without a cache", |p| at(p, 0, "attend_latent").kv_layer = None),
    (Code::A49, "W_UV absorbed into the query", |p| {
        let id = weight_id(p, 0, "v_b");
        at(p, 0, "absorb_k").weights = vec![("v_b".into(), id)];
    }),
    (Code::A49, "expansion without values", |p| drop(at(p, 0, "attend_expanded").weights.pop())),
    (Code::A50, "an operation that was not lowered", |p| at(p, 1, "expert_gate_up").op = Op::ExpertMlp),
    (Code::A51, "a product before what it reads", |p| {
        let n = user(p, 1, "attn_out");
        p.phases[n] = 0;
    }),
    (Code::A51, "a writer before a reader of the old value", |p| {
        let n = user(p, 1, "shared_down");
        p.phases[n] = 1;
    }),
    (Code::A52, "two dependent products in one phase", |p| {
        let (a, b) = (user(p, 0, "q_a"), user(p, 0, "q_b"));
        p.phases[b] = p.phases[a];
    }),
    (Code::A52, "a sum in its reader's phase", |p| {
        let (a, b) = (user(p, 0, "attn_out"), user(p, 0, "gate"));
        p.phases[a] = p.phases[b];
    }),
    (Code::A52, "a choice of experts read by who has not made it", |p| {
        let (route, down) = (node(p, 1, "route"), node(p, 1, "expert_down"));
        p.phases[down] = p.phases[route];
    }),
    (Code::A53, "a phase too few", |p| p.phases.truncate(5)),
    (Code::A53, "a gap", |p| p.phases.iter_mut().filter(|phase| **phase > 3).for_each(|phase| *phase += 1)),
    (Code::A60, "a value without a buffer", |p| {
        let out = p.ir.nodes[node(p, 0, "absorb_k")].outputs[0];
        p.arena.offsets[out.0] = None;
    }),
    (Code::A61, "an arena too small", |p| p.arena.bytes -= 4),
    (Code::A62, "two buffers that live together", |p| {
        let q = p.ir.nodes[user(p, 0, "q_b")].outputs[0];
        let attn = p.ir.nodes[node(p, 0, "absorb_v")].outputs[0];
        p.arena.offsets[attn.0] = p.arena.offsets[q.0];
    }),
    (Code::A62, "partial results where a query still is", |p| {
        let attend = &p.ir.nodes[node(p, 0, "attend_latent")];
        let (query, partials) = (attend.inputs[0], attend.outputs[1]);
        p.arena.offsets[query.0] = p.arena.offsets[partials.0];
    }),
    (Code::A52, "partial results read in the phase that makes them", |p| {
        let (attend, absorb) = (node(p, 0, "attend_latent"), node(p, 0, "absorb_v"));
        p.phases[absorb] = p.phases[attend];
    }),
    (Code::A16, "a mix read where its KV splits are not", |p| {
        let reader = at(p, 0, "absorb_v");
        reader.inputs.pop();
        reader.prologue.kv_splits = false;
    }),
    (Code::A16, "partial results of another layer's attention", |p| {
        let other = p.ir.nodes[node(p, 1, "attend_latent")].outputs[1];
        at(p, 0, "absorb_v").inputs[1] = other;
    }),
    (Code::A16, "attention without room for KV splits", |p| at(p, 0, "attend_latent").outputs.truncate(1)),
    (Code::A19, "KV splits of a product", |p| at(p, 0, "absorb_k").epilogue = Epilogue::KvSplits),
    (Code::A19, "KV splits combined by a product of queries", |p| {
        let partials = p.ir.nodes[node(p, 0, "attend_latent")].outputs[1];
        let reader = at(p, 0, "absorb_k");
        reader.inputs.push(partials);
        reader.prologue.kv_splits = true;
    }),
    (Code::A26, "partial results of a head too few", |p| {
        let partials = p.ir.nodes[node(p, 0, "attend_latent")].outputs[1];
        value(p, partials).heads -= 1;
    }),
    (Code::A26, "partial results cut off within a split", |p| {
        let partials = p.ir.nodes[node(p, 0, "attend_latent")].outputs[1];
        value(p, partials).width -= 1;
    }),
    (Code::A26, "partial results of every row", |p| {
        let partials = p.ir.nodes[node(p, 0, "attend_latent")].outputs[1];
        value(p, partials).rows = RowCount::Rows;
    }),
    (Code::A63, "a buffer between cache lines", |p| {
        let out = p.ir.nodes[node(p, 0, "absorb_k")].outputs[0];
        p.arena.bytes += 64;
        p.arena.offsets[out.0] = p.arena.offsets[out.0].map(|at| at + 4);
    }),
    (Code::A64, "a buffer for a view", |p| {
        let key = p.ir.nodes[node(p, 0, "latent_store")].inputs[1];
        p.arena.offsets[key.0] = Some(0);
    }),
    (Code::A70, "a node without a kernel", |p| at(p, 1, "route").kernels.clear()),
    (Code::A71, "a kernel of another name", |p| at(p, 1, "route").kernels[0].name = "rout".into()),
    (Code::A72, "a kernel for something else", |p| {
        let other = p.ir.nodes[node(p, 0, "rope")].kernels[0].clone();
        at(p, 1, "route").kernels[0] = other;
    }),
    (Code::A72, "an input read in another way than the kernel's", |p| {
        at(p, 0, "linear").kernels[0].activation = "a8".into();
    }),
    (Code::A73, "a kernel that the machine does not have", |p| {
        let kernel = &mut at(p, 0, "linear").kernels[0];
        kernel.index = 1;
        kernel.name = "avx512_bf16".into();
    }),
];

/// Index of the weight of a slot.
fn weight_id(plan: &Plan, layer: usize, slot: &str) -> WeightId {
    let found = plan.ir.weights.iter().position(|w| w.layer == Some(layer) && w.slot == slot);
    WeightId(found.unwrap_or_else(|| panic!("no weight {slot}")))
}

#[test]
fn each_break_is_found() {
    let whole = AuditedSession::whole();
    let bound = BindContext { target: &whole.target, options: whole.bind };
    for (code, what, change) in BREAKS {
        let mut broken = whole.layers[0].clone();
        change(&mut broken);
        expect(what, *code, &plan(&broken, whole.circuit(), &whole.config, bound));
    }
}

/// Breaks of the prefill plan, where norms are nodes of their own.
#[test]
fn breaks_are_found_in_prefill_plans_too() {
    let whole = AuditedSession::whole();
    let bound = BindContext { target: &whole.target, options: whole.bind };
    let (mut found, mut all) = (0, 0);
    for (code, what, change) in BREAKS {
        let Ok(broken) = std::panic::catch_unwind(|| {
            let mut broken = whole.layers[2].clone();
            change(&mut broken);
            broken
        }) else {
            continue; // this plan has no such node
        };
        all += 1;
        let findings = plan(&broken, whole.circuit(), &whole.config, bound);
        assert!(!findings.is_empty(), "{what}: nothing found");
        found += usize::from(findings.iter().any(|f| f.code == *code));
    }
    assert!(all > 60 && found * 10 >= all * 9, "{found} of {all}");
}

/// The index of the model in [`gated`] followed by [`hybrids`], the expected code, and the break of
/// its decode plan.
type GatedPlanBreak = (usize, Code, &'static str, fn(&mut Plan));

/// Breaks of plans with gates, with other kinds of shared keys, and with recurrent states.
const BREAKS_OF_GATED: &[GatedPlanBreak] = &[
    (0, Code::A22, "a gate too few", |p| {
        let gate = p.ir.nodes[node(p, 0, "sigmoid_mul")].inputs[1];
        value(p, gate).width -= 1;
    }),
    (2, Code::A22, "a gate of every second element", |p| {
        let gate = p.ir.nodes[node(p, 0, "sigmoid_mul")].inputs[1];
        value(p, gate).width /= 2;
    }),
    (0, Code::A15, "a gate that nothing reads", |p| {
        let (n, out) = (node(p, 0, "sigmoid_mul"), user(p, 0, "attn_out"));
        p.ir.nodes[out].inputs[0] = p.ir.nodes[n].inputs[0];
        remove(p, n);
    }),
    (0, Code::A52, "a gate in its reader's phase", |p| {
        let (n, out) = (node(p, 0, "sigmoid_mul"), user(p, 0, "attn_out"));
        p.phases[out] = p.phases[n];
    }),
    (0, Code::A26, "a shared key that is not stored", |p| {
        let store = at(p, 0, "latent_store");
        store.inputs.truncate(1);
        store.prologue.rope = false;
    }),
    (1, Code::A26, "a query without the part that meets the shared key", |p| {
        at(p, 0, "absorb_k").inputs.truncate(1);
    }),
    (2, Code::A26, "a shared key in a model without", |p| {
        let latent = p.ir.nodes[node(p, 0, "latent_store")].inputs[0];
        at(p, 0, "latent_store").inputs.push(latent);
    }),
    (1, Code::A43, "a rotation in a model without", |p| at(p, 0, "absorb_k").prologue.rope = true),
    (1, Code::A83, "a cached key that is rotated in a model without", |p| {
        at(p, 0, "latent_store").prologue.rope = true;
    }),
    (2, Code::A82, "a cached row with a shared key in a model without", |p| p.ir.kv_layers[1].rope = 16),
    (3, Code::A84, "a state that nothing changes", |p| {
        at(p, 0, "delta_rule").kv_layer = Some(KvLayerId(0));
    }),
    (3, Code::A48, "a convolution without a state", |p| at(p, 0, "short_conv").kv_layer = None),
    (4, Code::A48, "a convolution over the heads' states", |p| {
        let other = p.ir.nodes[node(p, 0, "delta_rule")].kv_layer;
        at(p, 0, "short_conv").kv_layer = other;
    }),
    (4, Code::A84, "a recurrence over a part of the rows", |p| {
        at(p, 0, "delta_rule").path = AttentionPath::Absorbed;
    }),
    (3, Code::A27, "a state of another size", |p| p.ir.kv_layers[1].width -= 1),
    (3, Code::A82, "a state of another shape", |p| {
        let state = p.ir.kv_layers[1].state.as_mut().unwrap();
        std::mem::swap(&mut state.heads, &mut state.rows);
    }),
    (4, Code::A26, "a decay of other heads", |p| {
        let decay = p.ir.nodes[node(p, 0, "bounded_decay")].outputs[0];
        (value(p, decay).heads, value(p, decay).width) = (10, 3);
    }),
    (3, Code::A26, "a bias before the rate", |p| at(p, 0, "softplus_decay").weights.reverse()),
    (3, Code::A22, "a gate of another width", |p| {
        let gate = p.ir.nodes[node(p, 0, "gated_norm")].inputs[1];
        value(p, gate).width -= 1;
    }),
    (4, Code::A52, "a projection in the phase of what it reads", |p| {
        let (n, out) = (node(p, 0, "gated_norm"), user(p, 0, "attn_out"));
        p.phases[out] = p.phases[n];
    }),
    (4, Code::A52, "a convolution in the phase of its projections", |p| {
        let (n, projections) = (node(p, 0, "short_conv"), user(p, 0, "q"));
        p.phases[n] = p.phases[projections];
    }),
];

#[test]
fn each_break_of_a_gate_of_attention_without_rope_or_of_a_state_is_found() {
    let configs = gated().into_iter().chain(hybrids(TensorNaming::Gguf));
    let session =
        |config| AuditedSession::new(config, TensorNaming::Gguf, MlaChoice::Auto, CacheForm::Latent);
    let sessions: Vec<AuditedSession> = configs.map(session).collect();
    for (which, code, what, change) in BREAKS_OF_GATED {
        let whole = &sessions[*which];
        let bound = BindContext { target: &whole.target, options: whole.bind };
        let mut broken = whole.layers[0].clone();
        change(&mut broken);
        expect(what, *code, &plan(&broken, whole.circuit(), &whole.config, bound));
    }
}
