//! `--lora`: adapters of a model, and their scales.

use crate::support::latent;
use latent_formats::Checkpoint;
use latent_testing::{ModelRecipe, RandomWeightTypes, random_pairs, write_gguf_adapter};
use latent_types::TensorType;

#[test]
fn adapters_change_what_a_model_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (model, packed, adapter) = (path("model.gguf"), path("model.latent"), path("adapter.gguf"));
    let kind = RandomWeightTypes::from(TensorType::F32);
    ModelRecipe { layers: Some(2), ..ModelRecipe::new("tiny-v3", kind) }.write_gguf(model.as_ref()).unwrap();
    let base = Checkpoint::open(model.as_ref()).unwrap();
    let adapted = |name: &str| name.contains("attn_") || name.contains("_exps");
    let pairs = random_pairs(&base, 5, Some(4), |name| adapted(name) && name.contains(".weight")).unwrap();
    let pairs: Vec<_> = pairs.into_iter().filter(|pair| !pair.target.contains("norm")).collect();
    write_gguf_adapter(adapter.as_ref(), "deepseek2", 8.0, TensorType::F32, &pairs).unwrap();
    let run = |words: &[&str]| latent(words).output().unwrap();
    let logits = |more: &[&str]| {
        let out =
            run(&[&["logits", &model, "-t", "1", "--tokens", "1,2,3,4", "--precision", "exact"][..], more]
                .concat());
        assert!(out.status.success(), "{more:?}: {}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    };
    let own = logits(&[]);
    let adapted = logits(&["--lora", &adapter]);
    assert!(adapted != own);
    assert!(logits(&["--lora", &format!("{adapter}:0")]) == own);
    assert!(logits(&["--lora-scaled", &format!("{adapter}:1.0")]) == adapted);
    let halves = format!("{adapter}:0.5,{adapter}:0.5");
    assert!(logits(&["--lora", &halves]) != own);
    assert!(logits(&["--lora", &format!("{adapter}:2"), "--device", "reference"]) != own);
    // The plan and the drawing contain its operations.
    let plan = |more: &[&str]| {
        let out = run(&[&["graph", "plan", &model][..], more].concat());
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let ops = ["lora_add", "lora_absorb_k", "lora_absorb_v", "expert_up_lora_b", "expert_down_lora_a"];
    let text = plan(&["--lora", &adapter]);
    assert!(ops.iter().all(|op| text.contains(op)), "{text}");
    let drawn = plan(&["--lora", &adapter, "--format", "svg"]);
    assert!(ops.iter().all(|op| drawn.contains(op)), "not drawn");
    let text = plan(&[]);
    assert!(!ops.iter().any(|op| text.contains(op)), "{text}");
    assert!(run(&["pack", &model, "-t", "1", "-o", &packed]).status.success());
    for (words, problem) in [
        (&["run", &model, "--lora", "/nowhere.gguf"][..], "/nowhere.gguf"),
        (&["run", &model, "--lora", ":1"], "expected a file"),
        (&["run", &model, "--lora", &model], "not a LoRA adapter"),
        (&["run", &packed, "--tokens", "1,2", "--lora", &adapter], "packed file"),
        (&["run", "--lora", &adapter, "--tokens", "1"], "blk."),
        (
            &["bench", &model, "-t", "1", "-p", "1", "-n", "1", "-r", "1", "--lora", &packed],
            "not a LoRA adapter",
        ),
    ] {
        let out = run(words);
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && text.contains(problem), "{words:?}: {text}");
    }
    let bench = run(&["bench", &model, "-t", "1", "-p", "1", "-n", "1", "-r", "1", "--lora", &adapter]);
    assert!(bench.status.success(), "{}", String::from_utf8_lossy(&bench.stderr));
}

/// A random model of two layers, and an adapter of its attention and its output.
fn write_model_with_adapter(model: &str, adapter: &str, ty: TensorType) {
    let kind = RandomWeightTypes::from(TensorType::F32);
    ModelRecipe { layers: Some(2), ..ModelRecipe::new("tiny-v3", kind) }.write_gguf(model.as_ref()).unwrap();
    let base = Checkpoint::open(model.as_ref()).unwrap();
    let wanted = |name: &str| name.contains("attn_") && !name.contains("norm") || name == "output.weight";
    let pairs = random_pairs(&base, 5, None, |name| name.ends_with(".weight") && wanted(name)).unwrap();
    write_gguf_adapter(adapter.as_ref(), "deepseek2", 8.0, ty, &pairs).unwrap();
}

/// The output of a command that must succeed.
fn run(words: &[&str]) -> Vec<u8> {
    let out = latent(words).output().unwrap();
    assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

fn numbers(bytes: &[u8]) -> Vec<f64> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let words = text.split(|c: char| !(c.is_ascii_digit() || "+-.e".contains(c)));
    words.filter_map(|word| word.parse().ok()).collect()
}

fn near(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-3 * (1.0 + a.abs()))
}

#[test]
fn adapters_are_converted_between_gguf_and_peft() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (model, adapter, peft, back) = (path("model.gguf"), path("a.gguf"), path("peft"), path("back.gguf"));
    write_model_with_adapter(&model, &adapter, TensorType::F16);
    run(&["convert", &adapter, "--base-model", &model, "-o", &peft]);
    run(&["convert", &peft, "--base-model", &model, "-o", &back]);
    let logits = |lora: &str| {
        run(&["logits", &model, "-t", "1", "--tokens", "1,2,3,4", "--precision", "exact", "--lora", lora])
    };
    let own = logits(&adapter);
    assert!(logits(&peft) == own && logits(&back) == own);
    // Scales that one alpha cannot express go into B.
    let config = std::path::Path::new(&peft).join("adapter_config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    assert!(text.contains("q_a_proj") && text.contains("rank_pattern"), "{text}");
    std::fs::write(&config, text.replace("\"use_rslora\": false", "\"use_rslora\": true")).unwrap();
    run(&["convert", &peft, "--base-model", &model, "-o", &back, "--force"]);
    assert!(logits(&peft) != own);
    let (a, b) = (logits(&peft), logits(&back));
    let (a, b) = (numbers(&a), numbers(&b));
    assert!(near(&a, &b) && a.len() > 4, "{a:?} {b:?}");
    let refused = latent(&["convert", &adapter, "--base-model", &model, "-o", &peft]).output().unwrap();
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("exists"));
}

/// A model with an adapter merged into F32 weights gives the same answers as model and adapter.
#[test]
fn merged_adapters_give_the_logits_of_unmerged_ones() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (model, adapter, peft, merged) =
        (path("model.gguf"), path("a.gguf"), path("peft"), path("merged.gguf"));
    write_model_with_adapter(&model, &adapter, TensorType::F32);
    run(&["convert", &adapter, "--base-model", &model, "-o", &peft]);
    let logits = |model: &str, more: &[&str]| -> Vec<f64> {
        let words = ["logits", model, "-t", "1", "--tokens", "1,2,3,4", "--precision", "exact"];
        numbers(&run(&[&words[..], more].concat()))
    };
    let unmerged = logits(&model, &["--lora", &format!("{adapter}:0.5")]);
    assert!(unmerged.len() > 4 && !near(&unmerged, &logits(&model, &[])), "the adapter has no effect");
    for lora in [&adapter, &peft] {
        let scaled = format!("{lora}:0.5");
        run(&["quantize", "-m", &model, "F32", "--merge-lora", &scaled, "-o", &merged, "--force"]);
        assert!(near(&logits(&merged, &[]), &unmerged), "{lora}");
    }
    let words = ["quantize", "-m", &merged, "F32", "--merge-lora", &merged, "-o", &path("x.gguf")];
    let refused = latent(&words).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("not a LoRA adapter"), "{said}");
}
