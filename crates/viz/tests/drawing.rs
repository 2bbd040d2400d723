//! The drawing of a model: its JSON against the published schema, and its numbers for real sizes.

#[path = "../../graph/tests/config_support/mod.rs"]
mod config_support;
mod drawing_schema;

use config_support::deepseek_v3;
use latent_graph::circuit::{DeclaredTensors, TensorNaming};
use latent_graph::config::JsonKeys;
use latent_graph::passes::{BindOptions, Precision};
use latent_graph::{BackendTarget, Circuit, ModelConfig};
use latent_types::{ActivationType, CacheType, KernelContract, OpKind, TensorType, Tier, WeightLayout};
use latent_viz::{
    Drawing, DrawingBlock, DrawingOperation, DrawingView, FileInfo, InitialView, Options, PageOptions,
    SpecialToken,
};
use serde_json::Value;

/// A small table like that of `kernels`: one kernel per operation, and three for products.
fn kernels() -> Vec<KernelContract> {
    let plain = |op, tier, name| KernelContract {
        op,
        weight: None,
        layout: WeightLayout::Rows,
        activation: ActivationType::F32,
        cache: None,
        min_rows: 1,
        tier,
        name,
    };
    let mut table: Vec<KernelContract> = [
        (OpKind::Embed, "portable_embed"),
        (OpKind::RmsNorm, "portable_rms_norm"),
        (OpKind::Linear, "portable_strip_f32"),
        (OpKind::LinearT, "portable_strip_f32_across"),
        (OpKind::Rope, "portable_rope"),
        (OpKind::LatentStore, "portable_latent_store"),
        (OpKind::AttendLatent, "portable_attend_latent"),
        (OpKind::AttendSeparate, "portable_attend_separate"),
        (OpKind::AttendExpanded, "portable_attend_expanded"),
        (OpKind::ExpandKeys, "portable_expand_keys"),
        (OpKind::Route, "portable_route"),
    ]
    .into_iter()
    .map(|(op, name)| plain(op, Tier::Portable, name))
    .collect();
    let bf16 = Some(TensorType::BF16);
    table.push(KernelContract {
        weight: bf16,
        activation: ActivationType::F32,
        ..plain(OpKind::Linear, Tier::Portable, "portable_bf16_f32")
    });
    table.push(KernelContract {
        weight: bf16,
        activation: ActivationType::F32,
        ..plain(OpKind::Linear, Tier::Avx2, "avx2_bf16_f32")
    });
    table.push(KernelContract {
        weight: bf16,
        activation: ActivationType::F32,
        ..plain(OpKind::Linear, Tier::Avx512, "avx512_bf16_f32")
    });
    table
}

fn options(config: &ModelConfig) -> Options {
    let bind = BindOptions { precision: Precision::Default, tier: Tier::Avx2, cache: CacheType::F16 };
    Options {
        bind,
        max_batch_tokens: 512,
        layers: 0..config.layers,
        mtp: false,
        assumed: Some("BF16"),
        kernels: true,
    }
}

fn draw(config: &ModelConfig) -> Drawing {
    let tensors = DeclaredTensors::new(config, TensorNaming::HuggingFace, TensorType::BF16).unwrap();
    Drawing::make(
        Circuit::named(&config.circuit).unwrap(),
        config,
        &tensors,
        &BackendTarget::new("cpu", kernels()),
        &options(config),
    )
    .unwrap()
}

fn v3() -> Drawing {
    draw(&deepseek_v3().config())
}

fn blocks<'a>(drawing: &'a Drawing, view: &DrawingView) -> Vec<&'a DrawingBlock> {
    view.blocks.iter().map(|placed| &drawing.blocks[placed.block]).collect()
}

fn find<'a>(blocks: &[&'a DrawingBlock], title: &str) -> &'a DrawingOperation {
    let found = blocks.iter().flat_map(|block| &block.operations).find(|operation| operation.title == title);
    found.unwrap_or_else(|| panic!("no operation {title}"))
}

#[test]
fn json_matches_the_schema() {
    let schema = include_str!("../../../docs/graph.schema.json");
    let schema: Value = serde_json::from_str(schema).unwrap();
    let mut drawing = serde_json::to_value(v3()).unwrap();
    assert_eq!(drawing_schema::problems(&schema, &drawing), Vec::<String>::new());
    // The check must report a wrong value, an extra key and a missing key.
    drawing["blocks"][0]["operations"][0]["family"] = "colour".into();
    drawing["views"][0]["extra"] = 1.into();
    drawing["model"].as_object_mut().unwrap().shift_remove("file");
    assert_eq!(drawing_schema::problems(&schema, &drawing).len(), 3);
}

#[test]
fn layers_of_one_structure_are_one_block() {
    let drawing = v3();
    let view = drawing.view("plan", "absorbed", "decode").unwrap();
    let blocks = blocks(&drawing, view);
    let counts: Vec<(&str, usize)> = blocks.iter().map(|b| (b.title.as_str(), b.count)).collect();
    assert_eq!(counts, [("Embedding", 1), ("Layers 0–2", 3), ("Layers 3–60", 58), ("Head", 1)]);
    assert_eq!(blocks[2].layers, [(3, 60)]);
    // The phases of all repetitions add up to the plan's.
    let phases: usize = blocks.iter().map(|block| block.phases * block.count).sum();
    assert_eq!(view.phases, Some(phases));
    assert_eq!(drawing.views.len(), 2 + 5 * 3 * (drawing.passes.len() + 1));
}

#[test]
fn layers_whose_kinds_alternate_are_drawn_once_each() {
    let folder = deepseek_v3().set("moe_layer_freq", 2.into());
    let mut folder = folder.set("n_group", 1.into()).set("topk_group", 1.into());
    for layer in 3..61 {
        folder.tensors.put(&format!("model.layers.{layer}.mlp.gate.weight"), &[256, 7168]);
    }
    let drawing = draw(&folder.config());
    let blocks = blocks(&drawing, drawing.view("ir", "", "").unwrap());
    assert_eq!(blocks.len(), 4);
    assert_eq!(blocks[1].count + blocks[2].count, 61);
    assert_eq!(blocks[2].layers[..2], [(4, 4), (6, 6)]);
}

#[test]
fn costs_match_the_sizes() {
    let drawing = v3();
    let plan = |form: &str| blocks(&drawing, drawing.view("plan", form, "decode").unwrap());
    let cost = |form: &str, title: &str| find(&plan(form), title).cost.unwrap();
    let q_a = cost("absorbed", "linear q_a + kv_a");
    assert_eq!((q_a.flops, q_a.flops_per_cached), (2.0 * 7168.0 * (1536.0 + 576.0), 0.0));
    assert_eq!(q_a.weight_bytes, 2.0 * 7168.0 * (1536.0 + 576.0));
    // 128 heads, scores over 576 elements and sums over 512
    let attend = cost("absorbed", "attend_latent");
    assert_eq!((attend.flops, attend.flops_per_cached), (278_528.0, 278_528.0));
    assert_eq!((attend.cache_bytes, attend.cache_bytes_per_cached), (1152.0, 1152.0));
    let expanded = cost("expanded", "attend_expanded");
    assert_eq!(expanded.cache_bytes_per_cached, 81_920.0);
    let store = find(&plan("expanded"), "expanded_store kv_b").kv_layer.clone().unwrap();
    assert_eq!((store.writes, store.width), (true, 40_960));
}

#[test]
fn every_kernel_is_explained_with_its_rejected_alternatives() {
    let drawing = v3();
    for view in drawing.views.iter().filter(|view| view.stage == "plan") {
        for operation in blocks(&drawing, view).iter().flat_map(|block| &block.operations) {
            let bound = operation.kernels.len()
                + operation.weights.iter().map(|used| used.kernels.len()).sum::<usize>();
            assert!(
                bound > 0 || ["split", "gather_rows", "add", "route"].contains(&operation.op),
                "{}",
                operation.op
            );
            assert!(drawing.operations.contains_key(operation.op), "{}", operation.op);
        }
    }
    let linear =
        drawing.bindings.iter().find(|b| b.operation == "linear" && b.format == Some("BF16")).unwrap();
    assert_eq!((linear.kernel, linear.tier, linear.activation), ("avx2_bf16_f32", "avx2", "f32"));
    assert!(linear.why.iter().any(|why| why.contains("not rounded")), "{:?}", linear.why);
    let other = |name: &str| linear.others.iter().find(|other| other.kernel == name).unwrap();
    assert!(other("portable_bf16_f32").matches);
    assert!(other("portable_bf16_f32").why.contains("avx2 is higher than portable"));
    assert!(!other("avx512_bf16_f32").matches);
    assert!(other("avx512_bf16_f32").why.contains("limit is avx2"));
    assert!(other("portable_strip_f32").why.contains("avx2 is higher than portable"));
}

#[test]
fn boxes_of_a_block_never_overlap() {
    use latent_viz::Primitive;
    let drawing = v3();
    for block in &drawing.blocks {
        let mut boxes: Vec<(f64, f64, f64, f64)> = Vec::new();
        for primitive in &block.scene {
            let Primitive::Operation { children, .. } = primitive else { continue };
            if let Some(Primitive::Rect { x, y, w, h, .. }) = children.first() {
                assert!(*x >= 0.0 && x + w <= block.width && y + h <= block.height, "{}", block.title);
                boxes.push((*x, *y, *w, *h));
            }
        }
        assert_eq!(boxes.len(), block.operations.len());
        for (i, a) in boxes.iter().enumerate() {
            for b in &boxes[..i] {
                let apart = a.0 >= b.0 + b.2 || b.0 >= a.0 + a.2 || a.1 >= b.1 + b.3 || b.1 >= a.1 + a.3;
                assert!(apart, "{}: {a:?} {b:?}", block.title);
            }
        }
    }
}

#[test]
fn buffers_with_overlapping_lifetimes_share_no_bytes() {
    let drawing = v3();
    for view in drawing.views.iter().filter(|view| view.stage == "plan") {
        let memory = view.memory.as_ref().unwrap();
        assert!(memory.repeats && !memory.buffers.is_empty());
        for (i, a) in memory.buffers.iter().enumerate() {
            assert!(a.offset + a.bytes <= memory.arena_bytes && a.last < memory.columns);
            for b in &memory.buffers[..i] {
                let together = a.first <= b.last && b.first <= a.last;
                assert!(!together || a.offset >= b.offset + b.bytes || b.offset >= a.offset + a.bytes);
            }
        }
    }
}

#[test]
fn a_hostile_name_stays_text() {
    let evil = "</script><script>alert(1)</script><!-- \" ' & \u{2028}";
    let folder = deepseek_v3().set("_name_or_path", evil.into());
    let drawing = draw(
        &ModelConfig::from_config(&JsonKeys { file: evil, object: &folder.config }, &folder.tensors).unwrap(),
    );
    let wanted = InitialView { stage: "plan".into(), formulation: "auto".into(), bucket: "decode".into() };
    let page = drawing
        .page(&PageOptions {
            wanted,
            profile: None,
            weights: Some(serde_json::json!({ "tensors": [{ "name": evil }] })),
            parity: Some(serde_json::json!({ "a": evil })),
            file_info: Some(FileInfo {
                tokenizer: vec![("model".into(), evil.into())],
                special: vec![SpecialToken { id: 0, text: evil.into(), role: String::new() }],
                template: Some(evil.into()),
                template_bytes: Some(evil.len()),
                metadata: vec![(evil.into(), evil.into())],
            }),
            against: Some(&drawing),
        })
        .unwrap();
    assert_eq!(page.matches("</script>").count(), 8, "seven data elements and the script");
    assert!(!page.contains("<!--") && !page.contains("alert(1)</"));
    assert!(page.contains("default-src 'none'") && !page.contains("unsafe-inline"));
    assert!(
        !page.contains("http://")
            || page.matches("http://").count() == page.matches("http://www.w3.org/2000/svg").count()
    );
    assert!(!page.contains("https://"));
    // The escaped name must parse back to the original.
    let from = page.find("id=\"drawing\">").unwrap() + "id=\"drawing\">".len();
    let data: Value =
        serde_json::from_str(&page[from..from + page[from..].find("</script>").unwrap()]).unwrap();
    assert_eq!(data["model"]["name"], evil);
    let whole = serde_json::to_value(&drawing).unwrap();
    assert!(data["operations"] == whole["operations"] && data["weights"] == whole["weights"]);
    let svg = drawing.svg(drawing.view("plan", "naive", "decode").unwrap());
    assert!(!svg.contains("<script>") && svg.contains("&lt;script&gt;"));
}

#[test]
fn passes_name_the_operations_that_they_change() {
    let drawing = v3();
    let mut lines: Vec<String> = Vec::new();
    for (n, pass) in drawing.passes.iter().enumerate() {
        let of_pass = |view: &&DrawingView| {
            (view.pass, view.formulation, view.bucket) == (Some(pass.key), Some("absorbed"), Some("decode"))
        };
        let view = drawing.views.iter().find(of_pass).unwrap();
        // In the block of the first layers, every line that is not marked must exist before the
        // pass.
        let block = &drawing.blocks[view.blocks[1].block];
        let now: Vec<String> = block.operations.iter().map(|operation| operation.line.clone()).collect();
        for (at, line) in now.iter().enumerate().filter(|_| n > 0) {
            assert_eq!(view.blocks[1].changed.contains(&at), !lines.contains(line), "{}: {line}", pass.name);
        }
        assert!(view.blocks[1].removed.iter().all(|line| !now.contains(line)), "{}", pass.name);
        lines = now;
    }
    let first = drawing.views.iter().find(|view| view.pass == Some("lower_mla")).unwrap();
    assert!(first.blocks[1].removed.iter().any(|line| line.contains("mla_attention")));
}
