//! Model folders: safetensors headers, indices, JSON files, and files of other kinds.

use crate::support::*;
use latent_formats::safetensors::{Header, SafetensorsError, Writer};
use latent_formats::{Checkpoint, CheckpointSource, HfSource, Outline, OutlineData, TokenizerKind};
use latent_types::TensorType;
use std::path::Path;

const ONE: &str = r#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#;

/// Creates a folder with these files.
fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

fn model(config: &str, weights: &[u8]) -> tempfile::TempDir {
    folder(&[("config.json", config.as_bytes()), ("model.safetensors", weights)])
}

#[track_caller]
fn refused_weights(weights: &[u8], parts: &[&str]) {
    let folder = model("{}", weights);
    says(Checkpoint::open(folder.path()), parts);
}

fn hf(checkpoint: &Checkpoint) -> &HfSource {
    match checkpoint.source() {
        CheckpointSource::HuggingFace(source) => source,
        CheckpointSource::Gguf(_) => panic!("it is a folder"),
    }
}

// ---- Valid folders

#[test]
fn every_dtype_is_read_back() {
    let mut writer = Writer::new();
    let types: Vec<TensorType> =
        TensorType::all().filter(|ty| !ty.is_quantized() && !ty.name().starts_with("F8")).collect();
    for ty in &types {
        writer.tensor(ty.name(), *ty, &[3, 5]).unwrap();
    }
    let mut file = Vec::new();
    writer.write(&mut file, |i, out| out.write_all(&vec![i as u8; 15 * types[i].block_bytes()])).unwrap();
    let folder = model("{}", &file);
    for path in [folder.path().to_owned(), folder.path().join("model.safetensors")] {
        let checkpoint = Checkpoint::open(&path).unwrap();
        for (i, ty) in types.iter().enumerate() {
            let tensor = checkpoint.tensor(ty.name()).unwrap();
            assert_eq!((tensor.info.ty, tensor.info.shape.as_slice()), (*ty, [3, 5].as_slice()));
            assert!(tensor.data.iter().all(|b| *b == i as u8) && tensor.data.len() == 15 * ty.block_bytes());
        }
    }
}

#[test]
fn unsigned_and_boolean_data_have_their_true_size() {
    let header = r#"{"u":{"dtype":"U16","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"BOOL","shape":[3],"data_offsets":[4,7]},
        "__metadata__":{"format":"pt"},"empty":{"dtype":"F32","shape":[0,7],"data_offsets":[7,7]},"s":{"dtype":"U8","shape":[],"data_offsets":[7,8]}}"#;
    let folder = model("{}", &safetensors(header, 8));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let bytes = |name: &str| checkpoint.tensor(name).unwrap().data.to_vec();
    assert_eq!(
        (bytes("u"), bytes("b"), bytes("empty"), bytes("s")),
        (vec![0, 1, 2, 3], vec![4, 5, 6], vec![], vec![7])
    );
    assert!(checkpoint.tensor("__metadata__").is_none());
}

#[test]
fn small_files_of_a_folder_are_read() {
    let files: &[(&str, &[u8])] = &[
        ("config.json", br#"{"model_type":"deepseek_v3","rope_scaling":{"type":"yarn","factor":40}}"#),
        ("model.safetensors", &safetensors(ONE, 16)),
        ("tokenizer.json", b"{}"),
        (
            "tokenizer_config.json",
            br#"{"chat_template":[{"name":"tool_use","template":"T"},{"name":"default","template":"D"}]}"#,
        ),
        ("generation_config.json", br#"{"temperature":0.6}"#),
    ];
    let dir = folder(files);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let source = hf(&checkpoint);
    assert_eq!(source.config["rope_scaling"]["factor"], 40);
    let tokenizer = source.tokenizer.as_ref().unwrap();
    assert_eq!((tokenizer.kind, tokenizer.read().unwrap().as_ref()), (TokenizerKind::Json, &b"{}"[..]));
    assert_eq!(source.generation_config.as_ref().unwrap()["temperature"], 0.6);
    assert_eq!(source.chat_template.as_deref(), Some("D"));
    std::fs::write(dir.path().join("tokenizer_config.json"), r#"{"chat_template":"plain"}"#).unwrap();
    assert_eq!(hf(&Checkpoint::open(dir.path()).unwrap()).chat_template.as_deref(), Some("plain"));
    std::fs::write(dir.path().join("chat_template.jinja"), "the file wins").unwrap();
    assert_eq!(hf(&Checkpoint::open(dir.path()).unwrap()).chat_template.as_deref(), Some("the file wins"));
}

#[test]
fn tiktoken_model_is_used_without_tokenizer_json() {
    let files: &[(&str, &[u8])] = &[
        ("config.json", b"{}"),
        ("model.safetensors", &safetensors(ONE, 16)),
        ("tiktoken.model", b"YQ== 0\n"),
    ];
    let dir = folder(files);
    let kind_and_bytes = || {
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let tokenizer = hf(&checkpoint).tokenizer.clone().unwrap();
        (tokenizer.kind, tokenizer.read().unwrap().into_owned())
    };
    assert_eq!(kind_and_bytes(), (TokenizerKind::Tiktoken, b"YQ== 0\n".to_vec()));
    std::fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
    assert_eq!(kind_and_bytes(), (TokenizerKind::Json, b"{}".to_vec()));
}

#[test]
fn an_oversized_vocabulary_is_rejected() {
    let dir = folder(&[
        ("config.json", b"{}"),
        ("model.safetensors", &safetensors(ONE, 16)),
        ("tokenizer.json", b""),
    ]);
    let file = std::fs::File::options().write(true).open(dir.path().join("tokenizer.json")).unwrap();
    file.set_len(1 << 40).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let error = hf(&checkpoint).tokenizer.as_ref().unwrap().read().unwrap_err().to_string();
    assert!(error.contains("tokenizer.json") && error.contains("1099511627776"), "{error}");
}

#[test]
fn a_truncated_header_reports_the_bytes_it_needs() {
    let file = safetensors(ONE, 16);
    let len = file.len() as u64;
    assert_eq!(Header::parse(&file[..3], len), Err(SafetensorsError::NeedMore { have: 3, need: 8 }));
    let need = 8 + ONE.len() as u64;
    assert_eq!(Header::parse(&file[..20], len), Err(SafetensorsError::NeedMore { have: 20, need }));
    assert_eq!(Header::parse(&file[..need as usize], len).unwrap().tensors[0].start, need);
    assert!(matches!(Header::parse(&file[..20], need - 1), Err(SafetensorsError::Truncated { .. })));
}

// ---- Malformed safetensors headers

#[test]
fn truncated_and_invalid_headers_are_rejected() {
    refused_weights(b"short", &["model.safetensors", "header claims 8 bytes", "truncated"]);
    refused_weights(
        &1000u64.to_le_bytes(),
        &["header claims 1008 bytes, but the file has only 8", "truncated"],
    );
    refused_weights(&[&u64::MAX.to_le_bytes()[..], &[1; 64]].concat(), &["not a model file", "first bytes"]);
    refused_weights(&safetensors("[]", 0), &["header is malformed", "object"]);
    refused_weights(&safetensors("{", 0), &["header is malformed"]);
    refused_weights(&safetensors("{} x", 0), &["header is malformed", "trailing"]);
    refused_weights(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        &["Git LFS pointer", "git lfs pull"],
    );
    refused_weights(b"<!DOCTYPE html><html>Sign in</html>", &["web page"]);
    refused_weights(b"PK\x03\x04 this is a zip archive of a pickle", &["pickle", "convert"]);
}

#[test]
fn wrong_tensor_descriptions_are_rejected() {
    let lie = |tensor: &str, parts: &[&str]| {
        refused_weights(&safetensors(&format!("{{\"a\":{tensor}}}"), 16), parts)
    };
    lie(
        r#"{"dtype":"F32","shape":[2,2],"data_offsets":[0,17]}"#,
        &["tensor a", "bytes 0 to 17 of 16", "truncated"],
    );
    lie(r#"{"dtype":"F32","shape":[2,3],"data_offsets":[0,16]}"#, &["tensor a", "takes 24 bytes", "0 to 16"]);
    lie(r#"{"dtype":"F32","shape":[2,2],"data_offsets":[16,0]}"#, &["tensor a", "takes 16 bytes", "16 to 0"]);
    lie(r#"{"dtype":"F32","shape":[2,2],"data_offsets":[-1,15]}"#, &["\"a\"", "-1"]);
    lie(
        r#"{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}"#,
        &["tensor a", "overflows"],
    );
    lie(
        r#"{"dtype":"F32","shape":[1099511627776,1099511627776,0],"data_offsets":[0,0]}"#,
        &["tensor a", "overflows"],
    );
    lie(r#"{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,0]}"#, &["header is malformed"]);
    lie(
        r#"{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}"#,
        &["\"a\"", "more than 8 dimensions"],
    );
    lie(
        r#"{"dtype":"F8_E3M4","shape":[16],"data_offsets":[0,16]}"#,
        &["tensor a", "F8_E3M4", "not supported", "BF16"],
    );
    lie(r#"{"dtype":"F32","shape":[2,2]}"#, &["\"a\"", "data_offsets"]);
    lie(
        r#"{"dtype":"F32","dtype":"F16","shape":[2,2],"data_offsets":[0,16]}"#,
        &["\"a\"", "duplicate field"],
    );
    lie("7", &["\"a\""]);
}

#[test]
fn duplicate_overlapping_and_scattered_tensors_are_rejected() {
    let two = |a: &str, b: &str, start: usize, data: usize| {
        let entry = |name: &str, start: usize| {
            format!(r#""{name}":{{"dtype":"F32","shape":[2],"data_offsets":[{start},{}]}}"#, start + 8)
        };
        safetensors(&format!("{{{},{}}}", entry(a, 0), entry(b, start)), data)
    };
    refused_weights(&two("x", "x", 8, 16), &["tensor \"x\" occurs twice"]);
    refused_weights(&two("x", "y", 4, 12), &["tensors x and y overlap at byte 4"]);
    refused_weights(&two("x", "y", 0, 8), &["overlap at byte 0"]);
    refused_weights(&two("x", "y", 12, 20), &["bytes 8 to 12", "do not belong to any tensor"]);
    refused_weights(&two("x", "y", 8, 17), &["bytes 16 to 17", "do not belong to any tensor"]);
    refused_weights(&safetensors(r#"{"__metadata__":{"a":1}}"#, 0), &["header is malformed"]);
    refused_weights(
        &safetensors(r#"{"__metadata__":{},"__metadata__":{}}"#, 0),
        &["__metadata__ occurs twice"],
    );
}

#[test]
fn concatenated_safetensors_files_are_recognized() {
    let (one, other) = (safetensors(ONE, 16), safetensors(&ONE.replace("\"a\"", "\"b\""), 16));
    let at = format!("another safetensors file begins at byte {}", one.len());
    refused_weights(&[one, other].concat(), &["model.safetensors", &at, "concatenated into one file"]);
}

#[test]
fn deeply_nested_json_is_rejected_without_stack_overflow() {
    let deep = format!("{{\"a\":{}", "[".repeat(200_000));
    refused_weights(&safetensors(&deep, 0), &["header is malformed"]);
    let config = format!("{{\"a\":{}1{}}}", "[".repeat(1000), "]".repeat(1000));
    says(Checkpoint::open(model(&config, &safetensors(ONE, 16)).path()), &["config.json", "recursion limit"]);
}

// ---- FP8 and its scales

#[test]
fn fp8_needs_scales_of_the_right_shape() {
    let weights = |scale: &str, end: usize| {
        let weight = r#""w.weight":{"dtype":"F8_E4M3","shape":[130,3],"data_offsets":[0,390]}"#;
        safetensors(&format!("{{{weight}{scale}}}"), end)
    };
    let scale_of = |dtype: &str, shape: &str, bytes: usize| {
        let end = 390 + bytes;
        let scale = format!(
            r#","w.weight_scale_inv":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[390,{end}]}}"#
        );
        weights(&scale, end)
    };
    let scale = |dtype: &str, shape: &str| scale_of(dtype, shape, 8);
    let folder = model("{}", &scale("F32", "[2,1]"));
    assert_eq!(Checkpoint::open(folder.path()).unwrap().tensor("w.weight_scale_inv").unwrap().data.len(), 8);
    let config = |size: &str| format!(r#"{{"quantization_config":{{"weight_block_size":{size}}}}}"#);
    let folder = model(&config("[112,16]"), &scale("F32", "[2,1]"));
    assert_eq!(Checkpoint::open(folder.path()).unwrap().fp8_block().unwrap(), (112, 16));
    let folder = model(&config("[64,16]"), &scale("F32", "[2,1]"));
    says(Checkpoint::open(folder.path()), &["w.weight_scale_inv has shape [2, 1], expected [3, 1]"]);
    // Kernels process four blocks of columns at a time. 4 · 2^62 wraps to 0, and they would read
    // beyond the row.
    let long = ["[16,4611686018427387904]", "[4611686018427387904,16]", "[16,65552]"];
    for size in ["[128]", "[128,0]", "[100,128]", "128", "[\"a\",128]", "[16,16,16]"].into_iter().chain(long)
    {
        let folder = model(&config(size), &scale("F32", "[2,1]"));
        says(Checkpoint::open(folder.path()), &["weight_block_size", "multiples of 16"]);
    }
    refused_weights(&weights("", 390), &["FP8 tensor w.weight lacks its scales w.weight_scale_inv"]);
    refused_weights(&scale("F32", "[1,2]"), &["w.weight_scale_inv has shape [1, 2], expected [2, 1]"]);
    // Scales of 16 bits are kept: they widen exactly.
    for ty in ["BF16", "F16"] {
        let folder = model(&config("[64,16]"), &scale_of(ty, "[3,1]", 6));
        assert_eq!(
            Checkpoint::open(folder.path()).unwrap().tensor("w.weight_scale_inv").unwrap().data.len(),
            6
        );
    }
    let flat = r#"{"b":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}}"#;
    refused_weights(&safetensors(flat, 4), &["FP8 tensor b has shape [4]", "matrices"]);
}

/// A file of tensors with name, type, shape and bytes.
fn tensors(list: &[(&str, &str, &str, usize)]) -> Vec<u8> {
    let mut end = 0;
    let described: Vec<String> = list
        .iter()
        .map(|(name, dtype, shape, bytes)| {
            let start = end;
            end += bytes;
            format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
        })
        .collect();
    safetensors(&format!("{{{}}}", described.join(",")), end)
}

/// Unsupported formats of published checkpoints, recognized by their tensors or by config.json.
#[test]
fn unsupported_formats_are_named() {
    let config = |settings: &str| format!(r#"{{"quantization_config":{settings}}}"#);
    let compressed = |strategy: &str, bits: usize, kind: &str| {
        config(&format!(
            r#"{{"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{{"group_0":
                {{"targets":["Linear"],"weights":{{"num_bits":{bits},"type":"{kind}","strategy":"{strategy}"}}}}}}}}"#
        ))
    };
    let weight = ("a.weight", "F8_E4M3", "[32,48]", 32 * 48);
    let with = |name, dtype, shape, bytes| tensors(&[weight, (name, dtype, shape, bytes)]);
    let scalar = with("a.weight_scale", "F32", "[]", 4);
    let groups = with("a.weight_scale", "BF16", "[32,3]", 192);
    let e8m0 = with("a.weight_scale_inv", "F8_E8M0", "[1,1]", 1);
    let codes = with("a.weight_scale_inv", "U8", "[1,1]", 1);
    let bnb = tensors(&[("a.weight", "U8", "[768,1]", 768), ("a.weight.absmax", "U8", "[24]", 24)]);
    let int8 = tensors(&[("a.weight", "I8", "[32,48]", 32 * 48), ("a.weight_scale", "F32", "[32,1]", 128)]);
    let none = "{}".to_owned();
    // config.json, weights, the format, and whether config.json alone identifies it.
    let cases = [
        (&none, &groups, "FP8 with scales of shape [32, 3] (a.weight_scale)", false),
        (&none, &e8m0, "tensor a.weight_scale_inv: dtype \"F8_E8M0\" is not supported", false),
        (&none, &codes, "FP8 with scales of I8", false),
        (&none, &bnb, "4-bit weights of bitsandbytes (a.weight.absmax)", false),
        (&none, &int8, "8-bit integers with one scale per output (a.weight_scale)", false),
        (&config(r#"{"quant_method":"fp8","fmt":"e3m4"}"#), &scalar, "FP8 of E3M4", true),
        (
            &config(r#"{"quant_method":"fp8","weight_block_size":[1,128]}"#),
            &scalar,
            "weight_block_size is [1,128], expected two multiples of 16",
            true,
        ),
        (&compressed("group", 8, "float"), &groups, "FP8 with one scale per group (compressed-tensors", true),
        (&compressed("channel", 8, "int"), &int8, "integers of 8 bits with one scale per output", true),
        (
            &compressed("group", 8, "int"),
            &tensors(&[
                ("a.weight_packed", "I32", "[32,12]", 1536),
                ("a.weight_scale", "BF16", "[32,2]", 128),
            ]),
            "integers of 8 bits with one scale per group",
            true,
        ),
        (
            &config(r#"{"quant_method":"modelopt","quant_algo":"NVFP4_AWQ"}"#),
            &scalar,
            "\"modelopt nvfp4_awq\" is not",
            true,
        ),
        (
            &config(r#"{"quant_method":"bitsandbytes","load_in_4bit":true}"#),
            &bnb,
            "\"bitsandbytes\" is not",
            true,
        ),
        (&config(r#"{"quant_method":"gptq","bits":8}"#), &int8, "bits is 8; only 4 is supported", true),
    ];
    for (config, weights, format, announced) in cases {
        let folder = model(config, weights);
        let Err(error) = Checkpoint::open(folder.path()) else { panic!("{format}: it was opened") };
        assert!(error.is_unsupported() && !error.is_incomplete(), "{error}");
        let reason = error.to_string();
        assert!(reason.contains(format), "no {format:?} in {reason}");
        // The outline gives the same reason.
        let outline = Outline::open(folder.path()).unwrap();
        assert_eq!(outline.refusal().map(ToString::to_string), Some(reason.clone()));
        assert_eq!((outline.data(), outline.tensors().len()), (OutlineData::Config, 0));
        let CheckpointSource::HuggingFace(source) = outline.source() else { panic!("it is a folder") };
        let alone = latent_formats::announced_type(source);
        assert_eq!(alone.is_err(), announced, "{format}: {alone:?}");
        assert!(alone.err().is_none_or(|alone| reason.ends_with(&alone)), "{reason}");
        // So does the header without the data.
        let data = weights.len()
            - usize::try_from(u64::from_le_bytes(weights[..8].try_into().unwrap())).unwrap()
            - 8;
        std::fs::write(folder.path().join("model.safetensors"), &weights[..weights.len() - data]).unwrap();
        let of_header = Outline::open(folder.path()).unwrap();
        assert_eq!(of_header.refusal().map(ToString::to_string), Some(reason));
    }
    // A config.json that announces blocks, also in `text_config`.
    for settings in [r#"{"quant_method":"fp8","weight_block_size":[16,16]}"#, r#"{"quant_method":"fp8"}"#] {
        for config in [config(settings), format!(r#"{{"text_config":{}}}"#, config(settings))] {
            let shape = if settings.contains("16") { ("[2,3]", 24) } else { ("[1,1]", 4) };
            let folder = model(&config, &with("a.weight_scale_inv", "F32", shape.0, shape.1));
            let checkpoint = Checkpoint::open(folder.path()).unwrap();
            assert_eq!(latent_formats::announced_type(hf(&checkpoint)), Ok(Some(TensorType::F8_E4M3)));
        }
    }
}

// ---- Indices

fn indexed(index: &str) -> tempfile::TempDir {
    let two = ONE.replace("\"a\"", "\"b\"");
    folder(&[
        ("config.json", b"{}"),
        ("model.safetensors.index.json", index.as_bytes()),
        ("m-00001.safetensors", &safetensors(ONE, 16)),
        ("m-00002.safetensors", &safetensors(&two, 16)),
    ])
}

#[test]
fn an_index_is_used_for_any_path_of_its_folder() {
    let dir = indexed(
        r#"{"metadata":{"total_size":32},"weight_map":{"a":"m-00001.safetensors","b":"m-00002.safetensors"}}"#,
    );
    for path in [dir.path().to_owned(), dir.path().join("m-00002.safetensors")] {
        let checkpoint = Checkpoint::open(&path).unwrap();
        let names: Vec<&str> = checkpoint.tensors().iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
    }
}

#[test]
fn wrong_indices_are_rejected() {
    let lie = |index: &str, parts: &[&str]| says(Checkpoint::open(indexed(index).path()), parts);
    let file = "model.safetensors.index.json";
    for path in [
        "../m-00001.safetensors",
        "/etc/x.safetensors",
        "sub/x.safetensors",
        "..",
        "",
        "C:x.safetensors",
        "a\\\\b.safetensors",
    ] {
        let index = format!(r#"{{"weight_map":{{"a":"{path}"}}}}"#);
        lie(&index, &[file, "tensor a", "not the name of a file in this folder"]);
    }
    lie(
        r#"{"weight_map":{"a":"pytorch_model.bin"}}"#,
        &[file, "pytorch_model.bin", "not a .safetensors file"],
    );
    lie(
        r#"{"weight_map":{"a":"m-00003.safetensors"}}"#,
        &[file, "m-00003.safetensors", "download is incomplete"],
    );
    lie(r#"{"weight_map":{"c":"m-00001.safetensors"}}"#, &["m-00001.safetensors", "tensor c is missing"]);
    lie(
        r#"{"weight_map":{"b":"m-00001.safetensors","a":"m-00002.safetensors"}}"#,
        &["tensor b to it, but the tensor is in", "m-00002.safetensors"],
    );
    lie(
        r#"{"weight_map":{"a":"m-00001.safetensors","a":"m-00001.safetensors"}}"#,
        &[file, "tensor \"a\" occurs twice"],
    );
    lie(r#"{"weight_map":{"a":7}}"#, &[file, "string"]);
    lie(r#"{"weight_map":{},"weight_map":{}}"#, &[file, "weight_map occurs twice"]);
    lie("{}", &[file, "no `weight_map` object"]);
    lie("[", &[file]);
}

#[test]
fn a_tensor_in_two_files() {
    let index = r#"{"weight_map":{"a":"m-00001.safetensors","b":"m-00002.safetensors"}}"#;
    let dir = indexed(index);
    std::fs::write(dir.path().join("m-00002.safetensors"), safetensors(ONE, 16)).unwrap();
    says(
        Checkpoint::open(dir.path()),
        &["m-00002.safetensors: tensor b is missing, but the index assigns it to this file"],
    );
    // The index does not list this tensor, so neither copy has priority.
    let both = |name: &str| {
        format!(
            r#"{{"x":{{"dtype":"I8","shape":[2],"data_offsets":[0,2]}},"{name}":{{"dtype":"I8","shape":[2],"data_offsets":[2,4]}}}}"#
        )
    };
    for (file, name) in [("m-00001.safetensors", "a"), ("m-00002.safetensors", "b")] {
        std::fs::write(dir.path().join(file), safetensors(&both(name), 4)).unwrap();
    }
    let parts = ["tensor x is in m-00001.safetensors and in m-00002.safetensors", "remove the file"];
    says(Checkpoint::open(dir.path()), &parts);
}

/// A fine-tune in the folder of its base model. The index decides which copy is used.
#[test]
fn an_index_decides_between_copies_of_a_tensor() {
    for (chosen, other) in
        [("m-00001.safetensors", "overlay.safetensors"), ("overlay.safetensors", "m-00001.safetensors")]
    {
        let index = format!(r#"{{"weight_map":{{"a":"{chosen}","b":"m-00002.safetensors","c":"{other}"}}}}"#);
        let dir = indexed(&index);
        let two = |value: u8| {
            let header = r#"{"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},"c":{"dtype":"I8","shape":[2],"data_offsets":[2,4]}}"#;
            let mut file = safetensors(header, 4);
            let data = file.len() - 4;
            file[data..].fill(value);
            file
        };
        std::fs::write(dir.path().join(chosen), two(1)).unwrap();
        std::fs::write(dir.path().join(other), two(2)).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let data = |name: &str| checkpoint.tensor(name).unwrap().data.to_vec();
        assert_eq!((data("a"), data("c"), checkpoint.tensors().len()), (vec![1, 1], vec![2, 2], 3));
        // Without the chosen file, a rank does not use the other copy, and neither does an outline.
        std::fs::remove_file(dir.path().join(chosen)).unwrap();
        let of_rank = Checkpoint::open_for_rank(dir.path()).unwrap();
        assert!(of_rank.info("a").is_none() && of_rank.info("c").is_some());
        let outline = Outline::open(dir.path()).unwrap();
        assert!(
            outline.tensor("a").is_none() && outline.tensor("c").is_some() && !outline.names_all_tensors()
        );
        assert!(outline.refusal().unwrap().is_incomplete());
    }
}

// ---- JSON files

#[test]
fn invalid_json_files_are_rejected() {
    let weights = safetensors(ONE, 16);
    let lie = |config: &str, parts: &[&str]| says(Checkpoint::open(model(config, &weights).path()), parts);
    lie("", &["config.json", "invalid JSON"]);
    lie("[1]", &["config.json", "must contain a JSON object"]);
    lie(r#"{"a":1,"b":{"c":1,"c":2}}"#, &["config.json", "the key \"c\" occurs twice", "line 1"]);
    lie("<html>", &["config.json", "web page"]);
    lie("version https://git-lfs.github.com/spec/v1", &["config.json", "Git LFS pointer"]);
    lie(&format!("{{\"a\":[1{}]}}", ",1".repeat(1 << 17)), &["config.json", "values", "limit of 131072"]);
    let dir = model("{}", &weights);
    std::fs::write(dir.path().join("config.json"), [b'{', 0xff, b'}']).unwrap();
    says(Checkpoint::open(dir.path()), &["config.json", "not UTF-8"]);
    lie("\u{feff}{}", &["config.json", "byte order mark (BOM)", "without BOM"]);
    let wide: Vec<u8> = "\u{feff}{}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    std::fs::write(dir.path().join("config.json"), wide).unwrap();
    says(Checkpoint::open(dir.path()), &["config.json", "UTF-16", "without BOM"]);
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    for name in ["tokenizer_config.json", "generation_config.json"] {
        std::fs::write(dir.path().join(name), "{").unwrap();
        says(Checkpoint::open(dir.path()), &[name, "invalid JSON"]);
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    let big = std::fs::File::create(dir.path().join("config.json")).unwrap();
    big.set_len((16 << 20) + 1).unwrap();
    says(Checkpoint::open(dir.path()), &["config.json", "16777217 bytes", "limit of 16777216"]);
}

// ---- Files that are not models

#[track_caller]
fn refused_path(path: &Path, parts: &[&str]) {
    says(Checkpoint::open(path), parts);
}

#[test]
fn files_that_are_no_models() {
    let files: &[(&str, &[u8], &[&str])] = &[
        ("empty.gguf", b"", &["empty.gguf", "the file is empty", "download it again"]),
        ("notes.txt", b"Dear reader,\n", &["notes.txt", "text file", ".gguf"]),
        ("page.gguf", b"\n <!DOCTYPE HTML><html>", &["page.gguf", "web page"]),
        ("lfs.gguf", b"version https://git-lfs.github.com/spec/v1\n", &["Git LFS pointer"]),
        ("zip.dat", b"PK\x03\x04\x00\x00", &["pickle"]),
        ("torch.dat", &[0x80, 2, b'}', b'q'], &["pickle"]),
        ("pytorch_model.bin", &[1, 2, 3], &["pickle", "execute code", "convert the model"]),
        ("weights.pth", b"whatever it holds", &["pickle"]),
        ("swapped.gguf", b"FUGG\x00\x00\x00\x03", &["big-endian"]),
        ("old.bin2", b"tjgg\x03\x00\x00\x00", &["GGML file", "predates GGUF"]),
        ("noise.gguf", &[0xde, 0xad, 0xbe, 0xef, 1], &["first bytes are [de, ad, be, ef]"]),
        ("cut.gguf", b"GGUF\x03\x00", &["cut.gguf", "version", "truncated"]),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes, parts) in files {
        std::fs::write(dir.path().join(name), bytes).unwrap();
        refused_path(&dir.path().join(name), parts);
    }
    refused_path(&dir.path().join("absent.gguf"), &["absent.gguf", "No such file", "check the path"]);
}

#[test]
fn folders_without_a_model_are_rejected() {
    let case = |files: &[(&str, &[u8])], parts: &[&str]| refused_path(folder(files).path(), parts);
    case(&[], &["no config.json"]);
    case(&[("params.json", b"[]")], &["params.json", "must contain a JSON object"]);
    case(&[("b.gguf", b""), ("a.gguf", b"")], &["GGUF files", "such as a.gguf"]);
    case(&[("config.json", b"{}")], &["no .safetensors file", "incomplete"]);
    case(&[("config.json", b"{}"), ("pytorch_model.bin", b"")], &["pytorch_model.bin", "pickle"]);
    case(
        &[("config.json", b"{}"), ("m.gguf", b"")],
        &["its weights are in a GGUF file; pass its path: m.gguf"],
    );
    let part = safetensors(ONE, 16);
    case(
        &[("config.json", b"{}"), ("m-1.safetensors", &part), ("m-2.safetensors", &part)],
        &["2 .safetensors files", "no model.safetensors.index.json"],
    );
    case(&[("config.json", b"{}"), ("model.safetensors", b"")], &["model.safetensors", "the file is empty"]);
    let single = folder(&[("config.json", b"{}"), ("other.safetensors", &part)]);
    assert!(
        Checkpoint::open(single.path()).unwrap().tensor("a").is_some(),
        "the only file serves under any name"
    );
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_refused_without_waiting() {
    refused_path(Path::new("/dev/null"), &["neither a file nor a folder"]);
    let dir = model("{}", &safetensors(ONE, 16));
    std::fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(dir.path().join("model.safetensors")).status();
    if made.is_ok_and(|status| status.success()) {
        refused_path(dir.path(), &["model.safetensors", "neither a file nor a folder"]);
        refused_path(&dir.path().join("model.safetensors"), &["neither a file nor a folder"]);
    }
    let dir = model("{}", &safetensors(ONE, 16));
    std::fs::remove_file(dir.path().join("config.json")).unwrap();
    std::fs::create_dir(dir.path().join("config.json")).unwrap();
    refused_path(dir.path(), &["config.json", "not a regular file"]);
}

#[test]
fn the_writer_rejects_invalid_tensors_and_keys() {
    let mut writer = Writer::new();
    assert!(writer.tensor("q", TensorType::Q4_0, &[32]).is_err(), "safetensors has no block formats");
    writer.tensor("a", TensorType::F32, &[1]).unwrap().tensor("a", TensorType::F32, &[1]).unwrap();
    let error = writer.write(&mut Vec::new(), |_, out| out.write_all(&[0; 4])).unwrap_err();
    assert!(error.to_string().contains("tensor a occurs twice"));
    let mut short = Writer::new();
    short.tensor("a", TensorType::F32, &[1]).unwrap();
    let error = short.write(&mut Vec::new(), |_, out| out.write_all(&[0; 3])).unwrap_err();
    assert!(error.to_string().contains("tensor a: wrote 3 bytes, expected 4"));
}
