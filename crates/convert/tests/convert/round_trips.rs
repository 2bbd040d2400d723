//! Converts every fixture to GGUF and back: numbers and bits of logits stay the same.

use crate::support;
use crate::support::{GGUF_CASES, all_logits, case_folder, engine, error, greedy, numbers, tokens};
use latent_convert::{FolderOptions, GgufOptions, to_folder, to_gguf};
use latent_engine::EngineOptions;
use latent_formats::Checkpoint;
use latent_graph::ModelConfig;
use latent_graph::passes::Precision;
use latent_types::TensorType;
use serde_json::{Value, json};
use std::path::Path;

#[test]
fn every_fixture_keeps_its_numbers_and_logits_in_a_round_trip() {
    for case in GGUF_CASES {
        let temporary = tempfile::tempdir().unwrap();
        let (file, folder) = (temporary.path().join("model.gguf"), temporary.path().join("back"));
        let own = Checkpoint::open(&case_folder(case)).unwrap();
        to_gguf(&own, &file, &GgufOptions::default(), &mut |_, _| true).unwrap();
        let gguf = Checkpoint::open(&file).unwrap();
        to_folder(&gguf, &folder, &FolderOptions::default(), &mut |_, _| true).unwrap();
        let back = Checkpoint::open(&folder).unwrap();
        assert_eq!(own.tensors().len(), back.tensors().len(), "{case}");
        for tensor in own.tensors() {
            let (one, other) = (own.tensor(&tensor.name).unwrap(), back.tensor(&tensor.name).unwrap());
            assert_eq!(one.info.shape, other.info.shape, "{case} {}", tensor.name);
            if one.info.ty == TensorType::BF16 {
                assert_eq!((one.info.ty, one.data), (other.info.ty, other.data), "{case} {}", tensor.name);
            }
            assert_eq!(numbers(&own, &tensor.name), numbers(&back, &tensor.name), "{case} {}", tensor.name);
        }
        // Both configs must be equal except for the names.
        let config = |checkpoint| {
            let config = ModelConfig::from_checkpoint(checkpoint).unwrap();
            ModelConfig { architecture: String::new(), name: None, ..config }
        };
        let (mut a, mut b) = (config(&own), config(&back));
        let own_config = a.clone();
        let sparse = |prompt: &[u32]| own_config.index_topk.is_some_and(|topk| prompt.len() > topk);
        for config in [&mut a, &mut b] {
            // A router without groups does not use the group score.
            if let Some(moe) = config.moe.as_mut().filter(|moe| moe.router.groups == 1) {
                moe.router.group_score = latent_graph::config::GroupScore::Max;
            }
        }
        assert_eq!(a, b, "{case}");
        let prompt = tokens(case, "tokens");
        for precision in [Precision::Exact, Precision::Default] {
            let options =
                EngineOptions { precision, threads: Some(2), context: Some(256), ..EngineOptions::default() };
            let logits = |path: &Path| all_logits(&mut engine(path, &options), &prompt);
            let (of_own, of_back) = (logits(&case_folder(case)), logits(&folder));
            assert!(of_own == of_back, "{case} {precision:?}: other bits");
            // A rounding may make the indexer select another token.
            if own_config.attention.indexer.is_some() && precision == Precision::Default && sparse(&prompt) {
                continue;
            }
            let of_gguf = logits(&file);
            let worst = of_own.iter().zip(&of_gguf).map(|(a, b)| error(b, a)).fold(0.0, f64::max);
            // W_UK is stored transposed, so its sums have another order.
            let bound = if precision == Precision::Exact { 1e-10 } else { 1e-3 };
            assert!(worst <= bound, "{case} {precision:?}: {worst:e}");
        }
    }
}

#[test]
fn greedy_tokens_of_the_new_files_are_those_of_transformers() {
    for case in GGUF_CASES.into_iter().filter(|case| *case != "v3-mtp") {
        let temporary = tempfile::tempdir().unwrap();
        let file = temporary.path().join("model.gguf");
        let own = Checkpoint::open(&case_folder(case)).unwrap();
        to_gguf(&own, &file, &GgufOptions::default(), &mut |_, _| true).unwrap();
        let options = EngineOptions {
            precision: Precision::Exact,
            threads: Some(2),
            context: Some(256),
            ..EngineOptions::default()
        };
        let (expected, margin) = (tokens(case, "greedy"), support::margin(case));
        let sure = margin.iter().position(|margin| *margin <= 1e-3).unwrap_or(expected.len());
        let found = greedy(&mut engine(&file, &options), &tokens(case, "tokens"), sure);
        assert_eq!(found, expected[..sure], "{case}");
    }
}

/// Compares with files that llama.cpp's converter wrote from the same folders.
#[test]
fn names_shapes_and_bytes_are_those_of_llama_cpps_converter() {
    for case in ["v3", "v3-yarn", "youtu"] {
        let temporary = tempfile::tempdir().unwrap();
        let file = temporary.path().join("model.gguf");
        let own = Checkpoint::open(&case_folder(case)).unwrap();
        let types = support::types("F32");
        let options = GgufOptions { types: Some(&types), ..GgufOptions::default() };
        to_gguf(&own, &file, &options, &mut |_, _| true).unwrap();
        let (ours, theirs) = (
            Checkpoint::open(&file).unwrap(),
            Checkpoint::open(&case_folder(case).join("model.f32.gguf")).unwrap(),
        );
        assert_eq!(ours.tensors().len(), theirs.tensors().len(), "{case}");
        for tensor in theirs.tensors() {
            let (one, other) = (ours.tensor(&tensor.name).unwrap(), theirs.tensor(&tensor.name).unwrap());
            assert_eq!(
                (one.info.ty, &one.info.shape),
                (other.info.ty, &other.info.shape),
                "{case} {}",
                tensor.name
            );
            assert!(one.data == other.data, "{case} {}", tensor.name);
        }
        let (ours, theirs) = (support::metadata(&ours), support::metadata(&theirs));
        for (key, value) in theirs.entries() {
            // The folders have no tokenizer; the one in the files was made up.
            if key.starts_with("tokenizer.") {
                continue;
            }
            assert_eq!(ours.get(key), Some(value), "{case} {key}");
        }
        for (key, _) in ours.entries() {
            let known = theirs.get(key).is_some() || key == "tokenizer.ggml.model";
            assert!(known, "{case} {key}");
        }
    }
}

/// Configs of which another file in the folder overrides a part. The expected results are
/// Transformers'.
#[test]
fn overrides_of_a_config_survive_a_round_trip() {
    let tie = json!({"tie_word_embeddings": true});
    let yarn = json!({
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128, "beta_fast": 32,
            "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}
    });
    for (case, changes, notes) in [("v3", tie, 1), ("v3-yarn", yarn, 0)] {
        let temporary = tempfile::tempdir().unwrap();
        let [own, file, back] = ["own", "model.gguf", "back"].map(|name| temporary.path().join(name));
        std::fs::create_dir(&own).unwrap();
        std::fs::copy(case_folder(case).join("model.safetensors"), own.join("model.safetensors")).unwrap();
        let text = std::fs::read_to_string(case_folder(case).join("config.json")).unwrap();
        let mut config: serde_json::Map<String, Value> = serde_json::from_str(&text).unwrap();
        config.extend(changes.as_object().unwrap().clone());
        std::fs::write(own.join("config.json"), Value::Object(config).to_string()).unwrap();

        let own = Checkpoint::open(&own).unwrap();
        let report = to_gguf(&own, &file, &GgufOptions::default(), &mut |_, _| true).unwrap();
        let overridden = report.notes.iter().filter(|note| note.contains("tie_word_embeddings is true"));
        assert_eq!(overridden.count(), notes, "{case}: {:?}", report.notes);
        let gguf = Checkpoint::open(&file).unwrap();
        assert_eq!(numbers(&gguf, "output.weight"), numbers(&own, "lm_head.weight"), "{case}");
        to_folder(&gguf, &back, &FolderOptions::default(), &mut |_, _| true).unwrap();
        let options = EngineOptions {
            precision: Precision::Exact,
            threads: Some(2),
            context: Some(256),
            ..EngineOptions::default()
        };
        let prompt = tokens(case, "tokens");
        let truth = all_logits(&mut engine(&case_folder(case), &options), &prompt);
        for path in [&file, &back] {
            let found = all_logits(&mut engine(path, &options), &prompt);
            let worst = truth.iter().zip(&found).map(|(a, b)| error(b, a)).fold(0.0, f64::max);
            assert!(worst <= 1e-10, "{case} {}: {worst:e}", path.display());
        }
    }
}
