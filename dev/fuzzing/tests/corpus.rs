//! Runs every seed of `fuzz/corpus` through its target. The seeds are inputs that fuzzing runs have
//! found, and inputs of the generators that reach the most code.
#![allow(missing_docs, reason = "tests")]

use latent_fuzz_targets::TARGETS;
#[cfg(feature = "engine")]
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort_unstable();
    files
}

/// Runs the seeds of these targets. Several tests share the targets, so that they run in parallel.
fn replay(names: &[&str]) {
    for name in names {
        let (_, run) = TARGETS.iter().find(|(target, _)| target == name).unwrap();
        for seed in files(&corpus().join(name)) {
            let bytes = fs::read(&seed).unwrap();
            let outcome = std::panic::catch_unwind(|| run(&bytes));
            assert!(outcome.is_ok(), "the seed {} breaks a promise: see above", seed.display());
        }
    }
}

#[test]
fn templates() {
    replay(&["template"]);
}

#[test]
fn requests() {
    replay(&["request"]);
}

#[test]
fn responses() {
    replay(&["response"]);
}

#[test]
fn grammars_and_schemas() {
    replay(&["grammar", "json_schema"]);
}

#[test]
fn tokenizers() {
    replay(&["tokenizer", "tokenizer_json", "tiktoken", "sentence_piece", "special_split", "encode"]);
}

#[test]
fn files_of_models() {
    replay(&["config", "gguf", "packed", "safetensors", "shards"]);
}

#[test]
#[cfg(feature = "engine")]
fn circuits() {
    replay(&["circuit"]);
}

#[test]
#[cfg(feature = "engine")]
fn sessions_dumps_evaluations_and_stop_strings() {
    replay(&["session", "dump", "evaluation", "stop_strings"]);
}

#[test]
#[cfg(feature = "engine")]
fn files_of_the_prefix_cache() {
    replay(&["prefix_file"]);
}

#[test]
#[cfg(feature = "engine")]
fn plans_against_exact_arithmetic() {
    replay(&["plan_step"]);
}

#[test]
#[cfg(feature = "engine")]
fn every_target_has_seeds_and_every_folder_a_target() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    let folders: BTreeSet<String> = files(&corpus()).iter().map(name).collect();
    assert_eq!(folders, targets);
    // Maximum bytes of one seed and of all seeds (`fuzz/README.md`).
    let (largest, most) = (2048, 300 << 10);
    let mut together = 0;
    for folder in files(&corpus()) {
        let seeds = files(&folder);
        assert!(seeds.len() >= 8, "{}: {} seeds", folder.display(), seeds.len());
        for seed in seeds {
            let bytes = fs::metadata(&seed).unwrap().len();
            assert!(bytes <= largest, "{}: {bytes} bytes", seed.display());
            together += bytes;
        }
    }
    assert!(together <= most, "{together} bytes");
}
