//! Conversion of tokenizers, experts, FP8 blocks, MTP layers and shards.

use crate::support::{case_folder, metadata, numbers, types};
use latent_convert::{FolderOptions, GgufOptions, small_files, to_folder, to_gguf};
use latent_formats::Checkpoint;
use latent_testing::{FourBitLayout, FourBitRecipe, ModelRecipe, MtpLayer};
use latent_text::{EncodeOptions, Tokenizer};
use latent_types::TensorType;
use std::path::{Path, PathBuf};

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/mla-demo-Q4_K_M.gguf")
}

fn write(folder: &Path, file: &Path, ty: TensorType) -> latent_convert::ConversionReport {
    let types = types(ty.name());
    let options = GgufOptions { types: Some(&types), ..GgufOptions::default() };
    to_gguf(&Checkpoint::open(folder).unwrap(), file, &options, &mut |_, _| true).unwrap()
}

/// The demo's file was written by llama.cpp's converter, from a folder with tokenizer.json.
#[test]
fn a_tokenizer_and_its_template_survive_a_round_trip() {
    let temporary = tempfile::tempdir().unwrap();
    let (folder, file) = (temporary.path().join("demo"), temporary.path().join("demo.gguf"));
    let own = Checkpoint::open(&demo()).unwrap();
    let report = to_folder(&own, &folder, &FolderOptions::default(), &mut |_, _| true).unwrap();
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    let names = ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors"];
    assert!(names.iter().all(|name| folder.join(name).is_file()));
    let small = small_files(&own).unwrap();
    assert!(
        small.notes.is_empty() && small.files.len() == 4,
        "config.json and all but the tensors: {small:?}"
    );
    for (name, text) in small.files {
        assert_eq!(std::fs::read_to_string(folder.join(&name)).unwrap(), text, "{name}");
    }
    write(&folder, &file, TensorType::BF16);
    let back = Checkpoint::open(&file).unwrap();
    let (old, new) = (metadata(&own), metadata(&back));
    for key in ["tokens", "merges"] {
        let key = format!("tokenizer.ggml.{key}");
        assert_eq!(old.strings(&key).unwrap(), new.strings(&key).unwrap(), "{key}");
    }
    assert_eq!(
        old.numbers("tokenizer.ggml.token_type").unwrap(),
        new.numbers("tokenizer.ggml.token_type").unwrap()
    );
    for (key, value) in old.entries() {
        let list = ["tokens", "merges", "token_type"].iter().any(|end| key.ends_with(end));
        if !list && !["general.name", "general.file_type"].contains(&key.as_str()) {
            assert_eq!(new.get(key), Some(value), "{key}");
        }
    }
    let folder = Tokenizer::from_checkpoint(&Checkpoint::open(&folder).unwrap()).unwrap();
    let [old, new] = [&own, &back].map(|checkpoint| Tokenizer::from_checkpoint(checkpoint).unwrap());
    for text in ["Tell me a story, please!  1234 élan\n\n\t文字<｜User｜>", ""] {
        let how = EncodeOptions { add_special: true, parse_special: true };
        let ids = old.encode(text, how).unwrap();
        assert_eq!(folder.encode(text, how).unwrap(), ids);
        assert_eq!(new.encode(text, how).unwrap(), ids);
    }
    assert_eq!(new.end_of_generation(), old.end_of_generation());
}

/// A folder and its f32 copy must convert to the same numbers, except weights with reordered
/// inputs, which are rounded to F16.
#[test]
fn four_bit_weights_are_converted_by_value() {
    let temporary = tempfile::tempdir().unwrap();
    let at = |name: &str| temporary.path().join(name);
    let ordered = FourBitRecipe { ordered: true, ..FourBitRecipe::new(FourBitLayout::GptqV2, false) };
    let wide =
        FourBitRecipe { scales: TensorType::BF16, ..FourBitRecipe::new(FourBitLayout::PackQuantized, true) };
    let forms = [
        FourBitRecipe::new(FourBitLayout::Gptq, true),
        FourBitRecipe::new(FourBitLayout::Awq, false),
        wide,
        ordered,
    ];
    for (i, form) in forms.iter().enumerate() {
        let [packed, plain] = ["packed", "plain"].map(|name| at(&format!("{name}{i}")));
        let recipe = ModelRecipe { layers: Some(2), ..ModelRecipe::new("tiny-v3", "F32".parse().unwrap()) };
        recipe.write_four_bit(form, &packed, &plain).unwrap();
        let [new, truth] = [packed, plain].map(|folder| {
            let file = folder.with_extension("gguf");
            write(&folder, &file, TensorType::F32);
            Checkpoint::open(&file).unwrap()
        });
        for info in truth.tensors() {
            let (found, expected) = (numbers(&new, &info.name), numbers(&truth, &info.name));
            let near = |(a, b): (&u32, &u32)| {
                let (a, b) = (f32::from_bits(*a), f32::from_bits(*b));
                a == b || form.ordered && (a - b).abs() <= b.abs() / 2048.0
            };
            assert!(
                found.len() == expected.len() && found.iter().zip(&expected).all(near),
                "{} {form:?}",
                info.name
            );
        }
    }
    // Blocks that already have the requested type are copied.
    write(&at("packed0"), &at("q4_0.gguf"), TensorType::Q4_0);
    let (own, new) = (Checkpoint::open(&at("packed0")).unwrap(), Checkpoint::open(&at("q4_0.gguf")).unwrap());
    let stored = own.rows("model.layers.1.self_attn.o_proj.weight").unwrap().unwrap();
    let copied = new.tensor("blk.1.attn_output.weight").unwrap();
    assert_eq!(copied.info.ty, TensorType::Q4_0);
    assert_eq!(copied.data, &*stored.bytes(0..copied.info.rows()));
}

#[test]
fn fp8_blocks_are_dequantized_and_experts_are_stacked() {
    let temporary = tempfile::tempdir().unwrap();
    let (folder, file) = (temporary.path().join("model"), temporary.path().join("model.gguf"));
    ModelRecipe::new("tiny-v3", "F8_E4M3".parse().unwrap()).write_folder(&folder).unwrap();
    write(&folder, &file, TensorType::F32);
    let (own, new) = (Checkpoint::open(&folder).unwrap(), Checkpoint::open(&file).unwrap());
    let scaled = |name: &str| -> Vec<f32> {
        let (tensor, scale) = (own.tensor(name).unwrap(), own.tensor(&format!("{name}_scale_inv")).unwrap());
        assert_eq!(tensor.info.ty, TensorType::F8_E4M3);
        let cols = tensor.info.shape[1];
        let scales: Vec<f32> =
            scale.data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let per_row = cols.div_ceil(128);
        let numbers = numbers(&own, name).into_iter().map(f32::from_bits).enumerate();
        numbers.map(|(i, n)| n * scales[i / cols / 128 * per_row + i % cols / 128]).collect()
    };
    let found = |name: &str| -> Vec<f32> { numbers(&new, name).into_iter().map(f32::from_bits).collect() };
    assert_eq!(found("blk.1.attn_q_a.weight"), scaled("model.layers.1.self_attn.q_a_proj.weight"));
    let experts = found("blk.1.ffn_down_exps.weight");
    let shape = &new.tensor("blk.1.ffn_down_exps.weight").unwrap().info.shape;
    let each = shape[1] * shape[2];
    for expert in [0, 7, shape[0] - 1] {
        let name = format!("model.layers.1.mlp.experts.{expert}.down_proj.weight");
        assert_eq!(experts[expert * each..(expert + 1) * each], scaled(&name), "{name}");
    }
    // W_UK is the first rows of each head, transposed.
    let kv = scaled("model.layers.1.self_attn.kv_b_proj.weight");
    let (keys, values) =
        (new.tensor("blk.1.attn_k_b.weight").unwrap(), new.tensor("blk.1.attn_v_b.weight").unwrap());
    let ([heads, lora, nope], v) =
        (<[usize; 3]>::try_from(keys.info.shape.clone()).unwrap(), values.info.shape[1]);
    let (keys, values) = (found("blk.1.attn_k_b.weight"), found("blk.1.attn_v_b.weight"));
    for (head, l) in [(0, 0), (1, lora - 1), (heads - 1, 3)] {
        for n in 0..nope {
            assert_eq!(keys[(head * lora + l) * nope + n], kv[(head * (nope + v) + n) * lora + l]);
        }
        for i in 0..v {
            assert_eq!(values[(head * v + i) * lora + l], kv[(head * (nope + v) + nope + i) * lora + l]);
        }
    }
}

#[test]
fn a_layer_for_multi_token_prediction_is_kept() {
    let temporary = tempfile::tempdir().unwrap();
    for mtp in [MtpLayer::Own, MtpLayer::Shared] {
        let (folder, file) =
            (temporary.path().join(format!("{mtp:?}")), temporary.path().join(format!("{mtp:?}.gguf")));
        ModelRecipe { mtp, ..ModelRecipe::new("tiny-v3", "BF16".parse().unwrap()) }
            .write_folder(&folder)
            .unwrap();
        write(&folder, &file, TensorType::BF16);
        let new = Checkpoint::open(&file).unwrap();
        assert_eq!(metadata(&new).u64("deepseek2.nextn_predict_layers").unwrap(), Some(1));
        let layers = metadata(&new).u64("deepseek2.block_count").unwrap().unwrap() - 1;
        let has = |name: &str| new.tensor(&format!("blk.{layers}.nextn.{name}.weight")).is_some();
        assert!(has("eh_proj") && has("enorm") && has("hnorm"));
        assert_eq!(has("embed_tokens") && has("shared_head_head"), mtp == MtpLayer::Own);
    }
}

#[test]
fn shards_of_both_kinds_open_as_one_model() {
    let temporary = tempfile::tempdir().unwrap();
    let (file, folder) = (temporary.path().join("model.gguf"), temporary.path().join("back"));
    let own = Checkpoint::open(&case_folder("v3")).unwrap();
    let options = GgufOptions { split: Some(300_000), ..GgufOptions::default() };
    let report = to_gguf(&own, &file, &options, &mut |_, _| true).unwrap();
    assert!(report.files.len() > 3 && !file.exists(), "{:?}", report.files);
    let end = format!("model-00001-of-{:05}.gguf", report.files.len());
    assert!(report.files[0].ends_with(&end), "{:?}", report.files);
    let gguf = Checkpoint::open(&report.files[0]).unwrap();
    assert_eq!((gguf.files(), gguf.tensors().len()), (report.files.len(), report.tensors));
    let options = FolderOptions { split: Some(300_000), ..FolderOptions::default() };
    to_folder(&gguf, &folder, &options, &mut |_, _| true).unwrap();
    assert!(
        folder.join("model.safetensors.index.json").is_file() && !folder.join("model.safetensors").exists()
    );
    let back = Checkpoint::open(&folder).unwrap();
    assert!(back.files() > 3);
    for tensor in own.tensors() {
        assert_eq!(numbers(&own, &tensor.name), numbers(&back, &tensor.name), "{}", tensor.name);
    }
}

/// Among them: experts in one tensor, queries without a low rank, and files from before W_UK and
/// W_UV were split.
#[test]
fn random_models_of_every_wiring_survive_a_round_trip() {
    let temporary = tempfile::tempdir().unwrap();
    let tiny = latent_testing::shapes().filter(|shape| shape.starts_with("tiny-"));
    for (shape, legacy) in tiny.flat_map(|shape| [(shape, false), (shape, true)]) {
        let at = |end: &str| temporary.path().join(format!("{shape}-{legacy}{end}"));
        let recipe = ModelRecipe { legacy, ..ModelRecipe::new(shape, "F16".parse().unwrap()) };
        recipe.write_gguf(&at(".gguf")).unwrap_or_else(|error| panic!("{shape}: {error}"));
        let own = Checkpoint::open(&at(".gguf")).unwrap();
        let converted = to_folder(&own, &at(""), &FolderOptions::default(), &mut |_, _| true);
        converted.unwrap_or_else(|error| panic!("{shape}: {error}"));
        write(&at(""), &at("-back.gguf"), TensorType::F16);
        let back = Checkpoint::open(&at("-back.gguf")).unwrap();
        let same = own.tensors().iter().filter(|tensor| back.tensor(&tensor.name).is_some());
        for tensor in same.clone() {
            assert_eq!(numbers(&own, &tensor.name), numbers(&back, &tensor.name), "{shape} {}", tensor.name);
        }
        let halved = own.tensors().iter().filter(|tensor| tensor.name.contains("attn_kv_b.")).count();
        let split = back.tensors().iter().filter(|tensor| tensor.name.contains("attn_k_b.")).count();
        let changed = if split > 0 { halved } else { 0 };
        assert_eq!(same.count(), own.tensors().len() - changed, "{shape}");
    }
}

/// GGUF files of Kimi-Linear store decay rates with a minus sign and those of Ling-3.0 without;
/// safetensors files store their logarithms.
#[test]
fn recurrent_models_keep_their_decay_rates() {
    let temporary = tempfile::tempdir().unwrap();
    for (shape, sign) in [("small-kimi-linear", -1.0), ("small-ling-3", 1.0)] {
        let at = |end: &str| temporary.path().join(format!("{shape}{end}"));
        ModelRecipe::new(shape, "F16".parse().unwrap()).write_gguf(&at(".gguf")).unwrap();
        let own = Checkpoint::open(&at(".gguf")).unwrap();
        to_folder(&own, &at(""), &FolderOptions::default(), &mut |_, _| true).unwrap();
        write(&at(""), &at("-back.gguf"), TensorType::F16);
        let back = Checkpoint::open(&at("-back.gguf")).unwrap();
        let (mut rates, mut same) = (0, 0);
        for tensor in own.tensors() {
            let name = &tensor.name;
            assert_eq!(Some(&tensor.shape), back.info(name).map(|info| &info.shape), "{shape} {name}");
            let [before, after] = [&own, &back]
                .map(|file| numbers(file, name).into_iter().map(f32::from_bits).collect::<Vec<_>>());
            if name.ends_with("ssm_a") {
                let near = |(a, b): (&f32, &f32)| (sign * a.abs() - b).abs() <= 1e-5 * a.abs();
                assert!(before.iter().zip(&after).all(near), "{shape} {name}: {before:?}, {after:?}");
                rates += 1;
            } else {
                assert_eq!(before, after, "{shape} {name}");
                same += 1;
            }
        }
        assert!(rates >= 2 && same > 40, "{shape}: {rates} and {same}");
    }
}

#[test]
fn quantized_types_are_written_if_rows_are_whole_blocks() {
    let temporary = tempfile::tempdir().unwrap();
    let (folder, file) = (temporary.path().join("model"), temporary.path().join("model.gguf"));
    ModelRecipe::new("tiny-v3", "BF16".parse().unwrap()).write_folder(&folder).unwrap();
    write(&folder, &file, TensorType::Q8_0);
    let (own, new) = (Checkpoint::open(&folder).unwrap(), Checkpoint::open(&file).unwrap());
    let tensor = new.tensor("blk.1.attn_q_a.weight").unwrap();
    assert_eq!(tensor.info.ty, TensorType::Q8_0);
    let source: Vec<f32> =
        numbers(&own, "model.layers.1.self_attn.q_a_proj.weight").into_iter().map(f32::from_bits).collect();
    let mut expected = vec![0; tensor.data.len()];
    latent_quant::encode(TensorType::Q8_0, &source, &mut expected).unwrap();
    assert!(tensor.data == expected);
    let norm = new.tensor("blk.1.attn_norm.weight").unwrap();
    let router = new.tensor("blk.1.ffn_gate_inp.weight").unwrap();
    assert_eq!((norm.info.ty, router.info.ty), (TensorType::F32, TensorType::F32));
}

/// The `general.*` keys of a file, without its kind and its hyperparameters.
fn general(file: &Path) -> String {
    let checkpoint = Checkpoint::open(file).unwrap();
    let of = |key: &str| match metadata(&checkpoint).strings(key) {
        Ok(Some(texts)) => {
            format!("{:?}", texts.iter().map(|text| String::from_utf8_lossy(text)).collect::<Vec<_>>())
        }
        _ => match metadata(&checkpoint).str(key) {
            Ok(Some(text)) => text.to_owned(),
            _ => metadata(&checkpoint).u64(key).unwrap().unwrap().to_string(),
        },
    };
    let kind = ["architecture", "type", "file_type", "quantization_version"];
    let mut lines: Vec<String> = metadata(&checkpoint)
        .entries()
        .iter()
        .filter_map(|(key, _)| {
            let name = key.strip_prefix("general.").filter(|name| !kind.contains(name))?;
            Some(format!("{name} = {}", of(key)))
        })
        .collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// The expected values are those of `Metadata.load` of the Python package gguf, except the size,
/// which it leaves to its caller.
#[test]
fn the_model_card_becomes_general_metadata() {
    let temporary = tempfile::tempdir().unwrap();
    let (folder, file) = (temporary.path().join("PLM-demo-Instruct"), temporary.path().join("model.gguf"));
    std::fs::create_dir(&folder).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(case_folder("plm").join(name), folder.join(name)).unwrap();
    }
    let convert = |id: Option<&str>| {
        let options = GgufOptions { force: true, id, ..GgufOptions::default() };
        to_gguf(&Checkpoint::open(&folder).unwrap(), &file, &options, &mut |_, _| true).unwrap().notes
    };
    convert(None);
    let plain = "basename = PLM-demo\nfinetune = Instruct\nname = PLM Demo Instruct\nsize_label = 133K";
    assert_eq!(general(&file), plain);
    convert(Some("PLM-Team/PLM-130K-Chat"));
    let of_id =
        "basename = PLM\nfinetune = Chat\nname = PLM 130K Chat\norganization = PLM Team\nsize_label = 130K";
    assert_eq!(general(&file), of_id);

    let card = "---\nlicense: other\nlicense_name: plm\nlicense_link: LICENSE\nlanguage:\n- en\n- zh\nlibrary_name: transformers\n\
        pipeline_tag: text-generation\ntags: [moe, mla]\nbase_model:\n- PLM-Team/PLM-1.8B-Base\n- https://huggingface.co/a/b-v2\n\
        datasets: x/y\nmodel_creator: PLM Team\n---\n# PLM\n";
    std::fs::write(folder.join("README.md"), card).unwrap();
    convert(None);
    let expected = "author = PLM Team
base_model.0.name = PLM 1.8B Base
base_model.0.organization = PLM Team
base_model.0.repo_url = https://huggingface.co/PLM-Team/PLM-1.8B-Base
base_model.1.name = B v2
base_model.1.organization = A
base_model.1.repo_url = https://huggingface.co/a/b-v2
base_model.1.version = v2
base_model.count = 2
basename = PLM-demo
dataset.0.name = Y
dataset.0.organization = X
dataset.0.repo_url = https://huggingface.co/x/y
dataset.count = 1
finetune = Instruct
languages = [\"en\", \"zh\"]
license = other
license.link = LICENSE
license.name = plm
name = PLM Demo Instruct
size_label = 133K
tags = [\"moe\", \"mla\", \"text-generation\"]";
    assert_eq!(general(&file), expected);

    // The folder converted from the file has a card with the same metadata.
    let (back, again) = (temporary.path().join("back"), temporary.path().join("again.gguf"));
    to_folder(&Checkpoint::open(&file).unwrap(), &back, &FolderOptions::default(), &mut |_, _| true).unwrap();
    to_gguf(&Checkpoint::open(&back).unwrap(), &again, &GgufOptions::default(), &mut |_, _| true).unwrap();
    assert_eq!(general(&again), expected);

    std::fs::write(folder.join("README.md"), b"\xff\xfe").unwrap();
    let notes = convert(None);
    assert_eq!(general(&file), plain);
    assert!(notes.iter().any(|note| note.contains("README.md") && note.contains("UTF-8")), "{notes:?}");
}

#[test]
fn llama_cpps_use_of_a_file_is_reported() {
    let temporary = tempfile::tempdir().unwrap();
    let notes = |case: &str| {
        let own = Checkpoint::open(&case_folder(case)).unwrap();
        let file = temporary.path().join(format!("{case}.gguf"));
        to_gguf(&own, &file, &GgufOptions::default(), &mut |_, _| true).unwrap().notes.join("\n")
    };
    for (case, word) in [
        ("v2-groups", "two best experts"),
        ("v3-bias", "attention biases"),
        ("axk1", "does not support the architecture axk1"),
        ("minicpm3", "the same scaling factors"),
    ] {
        let notes = notes(case);
        assert!(notes.contains(word), "{case}: {notes}");
    }
    for case in ["v3", "v2-lite", "plm"] {
        let notes = notes(case);
        assert!(!notes.contains("llama.cpp"), "{case}: {notes}");
    }
}
