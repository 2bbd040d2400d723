//! `latent check`: supported, incomplete and damaged models.

use crate::support;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn latent(args: &[&str]) -> (i32, String, String) {
    let output = support::latent(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn support(path: &Path) -> (i32, Value) {
    let (code, stdout, stderr) = latent(&["check", &path.display().to_string(), "--json"]);
    (code, serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}")))
}

/// The missing parts as `kind what` lines.
fn missing(support: &Value) -> Vec<String> {
    let line = |m: &Value| format!("{} {}", m["kind"].as_str().unwrap(), m["what"].as_str().unwrap());
    support["missing"].as_array().unwrap().iter().map(line).collect()
}

/// Facts about DeepSeek-V3's config.json.
fn deepseek_v3() -> Value {
    json!({
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "attention_bias": false,
        "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432,
        "kv_lora_rank": 512, "max_position_embeddings": 163840, "moe_intermediate_size": 2048,
        "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
        "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
        "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "quantization_config": {"quant_method": "fp8"}, "rms_norm_eps": 1e-6, "rope_theta": 10000,
        "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false,
        "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280,
        "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096, "type": "yarn"}
    })
}

struct ConfigFolder(#[allow(dead_code, reason = "keeps the folder")] tempfile::TempDir, PathBuf);

fn config(value: &Value) -> ConfigFolder {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, value.to_string()).unwrap();
    ConfigFolder(folder, path)
}

fn changed(change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> ConfigFolder {
    let mut value = deepseek_v3();
    change(value.as_object_mut().unwrap());
    config(&value)
}

#[test]
fn a_config_alone_is_enough() {
    let ConfigFolder(folder, path) = config(&deepseek_v3());
    for path in [path.as_path(), folder.path()] {
        let (code, support) = support(path);
        assert_eq!((code, &support["supported"], &support["data"]), (0, &true.into(), &"config".into()));
        assert_eq!(support["contract"]["attention"]["kv_lora_rank"], 512);
        assert_eq!(support["contract"]["layer_kinds"].as_array().unwrap().len(), 61);
        let linear = support["operations"]
            .as_array()
            .unwrap()
            .iter()
            .find(|o| o["format"] == "F8_E4M3" && o["operation"] == "linear");
        let linear = linear.unwrap();
        assert!(linear["binds"]["kernel"].is_string() && !linear["available"].as_array().unwrap().is_empty());
        assert!(linear["slots"].as_array().unwrap().contains(&"kv_a".into()), "{linear}");
        assert!(support["assumed"][0].as_str().unwrap().contains("F8_E4M3"));
    }
    let (code, text, _) = latent(&["check", "-m", &path.display().to_string()]);
    assert_eq!(code, 0);
    for word in [
        "supported      yes",
        "61 (0–2: mla × dense, 3–60: mla × moe)",
        "kv_lora 512",
        "YaRN by 40",
        "attend_latent",
        "4 of 8 groups",
    ] {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
    // The audit needs nothing else.
    let (code, text, error) = latent(&["verify", &path.display().to_string()]);
    assert_eq!(code, 0, "{text}{error}");
    assert!(text.contains("findings       0"));
}

#[test]
fn a_config_alone_gives_the_same_report_as_its_folder() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/fixtures");
    let mut folders = 0;
    for entry in std::fs::read_dir(fixtures).unwrap() {
        let folder = entry.unwrap().path();
        let config = folder.join("config.json");
        if !config.exists() {
            continue;
        }
        let ((code, alone), (_, whole)) = (support(&config), support(&folder));
        assert_eq!(code, 0, "{}: {:?}", folder.display(), missing(&alone));
        for key in ["architecture", "circuit", "layers"] {
            assert_eq!(alone[key], whole[key], "{}: {key}", folder.display());
        }
        // Only files tell which tensors are joined, and whether routers have a bias.
        for key in ["attention", "rope"] {
            assert_eq!(alone["config"][key], whole["config"][key], "{}: {key}", folder.display());
        }
        for key in ["gating", "groups", "groups_used", "normalise", "scale"] {
            let of = |support: &Value| support["config"]["moe"]["router"][key].clone();
            assert_eq!(of(&alone), of(&whole), "{}: {key}", folder.display());
        }
        folders += 1;
    }
    assert!(folders > 20, "{folders} folders");
}

#[test]
fn a_config_of_four_bit_weights_names_the_blocks_that_they_run_as() {
    let gptq = json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true, "desc_act": false});
    let awq = json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"});
    for (settings, ty) in [(gptq, "Q4_0"), (awq, "Q5_0")] {
        let ConfigFolder(_folder, path) = changed(|c| c["quantization_config"] = settings);
        let (code, support) = support(&path);
        assert_eq!((code, &support["supported"]), (0, &true.into()), "{support}");
        assert!(support["assumed"][0].as_str().unwrap().contains(ty), "{support}");
    }
}

#[test]
fn all_missing_parts_are_named() {
    let broken = changed(|c| {
        c.remove("kv_lora_rank");
        c["scoring_func"] = "softplus".into();
        c["hidden_act"] = "gelu".into();
        c["quantization_config"] = json!({"quant_method": "bitsandbytes"});
    });
    let (code, support) = support(&broken.1);
    assert_eq!((code, &support["supported"]), (2, &false.into()));
    assert_eq!(
        missing(&support),
        ["key kv_lora_rank", "key scoring_func", "key hidden_act", "format quantization_config.quant_method"]
    );
    assert!(support["contract"].is_null(), "nothing guessed is shown as the model's");
    let (code, text, error) = latent(&["check", "-m", &broken.1.display().to_string()]);
    assert_eq!(code, 2);
    assert!(text.contains("not yet: 4 missing") && text.contains("bitsandbytes"), "{text}");
    assert!(error.contains("4 things are missing"), "{error}");
}

#[test]
fn an_unknown_architecture_is_compared_with_the_known_ones() {
    let sparse = changed(|c| {
        c["model_type"] = "deepseek_v9".into();
        c["architectures"] = json!(["DeepseekV9ForCausalLM"]);
        c.insert("index_blocks".into(), 2048.into());
    });
    let (code, found) = support(&sparse.1);
    assert_eq!(code, 2);
    assert_eq!(missing(&found), ["architecture deepseek_v9"]);
    assert_eq!(
        (&found["closest"][0]["name"], &found["closest"][0]["circuit"]),
        (&"deepseek_v3".into(), &"deepseek2".into())
    );
    assert_eq!(found["unread"], json!(["index_blocks = 2048"]));
    let llama = config(&json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 8192, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "vocab_size": 128256,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0}
    }));
    let (code, found) = support(&llama.1);
    assert_eq!(code, 2);
    let missing = missing(&found);
    for what in [
        "architecture llama",
        "key kv_lora_rank",
        "key qk_nope_head_dim",
        "key v_head_dim",
        "key rope_scaling.rope_type",
    ] {
        assert!(missing.iter().any(|m| m == what), "no {what} in {missing:?}");
    }
    let (code, text, _) = latent(&["check", &llama.1.display().to_string()]);
    assert_eq!(code, 2);
    assert!(text.contains("closest known") && text.contains("lacks keys   kv_lora_rank"), "{text}");
}

#[test]
fn an_unknown_architecture_gets_a_draft_of_its_circuit() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (known, unknown, draft) = (path("known.gguf"), path("unknown.gguf"), path("draft.json"));
    assert_eq!(latent(&["make-model", "tiny-v3", "F32", &known]).0, 0);
    // The same model under another name, with a renamed tensor.
    let bytes = std::fs::read(&known).unwrap();
    let renamed = [("deepseek2", "deepseek9"), ("blk.1.attn_q_b.weight", "blk.1.attn_q_z.weight")];
    let renamed = renamed.into_iter().fold(bytes, |mut bytes, (from, to)| {
        let starts: Vec<usize> =
            (0..bytes.len() - from.len()).filter(|at| bytes[*at..].starts_with(from.as_bytes())).collect();
        starts.into_iter().for_each(|at| bytes[at..at + to.len()].copy_from_slice(to.as_bytes()));
        bytes
    });
    std::fs::write(&unknown, renamed).unwrap();
    let (code, text, error) = latent(&["check", &unknown, "--draft-circuit", &draft]);
    assert_eq!(code, 2, "{error}");
    assert!(text.contains("closest known") && error.contains("open notes"), "{text} {error}");
    let written = std::fs::read_to_string(&draft).unwrap();
    let circuit = latent_graph::Circuit::parse(&written).unwrap();
    assert_eq!(
        (circuit.name.as_str(), &circuit.gguf_architectures[..]),
        ("deepseek9", &["deepseek9".to_owned()][..])
    );
    let notes: Value = serde_json::from_str(&written).unwrap();
    let notes = notes["draft"].as_array().unwrap().clone();
    let of = |state: &str, word: &str| {
        let fits = |note: &&Value| note["state"] == state && note["why"].as_str().unwrap().contains(word);
        notes.iter().filter(fits).count()
    };
    assert!(of("certain", "attn_q_a.weight") == 1 && of("certain", "shape") > 10, "{written}");
    assert!(of("open", "attn_q_z.weight") == 1, "{written}");
    assert!(of("open", "published code") == 1, "{written}");
    // A config alone tells nothing about tensors.
    let config = changed(|c| {
        c["model_type"] = "deepseek_v9".into();
        c.insert("index_blocks".into(), 2048.into());
    });
    let other = path("other.json");
    let (code, ..) = latent(&["check", &config.1.display().to_string(), "--draft-circuit", &other]);
    assert_eq!(code, 2);
    let written = std::fs::read_to_string(&other).unwrap();
    assert!(written.contains("index_blocks") && written.contains("lists no tensors"), "{written}");
    let (code, _, error) = latent(&["check", &known, "--draft-circuit", &path("no.json")]);
    assert!(code == 64 && error.contains("the architecture is known"), "{code} {error}");
}

#[test]
fn a_gguf_header_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole.gguf");
    let (code, ..) = latent(&["make-model", "tiny-v3", "Q4_K_M", &whole.display().to_string()]);
    assert_eq!(code, 0);
    let header = folder.path().join("header.gguf");
    let (code, ..) =
        latent(&["make-model", "tiny-v3", "Q4_K_M", &header.display().to_string(), "--header-only"]);
    assert_eq!(code, 0);
    let bytes = std::fs::read(&whole).unwrap();
    let head = std::fs::read(&header).unwrap();
    assert!(head.len() < bytes.len() && bytes.starts_with(&head), "the header of the same file");
    let (code, of_header) = support(&header);
    assert_eq!((code, &of_header["data"], &of_header["supported"]), (0, &"header".into(), &true.into()));
    let (_, of_whole) = support(&whole);
    assert_eq!(of_header["operations"], of_whole["operations"]);
    assert_eq!(of_header["contract"], of_whole["contract"]);
    let (code, text, error) = latent(&["verify", &header.display().to_string()]);
    assert_eq!(code, 0, "{text}{error}");
    // A file cut inside the header is damaged, not unsupported.
    std::fs::write(&header, &head[..head.len() / 2]).unwrap();
    let (code, _, error) = latent(&["check", &header.display().to_string()]);
    assert_eq!(code, 1);
    assert!(error.contains("truncated"), "{error}");
}

/// Every known shape, by its header.
#[test]
fn every_shape_is_supported_and_clean() {
    let folder = tempfile::tempdir().unwrap();
    let (_, shapes, _) = latent(&["make-model", "--list"]);
    for shape in shapes.lines() {
        let path = folder.path().join(format!("{shape}.gguf"));
        let name = path.display().to_string();
        assert_eq!(latent(&["make-model", shape, "Q4_K_M", &name, "--header-only"]).0, 0, "{shape}");
        assert_eq!(support(&path).0, 0, "{shape}");
        // Plans of 60 layers take seconds, so only one of the large shapes is tested.
        if !(latent_testing::exhaustive() || shape.starts_with("tiny") || shape == "deepseek-v2-lite") {
            continue;
        }
        let (code, text, error) = latent(&["verify", "-m", &name]);
        assert_eq!(code, 0, "{shape}: {text}{error}");
    }
}

#[test]
fn missing_tensors_are_listed_for_all_layers_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    let name = path.display().to_string();
    assert_eq!(latent(&["make-model", "tiny-v3", "F32", &name]).0, 0);
    let checkpoint = latent_formats::Checkpoint::open(&path).unwrap();
    let mut writer = latent_formats::safetensors::Writer::new();
    let kept: Vec<_> = checkpoint.tensors().iter().filter(|t| !t.name.contains("o_proj")).collect();
    for tensor in &kept {
        writer.tensor(tensor.name.clone(), tensor.ty, &tensor.shape).unwrap();
    }
    let mut bytes = Vec::new();
    writer.write(&mut bytes, |i, out| out.write_all(checkpoint.tensor(&kept[i].name).unwrap().data)).unwrap();
    drop(checkpoint);
    std::fs::write(path.join("model.safetensors"), bytes).unwrap();
    let (code, found) = support(&path);
    assert_eq!(code, 2);
    assert_eq!(missing(&found), ["tensor model.layers.{layer}.self_attn.o_proj.weight"]);
    assert!(found["missing"][0]["problem"].as_str().unwrap().contains("3 layers"), "{found}");
}

#[test]
fn broken_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, "{\"model_type\": ").unwrap();
    for given in [path.as_path(), folder.path()] {
        let (code, _, error) = latent(&["check", &given.display().to_string()]);
        assert_eq!(code, 1);
        assert!(error.contains("config.json") && error.contains("JSON"), "{error}");
    }
    std::fs::write(&path, "[1, 2]").unwrap();
    let (code, _, error) = latent(&["check", &path.display().to_string()]);
    assert_eq!(code, 1, "{error}");
    let (code, _, error) = latent(&["check", "/no/such/config.json"]);
    assert_eq!(code, 1, "{error}");
    let (code, ..) = latent(&["check", "--tensors"]);
    assert_eq!(code, 64);
}

/// The demo model's circuit, with a nonexistent tensor in place of a norm.
fn with_slot(folder: &Path) -> String {
    let (_, text, _) = latent(&["graph", "circuit"]);
    let mut circuit: Value = serde_json::from_str(&text).unwrap();
    let mla = &mut circuit["blocks"]["mla"];
    let slots = mla["weights"].as_object_mut().unwrap();
    let norm = slots.remove("attn_norm").unwrap();
    let own = slots.entry("own_norm").or_insert(norm);
    (own["gguf"], own["hf"]) =
        ("blk.{layer}.own_norm.weight".into(), "model.layers.{layer}.own_norm.weight".into());
    for op in mla["ops"].as_array_mut().unwrap() {
        if op["weights"] == json!(["attn_norm"]) {
            op["weights"] = json!(["own_norm"]);
        }
    }
    let path = folder.join("own.json");
    std::fs::write(&path, circuit.to_string()).unwrap();
    path.display().to_string()
}

/// Every command with --circuit uses that circuit instead of the model's own.
#[test]
fn a_circuit_of_the_users_takes_the_place_of_the_models_own() {
    let folder = tempfile::tempdir().unwrap();
    let own = with_slot(folder.path());
    let (code, stdout, _) = latent(&["check", "--json", "--circuit", &own]);
    let support: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &support["circuit"], &support["supported"]), (2, &json!(own), &json!(false)));
    let missing = missing(&support);
    assert!(missing.contains(&"tensor blk.{layer}.own_norm.weight".to_owned()), "{missing:?}");
    assert!(missing.contains(&"unread blk.{layer}.attn_norm.weight".to_owned()), "{missing:?}");
    // A config.json alone implies the tensors that the circuit reads.
    let ConfigFolder(_folder, path) = config(&deepseek_v3());
    let path = path.display().to_string();
    for command in [&["check"][..], &["verify"], &["graph", "plan", "--format", "svg", "-m"]] {
        let args = [command, &[path.as_str(), "--circuit", &own]].concat();
        let (code, stdout, stderr) = latent(&args);
        assert_eq!(code, 0, "{args:?}: {stdout}{stderr}");
        assert!(stdout.contains(if command[0] == "graph" { "own_norm" } else { "own.json" }), "{stdout}");
    }
    // No command runs or counts tensors that the file does not have.
    for command in
        [&["inspect"][..], &["verify"], &["graph"], &["logits", "--tokens", "1"], &["run", "Hello"]]
    {
        let args = [command, &["--circuit", &own]].concat();
        let (code, _, stderr) = latent(&args);
        assert_eq!(code, 1, "{args:?}: {stderr}");
        assert!(stderr.contains("blk.0.own_norm.weight"), "{args:?}: {stderr}");
    }
}

/// `inspect` and every text form of `graph` need no more than `check` does.
#[test]
fn commands_without_data_accept_headers_and_configs() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (whole, header) = (path("whole.gguf"), path("header.gguf"));
    assert_eq!(latent(&["make-model", "tiny-v3", "Q4_K_M", &whole]).0, 0);
    assert_eq!(latent(&["make-model", "tiny-v3", "Q4_K_M", &header, "--header-only"]).0, 0);
    let ConfigFolder(config_folder, config) = config(&deepseek_v3());
    let (config, config_folder) = (config.display().to_string(), config_folder.path().display().to_string());
    let said = |args: &[&str]| -> String {
        let (code, stdout, stderr) = latent(args);
        assert_eq!(code, 0, "{args:?}: {stderr}");
        stdout
    };
    for (model, words) in [
        (&header, ["sizes are those of the header", "Q4_K", "vocabulary"]),
        (
            &config,
            [
                "sizes are those implied by the keys",
                "F8_E4M3 matrices, because the file lists no tensors",
                "61 (0–2: mla × dense, 3–60: mla × moe)",
            ],
        ),
        (&config_folder, ["sizes are those implied by the keys", "tokenizer      none", "together"]),
    ] {
        let text = said(&["inspect", model]);
        assert!(words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
        assert!(said(&["inspect", "--tensors", model]).contains("F32"));
        assert!(!said(&["inspect", "--metadata", model]).is_empty());
        for stage in ["circuit", "ir", "plan"] {
            let formats: &[&str] =
                if stage == "circuit" { &["text", "json"] } else { &["text", "json", "dot"] };
            for format in formats {
                assert!(!said(&["graph", stage, model, "--layers", "0..2", "--format", format]).is_empty());
            }
        }
    }
    let report = |path: &str| -> Value {
        serde_json::from_str(&said(&["inspect", "--json", "--tensors", path])).unwrap()
    };
    let (of_header, of_whole) = (report(&header), report(&whole));
    for part in ["contract", "types", "memory", "cache_bytes_per_token", "tokenizer", "tensors"] {
        // Free memory differs between runs.
        let of = |report: &Value| {
            let mut part = report[part].clone();
            part.as_object_mut().map(|part| part.remove("available"));
            part
        };
        assert_eq!(of(&of_header), of(&of_whole), "{part}");
    }
    assert_eq!((&of_header["data"], &of_whole["data"]), (&json!("header"), &json!("whole")));
    let of_config = report(&config);
    assert_eq!((&of_config["data"], &of_config["assumed_type"]), (&json!("config"), &json!("F8_E4M3")));
    // 671 billion parameters and a few
    let parameters: u64 =
        of_config["types"].as_array().unwrap().iter().map(|t| t["parameters"].as_u64().unwrap()).sum();
    assert!((670_000_000_000..673_000_000_000).contains(&parameters), "{parameters}");
    for rows in ["1", "16", "100"] {
        let plan = |path: &str| said(&["graph", "plan", "--rows", rows, "-m", path]);
        assert_eq!(plan(&header), plan(&whole));
    }
}

#[test]
fn plans_are_titled_by_batch_bucket_and_rows() {
    for (rows, heading) in [
        ("1", "plan for decode (1 row), "),
        ("2", "plan for small batch (2 to 16 rows), "),
        ("17", "plan for prefill (17 to 512 rows), "),
        ("8192", "plan for prefill (17 to 8192 rows), "),
    ] {
        let (code, text, error) = latent(&["graph", "plan", "--rows", rows]);
        assert_eq!(code, 0, "{error}");
        assert!(text.starts_with(heading), "{}", text.lines().next().unwrap());
    }
    for rows in ["0", "8193", "18446744073709551615"] {
        for form in [&["graph", "plan", "--rows", rows][..], &["graph", "--rows", rows, "--format", "svg"]] {
            let (code, _, error) = latent(form);
            assert_eq!(code, 64, "{error}");
            for word in
                [&format!("--rows {rows}"), "expected 1 to 8192", "decode (1 row)", "prefill (17 to 8192)"]
            {
                assert!(error.contains(word), "no {word:?} in {error}");
            }
        }
    }
}

/// Similarity of DeepSeek-V3's config.json under another name and with one change: the closest
/// known architecture and its share.
fn likeness(change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> (Value, f64, String) {
    let unknown = changed(|c| {
        c["model_type"] = "deepseek_v9".into();
        c["architectures"] = json!(["DeepseekV9ForCausalLM"]);
        change(c);
    });
    let (code, support) = support(&unknown.1);
    assert_eq!(code, 2);
    let (_, text, _) = latent(&["check", "-m", &unknown.1.display().to_string()]);
    let closest = support["closest"][0].clone();
    (closest.clone(), closest["score"].as_f64().unwrap(), text)
}

#[test]
fn similarity_is_complete_only_without_differences() {
    let (closest, score, text) = likeness(|_| {});
    assert_eq!((&closest["name"], score), (&json!("deepseek_v3"), 1.0), "{closest}");
    assert!(text.contains("deepseek_v3   100 %"), "{text}");
    // The family with this router.
    let (closest, score, _) = likeness(|c| c["scoring_func"] = "softmax".into());
    assert_eq!((&closest["name"], score), (&json!("mistral4"), 1.0), "{closest}");
    type Change = fn(&mut serde_json::Map<String, Value>);
    let changes: [(Change, &str); 8] = [
        (|c| c["scoring_func"] = "softplus".into(), "scoring_func"),
        (|c| c["topk_method"] = "greedy".into(), "chooses      topk_method"),
        (|c| c["topk_method"] = "hash".into(), "topk_method"),
        (|c| c["hidden_act"] = "relu2".into(), "hidden_act"),
        (|c| drop(c.insert("mlp_bias".into(), true.into())), "mlp_bias"),
        (|c| c["rope_scaling"]["type"] = "dynamic".into(), "rope_scaling.type"),
        (|c| drop(c.insert("use_qk_norm".into(), true.into())), "use_qk_norm"),
        (|c| drop(c.remove("kv_lora_rank")), "kv_lora_rank"),
    ];
    for (change, word) in changes {
        let (closest, score, text) = likeness(change);
        assert!(score < 1.0, "{word}: {closest}");
        assert!(!text.contains("100 %") && text.contains(word), "{word}: {text}");
        let table =
            text.lines().skip_while(|line| !line.starts_with("closest")).take_while(|line| !line.is_empty());
        let widest = table.map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 80, "{widest}: {text}");
    }
    // A config with another router is closer to the family with that router.
    let (closest, ..) = likeness(|c| {
        c["scoring_func"] = "softmax".into();
        c["topk_method"] = "greedy".into();
    });
    assert_eq!(closest["name"], "deepseek_v2", "{closest}");
}

#[test]
fn one_more_norm_and_one_more_key_are_seen_in_files_too() {
    let folder = tempfile::tempdir().unwrap();
    // A folder of another family, with a norm of queries in addition to the others.
    let path = folder.path().join("model");
    assert_eq!(latent(&["make-model", "tiny-v3", "F32", &path.display().to_string()]).0, 0);
    let config = path.join("config.json");
    let mut keys: Value = serde_json::from_str(&std::fs::read_to_string(&config).unwrap()).unwrap();
    keys["model_type"] = "deepseek_v9".into();
    keys["architectures"] = json!(["DeepseekV9ForCausalLM"]);
    // MiniCPM3's value, which a generated model has whatever its shape.
    for key in ["scale_emb", "scale_depth", "dim_model_base"] {
        keys.as_object_mut().unwrap().remove(key);
    }
    std::fs::write(&config, keys.to_string()).unwrap();
    let score = |support: &Value| support["closest"][0]["score"].as_f64().unwrap();
    let same = support(&path).1;
    assert_eq!(
        (score(&same), &same["closest"][0]["name"]),
        (1.0, &json!("deepseek_v3")),
        "{}",
        same["closest"][0]
    );
    let checkpoint = latent_formats::Checkpoint::open(&path).unwrap();
    let mut writer = latent_formats::safetensors::Writer::new();
    let tensors: Vec<_> = checkpoint.tensors().iter().collect();
    for tensor in &tensors {
        writer.tensor(tensor.name.clone(), tensor.ty, &tensor.shape).unwrap();
    }
    writer.tensor("model.layers.0.self_attn.q_norm.weight", latent_types::TensorType::F32, &[8]).unwrap();
    let mut bytes = Vec::new();
    let data =
        |i: usize| tensors.get(i).map_or(vec![0; 32], |t| checkpoint.tensor(&t.name).unwrap().data.to_vec());
    writer.write(&mut bytes, |i, out| out.write_all(&data(i))).unwrap();
    drop(checkpoint);
    std::fs::write(path.join("model.safetensors"), bytes).unwrap();
    let other = support(&path).1;
    assert!(score(&other) < 1.0, "{}", other["closest"][0]);
    assert_eq!(
        other["closest"][0]["tensors_unknown"],
        json!(["model.layers.{layer}.self_attn.q_norm.weight"])
    );
    let (_, text, _) = latent(&["check", "-m", &path.display().to_string()]);
    assert!(!text.contains("100 %") && text.contains("q_norm"), "{text}");

    // The header of a GGUF file with another architecture name of the same length.
    let header = folder.path().join("header.gguf");
    assert_eq!(
        latent(&["make-model", "tiny-v3", "Q4_0", &header.display().to_string(), "--header-only"]).0,
        0
    );
    let mut bytes = std::fs::read(&header).unwrap();
    for at in 0..bytes.len() - 9 {
        if &bytes[at..at + 9] == b"deepseek2" {
            bytes[at + 8] = b'9';
        }
    }
    std::fs::write(&header, &bytes).unwrap();
    let same = support(&header).1;
    assert_eq!((score(&same), &same["unread"]), (1.0, &json!([])), "{}", same["closest"][0]);
    // A key that is read, renamed to one that is not.
    let at = bytes.windows(30).position(|window| window == b"deepseek9.expert_weights_scale").unwrap();
    bytes[at + 10..at + 16].copy_from_slice(b"output");
    std::fs::write(&header, &bytes).unwrap();
    let other = support(&header).1;
    assert!(score(&other) < 1.0, "{}", other["closest"][0]);
    assert!(other["unread"][0].as_str().unwrap().starts_with("deepseek9.output_weights_scale"), "{other}");
}

/// A folder with tokenizer files.
fn with_files(files: &[(&str, &str)]) -> ConfigFolder {
    let given = config(&deepseek_v3());
    for (name, text) in files {
        std::fs::write(given.1.with_file_name(name), text).unwrap();
    }
    given
}

#[test]
fn tokenizer_and_template_are_reported() {
    let none = with_files(&[]);
    let (code, alone) = support(&none.1);
    assert_eq!((code, &alone["tokenizer"], &alone["chat_template"]), (0, &Value::Null, &Value::Null));
    let (_, text, _) = latent(&["check", &none.1.display().to_string()]);
    assert!(text.contains("tokenizer      none") && text.contains("chat template  none"), "{text}");

    let tokenizer =
        r#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}}"#;
    let both =
        with_files(&[("tokenizer.json", tokenizer), ("chat_template.jinja", "{{ messages[0].content }}")]);
    let (code, with_both) = support(&both.1);
    assert_eq!(code, 0);
    assert_eq!(with_both["tokenizer"], json!({"kind": "tokenizer.json, 3 tokens", "supported": true}));
    assert_eq!(with_both["chat_template"], json!({"kind": "Jinja, 25 bytes", "supported": true}));

    let unigram = r#"{"model": {"type": "Unigram", "vocab": [["a", 0.0]]}}"#;
    let wrong = with_files(&[("tokenizer.json", unigram), ("chat_template.jinja", "{% for %}")]);
    let (code, with_wrong) = support(&wrong.1);
    assert_eq!((code, &with_wrong["tokenizer"]["supported"]), (2, &json!(false)));
    let (_, text, error) = latent(&["check", &wrong.1.display().to_string()]);
    for part in ["supported      not yet: 2 missing", "model.type is \"Unigram\"", "line 1"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    assert!(error.contains("2 things are missing"), "{error}");
}

#[test]
fn a_folder_with_tiktoken_model_is_reported() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/data/tiktoken");
    let read = |name: &str| std::fs::read_to_string(data.join(name)).unwrap();
    let (model, config) = (read("tiktoken.model"), read("tokenizer_config.json"));
    let given = with_files(&[("tiktoken.model", &model), ("tokenizer_config.json", &config)]);
    let (code, support) = support(&given.1);
    assert_eq!((code, &support["tokenizer"]["supported"]), (0, &json!(true)));
    assert!(support["tokenizer"]["kind"].as_str().unwrap().starts_with("tiktoken.model, "), "{support}");
}

/// A folder of a small model whose config.json is changed.
fn made(change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> ConfigFolder {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    assert_eq!(latent(&["make-model", "tiny-v3", "F32", &path.display().to_string()]).0, 0);
    let config = path.join("config.json");
    let mut keys: Value = serde_json::from_str(&std::fs::read_to_string(&config).unwrap()).unwrap();
    change(keys.as_object_mut().unwrap());
    std::fs::write(&config, keys.to_string()).unwrap();
    ConfigFolder(folder, path)
}

/// `check` refuses what `run` refuses, for the same reason and with the same exit code: 2 for
/// unsupported, 1 for damaged.
#[test]
fn check_gives_the_reason_that_run_gives() {
    let settings = |settings: Value| made(|c| drop(c.insert("quantization_config".into(), settings)));
    let key = |key: &str, value: Value| made(|c| drop(c.insert(key.into(), value)));
    let damaged = |damage: &dyn Fn(&Path)| {
        let made = made(|_| {});
        damage(&made.1);
        made
    };
    let cut = |keep: usize| {
        move |folder: &Path| {
            let path = folder.join("model.safetensors");
            let bytes = std::fs::read(&path).unwrap();
            let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            std::fs::write(&path, &bytes[..header + keep]).unwrap();
        }
    };
    let lacks_a_shard = |folder: &Path| {
        std::fs::rename(folder.join("model.safetensors"), folder.join("1.safetensors")).unwrap();
        let index = json!({"weight_map": {"lm_head.weight": "1.safetensors", "x": "2.safetensors"}});
        std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
    };
    let pickles = |folder: &Path| {
        std::fs::rename(folder.join("model.safetensors"), folder.join("pytorch_model.bin")).unwrap();
    };
    let bnb = json!({"quant_method": "bitsandbytes", "load_in_4bit": true});
    let cases = [
        (settings(bnb), 2, "quant_method \"bitsandbytes\" is not supported"),
        (
            settings(json!({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"})),
            2,
            "\"modelopt nvfp4_awq\"",
        ),
        (settings(json!({"quant_method": "gptq", "bits": 8})), 2, "bits is 8; only 4 is supported"),
        (key("hc_mult", json!(4)), 2, "is 4, expected 1: hyper-connections are not supported"),
        (key("model_type", json!("llama")), 2, "llama"),
        (damaged(&cut(1000)), 1, "extends past the end of the file, which is truncated: download it again"),
        (damaged(&lacks_a_shard), 1, "it names 2.safetensors, which is not in the folder"),
        (damaged(&pickles), 1, "its weights are in pytorch_model.bin"),
    ];
    for (ConfigFolder(_folder, path), code, reason) in &cases {
        let path = path.display().to_string();
        for command in [&["check", &path][..], &["run", "-m", &path, "Hello"], &["check", "--json", &path]] {
            let (found, stdout, stderr) = latent(command);
            assert_eq!(found, *code, "{command:?}: {stdout}{stderr}");
            // Lines are wrapped.
            let told = [stdout, stderr].concat().split_whitespace().collect::<Vec<_>>().join(" ");
            let told = told.replace("\\\"", "\"");
            assert!(told.contains(reason), "no {reason:?} in {command:?}: {told}");
            assert!(!told.contains("supported yes") && !told.contains("\"supported\": true"), "{told}");
        }
    }
    // A header alone is not damaged: its data was never written.
    let ConfigFolder(_folder, path) = damaged(&cut(0));
    let (code, support) = support(&path);
    assert_eq!((code, &support["supported"], &support["refused"]), (0, &json!(true), &Value::Null));
    // A config.json alone gives a partial report.
    let ConfigFolder(_folder, path) = changed(|c| {
        c["quantization_config"] = json!({"quant_method": "fp8", "fmt": "e3m4"});
    });
    let (code, text, _) = latent(&["check", &path.display().to_string()]);
    assert_eq!(code, 2, "{text}");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("FP8 of E3M4"), "{text}");
}

/// The published FP8 and NVFP4 formats, each by its config.json, and params.json of Mistral Large
/// 3.
#[test]
fn published_fp8_is_supported_by_its_config_alone() {
    let compressed = |strategy: &str, dynamic: bool| {
        json!({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": {
            "input_activations": {"num_bits": 8, "type": "float", "dynamic": dynamic},
            "weights": {"num_bits": 8, "type": "float", "strategy": strategy}}}})
    };
    for (settings, ty) in [
        (json!({"quant_method": "fp8", "weight_block_size": null, "activation_scheme": "static"}), "F8_E4M3"),
        (json!({"quant_method": "fp8", "fmt": "e5m2"}), "F16"),
        (json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}), "NVFP4"),
        (json!({"quant_method": "modelopt", "quant_algo": "FP8"}), "F8_E4M3"),
        (compressed("tensor", false), "F8_E4M3"),
        (compressed("channel", true), "F8_E4M3"),
    ] {
        let ConfigFolder(_folder, path) =
            changed(|c| drop(c.insert("quantization_config".into(), settings.clone())));
        let (code, support) = support(&path);
        assert_eq!((code, &support["supported"]), (0, &json!(true)), "{settings}: {support}");
        assert!(support["assumed"][0].as_str().unwrap().contains(ty), "{settings}: {support}");
    }
    // Mistral's own keys, as published for Mistral Large 3.
    let params = json!({
        "dim": 7168, "n_layers": 61, "head_dim": 192, "hidden_dim": 16384, "n_heads": 128, "n_kv_heads": 128,
        "rope_theta": 10000.0, "norm_eps": 1e-6, "vocab_size": 131_072, "tied_embeddings": false,
        "max_position_embeddings": 294_912, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
        "kv_lora_rank": 512, "v_head_dim": 128,
        "llama_4_scaling": {"original_max_position_embeddings": 8192, "beta": 0.1},
        "quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"},
        "yarn": {"original_max_position_embeddings": 8192, "factor": 36, "apply_scale": false, "beta": 32, "alpha": 1},
        "moe": {"expert_parallel": 1, "expert_model_parallel": 1, "route_every_n": 1, "first_k_dense_replace": 3,
            "num_experts": 128, "num_experts_per_tok": 4, "num_expert_groups": 1, "num_expert_groups_per_tok": 1,
            "routed_scale": 1.0, "expert_hidden_dim": 4096, "num_shared_experts": 1},
        "vision_encoder": {"image_token_id": 10, "hidden_size": 1664},
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("params.json");
    std::fs::write(&path, params.to_string()).unwrap();
    let (code, of_file) = support(&path);
    assert_eq!((code, &of_file["supported"]), (0, &json!(true)), "{of_file}");
    assert!(of_file["assumed"][0].as_str().unwrap().contains("F8_E4M3"), "{of_file}");
    let softmax = of_file["config"]["attention"]["softmax_scale"].as_f64().unwrap();
    assert!((softmax - 1.0 / 192f64.sqrt()).abs() < 1e-9, "apply_scale is false: {softmax}");
    let (code, of_folder) = support(folder.path());
    assert_eq!((code, &of_folder["config"]), (0, &of_file["config"]));
    // Missing keys are named as in the folder's file.
    std::fs::write(&path, r#"{"dim": 8, "n_layers": 1, "kv_lora_rank": 16}"#).unwrap();
    let (code, text, _) = latent(&["check", &path.display().to_string()]);
    assert_eq!(code, 2, "{text}");
    // A dense Mistral model lacks latent attention.
    std::fs::write(&path, r#"{"dim": 8, "n_layers": 1, "n_heads": 2}"#).unwrap();
    let (code, text, _) = latent(&["check", &path.display().to_string()]);
    assert!(code == 2 && text.contains("mistral"), "{text}");
}

#[test]
fn a_truncated_gguf_file_is_described_and_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.gguf");
    let name = path.display().to_string();
    assert_eq!(latent(&["make-model", "tiny-v3", "Q4_K_M", &name]).0, 0);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 4096]).unwrap();
    let (code, text, error) = latent(&["check", &name]);
    let (of_run, _, reason) = latent(&["run", "-m", &name, "Hello"]);
    assert_eq!((code, of_run), (1, 1), "{text}{error}");
    assert!(
        text.contains("supported      no: the files cannot be opened") && text.contains("kv_lora"),
        "{text}"
    );
    assert_eq!(error, reason);
    assert!(error.contains("truncated"), "{error}");
}

#[test]
fn overridden_config_values_are_warnings() {
    let ConfigFolder(_folder, path) = made(|c| c["tie_word_embeddings"] = true.into());
    let (code, support) = support(&path);
    assert_eq!((code, support["warnings"].as_array().map(Vec::len)), (0, Some(1)), "{support}");
    let (_, text, _) = latent(&["check", &path.display().to_string()]);
    assert!(text.contains("warning        ") && text.contains("lm_head.weight is stored"), "{text}");
}

/// Attention kinds per layer as in the published Kimi-Linear-48B-A3B, and tensor names as in
/// Transformers.
#[test]
fn what_published_files_have_is_named() {
    let linear = changed(|c| {
        c["model_type"] = "kimi_linear".into();
        let layers = json!({"kda_layers": [2, 3], "full_attn_layers": [1, 8], "num_heads": 32});
        c.insert("linear_attn_config".into(), layers);
    });
    let (code, support) = support(&linear.1);
    assert_eq!(code, 2);
    assert!(missing(&support).contains(&"key linear_attn_config.kda_layers".to_owned()), "{support}");
    assert!(support.to_string().contains("without layer 4"), "{support}");

    let ConfigFolder(_folder, path) = made(|_| {});
    let weights = path.join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let text = String::from_utf8(bytes[8..header].to_vec())
        .unwrap()
        .trim_end()
        .replace("\"model.", "\"model.language_model.");
    let renamed = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &bytes[header..]].concat();
    std::fs::write(&weights, renamed).unwrap();
    let path = path.display().to_string();
    for command in [&["check", "--json", &path][..], &["run", "-m", &path, "Hello"]] {
        let (_, stdout, stderr) = latent(command);
        let told = [stdout, stderr].concat();
        assert!(
            told.contains("the folder has model.language_model.embed_tokens.weight"),
            "{command:?}: {told}"
        );
    }
}
