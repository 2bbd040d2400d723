//! Comparisons of two runs: equal settings agree in every bit, other settings within their
//! tolerance, and a wrong weight is located.

use crate::support::{CASES, all_logits, bits, checkpoint, engine, folder};
use latent_engine::{ActivationTrace, EngineOptions};
use latent_evaluate::compare::{
    ComparedRun, ComparisonReport, DiffError, Numerics, PointVerdict, Tolerance, compare, dump,
};
use latent_formats::Checkpoint;
use latent_graph::ModelConfig;
use latent_graph::activations::Activations;
use latent_graph::circuit::Circuit;
use latent_graph::passes::{CacheForm, MlaChoice, Precision};
use latent_testing::{ModelRecipe, RandomWeightTypes};
use latent_types::{CacheType, Tier};
use std::path::{Path, PathBuf};
use std::sync::Arc;

struct TracedRun {
    points: Activations,
    trace: ActivationTrace,
    numerics: Numerics,
}

fn options() -> EngineOptions {
    EngineOptions { threads: Some(1), context: Some(256), ..EngineOptions::default() }
}

fn exact() -> EngineOptions {
    EngineOptions { precision: Precision::Exact, ..options() }
}

/// Arbitrary tokens below every model's vocabulary.
fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| 2 + i * 37 % 190).collect()
}

fn ran(file: &Arc<Checkpoint>, options: &EngineOptions, tokens: &[u32]) -> TracedRun {
    let mut engine = engine(file, options);
    let points = engine.activations(file).unwrap();
    let layers = 0..engine.config().layers;
    let trace = engine.trace(&points, layers, tokens, &mut |_| true).unwrap();
    TracedRun { points, trace, numerics: Numerics::of(&engine) }
}

fn between(a: &TracedRun, b: &TracedRun) -> ComparisonReport {
    let tolerance = Tolerance::between(Some(&a.numerics), Some(&b.numerics));
    compare(
        ComparedRun { points: &a.points, trace: &a.trace },
        ComparedRun { points: &b.points, trace: &b.trace },
        tolerance,
    )
    .unwrap()
}

fn first(report: &ComparisonReport) -> Option<&str> {
    report.parted.map(|index| report.points[index].name.as_str())
}

fn describe(report: &ComparisonReport) -> String {
    let line = |p: &latent_evaluate::compare::PointReport| {
        format!("{} {:e} of {:e} {:?}\n", p.name, p.distance.worst_relative, p.inputs_error, p.verdict)
    };
    report.points.iter().map(line).collect()
}

#[test]
fn equal_settings_agree_in_every_bit_and_tracing_changes_none() {
    for case in ["v3", "minicpm3"] {
        let file = checkpoint(&folder(case));
        for options in [options(), exact()] {
            for count in [1, 9, 40] {
                let tokens = tokens(count);
                let (a, b) = (ran(&file, &options, &tokens), ran(&file, &options, &tokens));
                let report = between(&a, &b);
                assert!(
                    report.points.iter().all(|p| p.verdict == PointVerdict::Same),
                    "{case}: {}",
                    describe(&report)
                );
                let plain = all_logits(&mut engine(&file, &options), &tokens, 512);
                let logits = a.trace.values(a.points.find("logits").unwrap()).unwrap();
                let traced: Vec<Vec<f32>> = (0..count).map(|row| logits.row(row).unwrap().to_vec()).collect();
                assert_eq!(bits(&plain), bits(&traced), "{case}, {count} tokens");
            }
        }
    }
}

#[test]
fn formulations_caches_chunks_and_tiers_agree_within_their_tolerance() {
    for case in CASES {
        let file = checkpoint(&folder(case));
        let tokens = tokens(40);
        let reference = ran(&file, &exact(), &tokens);
        let rotates = ModelConfig::from_checkpoint(&file).unwrap().rope.dims > 0;
        let others = [
            EngineOptions { mla: MlaChoice::Naive, ..exact() },
            EngineOptions { mla: MlaChoice::SeparateScores, ..exact() },
            EngineOptions { mla: MlaChoice::Naive, form: CacheForm::Expanded, ..exact() },
            EngineOptions { max_batch_tokens: Some(7), ..exact() },
            EngineOptions { tier: Some(Tier::Portable), ..exact() },
            EngineOptions { cache: Some(CacheType::F16), ..exact() },
            EngineOptions { cache: Some(CacheType::Bf16), ..exact() },
            options(),
            EngineOptions { mla: MlaChoice::Naive, tier: Some(Tier::Portable), ..options() },
        ];
        for options in others {
            let report = between(&reference, &ran(&file, &options, &tokens));
            assert_eq!(first(&report), None, "{case} {options:?}:\n{}", describe(&report));
            let names: Vec<&str> = report.points.iter().map(|p| p.name.as_str()).collect();
            let all =
                ["embed", "layers.0.q", "layers.1.k_rope", "layers.0.attn", "layers.1.residual", "logits"];
            // A shared key that is not rotated is a part of kv_a.
            for name in all.into_iter().filter(|name| rotates || !name.ends_with("k_rope")) {
                assert!(names.contains(&name), "{case} {options:?} lacks {name}: {names:?}");
            }
        }
    }
}

/// A copy of a fixture with one tensor changed by `change`.
fn changed(case: &str, tensor: &str, change: impl Fn(&mut Vec<f32>)) -> (tempfile::TempDir, PathBuf) {
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().to_owned();
    std::fs::copy(folder(case).join("config.json"), path.join("config.json")).unwrap();
    let mut bytes = std::fs::read(folder(case).join("model.safetensors")).unwrap();
    let tensors = latent_formats::safetensors::list(&bytes).unwrap();
    let (_, ty, shape, range) = tensors.into_iter().find(|(name, ..)| name == tensor).unwrap();
    let mut numbers = vec![0.0; shape.iter().product()];
    latent_quant::decode(ty, &bytes[range.clone()], &mut numbers).unwrap();
    change(&mut numbers);
    latent_quant::encode(ty, &numbers, &mut bytes[range]).unwrap();
    std::fs::write(path.join("model.safetensors"), bytes).unwrap();
    (copy, path)
}

fn scaled(by: f32) -> impl Fn(&mut Vec<f32>) {
    move |numbers| numbers.iter_mut().for_each(|n| *n *= by)
}

#[test]
fn a_wrong_weight_is_found_at_the_operation_that_uses_it() {
    let tokens = tokens(24);
    let layer = |rest: &str| format!("model.layers.1.{rest}.weight");
    let cases = [
        (layer("self_attn.kv_a_layernorm"), "layers.1.latent"),
        (layer("self_attn.q_a_layernorm"), "layers.1.q_a_norm"),
        (layer("input_layernorm"), "layers.1.attn_norm"),
        (layer("self_attn.o_proj"), "layers.1.attn_out"),
        (layer("post_attention_layernorm"), "layers.1.ffn_norm"),
        (layer("mlp.gate"), "layers.1.router_logits"),
        (layer("mlp.experts.3.down_proj"), "layers.1.ffn_out"),
        (layer("mlp.shared_experts.up_proj"), "layers.1.ffn_act"),
        ("lm_head.weight".to_owned(), "logits"),
    ];
    let right = checkpoint(&folder("v3"));
    for (options, by) in [(exact(), 1.01), (options(), 2.0)] {
        let reference = ran(&right, &exact(), &tokens);
        for (tensor, place) in &cases {
            let (_copy, path) = changed("v3", tensor, scaled(by));
            let report = between(&reference, &ran(&checkpoint(&path), &options, &tokens));
            assert_eq!(first(&report), Some(*place), "{tensor} × {by}:\n{}", describe(&report));
            let blamed = &report.points[report.parted.unwrap()];
            if place.contains("norm") {
                assert_eq!(&blamed.tensors, std::slice::from_ref(tensor));
            }
        }
    }
    // W_UK is used only in the absorbed queries.
    let (_copy, path) = changed("v3", &layer("self_attn.kv_b_proj"), |numbers| numbers[..64].fill(0.5));
    let absorbed =
        |path: &Path| ran(&checkpoint(path), &EngineOptions { mla: MlaChoice::Absorbed, ..exact() }, &tokens);
    let report = between(&absorbed(&folder("v3")), &absorbed(&path));
    assert_eq!(first(&report), Some("layers.1.q_latent"));
    // With few rows, the norm is fused into the products after it, so that these are named too.
    let few = &tokens[..8];
    let (_copy, path) = changed("v3", &layer("input_layernorm"), scaled(1.1));
    let report = between(&ran(&right, &exact(), few), &ran(&checkpoint(&path), &exact(), few));
    let blamed = &report.points[report.parted.unwrap()];
    assert_eq!(
        (blamed.name.as_str(), &blamed.unseen[..]),
        ("layers.1.q_a", &["layers.1.attn_norm".to_owned()][..])
    );
    assert_eq!(blamed.unseen_tensors, [layer("input_layernorm")]);
}

#[test]
fn swapped_halves_of_the_rope_are_found_in_the_key() {
    let rope = 16;
    let (_copy, path) = changed("v3", "model.layers.1.self_attn.kv_a_proj_with_mqa.weight", |numbers| {
        let hidden = 96;
        let start = numbers.len() - rope * hidden;
        numbers[start..].rotate_left(rope / 2 * hidden);
    });
    let tokens = tokens(24);
    let report = between(
        &ran(&checkpoint(&folder("v3")), &exact(), &tokens),
        &ran(&checkpoint(&path), &exact(), &tokens),
    );
    assert_eq!(first(&report), Some("layers.1.kv_a"));
    let latent = report.points.iter().find(|p| p.name == "layers.1.latent").unwrap();
    assert_eq!(latent.verdict, PointVerdict::Same, "only the rope part is wrong");
    // With other pairs of the rotation, keys and queries are right before it and wrong after it.
    let copy = tempfile::tempdir().unwrap();
    let config = std::fs::read_to_string(folder("v3").join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["rope_interleave"] = false.into();
    std::fs::write(copy.path().join("config.json"), config.to_string()).unwrap();
    std::fs::copy(folder("v3").join("model.safetensors"), copy.path().join("model.safetensors")).unwrap();
    let report = between(
        &ran(&checkpoint(&folder("v3")), &exact(), &tokens),
        &ran(&checkpoint(copy.path()), &exact(), &tokens),
    );
    assert_eq!(first(&report), Some("layers.0.q_rope"), "{}", describe(&report));
}

#[test]
fn a_circuit_with_a_wrong_wire_is_located() {
    let circuit = Circuit::named("deepseek2").unwrap();
    let mut wrong = circuit.clone();
    // The MLP reads the input of the attention block.
    wrong.blocks.get_mut("mla").unwrap().outputs.push("x".into());
    let dense = wrong.blocks.get_mut("dense").unwrap();
    dense.inputs.push("x".into());
    dense.ops.iter_mut().find(|op| op.op == "mlp").unwrap().inputs = vec!["x".into()];
    let file = checkpoint(&folder("v3"));
    let tokens = tokens(24);
    let miswired = EngineOptions { circuit: Some(Arc::new(wrong)), ..exact() };
    let report = between(&ran(&file, &exact(), &tokens), &ran(&file, &miswired, &tokens));
    assert_eq!(first(&report), Some("layers.0.ffn_act"));
    let same = EngineOptions { circuit: Some(Arc::new(circuit.clone())), ..exact() };
    let report = between(&ran(&file, &exact(), &tokens), &ran(&file, &same, &tokens));
    assert!(report.points.iter().all(|p| p.verdict == PointVerdict::Same));
}

#[test]
fn quantised_models_agree_with_their_exact_runs() {
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("model.gguf");
    let tokens = tokens(40);
    for kind in ["Q4_K_M", "Q8_0", "Q4_0", "Q2_K", "F16"] {
        for shape in ["tiny-v3", "tiny-dense"] {
            ModelRecipe::new(shape, kind.parse::<RandomWeightTypes>().unwrap()).write_gguf(&path).unwrap();
            let file = checkpoint(&path);
            let report = between(&ran(&file, &exact(), &tokens), &ran(&file, &options(), &tokens));
            assert_eq!(first(&report), None, "{shape} {kind}:\n{}", describe(&report));
        }
    }
}

#[test]
fn a_dump_is_read_as_it_was_written() {
    let file = checkpoint(&folder("v3"));
    let tokens = tokens(24);
    let a = ran(&file, &exact(), &tokens);
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("ours.safetensors");
    let count = dump::write(&a.trace, &a.points, &path).unwrap();
    let trace = dump::read(&path, &a.points, None).unwrap();
    assert_eq!(trace.tokens(), tokens);
    let b = TracedRun { points: a.points.clone(), trace, numerics: a.numerics.clone() };
    let report = between(&a, &b);
    assert_eq!(report.points.len(), count);
    assert!(report.points.iter().all(|p| p.verdict == PointVerdict::Same));
    let other = dump::read(&path, &a.points, Some(&tokens[1..])).unwrap_err().to_string();
    assert!(other.contains("24 tokens") && other.contains("option `tokens`"), "{other}");
}

#[test]
fn intermediate_values_agree_with_transformers() {
    let file = checkpoint(&folder("v3"));
    let path = folder("v3").join("activations.safetensors");
    let options = exact();
    let engine = engine(&file, &options);
    let points = engine.activations(&file).unwrap();
    let trace = dump::read(&path, &points, None).unwrap();
    let ours = ran(&file, &options, trace.tokens());
    let tolerance = Tolerance::between(None, Some(&ours.numerics));
    let sides = [
        ComparedRun { points: &points, trace: &trace },
        ComparedRun { points: &ours.points, trace: &ours.trace },
    ];
    let report = compare(sides[0], sides[1], tolerance).unwrap();
    assert_eq!(first(&report), None, "{}", describe(&report));
    assert!(report.points.iter().all(|p| p.distance.worst_relative < 1e-5), "{}", describe(&report));
    let layer: Vec<&str> = report.points.iter().filter_map(|p| p.name.strip_prefix("layers.1.")).collect();
    let expected = [
        "q_a",
        "q",
        "kv_a",
        "latent",
        "q_rope",
        "k_rope",
        "attn",
        "attn_out",
        "attn_residual",
        "router_logits",
        "routing",
        "ffn_act",
        "ffn_out",
        "residual",
    ];
    assert_eq!(layer, expected);
}

/// Writes a dump of one tensor, and of tokens if given.
fn dump_of(path: &Path, name: &str, ty: latent_types::TensorType, shape: &[usize], tokens: Option<&[u32]>) {
    let mut writer = latent_formats::safetensors::Writer::new();
    if let Some(tokens) = tokens {
        writer.tensor("tokens", latent_types::TensorType::I32, &[tokens.len()]).unwrap();
    }
    writer.tensor(name, ty, shape).unwrap();
    let mut out = std::fs::File::create(path).unwrap();
    let bytes = shape.iter().product::<usize>() * ty.block_bytes();
    let ids: Vec<u8> = tokens.unwrap_or_default().iter().flat_map(|t| t.to_le_bytes()).collect();
    writer
        .write(&mut out, |i, out| {
            if i + 1 == usize::from(tokens.is_some()) {
                out.write_all(&ids)
            } else {
                out.write_all(&vec![0; bytes])
            }
        })
        .unwrap();
}

#[test]
fn bad_dumps_are_refused_with_a_reason() {
    use latent_types::TensorType::{F32, I32};
    let file = checkpoint(&folder("v3"));
    let a = ran(&file, &exact(), &tokens(4));
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("bad.safetensors");
    let four = tokens(4);
    let refused = |words: &[&str]| {
        let message = dump::read(&path, &a.points, None).unwrap_err().to_string();
        for word in words.iter().chain(&["bad.safetensors"]) {
            assert!(message.contains(word), "no {word:?} in: {message}");
        }
    };
    dump_of(&path, "layers.1.latnet", F32, &[4, 48], Some(&four));
    refused(&["layers.1.latnet", "attn_norm", "latent"]);
    dump_of(&path, "layers.9.latent", F32, &[4, 48], Some(&four));
    refused(&["layer 9 does not exist", "0 to 2"]);
    dump_of(&path, "model.norm", F32, &[4, 48], Some(&four));
    refused(&["model.norm", "final_norm", "logits"]);
    dump_of(&path, "layers.1.residual", F32, &[4, 95], Some(&four));
    refused(&["layers.1.residual", "[4, 95]", "[4, 96]"]);
    dump_of(&path, "layers.1.residual", F32, &[3, 96], Some(&four));
    refused(&["[3, 96]"]);
    dump_of(&path, "layers.1.residual", I32, &[4, 96], Some(&four));
    refused(&["I32", "F32"]);
    dump_of(&path, "layers.1.residual", F32, &[4, 96], None);
    refused(&["`tokens`"]);
    dump_of(&path, "layers.1.residual", F32, &[4, 96], Some(&[1, u32::MAX, 2, 3]));
    refused(&["invalid token ID -1"]);
    std::fs::write(&path, b"GGUF and what not").unwrap();
    refused(&["not a dump"]);
    // A leading dimension of one, the batch in transformers, is accepted.
    dump_of(&path, "layers.1.residual", F32, &[1, 4, 96], Some(&four));
    assert!(dump::read(&path, &a.points, None).is_ok());
}

#[test]
fn models_of_other_shapes_and_other_tokens_cannot_be_compared() {
    let tokens = tokens(4);
    let a = ran(&checkpoint(&folder("v3")), &exact(), &tokens);
    let b = ran(&checkpoint(&folder("youtu")), &exact(), &tokens);
    let side =
        |ran: &'_ TracedRun| -> (Activations, ActivationTrace) { (ran.points.clone(), ran.trace.clone()) };
    let ((pa, ta), (pb, tb)) = (side(&a), side(&b));
    let tolerance = Tolerance { level: 1.0, growth: 1.0 };
    let found =
        compare(ComparedRun { points: &pa, trace: &ta }, ComparedRun { points: &pb, trace: &tb }, tolerance);
    assert!(matches!(found, Err(DiffError::Width { .. })), "{found:?}");
    let c = ran(&checkpoint(&folder("v3")), &exact(), &tokens[..3]);
    let found = compare(
        ComparedRun { points: &pa, trace: &ta },
        ComparedRun { points: &c.points, trace: &c.trace },
        tolerance,
    );
    assert!(matches!(found, Err(DiffError::Tokens { a: 4, b: 3, at: 3 })), "{found:?}");
}
