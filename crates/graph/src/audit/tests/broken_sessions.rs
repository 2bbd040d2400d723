//! Broken files, and plans of a session's buckets that contradict each other.

use super::*;
use crate::circuit::{TensorIndex, WeightPart};
use crate::ir::{KvLayerKind, Op};

/// The declared tensors and additional names, as in a file with tensors that the circuit lacks.
struct ExtendedTensors<'a>(&'a DeclaredTensors, &'a [&'a str]);

impl TensorIndex for ExtendedTensors<'_> {
    fn naming(&self) -> TensorNaming {
        self.0.naming()
    }

    fn find(&self, name: &str) -> Option<(TensorType, Vec<usize>)> {
        self.0.find(name).or_else(|| self.1.contains(&name).then(|| (TensorType::F32, vec![1])))
    }

    fn all(&self) -> Vec<(&str, TensorType, &[usize])> {
        let more = self.1.iter().map(|name| (*name, TensorType::F32, &[1][..]));
        self.0.all().into_iter().chain(more).collect()
    }

    fn file(&self) -> String {
        "test file".into()
    }
}

fn with(whole: &AuditedSession, more: &[&str]) -> Vec<Finding> {
    let bound = BindContext { target: &whole.target, options: whole.bind };
    session(whole.circuit(), &whole.config, &ExtendedTensors(&whole.tensors, more), &whole.stages(), bound)
}

#[test]
fn a_tensor_that_nothing_reads_is_found_unless_it_is_declared() {
    let whole = AuditedSession::whole();
    expect("an unknown tensor", Code::A30, &with(&whole, &["blk.0.attn_q_norm.weight"]));
    expect("an unknown layer", Code::A30, &with(&whole, &["blk.2.attn_norm.weight"]));
    let declared = ["rope_freqs.weight", "blk.1.attn_kv_b.weight", "blk.0.ffn_up.input_scale"];
    clean("declared", &with(&whole, &declared));
    let irs = [&whole.layers[0].ir, &whole.lm_head[0].ir];
    let circuit = Circuit::named("deepseek2").unwrap();
    let (unused, unread) = unused(circuit, &whole.config, &ExtendedTensors(&whole.tensors, &declared), &irs);
    assert!(unread.is_empty());
    assert_eq!(unused.len(), 3);
    assert!(unused[1].tensor == "blk.1.attn_kv_b.weight" && unused[1].why.contains("attn_k_b"));
}

#[test]
fn tensors_of_mtp_layers_and_vision_towers_are_declared() {
    let config = configs().pop().unwrap();
    let whole = AuditedSession::new(config, TensorNaming::Gguf, MlaChoice::Auto, CacheForm::Latent);
    clean("a prediction layer", &whole.audit());
    expect("beyond it", Code::A30, &with(&whole, &["blk.3.nextn.enorm.weight"]));
    let dense = configs().remove(1);
    let whole = AuditedSession::new(dense, TensorNaming::HuggingFace, MlaChoice::Auto, CacheForm::Latent);
    clean("vision", &with(&whole, &["vision_tower.blocks.0.wqkv.weight", "language_model.lm_head.weight"]));
}

type SessionBreak = (Code, &'static str, fn(&mut AuditedSession));

const BREAKS: &[SessionBreak] = &[
    (Code::A31, "two slots of one tensor", |s| {
        for plan in &mut s.layers {
            let name = plan.ir.weights[1].parts[0].tensor.clone();
            plan.ir.weights[2].parts = vec![WeightPart { tensor: name, scale: None }];
        }
    }),
    (Code::A36, "a tensor that is not in the file", |s| {
        s.layers[0].ir.weights[1].parts[0].tensor = "blk.77.attn_norm.weight".into();
    }),
    (Code::A36, "a weight of another type", |s| {
        let weights = &mut s.layers[0].ir.weights;
        weights.iter_mut().find(|w| w.slot == "q_b").unwrap().ty = TensorType::F16;
    }),
    (Code::A36, "scales that are not there", |s| {
        s.layers[0].ir.weights[1].parts[0].scale = Some("blk.0.attn_norm.scale".into());
    }),
    (Code::A47, "prefill stores wider rows", |s| {
        s.layers[2].ir.kv_layers.iter_mut().for_each(|kv_layer| kv_layer.width += 16);
    }),
    (Code::A47, "prefill stores expanded rows", |s| {
        s.layers[2].ir.kv_layers.iter_mut().for_each(|kv_layer| kv_layer.kind = KvLayerKind::Expanded);
    }),
    (Code::A47, "prefill writes in another way", |s| {
        let stores = s.layers[2].ir.nodes.iter_mut().filter(|n| n.op == Op::LatentStore);
        stores.for_each(|node| node.op = Op::ExpandedStore);
    }),
    (Code::A47, "prefill has a KV layer less", |s| s.layers[2].ir.kv_layers.truncate(1)),
    (Code::A74, "prefill reads tiles of a weight that decode reads in rows", |s| {
        rebind(&mut s.layers[2], "avx2_bf16", (2, "avx2_tiles"), "f32");
    }),
    (Code::A73, "decode is bound to a kernel for many rows", |s| {
        s.target.kernels.as_mut().unwrap()[0].min_rows = 16
    }),
    (Code::A75, "prefill reads its input in 8 bits", |s| {
        rebind(&mut s.layers[1], "avx2_bf16", (3, "avx2_a8"), "a8");
    }),
];

/// Binds every node with a kernel of one name to another.
fn rebind(plan: &mut Plan, from: &str, (index, name): (usize, &str), activation: &str) {
    for kernel in plan.ir.nodes.iter_mut().flat_map(|n| &mut n.kernels).filter(|k| k.name == from) {
        kernel.index = index;
        kernel.name = name.into();
        kernel.activation = activation.into();
    }
}

#[test]
fn each_break_is_found() {
    for (code, what, change) in BREAKS {
        let mut broken = AuditedSession::whole();
        change(&mut broken);
        expect(what, *code, &broken.audit());
    }
}

/// The audit of DeepSeek-V3's size, which every load runs. The printed time is not asserted because
/// it depends on the machine.
#[test]
fn a_plan_of_61_layers_is_clean() {
    let small = config();
    let config = ModelConfig {
        vocab_size: 129_280,
        hidden_size: 7168,
        layers: 61,
        attention: AttentionShape {
            heads: 128,
            q_lora_rank: Some(1536),
            kv_lora_rank: 512,
            nope: 128,
            rope: 64,
            v: 128,
            ..small.attention
        },
        layer_kinds: (0..61).map(|l| if l < 3 { LayerKind::Dense } else { LayerKind::Moe }).collect(),
        intermediate_size: 18_432,
        moe: small.moe.map(|m| MoeShape {
            experts: 256,
            num_experts_per_tok: 8,
            intermediate: 2048,
            shared_intermediate: 2048,
            ..m
        }),
        ..small
    };
    let whole = AuditedSession::new(config, TensorNaming::Gguf, MlaChoice::Auto, CacheForm::Latent);
    let start = std::time::Instant::now();
    let findings = whole.audit();
    println!("61 layers, six plans: {:?}", start.elapsed());
    clean("61 layers", &findings);
}
