//! Each pass on a small model, as text: what it changes can be read in the differences between the snapshots.

use super::*;
use crate::circuit::{Circuit, DeclaredTensors, Naming};
use crate::contract::*;
use crate::ir::Span;
use base::{Activation, CacheType, KernelContract, Layout, OpKind, TensorType, Tier};

/// One dense and one MoE layer, everything that the family has.
pub(crate) fn contract() -> Contract {
    Contract {
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
        },
        rope: RopeSpec { base: 1e4, pairs: RopePairs::Interleaved, dims: 16, scaling: RopeScaling::None },
        layer_kinds: vec![LayerKind::Dense, LayerKind::Moe],
        intermediate_size: 160,
        activation: FfnActivation::SiluGated,
        moe: Some(MoeShape {
            experts: 8,
            experts_used: 3,
            intermediate: 48,
            shared_intermediate: 48,
            router: RouterSpec {
                gating: Gating::Sigmoid,
                bias: true,
                groups: 4,
                groups_used: 2,
                group_score: GroupScore::TopTwoSum,
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
        kv_form: KvForm::Split,
    }
}

/// The layers of a circuit that need not be built in, absorbed or naive by rows, experts grouped.
pub(crate) fn lowered_of(circuit: &Circuit, contract: &Contract) -> Ir {
    let tensors = DeclaredTensors::of(circuit, contract, Naming::Gguf, TensorType::BF16).unwrap();
    let ir = Ir::build_with(circuit, contract, &Span::trunk(contract), &tensors).unwrap();
    let ir = choose_formulations(ir, MlaChoice::Auto, CacheForm::Latent, &contract.attention).unwrap();
    group_experts(fuse_projections(ir))
}

fn built(span: &Span) -> Ir {
    let contract = contract();
    let tensors = DeclaredTensors::new(&contract, Naming::Gguf, TensorType::BF16).unwrap();
    Ir::build(&contract, span, &tensors).unwrap()
}

fn formulated() -> Ir {
    let contract = contract();
    choose_formulations(
        built(&Span::trunk(&contract)),
        MlaChoice::Auto,
        CacheForm::Latent,
        &contract.attention,
    )
    .unwrap()
}

fn folded(class: RowClass) -> Ir {
    fold_epilogues(fold_ropes(fold_norms(group_experts(fuse_projections(formulated())), class)))
}

/// The IR from tokens to logits with formulations chosen and experts grouped, W_KV in one tensor or in two.
pub(crate) fn lowered(mla: MlaChoice, form: CacheForm, combined: bool) -> Ir {
    let mut contract = contract();
    contract.kv_form = if combined { KvForm::Combined } else { KvForm::Split };
    let tensors = DeclaredTensors::new(&contract, Naming::Gguf, TensorType::BF16).unwrap();
    let span = Span { embed: true, layers: 0..contract.layers, head: true };
    let ir = Ir::build(&contract, &span, &tensors).unwrap();
    group_experts(choose_formulations(ir, mla, form, &contract.attention).unwrap())
}

/// The plan of the trunk before binding, for tests of what a plan keeps.
pub(crate) fn folded_plan(class: RowClass, mla: MlaChoice) -> crate::Plan {
    let contract = contract();
    let span = Span::trunk(&contract);
    let ir = choose_formulations(built(&span), mla, CacheForm::Latent, &contract.attention).unwrap();
    let ir = fold_epilogues(fold_ropes(fold_norms(group_experts(fuse_projections(ir)), class)));
    let phases = cut_phases(&ir, class);
    let arena = place_buffers(&ir, &phases, 32);
    crate::Plan { span, class, max_rows: 32, ir, phases, arena }
}

#[test]
fn built_from_the_circuit() {
    insta::assert_snapshot!(built(&Span::trunk(&contract())).to_text(None));
}

#[test]
fn formulations_chosen() {
    insta::assert_snapshot!(formulated().to_text(None));
}

#[test]
fn formulations_split_and_naive_alone() {
    let contract = contract();
    let span = Span { embed: false, layers: 0..1, head: false };
    let text =
        |mla, form| choose_formulations(built(&span), mla, form, &contract.attention).unwrap().to_text(None);
    insta::assert_snapshot!(format!(
        "{}\n{}",
        text(MlaChoice::Split, CacheForm::Latent),
        text(MlaChoice::Naive, CacheForm::Expanded)
    ));
    assert!(
        choose_formulations(built(&span), MlaChoice::Auto, CacheForm::Expanded, &contract.attention).is_err()
    );
}

#[test]
fn projections_fused() {
    insta::assert_snapshot!(fuse_projections(formulated()).to_text(None));
}

#[test]
fn experts_grouped() {
    insta::assert_snapshot!(group_experts(fuse_projections(formulated())).to_text(None));
}

#[test]
fn norms_folded_for_few_rows() {
    insta::assert_snapshot!(
        fold_norms(group_experts(fuse_projections(formulated())), RowClass::One).to_text(None)
    );
}

#[test]
fn norms_folded_for_many_rows() {
    insta::assert_snapshot!(
        fold_norms(group_experts(fuse_projections(formulated())), RowClass::Many).to_text(None)
    );
}

#[test]
fn ropes_folded() {
    let ir = fold_norms(group_experts(fuse_projections(formulated())), RowClass::One);
    insta::assert_snapshot!(fold_ropes(ir).to_text(None));
}

#[test]
fn epilogues_folded() {
    insta::assert_snapshot!(folded(RowClass::One).to_text(None));
}

#[test]
fn phases_cut() {
    for class in [RowClass::One, RowClass::Many] {
        let ir = folded(class);
        let phases = cut_phases(&ir, class);
        insta::assert_snapshot!(format!("phases_{class:?}"), ir.to_text(Some(&phases)));
    }
}

/// One form of everything, and products of bf16 rows in two: of AVX2, and of tiles for many rows.
fn table() -> Vec<KernelContract> {
    let kernel = |op, weight, activation, tier, name| KernelContract {
        op,
        weight,
        layout: Layout::Rows,
        activation,
        cache: None,
        least: 1,
        tier,
        name,
    };
    let bf16 = Some(TensorType::BF16);
    let mut table = vec![
        kernel(OpKind::Linear, bf16, Activation::F32, Tier::Avx2, "avx2_bf16"),
        KernelContract { least: 16, ..kernel(OpKind::Linear, bf16, Activation::Bf16, Tier::Amx, "amx_bf16") },
        kernel(OpKind::Linear, None, Activation::F32, Tier::Portable, "strip"),
        kernel(OpKind::LinearT, None, Activation::F32, Tier::Portable, "across"),
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
        table.push(kernel(op, None, Activation::F32, Tier::Portable, op.name()));
    }
    table
}

#[test]
fn kernels_bound_and_buffers_placed() {
    let mut table = table();
    let options = BindOptions { precision: Precision::Default, tier: Tier::Avx512, cache: CacheType::F16 };
    let ir = bind(folded(RowClass::One), &table, &options, RowClass::One).unwrap();
    let phases = cut_phases(&ir, RowClass::One);
    let arena = place_buffers(&ir, &phases, 4);
    let mut text = ir.to_text(Some(&phases));
    for (value, offset) in ir.values.iter().zip(&arena.offsets) {
        if let Some(offset) = offset {
            let layer = value.layer.map_or_else(String::new, |layer| format!("L{layer}."));
            text.push_str(&format!("{layer}{} at {offset}\n", value.name));
        }
    }
    insta::assert_snapshot!(format!("{text}arena {} numbers", arena.floats));
    table.retain(|kernel| kernel.op != OpKind::Route);
    let missing = bind(folded(RowClass::One), &table, &options, RowClass::One).unwrap_err().to_string();
    assert!(missing.contains("route") && missing.contains("there is none"), "{missing}");
}

#[test]
fn kernels_bound_on_a_machine_with_tiles() {
    let options = BindOptions { precision: Precision::Default, tier: Tier::Amx, cache: CacheType::F16 };
    let bound = |class| bind(folded(class), &table(), &options, class).unwrap();
    insta::assert_snapshot!(bound(RowClass::Many).to_text(None));
    for class in [RowClass::One, RowClass::Few] {
        assert!(!bound(class).to_text(None).contains("amx"), "{class:?}");
    }
}

#[test]
fn the_head_alone() {
    let ir = built(&Span::head(&contract()));
    insta::assert_snapshot!(fold_norms(ir, RowClass::One).to_text(None));
}

#[test]
fn drawn_for_graphviz() {
    let span = Span { embed: false, layers: 0..1, head: false };
    let contract = contract();
    let ir =
        choose_formulations(built(&span), MlaChoice::Auto, CacheForm::Latent, &contract.attention).unwrap();
    insta::assert_snapshot!(ir.to_dot(None));
}

/// The barriers of a layer: what a step pays for beside its bytes.
#[test]
fn a_dense_layer_has_eight_phases_and_a_moe_layer_nine() {
    let contract = contract();
    let phases = |layer: usize, class: RowClass| {
        let span = Span { embed: false, layers: layer..layer + 1, head: false };
        let ir =
            choose_formulations(built(&span), MlaChoice::Absorbed, CacheForm::Latent, &contract.attention)
                .unwrap();
        let ir = fold_epilogues(fold_ropes(fold_norms(group_experts(fuse_projections(ir)), class)));
        cut_phases(&ir, class).into_iter().max().unwrap() + 1
    };
    for class in [RowClass::One, RowClass::Few] {
        assert_eq!((phases(0, class), phases(1, class)), (8, 9), "{class:?}");
    }
    // norms, and a choice of experts that all threads make together
    assert_eq!((phases(0, RowClass::Many), phases(1, RowClass::Many)), (11, 13));
}
