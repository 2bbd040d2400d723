//! `latent verify` as a user meets it: each exit code and message.

use crate::support;
use latent_formats::Checkpoint;
use latent_formats::safetensors::Writer;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn latent(args: &[&str]) -> (i32, String, String) {
    let output = support::latent(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn json(args: &[&str]) -> (i32, Value) {
    let (code, stdout, stderr) = latent(args);
    (code, serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}")))
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/fixtures")
}

/// The fixture v3 as a folder of its own, with one more tensor.
fn with_tensor(name: &str) -> tempfile::TempDir {
    let source = fixtures().join("v3");
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(source.join("config.json"), folder.path().join("config.json")).unwrap();
    let checkpoint = Checkpoint::open(&source).unwrap();
    let mut writer = Writer::new();
    for tensor in checkpoint.tensors() {
        writer.tensor(tensor.name.clone(), tensor.ty, &tensor.shape).unwrap();
    }
    writer.tensor(name, latent_types::TensorType::F32, &[1]).unwrap();
    let mut file = std::fs::File::create(folder.path().join("model.safetensors")).unwrap();
    writer
        .write(&mut file, |i, out| match checkpoint.tensors().get(i) {
            Some(info) => out.write_all(checkpoint.tensor(&info.name).unwrap().data),
            None => out.write_all(&[0; 4]),
        })
        .unwrap();
    folder
}

#[test]
fn every_fixture_is_clean() {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(fixtures()).unwrap().flatten().filter(|e| e.path().is_dir()) {
        paths.push(entry.path());
        let gguf = entry.path().join("model.f32.gguf");
        paths.extend(Some(gguf).filter(|path| path.exists()));
    }
    assert!(paths.len() > 9);
    for path in paths {
        let (code, report) = json(&["verify", "-m", &path.display().to_string(), "--json"]);
        assert_eq!(code, 0, "{}: {}", path.display(), report["findings"]);
        assert_eq!((&report["findings"], &report["plans"]), (&serde_json::json!([]), &60.into()));
        assert!(report["edges"].as_u64() > report["nodes"].as_u64());
    }
}

#[test]
fn the_demo_model_is_clean_and_its_edges_are_named() {
    let (code, text, _) = latent(&["verify"]);
    assert_eq!(code, 0);
    assert!(text.contains("findings       0") && text.contains("circuit deepseek2"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let (_, edges, _) = latent(&["verify", "--edges"]);
    assert!(edges.contains("[k_rope]") && edges.contains("latent_store") && edges.contains("[residual]"));
    let (_, edges) = json(&["verify", "--edges", "--json"]);
    assert!(edges[0]["slot"] == "tokens" && edges[0]["producer"].is_null());
}

#[test]
fn a_tensor_that_nothing_reads_is_a_finding_and_refuses_the_model() {
    let folder = with_tensor("model.layers.1.self_attn.sinks");
    let path = folder.path().display().to_string();
    let (code, text, error) = latent(&["verify", "-m", &path]);
    assert_eq!(code, 1, "{text}{error}");
    assert!(text.contains("A30") && text.contains("self_attn.sinks") && text.contains("unused"), "{text}");
    assert!(error.contains("1 finding"), "{error}");
    let (_, report) = json(&["verify", &path, "--json"]);
    assert_eq!(report["findings"][0]["code"], "A30");
    let (code, text, _) = latent(&["check", "-m", &path]);
    assert_eq!(code, 2);
    assert!(text.contains("unread tensor") && text.contains("{layer}.self_attn.sinks"), "{text}");
    let (code, _, error) = latent(&["logits", "-m", &path, "--tokens", "1"]);
    assert_eq!(code, 1);
    assert!(error.contains("A30") && error.contains("self_attn.sinks"), "{error}");
    // a declared one is not a finding
    let folder = with_tensor("vision_tower.patch_embed.weight");
    let (code, report) = json(&["verify", "-m", &folder.path().display().to_string(), "--json"]);
    assert_eq!((code, &report["unused"][0]["tensor"]), (0, &"vision_tower.patch_embed.weight".into()));
}

#[test]
fn models_that_cannot_be_audited() {
    let (code, _, error) = latent(&["verify", "-m", "/no/such/model.gguf"]);
    assert_eq!(code, 1);
    assert!(error.contains("/no/such/model.gguf"), "{error}");
    let (code, _, error) = latent(&["verify", "--rules", "--weights"]);
    assert_eq!(code, 64, "{error}");
}

#[test]
fn rules_are_listed_with_what_holds_and_what_to_look_at() {
    let (code, rules) = json(&["verify", "--rules", "--json"]);
    assert_eq!(code, 0);
    let (_, printed, _) = latent(&["verify", "--rules"]);
    for rule in rules.as_array().unwrap() {
        for key in ["code", "holds", "hint"] {
            assert!(!rule[key].as_str().unwrap().is_empty(), "{rule}");
        }
        assert!(printed.contains(rule["code"].as_str().unwrap()), "{rule}");
    }
}

/// The fixture v3 with the bytes of one tensor changed.
fn with_numbers(tensor: &str, change: impl Fn(&mut [f32])) -> tempfile::TempDir {
    let source = fixtures().join("v3");
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(source.join("config.json"), folder.path().join("config.json")).unwrap();
    let checkpoint = Checkpoint::open(&source).unwrap();
    let mut writer = Writer::new();
    for info in checkpoint.tensors() {
        writer.tensor(info.name.clone(), latent_types::TensorType::F32, &info.shape).unwrap();
    }
    let mut file = std::fs::File::create(folder.path().join("model.safetensors")).unwrap();
    let numbers = |info: &latent_formats::TensorInfo| {
        let mut numbers = vec![0.0; info.shape.iter().product()];
        latent_quant::decode(info.ty, checkpoint.tensor(&info.name).unwrap().data, &mut numbers).unwrap();
        if info.name == tensor {
            change(&mut numbers);
        }
        numbers
    };
    let write = |i: usize, out: &mut dyn std::io::Write| {
        let bytes: Vec<u8> = numbers(&checkpoint.tensors()[i]).iter().flat_map(|x| x.to_le_bytes()).collect();
        out.write_all(&bytes)
    };
    writer.write(&mut file, write).unwrap();
    folder
}

#[test]
fn verify_weights_finds_wrong_values() {
    let name = "model.layers.1.self_attn.o_proj.weight";
    let deep = |folder: &tempfile::TempDir| {
        json(&["verify", &folder.path().display().to_string(), "--weights", "--json"])
    };
    let of = |report: &Value| -> Value {
        report["tensors"].as_array().unwrap().iter().find(|t| t["name"] == name).unwrap().clone()
    };
    let cols = 80;
    let (code, report) = deep(&with_numbers(name, |_| {}));
    let clean = of(&report);
    assert_eq!((code, &clean["wrong"], &clean["odd"]), (0, &serde_json::json!([]), &serde_json::json!([])));
    for key in ["min", "max", "mean", "rms", "zero_share", "absmax", "absmax_row"] {
        assert!(clean[key].is_number(), "{key}");
    }
    let (code, report) = deep(&with_numbers(name, |x| x[3 * cols + 7] = f32::NAN));
    assert_eq!((code, &of(&report)["nan"]), (1, &1.into()));
    assert!(of(&report)["wrong"][0].as_str().unwrap().contains("row 3, column 7"));
    let (code, report) = deep(&with_numbers(name, |x| x[0] = f32::INFINITY));
    assert_eq!((code, &of(&report)["infinite"]), (1, &1.into()));
    let (code, report) = deep(&with_numbers(name, |x| x[cols..2 * cols].fill(0.0)));
    assert_eq!((code, &of(&report)["zero_rows"]), (0, &1.into()));
    let (code, report) = deep(&with_numbers(name, |x| x[5 * cols] *= 1e6));
    assert_eq!((code, &of(&report)["wild_scales"], &of(&report)["absmax_row"]), (0, &1.into(), &5.into()));
    let folder = with_numbers(name, |x| x[0] = f32::NAN);
    let (code, text, error) = latent(&["verify", &folder.path().display().to_string(), "--weights"]);
    assert_eq!(code, 1);
    assert!(
        text.contains("1 NaN (the first in row 0, column 0)") && error.contains("1 tensor"),
        "{text}{error}"
    );
}

#[test]
fn deep_fits_80_columns_and_counts_alike_with_any_number_of_threads() {
    let (code, text, _) = latent(&["verify", "--weights"]);
    assert_eq!(code, 0, "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(text.contains("L0.attn_kv_a_mqa") && text.contains("weights/s"));
    let tensors =
        |threads: &str| json(&["verify", "--weights", "--json", "-t", threads]).1["tensors"].clone();
    let (one, three) = (tensors("1"), tensors("3"));
    for (a, b) in one.as_array().unwrap().iter().zip(three.as_array().unwrap()) {
        for key in ["min", "max", "absmax", "absmax_row", "zero_share", "nan", "wild_scales"] {
            assert_eq!(a[key], b[key], "{key} of {}", a["name"]);
        }
    }
}

#[test]
fn deep_needs_weights() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("header.gguf").display().to_string();
    assert_eq!(latent(&["make-model", "tiny-v3", "Q4_K_M", &path, "--header-only"]).0, 0);
    let (code, _, error) = latent(&["verify", "--weights", "-m", &path]);
    assert_eq!(code, 1);
    assert!(error.contains("missing or incomplete"), "{error}");
}

#[test]
fn four_bit_weights_are_listed_checked_and_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (packed, plain) = (folder.path().join("gptq"), folder.path().join("plain"));
    let recipe = latent_testing::ModelRecipe {
        layers: Some(1),
        ..latent_testing::ModelRecipe::new("tiny-dense", latent_types::TensorType::BF16.into())
    };
    let form = latent_testing::FourBitRecipe::new(latent_testing::FourBitLayout::Gptq, true);
    recipe.write_four_bit(&form, &packed, &plain).unwrap();
    let path = packed.display().to_string();
    let (code, text, error) = latent(&["verify", "-m", &path, "--weights"]);
    assert_eq!(code, 0, "{text}{error}");
    let (code, list, _) = latent(&["inspect", "-m", &path, "--tensors"]);
    let line = list.lines().find(|line| line.contains("layers.0.self_attn.kv_b_proj.weight")).unwrap();
    assert!(code == 0 && line.contains("Q4_0") && line.contains("put together from 4-bit tensors"), "{line}");
    // zero points of 1 to 4, in a file that says they are all 8
    let weights = packed.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let eights = bytes.windows(4).rposition(|word| word == [0x77; 4]).unwrap();
    bytes[eights..eights + 2].copy_from_slice(&[0x10, 0x32]);
    std::fs::write(&weights, bytes).unwrap();
    let (code, _, error) = latent(&["verify", "-m", &path, "--weights"]);
    assert!(
        code != 0
            && error.contains(".qzeros: the zero point of output")
            && error.contains("is 1, expected 8"),
        "{error}"
    );
}
