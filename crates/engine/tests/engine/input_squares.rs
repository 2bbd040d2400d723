//! Sums of squares of the inputs of weights: they match the activations of a trace and the experts
//! that the router chose.

use latent_backend::InputSquares;
use latent_engine::cache::Sequence;
use latent_engine::{Draft, Engine, EngineOptions};
use latent_formats::Checkpoint;
use latent_graph::passes::{MlaChoice, Precision};
use latent_testing::{ModelRecipe, MtpLayer};
use std::collections::BTreeMap;
use std::sync::Arc;

const EXPERTS: usize = 16;

fn engine(threads: usize) -> (Engine, Arc<Checkpoint>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    ModelRecipe::new("tiny-v3", "F32".parse().unwrap()).write_gguf(&path).unwrap();
    let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
    let options = EngineOptions {
        precision: Precision::Exact,
        mla: MlaChoice::Absorbed,
        context: Some(128),
        threads: Some(threads),
        ..EngineOptions::default()
    };
    (Engine::load(&*latent_backends::cpu(), &checkpoint, &options, &mut |_, _| {}).unwrap(), checkpoint)
}

fn collect(engine: &mut Engine, texts: &[&[u32]]) -> BTreeMap<String, InputSquares> {
    engine.input_squares(texts, &mut |_| true).unwrap().into_iter().collect()
}

fn near(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-4 * a.abs().max(1e-6))
}

#[test]
fn inputs_of_products_are_the_activations_that_they_read() {
    let (mut engine, checkpoint) = engine(3);
    let tokens: Vec<u32> = (0..70).map(|i| (i * i + 7 * i) % 500).collect();
    let squares = collect(&mut engine, &[&tokens]);
    let activations = engine.activations(&checkpoint).unwrap();
    let trace = engine.trace(&activations, 0..3, &tokens, &mut |_| true).unwrap();
    let mut compared = 0;
    for layer in 0..3 {
        let attention = trace.values(activations.find(&format!("layers.{layer}.attn")).unwrap()).unwrap();
        let mut sums = vec![0.0; attention.width];
        for row in attention.numbers.chunks_exact(attention.width) {
            row.iter().zip(&mut sums).for_each(|(v, sum)| *sum += f64::from(*v) * f64::from(*v));
        }
        let found = &squares[&format!("blk.{layer}.attn_output.weight")];
        assert_eq!(found.counts, [70]);
        assert!(near(&found.sums, &sums), "layer {layer}");
        compared += 1;
    }
    assert_eq!(compared, 3);
    // The W_UK and W_UV of every head get every row.
    let heads = &squares["blk.1.attn_k_b.weight"];
    assert!(heads.counts == [70; 4] && heads.sums.len() == 4 * 128);
    assert_eq!(squares["blk.1.attn_v_b.weight"].sums.len(), 4 * 256);
    // All products of one input have the same sums.
    assert_eq!(squares["blk.0.ffn_gate.weight"], squares["blk.0.ffn_up.weight"]);
    assert_eq!(squares["blk.0.attn_q_a.weight"], squares["blk.0.attn_kv_a_mqa.weight"]);
}

#[test]
fn the_mtp_layers_inputs_are_summed_over_all_rows_but_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let recipe = ModelRecipe { mtp: MtpLayer::Own, ..ModelRecipe::new("tiny-v3", "F32".parse().unwrap()) };
    recipe.write_gguf(&path).unwrap();
    let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
    let load = |draft| {
        let options = EngineOptions {
            precision: Precision::Exact,
            mla: MlaChoice::Absorbed,
            context: Some(128),
            threads: Some(2),
            draft,
            ..EngineOptions::default()
        };
        Engine::load(&*latent_backends::cpu(), &checkpoint, &options, &mut |_, _| {}).unwrap()
    };
    let tokens: Vec<u32> = (0..40).map(|i| (i * 29 + 3) % 500).collect();
    let with = collect(&mut load(Draft::Mtp), &[&tokens]);
    let without = collect(&mut load(Draft::None), &[&tokens]);
    let matrices = checkpoint.tensors().iter().filter(|tensor| tensor.shape.len() > 1);
    let of_mtp: Vec<&str> =
        matrices.map(|tensor| tensor.name.as_str()).filter(|name| name.starts_with("blk.3.")).collect();
    assert!(of_mtp.len() > 12, "{of_mtp:?}");
    for name in of_mtp {
        assert!(!without.contains_key(name));
        // Rows of the embedding are looked up, not multiplied, so that they have no input.
        if name.ends_with("embed_tokens.weight") {
            continue;
        }
        let sums = with.get(name).unwrap_or_else(|| panic!("{name} has no importances"));
        let experts = name.contains("_exps.");
        assert!(experts || sums.counts.iter().all(|count| *count == 39), "{name} {:?}", sums.counts);
        assert!(sums.sums.iter().any(|sum| *sum > 0.0), "{name}");
    }
    // The MTP layer does not change the sums of the layers before it.
    assert!(without.iter().all(|(name, sums)| with[name] == *sums));
    // eh_proj reads the normed embedding of the next token and the normed residual stream. Without
    // the gains of the norms, both have a mean square of 1.
    let eh = &with["blk.3.nextn.eh_proj.weight"];
    for (half, norm) in eh.sums.chunks_exact(eh.sums.len() / 2).zip(["enorm", "hnorm"]) {
        let gain = checkpoint.tensor(&format!("blk.3.nextn.{norm}.weight")).unwrap().data.chunks_exact(4);
        let gain = gain.map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])).powi(2));
        let of_row: f64 = half.iter().zip(gain).map(|(sum, gain)| sum / gain).sum::<f64>() / 39.0;
        assert!((of_row / (half.len() as f64) - 1.0).abs() < 0.01, "{norm}: {of_row}");
    }
}

#[test]
fn experts_count_the_rows_that_chose_them() {
    let (mut engine, checkpoint) = engine(2);
    let tokens: Vec<u32> = (0..50).map(|i| (i * 13) % 400).collect();
    let squares = collect(&mut engine, &[&tokens]);
    let activations = engine.activations(&checkpoint).unwrap();
    let routing = engine.trace_routing(&activations, &mut Sequence::default(), &tokens).unwrap();
    assert_eq!(routing.len(), 2);
    for layer in routing {
        let mut counts = [0u64; EXPERTS];
        layer.rows.iter().flatten().for_each(|expert| counts[*expert] += 1);
        for part in ["gate", "up", "down"] {
            let found = &squares[&format!("blk.{}.ffn_{part}_exps.weight", layer.layer)];
            assert_eq!(found.counts, counts, "{part}");
            for (expert, columns) in found.sums.chunks_exact(256).enumerate() {
                assert_eq!(columns.iter().any(|sum| *sum > 0.0), counts[expert] > 0);
            }
        }
        // Summed over the experts, every row counts once per chosen expert. The shared expert reads
        // every row once.
        let gate = &squares[&format!("blk.{}.ffn_gate_exps.weight", layer.layer)];
        let shared = &squares[&format!("blk.{}.ffn_gate_shexp.weight", layer.layer)];
        let chosen = layer.rows[0].len() as f64;
        let all: Vec<f64> =
            (0..256).map(|c| gate.sums.iter().skip(c).step_by(256).sum::<f64>() / chosen).collect();
        assert!(near(&all, &shared.sums));
    }
}

#[test]
fn sums_do_not_depend_on_threads_and_add_up_over_texts() {
    let texts: [&[u32]; 2] = [&[1, 5, 9, 200, 17, 300, 4, 8], &[7; 20]];
    let one = collect(&mut engine(1).0, &texts);
    let (mut engine, _) = engine(4);
    assert_eq!(collect(&mut engine, &texts), one);
    assert_eq!(one["blk.0.ffn_down.weight"].counts, [28]);
    let apart: Vec<_> = texts.iter().map(|text| collect(&mut engine, &[*text])).collect();
    for (name, sums) in &one {
        let together: Vec<f64> =
            apart[0][name].sums.iter().zip(&apart[1][name].sums).map(|(a, b)| a + b).collect();
        assert!(near(&together, &sums.sums), "{name}");
    }
    assert!(matches!(engine.input_squares(&texts, &mut |_| false), Err(latent_engine::EngineError::Stopped)));
}

#[test]
fn a_backend_that_does_not_sum_says_so() {
    let (_, checkpoint) = engine(1);
    let options = EngineOptions { context: Some(16), ..EngineOptions::default() };
    let mut engine =
        Engine::load(&*latent_backends::reference(), &checkpoint, &options, &mut |_, _| {}).unwrap();
    assert!(
        engine
            .input_squares(&[&[1, 2]], &mut |_| true)
            .unwrap_err()
            .to_string()
            .contains("option `device: cpu`")
    );
}
