//! Intact sessions have no findings. Each of many breaks is found under its rule's code.

mod broken_circuits;
mod broken_plans;
mod broken_ranks;
mod broken_sessions;

use super::*;
use crate::circuit::{DeclaredTensors, TensorNaming};
use crate::config::*;
use crate::passes::snapshots::{config, hybrids, sparse};
use crate::passes::{BatchBucket, BindOptions, CacheForm, FORMS, MlaChoice, Precision};
use crate::plan::PlanOptions;
use crate::target::{BackendTarget, KvSplits};
use latent_types::{ActivationType, CacheType, KernelContract, OpKind, TensorType, Tier, WeightLayout};

/// The plans of a session and their inputs.
struct AuditedSession {
    config: ModelConfig,
    tensors: DeclaredTensors,
    layers: Vec<Plan>,
    lm_head: Vec<Plan>,
    /// The plans of the MTP layer's two stages, where the config has one.
    mtp: Vec<Vec<Plan>>,
    target: BackendTarget,
    bind: BindOptions,
}

/// A portable kernel for every operation and a few faster ones for bf16 products, so that selection
/// has alternatives that the breaks can misuse.
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
    let linear = |tier, name| kernel(OpKind::Linear, bf16, ActivationType::F32, tier, name);
    let mut table = vec![
        linear(Tier::Avx2, "avx2_bf16"),
        linear(Tier::Avx512, "avx512_bf16"),
        KernelContract { layout: WeightLayout::Tiles, weight: None, ..linear(Tier::Avx2, "avx2_tiles") },
        KernelContract { activation: ActivationType::A8, ..linear(Tier::Avx2, "avx2_a8") },
        kernel(OpKind::Linear, None, ActivationType::F32, Tier::Portable, "strip"),
        kernel(OpKind::LinearT, None, ActivationType::F32, Tier::Portable, "across"),
        KernelContract {
            cache: Some(CacheType::F32),
            ..kernel(OpKind::AttendLatent, None, ActivationType::F32, Tier::Avx2, "attend_f32")
        },
    ];
    for op in OpKind::ALL.iter().filter(|op| !matches!(op, OpKind::Linear | OpKind::LinearT)) {
        table.push(kernel(*op, None, ActivationType::F32, Tier::Portable, op.name()));
    }
    table
}

/// A backend of [`table`]'s kernels whose two workers split the cache of one sequence.
fn target() -> BackendTarget {
    let kv_splits = Some(KvSplits { most: 8, head_group: 2, groups_per_worker: 4, rows_together: 0 });
    BackendTarget { kv_splits, workers: 2, ..BackendTarget::new("test", table()) }
}

impl AuditedSession {
    fn new(config: ModelConfig, naming: TensorNaming, mla: MlaChoice, form: CacheForm) -> AuditedSession {
        let tensors = DeclaredTensors::new(&config, naming, TensorType::BF16).unwrap();
        let bind = BindOptions { precision: Precision::Default, tier: Tier::Avx2, cache: CacheType::F16 };
        let target = target();
        let make = |span: ModelSpan| -> Vec<Plan> {
            [BatchBucket::Decode, BatchBucket::SmallBatch, BatchBucket::Prefill]
                .into_iter()
                .map(|bucket| {
                    let options =
                        PlanOptions { span: span.clone(), bucket, max_batch_tokens: 64, mla, form, bind };
                    Plan::make(&config, &tensors, &target, &options).unwrap()
                })
                .collect()
        };
        let (layers, lm_head) = (make(ModelSpan::backbone(&config)), make(ModelSpan::lm_head(&config)));
        let mtp = match config.mtp_layers {
            0 => Vec::new(),
            _ => vec![make(ModelSpan::mtp(&config)), make(ModelSpan::mtp_head(&config))],
        };
        AuditedSession { config, tensors, layers, lm_head, mtp, target, bind }
    }

    /// The intact session that each test breaks once.
    fn whole() -> AuditedSession {
        AuditedSession::new(config(), TensorNaming::Gguf, MlaChoice::Auto, CacheForm::Latent)
    }

    fn stages(&self) -> Vec<Stage> {
        let stage = |name: &str, plans: &[Plan]| Stage { name: String::from(name), plans: plans.to_vec() };
        let mut stages = vec![stage("layers", &self.layers), stage("lm_head", &self.lm_head)];
        stages.extend(self.mtp.iter().zip(["mtp", "mtp_head"]).map(|(plans, name)| stage(name, plans)));
        stages
    }

    fn circuit(&self) -> &'static Circuit {
        Circuit::named(&self.config.circuit).unwrap()
    }

    fn audit(&self) -> Vec<Finding> {
        let bound = BindContext { target: &self.target, options: self.bind };
        session(self.circuit(), &self.config, &self.tensors, &self.stages(), bound)
    }
}

/// Asserts that a finding of this code is among them.
#[track_caller]
fn expect(what: &str, code: Code, findings: &[Finding]) {
    let codes: Vec<String> = findings.iter().map(|f| f.code.to_string()).collect();
    assert!(findings.iter().any(|f| f.code == code), "{what}: {code} is not among {codes:?}");
    for finding in findings {
        let text = finding.to_string();
        assert!(text.starts_with(finding.code.rule().code) && text.contains("Look at"), "{text}");
    }
}

/// Configs that differ in everything that a circuit's conditions test.
fn configs() -> Vec<ModelConfig> {
    let v3 = config();
    let dense = ModelConfig {
        layer_kinds: vec![LayerKind::Dense; 2],
        moe: None,
        tied_embeddings: true,
        kv_form: KvForm::Combined,
        ..v3.clone()
    };
    let v2 = ModelConfig {
        attention: AttentionShape { q_lora_rank: None, ..v3.attention },
        moe: v3.moe.map(|m| MoeShape {
            router: RouterSpec { bias: false, ..m.router },
            shared_intermediate: 0,
            fused_gate_up: true,
            ..m
        }),
        ..v3.clone()
    };
    let minicpm3 = ModelConfig {
        circuit: "minicpm3".into(),
        embedding_scale: 12.0,
        residual_scale: 0.99,
        logits_scale: 0.1,
        ..dense.clone()
    };
    let plm = ModelConfig {
        circuit: "plm".into(),
        activation: FfnActivation::ReluSquared,
        attention: AttentionShape { q_lora_rank: None, ..v3.attention },
        ..dense.clone()
    };
    let mtp = ModelConfig {
        mtp_layers: 1,
        layer_kinds: vec![LayerKind::Dense, LayerKind::Moe, LayerKind::Moe],
        ..v3.clone()
    };
    let biased = ModelConfig { attention_bias: true, index_topk: Some(64), ..v3.clone() };
    let biased_legacy = ModelConfig { attention_bias: true, ..dense.clone() };
    let axk1 = ModelConfig { circuit: "axk1".into(), ..v3.clone() };
    let mut configs = vec![v3, dense, v2, minicpm3, plm, mtp, biased, biased_legacy, axk1];
    configs.extend(gated());
    configs.push(sparse());
    configs.push(ModelConfig { full_indexers: vec![true; 2], ..sparse() });
    configs.extend(hybrids(TensorNaming::Gguf));
    configs
}

/// Both kinds of output gate and none, over attention with rope, with an unrotated shared key, and
/// without a shared key.
fn gated() -> [ModelConfig; 3] {
    let of = |gate, rope, rotates| {
        let attention = AttentionShape { output_gate: gate, rope, ..config().attention };
        let rotation = if rotates { config().rope } else { RopeSpec::none() };
        ModelConfig { attention, rope: rotation, ..config() }
    };
    [of(Some(OutputGate::PerHead), 16, true), of(None, 16, false), of(Some(OutputGate::PerElement), 0, false)]
}

fn clean(what: &str, findings: &[Finding]) {
    let texts: Vec<String> = findings.iter().take(5).map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{what}: {} findings:\n{}", findings.len(), texts.join("\n"));
}

#[test]
fn whole_sessions_are_clean_in_every_formulation() {
    for config in configs() {
        for (mla, form) in FORMS {
            let what = format!("{} {:?} {mla} {form:?}", config.circuit, config.kv_form);
            clean(&what, &AuditedSession::new(config.clone(), TensorNaming::Gguf, mla, form).audit());
        }
        if config.kv_form == KvForm::Combined && config.kda.is_none() {
            let session =
                AuditedSession::new(config, TensorNaming::HuggingFace, MlaChoice::Auto, CacheForm::Latent);
            clean("names of Hugging Face", &session.audit());
        }
    }
    let naming = TensorNaming::HuggingFace;
    for config in hybrids(naming) {
        for (mla, form) in FORMS {
            let what = format!("{} of Hugging Face, {mla} {form:?}", config.circuit);
            clean(&what, &AuditedSession::new(config.clone(), naming, mla, form).audit());
        }
    }
}

/// The rules hold after every pass and not only for the final plan.
#[test]
fn every_pass_keeps_the_rules() {
    use crate::passes::*;
    let config = config();
    let circuit = Circuit::named(&config.circuit).unwrap();
    let span = ModelSpan::backbone(&config);
    let tensors = DeclaredTensors::new(&config, TensorNaming::Gguf, TensorType::BF16).unwrap();
    for bucket in [BatchBucket::Decode, BatchBucket::Prefill] {
        for (mla, form) in FORMS {
            let mut ir = Ir::build(&config, &span, &tensors).unwrap();
            clean("built", &super::ir(&ir, circuit, &span, &config));
            let bind =
                BindOptions { precision: Precision::Default, tier: Tier::Portable, cache: CacheType::F16 };
            let target = target();
            let input = PassInput {
                attention: &config.attention,
                part: None,
                target: &target,
                mla,
                form,
                bind: &bind,
                bucket,
            };
            for pass in pipeline() {
                ir = pass.run(ir, &input).unwrap();
                clean(&format!("{} {bucket:?} {mla}", pass.name), &super::ir(&ir, circuit, &span, &config));
            }
        }
    }
}

/// The breaks name every code, so that no rule is without a test.
#[test]
fn every_rule_is_broken_somewhere() {
    let tests = concat!(
        include_str!("broken_circuits.rs"),
        include_str!("broken_plans.rs"),
        include_str!("broken_ranks.rs"),
        include_str!("broken_sessions.rs")
    );
    for code in Code::ALL {
        assert!(tests.contains(&format!("Code::{code}")), "no test breaks {code}");
    }
}

/// A part of the layers, as a pipeline stage has it.
#[test]
fn a_span_of_layers_is_clean() {
    let whole = AuditedSession::whole();
    let span = ModelSpan { embed: false, layers: 1..2, head: true, mtp: false };
    let options = PlanOptions {
        span,
        bucket: BatchBucket::Decode,
        max_batch_tokens: 1,
        mla: MlaChoice::Auto,
        form: CacheForm::Latent,
        bind: whole.bind,
    };
    let made = Plan::make(&whole.config, &whole.tensors, &whole.target, &options).unwrap();
    clean(
        "layer 1 and head",
        &plan(
            &made,
            whole.circuit(),
            &whole.config,
            BindContext { target: &whole.target, options: whole.bind },
        ),
    );
}

#[test]
fn edges_are_named_from_producer_to_consumer() {
    let whole = AuditedSession::whole();
    let ir = &whole.layers[0].ir;
    let edges = ir.named_edges();
    assert!(edges.iter().all(|edge| edge.slot != "?"));
    let store = ir.nodes.iter().position(|n| n.op == crate::ir::Op::LatentStore).unwrap();
    let slots: Vec<&str> = edges.iter().filter(|e| e.consumer == store).map(|e| e.slot).collect();
    assert_eq!(slots, ["latent", "k_rope"]);
    let read: usize = ir.nodes.iter().map(|n| n.inputs.len()).sum();
    assert!(edges.len() >= read);
}
