//! The demo model's perplexity, compared with llama.cpp's.
#![allow(missing_docs, reason = "tests")]

use latent_engine::{Engine, EngineOptions, Session};
use latent_evaluate::{
    ChoiceCount, ChoiceQuestion, LogitsReader, LogitsWriter, Question, TokenChunks, divergence, perplexity,
    routing, score_endings, weight_errors,
};
use latent_formats::Checkpoint;
use latent_graph::passes::Precision;
use latent_text::{EncodeOptions, Tokenizer};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CONTEXT: usize = 512;

struct EvaluatedDemo {
    checkpoint: Arc<Checkpoint>,
    tokenizer: Tokenizer,
    engine: Engine,
}

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

fn demo(precision: Precision) -> EvaluatedDemo {
    let checkpoint = Arc::new(Checkpoint::open(&models().join("mla-demo-Q4_K_M.gguf")).unwrap());
    let options =
        EngineOptions { threads: Some(2), context: Some(CONTEXT), precision, ..EngineOptions::default() };
    EvaluatedDemo {
        tokenizer: Tokenizer::from_checkpoint(&checkpoint).unwrap(),
        engine: Engine::load(&*latent_backends::cpu(), &checkpoint, &options, &mut |_, _| {}).unwrap(),
        checkpoint,
    }
}

/// The held-out questions with their answers as one text.
fn text() -> String {
    let questions = Question::read(&models().join("eval.jsonl"), None).unwrap();
    assert_eq!(questions.len(), 300);
    let mut text = String::new();
    for question in questions {
        write!(text, "{}\n{}\n\n", question.prompt, question.expected).unwrap();
    }
    text
}

fn chunks(demo: &EvaluatedDemo, count: usize) -> TokenChunks {
    let tokens =
        demo.tokenizer.encode(&text(), EncodeOptions { add_special: true, parse_special: false }).unwrap();
    TokenChunks::cut(tokens, CONTEXT, Some(count)).unwrap()
}

/// What llama-perplexity -c 512 prints after 1, 2, 4 and 8 chunks of the same text
/// (llama-cpp-python 0.3.36, AVX-512).
const PEER: [(usize, f64); 4] = [(1, 1.9662), (2, 2.1720), (4, 2.0805), (8, 1.9722)];

#[test]
fn perplexity_equals_that_of_llama_cpp_in_either_precision() {
    for precision in [Precision::Default, Precision::Exact] {
        let mut demo = demo(precision);
        let chunks = chunks(&demo, 8);
        let bos = demo.tokenizer.bos();
        let mut told = 0;
        let mut progress = |done| {
            told = done;
            true
        };
        let found = perplexity(&mut demo.engine, &chunks, bos, None, &mut progress).unwrap();
        assert_eq!((found.chunks, found.positions, told), (8, 8 * 255, 8 * CONTEXT));
        for (count, peer) in PEER {
            let ours = found.running[count - 1];
            assert!(
                (ours / peer - 1.0).abs() < 0.003,
                "{precision}, {count} chunks: {ours}, llama.cpp has {peer}"
            );
        }
        assert_eq!(found.perplexity.value, found.running[7]);
        assert!(found.perplexity.error > 0.05 && found.perplexity.error < 0.15);
    }
}

#[test]
fn a_model_does_not_diverge_from_itself_and_little_from_exact_precision() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("base");
    let mut exact = demo(Precision::Exact);
    let chunks = chunks(&exact, 2);
    let (bos, vocab) = (exact.tokenizer.bos(), exact.engine.config().vocab_size);
    let mut writer = LogitsWriter::create(&path, &chunks, vocab).unwrap();
    let base = perplexity(&mut exact.engine, &chunks, bos, Some(&mut writer), &mut |_| true).unwrap();
    writer.finish().unwrap();
    let against = |engine: &mut Engine, base_nll: Option<&[f32]>| {
        let mut reader = LogitsReader::open(&path, vocab).unwrap();
        divergence(engine, &mut reader, base_nll, bos, &mut |_| true).unwrap()
    };
    let same = against(&mut exact.engine, Some(&base.token_nll));
    // 16 bits per log-probability
    assert!(same.kl.value.abs() < 1e-5 && same.same_top.value > 0.999, "{:?}", same.kl);
    assert!((same.base_perplexity.value / base.perplexity.value - 1.0).abs() < 1e-6);
    assert!(same.ln_ratio.value.abs() < 1e-6 && same.correlation > 0.999_99);
    // the file alone makes rare tokens likelier than they were
    let clamped = against(&mut exact.engine, None);
    assert!(clamped.base_perplexity.value <= same.base_perplexity.value);
    let mut other = demo(Precision::Default);
    let found = against(&mut other.engine, Some(&base.token_nll));
    assert!(found.kl.value > same.kl.value.abs() && found.kl.value < 0.002, "{:?}", found.kl);
    assert!(found.same_top.value > 0.98 && found.kl_quantiles.median < found.kl_quantiles.p99);
}

#[test]
fn a_stopped_evaluation_has_the_exit_code_of_the_signal() {
    let mut demo = demo(Precision::Default);
    let chunks = chunks(&demo, 2);
    let stopped = perplexity(&mut demo.engine, &chunks, None, None, &mut |_| false).unwrap_err();
    assert!(stopped.to_string().contains("stopped"), "{stopped}");
}

#[test]
fn the_right_ending_of_a_sum_is_the_likeliest() {
    let mut demo = demo(Precision::Default);
    let mut count = ChoiceCount::default();
    for (a, b, label) in [(32, 49, 1), (11, 22, 0), (40, 5, 2), (63, 14, 1)] {
        let mut wrong = [3, -20];
        let mut endings = Vec::new();
        for at in 0..3 {
            let off = if at == label { 0 } else { std::mem::replace(&mut wrong[0], -20) };
            endings.push(format!("{a} + {b} = {}.", a + b + off));
        }
        let context = format!("<｜User｜>How much is {a} + {b}?<｜Assistant｜>");
        let choice = ChoiceQuestion { line: 1, context, endings, label };
        let scores = score_endings(&mut demo.engine, &demo.tokenizer, &choice).unwrap();
        // the scores are sums over the whole text, run at once
        let all = demo.tokenizer.encode(
            &format!("{} {}", choice.context, choice.endings[label]),
            EncodeOptions { add_special: true, parse_special: false },
        );
        let all = all.unwrap();
        let mut ln_p = 0.0;
        let first = all.len() - scores[label].tokens;
        let mut sink = |row: usize, logits: &[f32]| {
            if row + 1 >= first && row + 1 < all.len() {
                let softmax = latent_evaluate::LogSoftmax::of(logits).unwrap();
                ln_p += softmax.ln_p(logits[all[row + 1] as usize]);
            }
        };
        let mut session = Session::default();
        let wanted = latent_engine::LogitsRequest::All;
        demo.engine.prefill(&mut session.sequence, &all, 512, wanted, &mut sink, &mut |_| true).unwrap();
        // a prompt and its parts differ by the rounding of the default precision
        assert!((ln_p - scores[label].ln_p).abs() < 0.05 * ln_p.abs().max(1.0), "{ln_p} {:?}", scores[label]);
        count.add(label, &scores);
    }
    assert!(count.finish().accuracy.value >= 0.75, "{:?}", count.finish());
}

#[test]
fn routers_choose_two_of_eight_experts_and_neighbours_share_some() {
    let mut demo = demo(Precision::Default);
    let chunks = chunks(&demo, 2);
    let activations = demo.engine.activations(&demo.checkpoint).unwrap();
    let bos = demo.tokenizer.bos();
    let counts = [1, 2, 8, 4096];
    let found = routing(&mut demo.engine, &activations, (&chunks, bos), &counts, &mut |_| true).unwrap();
    assert_eq!(found.tokens, 2 * CONTEXT);
    assert_eq!(found.layers.iter().map(|layer| layer.layer).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    for layer in &found.layers {
        assert!(layer.per_token == 2.0 && layer.load.len() == 8 && layer.unused == 0);
        assert!((layer.load.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        assert!(layer.entropy > 0.5 && layer.entropy <= 1.0 && layer.imbalance >= 1.0);
    }
    // steps of more rows than the text has are left out
    assert_eq!(found.steps.iter().map(|step| step.rows).collect::<Vec<_>>(), [1, 2, 8]);
    let (one, two) = (found.steps[0], found.steps[1]);
    assert!((one.neighbours, one.apart) == (2.0, 2.0) && (one.uniform - 2.0).abs() < 1e-9);
    assert!((one.neighbours_bytes - 1.0).abs() < 1e-9 && (one.apart_bytes - 1.0).abs() < 1e-9);
    assert!((two.uniform - 3.5).abs() < 1e-9, "8 (1 − (3 ÷ 4)²)");
    assert!(two.neighbours > 2.0 && two.neighbours < 4.0 && two.neighbours_bytes > 1.0);
}

#[test]
fn weights_of_a_file_are_those_of_itself() {
    let demo = demo(Precision::Default);
    let found = weight_errors(&demo.checkpoint, &demo.checkpoint, 2, &|_, _| true).unwrap();
    assert_eq!((found.relative, found.tensors.len(), found.skipped.len()), (0.0, 0, 0));
    // the parameters of models/README.md, and the correction biases of six layers of eight experts
    assert_eq!(found.elements, 8_895_616 + 48);
    assert!(found.types.iter().any(|group| group.name == "Q4_K" && (group.bits - 4.5).abs() < 1e-9));
    assert!(weight_errors(&demo.checkpoint, &demo.checkpoint, 2, &|_, _| false).is_err());
}

#[test]
fn four_bit_weights_are_compared_dequantized() {
    use latent_testing::{FourBitLayout, FourBitRecipe, ModelRecipe};
    let folder = tempfile::tempdir().unwrap();
    let (packed, plain) = (folder.path().join("packed"), folder.path().join("plain"));
    let form = FourBitRecipe::new(FourBitLayout::Awq, false);
    ModelRecipe::new("tiny-dense", "F32".parse().unwrap()).write_four_bit(&form, &packed, &plain).unwrap();
    let [packed, plain] = [packed, plain].map(|path| Checkpoint::open(&path).unwrap());
    let found = weight_errors(&packed, &plain, 2, &|_, _| true).unwrap();
    assert!(found.skipped.is_empty(), "{:?}", found.skipped);
    assert!(found.tensors.is_empty(), "{:?}", found.tensors);
}

#[test]
fn weights_with_separate_scales_are_skipped_by_name() {
    let folder = tempfile::tempdir().unwrap();
    latent_testing::ModelRecipe::new("tiny-dense", "F8_E4M3".parse().unwrap())
        .write_folder(folder.path())
        .unwrap();
    let file = Checkpoint::open(folder.path()).unwrap();
    let found = weight_errors(&file, &file, 1, &|_, _| true).unwrap();
    let down = "model.layers.0.mlp.down_proj.weight".to_owned();
    assert!(found.skipped.contains(&down), "{:?}", found.skipped);
}
