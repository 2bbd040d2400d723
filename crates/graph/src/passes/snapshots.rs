//! Each pass on a small model, as text. The differences between snapshots show what a pass changes.

use super::*;
use crate::BackendTarget;
use crate::circuit::{Circuit, DeclaredTensors, TensorIndex, TensorNaming};
use crate::config::*;
use crate::ir::ModelSpan;
use latent_formats::{AttachedAdapter, AttachedPair};
use latent_types::{ActivationType, CacheType, KernelContract, OpKind, TensorType, Tier, WeightLayout};

/// A config with one dense and one MoE layer and every optional part of the family.
pub(crate) fn config() -> ModelConfig {
    ModelConfig {
        circuit: "deepseek2".into(),
        architecture: "deepseek2".into(),
        name: None,
        vocab_size: 320,
        hidden_size: 96,
        layers: 2,
        mtp_layers: 0,
        context_length: 1024,
        rms_eps: 1e-6,
        attention: AttentionShape {
            heads: 4,
            q_lora_rank: Some(64),
            kv_lora_rank: 48,
            nope: 24,
            rope: 16,
            v: 20,
            softmax_scale: 0.158,
            temperature: None,
            output_gate: None,
            indexer: None,
        },
        rope: RopeSpec { base: 1e4, pairs: RopePairs::Interleaved, dims: 16, scaling: RopeScaling::None },
        layer_kinds: vec![LayerKind::Dense, LayerKind::Moe],
        intermediate_size: 160,
        activation: FfnActivation::SiluGated,
        moe: Some(MoeShape {
            experts: 8,
            num_experts_per_tok: 3,
            intermediate: 48,
            shared_intermediate: 48,
            router: RouterSpec {
                gating: Gating::Sigmoid,
                bias: true,
                groups: 4,
                groups_used: 2,
                group_score: GroupScore::TopTwoSum,
                group_mask: GroupMask::Excluded,
                normalise: true,
                norm_floor: 1e-20,
                scale: 2.5,
            },
            fused_gate_up: false,
        }),
        embedding_scale: 1.0,
        residual_scale: 1.0,
        logits_scale: 1.0,
        tied_embeddings: false,
        attention_bias: false,
        index_topk: None,
        full_indexers: Vec::new(),
        kda: None,
        kv_form: KvForm::Separate,
        query_gate: None,
        norm_rank: None,
        part: None,
    }
}

/// The same with sparse attention. The first layer has an indexer, and the second one shares its
/// selection.
pub(crate) fn sparse() -> ModelConfig {
    let indexer = IndexerShape { heads: 4, width: 32, topk: 24, pairs: RopePairs::NeoX };
    let attention = AttentionShape { indexer: Some(indexer), ..config().attention };
    ModelConfig { attention, index_topk: Some(24), full_indexers: vec![true, false], ..config() }
}

/// Kimi-Linear and Ling-3.0 as read from this kind of file: one layer with a recurrent state, one
/// with latent attention.
pub(crate) fn hybrids(naming: TensorNaming) -> [ModelConfig; 2] {
    let of = |circuit: &str, rank, lower_bound, attention, rope| {
        let rate = if naming == TensorNaming::Gguf { DecayRate::Plain } else { DecayRate::Log };
        let layers = vec![true, false];
        let kda = KdaShape { heads: 3, width: 10, taps: 4, rank, lower_bound, rate, layers };
        let kv_form = if naming == TensorNaming::Gguf { KvForm::Separate } else { KvForm::Combined };
        ModelConfig {
            circuit: circuit.into(),
            kda: Some(Box::new(kda)),
            attention,
            rope,
            kv_form,
            ..config()
        }
    };
    let plain = AttentionShape { q_lora_rank: None, ..config().attention };
    let gated = AttentionShape { output_gate: Some(OutputGate::PerHead), ..plain };
    [
        of("kimi_linear", Some(10), None, plain, RopeSpec::none()),
        of("bailing_hybrid", None, Some(-5.0), gated, config().rope),
    ]
}

/// The IR of a hybrid from tokens to logits, with MLA lowered and experts grouped.
pub(crate) fn lowered_hybrid(config: &ModelConfig) -> Ir {
    let tensors = DeclaredTensors::new(config, TensorNaming::Gguf, TensorType::BF16).unwrap();
    let span = ModelSpan { embed: true, layers: 0..config.layers, head: true, mtp: false };
    let ir = Ir::build(config, &span, &tensors).unwrap();
    group_experts(lower_mla(ir, MlaChoice::Auto, CacheForm::Latent, &config.attention).unwrap())
}

/// The layers of any circuit, with both attention paths and grouped experts.
pub(crate) fn lowered_of(circuit: &Circuit, config: &ModelConfig) -> Ir {
    let tensors = DeclaredTensors::of(circuit, config, TensorNaming::Gguf, TensorType::BF16).unwrap();
    let ir = Ir::build_with(circuit, config, &ModelSpan::backbone(config), &tensors).unwrap();
    let ir = lower_mla(ir, MlaChoice::Auto, CacheForm::Latent, &config.attention).unwrap();
    group_experts(fuse_projections(ir))
}

fn built(span: &ModelSpan) -> Ir {
    let config = config();
    let tensors = DeclaredTensors::new(&config, TensorNaming::Gguf, TensorType::BF16).unwrap();
    Ir::build(&config, span, &tensors).unwrap()
}

fn mla_lowered_ir() -> Ir {
    let config = config();
    lower_mla(built(&ModelSpan::backbone(&config)), MlaChoice::Auto, CacheForm::Latent, &config.attention)
        .unwrap()
}

fn folded(bucket: BatchBucket) -> Ir {
    fold_epilogues(fold_ropes(fold_norms(group_experts(fuse_projections(mla_lowered_ir())), bucket)))
}

/// The IR from tokens to logits with MLA lowered and experts grouped, W_KV in one tensor or in two.
pub(crate) fn lowered(mla: MlaChoice, form: CacheForm, combined: bool) -> Ir {
    let mut config = config();
    config.kv_form = if combined { KvForm::Combined } else { KvForm::Separate };
    let tensors = DeclaredTensors::new(&config, TensorNaming::Gguf, TensorType::BF16).unwrap();
    let span = ModelSpan { embed: true, layers: 0..config.layers, head: true, mtp: false };
    let ir = Ir::build(&config, &span, &tensors).unwrap();
    group_experts(lower_mla(ir, mla, form, &config.attention).unwrap())
}

/// Declared tensors with an adapter of rank 8 for q_a, o and kv_b of layer 0.
pub(crate) struct AdaptedTensors {
    base: DeclaredTensors,
    adapters: Vec<AttachedAdapter>,
    shapes: std::collections::HashMap<String, Vec<usize>>,
}

impl AdaptedTensors {
    pub(crate) fn new() -> AdaptedTensors {
        let base = DeclaredTensors::new(&config(), TensorNaming::Gguf, TensorType::BF16).unwrap();
        let a = config().attention;
        let joined = vec![a.heads * (a.nope + a.v), a.kv_lora_rank];
        let mut shapes = std::collections::HashMap::new();
        let pair = |name: &str| {
            let target = format!("blk.0.{name}.weight");
            let shape = base.find(&target).map_or_else(|| joined.clone(), |(_, shape)| shape);
            let [a, b] = ["a", "b"].map(|side| format!("adapter.0.{target}.lora_{side}"));
            shapes.insert(a.clone(), vec![8, shape[1]]);
            shapes.insert(b.clone(), vec![shape[0], 8]);
            AttachedPair { target, a, b, factor: 0.5 }
        };
        let pairs = ["attn_q_a", "attn_output", "attn_kv_b"].into_iter().map(pair).collect();
        let adapter = AttachedAdapter {
            path: "adapter.gguf".into(),
            naming: latent_formats::AdapterNaming::Gguf,
            scale: 1.0,
            pairs,
        };
        AdaptedTensors { base, adapters: vec![adapter], shapes }
    }
}

impl TensorIndex for AdaptedTensors {
    fn naming(&self) -> TensorNaming {
        self.base.naming()
    }
    fn find(&self, name: &str) -> Option<(TensorType, Vec<usize>)> {
        let own = self.shapes.get(name).map(|shape| (TensorType::F16, shape.clone()));
        own.or_else(|| self.base.find(name))
    }
    fn all(&self) -> Vec<(&str, TensorType, &[usize])> {
        let own = self.shapes.iter().map(|(name, shape)| (name.as_str(), TensorType::F16, &shape[..]));
        self.base.all().into_iter().chain(own).collect()
    }
    fn file(&self) -> String {
        self.base.file()
    }
    fn adapters(&self) -> &[AttachedAdapter] {
        &self.adapters
    }
}

/// The IR of the model with an adapter, with attention lowered.
pub(crate) fn lowered_adapted() -> Ir {
    let (config, tensors) = (config(), AdaptedTensors::new());
    let ir = Ir::build(&config, &ModelSpan::backbone(&config), &tensors).unwrap();
    super::lower_mla(ir, MlaChoice::Auto, CacheForm::Latent, &config.attention).unwrap()
}

pub(crate) fn folded_plan(bucket: BatchBucket, mla: MlaChoice) -> crate::Plan {
    let config = config();
    let span = ModelSpan::backbone(&config);
    let ir = lower_mla(built(&span), mla, CacheForm::Latent, &config.attention).unwrap();
    let ir = fold_epilogues(fold_ropes(fold_norms(group_experts(fuse_projections(ir)), bucket)));
    let phases = schedule(&ir, bucket);
    let arena = plan_memory(&ir, &phases, 32);
    crate::Plan { span, bucket, max_rows: 32, ir, phases, arena, without: Vec::new() }
}

#[test]
fn built_from_the_circuit() {
    insta::assert_snapshot!(built(&ModelSpan::backbone(&config())).to_text(None));
}

/// The IR of one rank of this partition.
fn of_rank(partition: &str, rank: usize) -> (Ir, ModelConfig) {
    let whole = config();
    let partition: crate::Partition = partition.parse().unwrap();
    let tensors = DeclaredTensors::new(&whole, TensorNaming::Gguf, TensorType::BF16).unwrap();
    let config = whole.of_part(partition.part(&whole, rank, partition.ranks()).unwrap());
    let ir = Ir::build(&config, &ModelSpan::backbone(&config), &tensors).unwrap();
    (insert_collectives(ir, config.part.as_ref().unwrap()), config)
}

#[test]
fn collectives_inserted() {
    let text = |partition, rank| of_rank(partition, rank).0.to_text(None);
    insta::assert_snapshot!(format!(
        "-- pipeline, rank 0\n{}\n-- pipeline, rank 1\n{}\n-- heads and columns\n{}\n-- experts\n{}",
        text("pipeline=2", 0),
        text("pipeline=2", 1),
        text("tensor=2", 1),
        text("experts=4", 2)
    ));
}

#[test]
fn the_audit_finds_nothing_in_the_ir_of_a_rank() {
    for (partition, ranks) in
        [("pipeline=2", 2), ("tensor=3", 3), ("experts=4", 4), ("pipeline=2,tensor=2,experts=2", 4)]
    {
        for rank in 0..ranks {
            let (ir, config) = of_rank(partition, rank);
            let circuit = Circuit::named("deepseek2").unwrap();
            let span = ModelSpan::backbone(&config);
            let found = crate::audit::ir(&ir, circuit, &span, &config);
            assert!(found.is_empty(), "{partition} rank {rank}: {found:?}");
            let fused = fold_epilogues(fold_norms(group_experts(fuse_projections(ir)), BatchBucket::Decode));
            let sums = |ir: &Ir| ir.nodes.iter().filter(|node| node.op == crate::ir::Op::AllReduce).count();
            let expected = match partition {
                "pipeline=2" => 0,
                // Experts and shared experts of the MoE layer are added up together, and no dense
                // block
                "experts=4" => 1,
                // Attention and feed-forward of each layer.
                _ => 2 * config.own_layers().len(),
            };
            assert_eq!(sums(&fused), expected, "{partition} rank {rank}");
        }
    }
}

#[test]
fn mla_lowered() {
    insta::assert_snapshot!(mla_lowered_ir().to_text(None));
}

#[test]
fn mla_lowered_to_one_path() {
    let config = config();
    let span = ModelSpan { embed: false, layers: 0..1, head: false, mtp: false };
    let text = |mla, form| lower_mla(built(&span), mla, form, &config.attention).unwrap().to_text(None);
    insta::assert_snapshot!(format!(
        "{}\n{}",
        text(MlaChoice::SeparateScores, CacheForm::Latent),
        text(MlaChoice::Naive, CacheForm::Expanded)
    ));
    assert!(lower_mla(built(&span), MlaChoice::Auto, CacheForm::Expanded, &config.attention).is_err());
}

#[test]
fn projections_fused() {
    insta::assert_snapshot!(fuse_projections(mla_lowered_ir()).to_text(None));
}

#[test]
fn experts_grouped() {
    insta::assert_snapshot!(group_experts(fuse_projections(mla_lowered_ir())).to_text(None));
}

#[test]
fn norms_folded_in_small_batches() {
    insta::assert_snapshot!(
        fold_norms(group_experts(fuse_projections(mla_lowered_ir())), BatchBucket::Decode).to_text(None)
    );
}

#[test]
fn norms_folded_in_prefill() {
    insta::assert_snapshot!(
        fold_norms(group_experts(fuse_projections(mla_lowered_ir())), BatchBucket::Prefill).to_text(None)
    );
}

#[test]
fn ropes_folded() {
    let ir = fold_norms(group_experts(fuse_projections(mla_lowered_ir())), BatchBucket::Decode);
    insta::assert_snapshot!(fold_ropes(ir).to_text(None));
}

#[test]
fn epilogues_folded() {
    insta::assert_snapshot!(folded(BatchBucket::Decode).to_text(None));
}

#[test]
fn kv_splits_shared() {
    let splits = crate::target::KvSplits { most: 8, head_group: 16, groups_per_worker: 4, rows_together: 0 };
    insta::assert_snapshot!(share_kv_splits(folded(BatchBucket::Decode), splits, 2).to_text(None));
    // Too few workers to share the heads of one row.
    let alone = crate::target::KvSplits { head_group: 1, groups_per_worker: 1, ..splits };
    let whole = folded(BatchBucket::Decode);
    assert_eq!(share_kv_splits(whole.clone(), alone, 4).to_text(None), whole.to_text(None));
}

#[test]
fn phases_cut() {
    for bucket in [BatchBucket::Decode, BatchBucket::Prefill] {
        let ir = folded(bucket);
        let phases = schedule(&ir, bucket);
        insta::assert_snapshot!(format!("phases_{bucket:?}"), ir.to_text(Some(&phases)));
    }
}

/// Portable kernels for every operation. bf16 also has an AVX2 matmul, and AMX tiles for prefill.
fn table() -> Vec<KernelContract> {
    let kernel = |op, weight, activation, tier, name| KernelContract {
        op,
        weight,
        layout: WeightLayout::Rows,
        activation,
        cache: None,
        min_rows: 1,
        tier,
        name,
    };
    let bf16 = Some(TensorType::BF16);
    let mut table = vec![
        kernel(OpKind::Linear, bf16, ActivationType::F32, Tier::Avx2, "avx2_bf16"),
        KernelContract {
            min_rows: 16,
            ..kernel(OpKind::Linear, bf16, ActivationType::Bf16, Tier::Amx, "amx_bf16")
        },
        kernel(OpKind::Linear, None, ActivationType::F32, Tier::Portable, "strip"),
        kernel(OpKind::LinearT, None, ActivationType::F32, Tier::Portable, "across"),
    ];
    for op in [
        OpKind::Embed,
        OpKind::RmsNorm,
        OpKind::Rope,
        OpKind::LatentStore,
        OpKind::AttendLatent,
        OpKind::ExpandKeys,
        OpKind::AttendExpanded,
        OpKind::Route,
    ] {
        table.push(kernel(op, None, ActivationType::F32, Tier::Portable, op.name()));
    }
    table
}

#[test]
fn kernels_selected_and_memory_planned() {
    let mut table = table();
    let options = BindOptions { precision: Precision::Default, tier: Tier::Avx512, cache: CacheType::F16 };
    let decode = |table: &[KernelContract]| {
        let target = BackendTarget::new("cpu", table.to_vec());
        select_kernels(folded(BatchBucket::Decode), &target, &options, BatchBucket::Decode)
    };
    let ir = decode(&table).unwrap();
    let phases = schedule(&ir, BatchBucket::Decode);
    let arena = plan_memory(&ir, &phases, 4);
    let mut text = ir.to_text(Some(&phases));
    for (value, offset) in ir.values.iter().zip(&arena.offsets) {
        if let Some(offset) = offset {
            let layer = value.layer.map_or_else(String::new, |layer| format!("L{layer}."));
            text.push_str(&format!("{layer}{} at {offset}\n", value.name));
        }
    }
    insta::assert_snapshot!(format!("{text}arena {} bytes", arena.bytes));
    table.retain(|kernel| kernel.op != OpKind::Route);
    let missing = decode(&table).unwrap_err().to_string();
    assert!(
        missing.contains("route") && missing.contains("no kernel implements this operation"),
        "{missing}"
    );
}

#[test]
fn kernels_selected_on_a_machine_with_amx() {
    let options = BindOptions { precision: Precision::Default, tier: Tier::Amx, cache: CacheType::F16 };
    let target = BackendTarget::new("cpu", table());
    let bound = |bucket| select_kernels(folded(bucket), &target, &options, bucket).unwrap();
    insta::assert_snapshot!(bound(BatchBucket::Prefill).to_text(None));
    for bucket in [BatchBucket::Decode, BatchBucket::SmallBatch] {
        assert!(!bound(bucket).to_text(None).contains("amx"), "{bucket:?}");
    }
}

/// Findings for missing and surplus nodes in a model with a gate per element and no shared key.
#[test]
fn gated_attention_without_rope() {
    let mut config = config();
    config.attention =
        AttentionShape { rope: 0, output_gate: Some(OutputGate::PerElement), ..config.attention };
    config.rope = RopeSpec::none();
    let ir = fold_norms(lowered_of(Circuit::named("deepseek2").unwrap(), &config), BatchBucket::Decode);
    insta::assert_snapshot!(fold_epilogues(fold_ropes(ir)).to_text(None));
}

#[test]
fn the_lm_head_alone() {
    let ir = built(&ModelSpan::lm_head(&config()));
    insta::assert_snapshot!(fold_norms(ir, BatchBucket::Decode).to_text(None));
}

#[test]
fn drawn_for_graphviz() {
    let span = ModelSpan { embed: false, layers: 0..1, head: false, mtp: false };
    let config = config();
    let ir = lower_mla(built(&span), MlaChoice::Auto, CacheForm::Latent, &config.attention).unwrap();
    insta::assert_snapshot!(ir.to_dot(None));
}

/// The barriers of a layer: the cost of a step in addition to the bytes it reads.
#[test]
fn a_dense_layer_has_eight_phases_and_a_moe_layer_nine() {
    let config = config();
    let phases = |layer: usize, bucket: BatchBucket| {
        let span = ModelSpan { embed: false, layers: layer..layer + 1, head: false, mtp: false };
        let ir = lower_mla(built(&span), MlaChoice::Absorbed, CacheForm::Latent, &config.attention).unwrap();
        let ir = fold_epilogues(fold_ropes(fold_norms(group_experts(fuse_projections(ir)), bucket)));
        schedule(&ir, bucket).into_iter().max().unwrap() + 1
    };
    for bucket in [BatchBucket::Decode, BatchBucket::SmallBatch] {
        assert_eq!((phases(0, bucket), phases(1, bucket)), (8, 9), "{bucket:?}");
    }
    // Prefill keeps norms, routing and the experts' sums as separate phases.
    assert_eq!((phases(0, BatchBucket::Prefill), phases(1, BatchBucket::Prefill)), (11, 14));
}

/// The MTP layer: its own norm, projection and head, with the model's embedding and final norm.
#[test]
fn the_mtp_layer_built_and_planned() {
    let config = ModelConfig {
        mtp_layers: 1,
        layer_kinds: vec![LayerKind::Dense, LayerKind::Moe, LayerKind::Moe],
        ..config()
    };
    let tensors = DeclaredTensors::new(&config, TensorNaming::Gguf, TensorType::BF16).unwrap();
    let text = |span: &ModelSpan| {
        let ir = Ir::build(&config, span, &tensors).unwrap();
        let ir = lower_mla(ir, MlaChoice::Absorbed, CacheForm::Latent, &config.attention).unwrap();
        let ir = fold_norms(group_experts(fuse_projections(ir)), BatchBucket::Decode);
        let ir = fold_epilogues(fold_ropes(ir));
        let phases = schedule(&ir, BatchBucket::Decode);
        ir.to_text(Some(&phases))
    };
    insta::assert_snapshot!(format!(
        "{}\n{}",
        text(&ModelSpan::mtp(&config)),
        text(&ModelSpan::mtp_head(&config))
    ));
}
