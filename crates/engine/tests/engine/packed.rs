//! Packed files give the bits of the model that they were packed from, without needing its files,
//! and inconsistent packed files are refused.

use crate::support;
use crate::support::{CASES, WITH_GGUF, all_logits, bits, checkpoint, engine, fixture};
use latent_backend::BackendError;
use latent_engine::{Engine, EngineOptions};
use latent_formats::Checkpoint;
use latent_graph::passes::{MlaChoice, Precision};
use latent_testing::{ModelRecipe, RandomWeightTypes};
use latent_types::TensorType;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TOKENS: [u32; 9] = [256, 5, 99, 300, 7, 7, 42, 511, 0];

fn options(mla: MlaChoice, precision: Precision) -> EngineOptions {
    EngineOptions { mla, precision, threads: Some(1), context: Some(128), ..EngineOptions::default() }
}

fn packed(source: &Path) -> PathBuf {
    let out = source.with_extension("latent");
    latent_backends::pack(&Checkpoint::open(source).unwrap(), &out, Some(2), &mut |_, _| true).unwrap();
    out
}

/// Packs the model and compares the logits with those of the model itself, in both precisions and
/// formulations.
fn check(source: &Path, tokens: &[u32], what: &str) {
    let out = packed(source);
    let (plain, packed) = (checkpoint(source), checkpoint(&out));
    assert_eq!((packed.fingerprint(), packed.identity()), (plain.fingerprint(), plain.identity()), "{what}");
    for precision in [Precision::Default, Precision::Exact] {
        for mla in [MlaChoice::Absorbed, MlaChoice::Naive] {
            let logits = |file| bits(&all_logits(&mut engine(file, &options(mla, precision)), tokens, 4));
            assert_eq!(logits(&packed), logits(&plain), "{what}, {precision} {mla}");
        }
    }
}

#[test]
fn every_type_gives_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let kinds = latent_quant::encodable()
        .filter(|ty| ty.ggml_id().is_some() && *ty != TensorType::Q8_K)
        .map(RandomWeightTypes::from);
    for kind in kinds.chain(["Q4_K_M".parse().unwrap()]) {
        ModelRecipe { layers: Some(2), ..ModelRecipe::new("tiny-v3", kind) }.write_gguf(&path).unwrap();
        check(&path, &TOKENS, &format!("{kind:?}"));
    }
}

#[test]
fn legacy_files_shards_and_folders_give_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let recipe =
        |ty| ModelRecipe { layers: Some(2), ..ModelRecipe::new("tiny-v3", RandomWeightTypes::from(ty)) };
    let legacy = folder.path().join("legacy.gguf");
    for ty in [TensorType::Q8_0, TensorType::Q4_K, TensorType::NVFP4, TensorType::F16] {
        ModelRecipe { legacy: true, ..recipe(ty) }.write_gguf(&legacy).unwrap();
        check(&legacy, &TOKENS, &format!("legacy {ty}"));
    }
    let cut = ModelRecipe { shards: Some(3), ..recipe(TensorType::Q4_K) }
        .write_gguf(&folder.path().join("cut.gguf"));
    check(&cut.unwrap().first, &TOKENS, "shards");
    for ty in [TensorType::BF16, TensorType::F8_E4M3] {
        let path = folder.path().join(format!("folder-{ty}"));
        recipe(ty).write_folder(&path).unwrap();
        check(&path, &TOKENS, &format!("folder of {ty}"));
    }
}

#[test]
fn fixtures_give_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    for case in CASES {
        let from = support::folder(case);
        let to = folder.path().join(case);
        std::fs::create_dir(&to).unwrap();
        for entry in std::fs::read_dir(&from).unwrap().flatten() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
        let tokens = &fixture(case).tokens[..20];
        check(&to, tokens, case);
        if WITH_GGUF.contains(&case) {
            check(&to.join("model.f32.gguf"), tokens, case);
        }
    }
}

#[test]
fn a_packed_file_needs_nothing_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let recipe = ModelRecipe {
        layers: Some(2),
        ..ModelRecipe::new("tiny-v3", RandomWeightTypes::from(TensorType::Q4_0))
    };
    recipe.write_gguf(&path).unwrap();
    let plain = checkpoint(&path);
    let how = latent_text::EncodeOptions { add_special: true, parse_special: true };
    let tokenizer = latent_text::Tokenizer::from_checkpoint(&plain).unwrap();
    let expected = tokenizer.encode("a fox and a lantern", how).unwrap();
    let out = packed(&path);
    drop(plain);
    std::fs::remove_file(&path).unwrap();
    let alone = checkpoint(&out);
    let from = alone.packed_from().unwrap();
    assert_eq!(
        (from.name.as_str(), from.files, from.version),
        ("model.gguf", 1, latent_formats::pack::VERSION)
    );
    let tokenizer = latent_text::Tokenizer::from_checkpoint(&alone).unwrap();
    assert_eq!(tokenizer.encode("a fox and a lantern", how).unwrap(), expected);
    let mut engine = engine(&alone, &options(MlaChoice::Auto, Precision::Default));
    assert!(engine.needed().weights == 0 && engine.needed().mapped > 0, "{:?}", engine.needed());
    assert_eq!(all_logits(&mut engine, &TOKENS, 4).len(), TOKENS.len());
    assert!(latent_backends::pack(&alone, &folder.path().join("twice"), Some(1), &mut |_, _| true).is_err());
}

/// The resident bytes of the mapping of a file.
#[cfg(target_os = "linux")]
fn mapped(path: &Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let path = path.canonicalize().unwrap();
    let of_file = maps.lines().skip_while(|line| !line.ends_with(path.to_str().unwrap()));
    let resident = of_file.skip(1).find_map(|line| line.strip_prefix("Rss:")).unwrap();
    resident.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

#[test]
#[cfg(target_os = "linux")]
fn weights_of_a_packed_file_are_read_ahead() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    ModelRecipe::new("tiny-v3", RandomWeightTypes::from(TensorType::Q4_0)).write_gguf(&path).unwrap();
    let out = packed(&path);
    let file = checkpoint(&out);
    let in_tiles = file.tensors().iter().filter(|info| info.tile_rows.is_some());
    let bytes: usize = in_tiles.map(|info| info.bytes).sum();
    let mut engine = engine(&file, &options(MlaChoice::Auto, Precision::Default));
    engine.wait_for_weights();
    // The file was mapped when it was opened, and no step has read a weight.
    assert!(bytes > 1 << 20 && mapped(&out) >= bytes, "{} of {bytes} bytes", mapped(&out));
}

#[test]
fn stopped_and_failed_packing_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    ModelRecipe::new("tiny-dense", RandomWeightTypes::from(TensorType::Q4_0)).write_gguf(&path).unwrap();
    let model = Checkpoint::open(&path).unwrap();
    let mut heard = 0;
    let stopped =
        latent_backends::pack(&model, &folder.path().join("stopped.latent"), Some(2), &mut |done, total| {
            assert!(done <= total);
            heard += 1;
            heard < 5
        });
    assert!(matches!(stopped, Err(BackendError::Cancelled)));
    let nowhere =
        latent_backends::pack(&model, &folder.path().join("no/such/folder.latent"), Some(1), &mut |_, _| {
            true
        });
    assert!(nowhere.unwrap_err().to_string().contains("folder.latent"));
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().map(|e| e.file_name()).collect();
    assert_eq!(names, ["model.gguf"]);
}

/// Tiles for matrices of other shapes than the model's, in an otherwise valid header.
#[test]
fn tiles_of_another_shape_are_refused() {
    use latent_formats::pack::{PackWriter, TiledTensor};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let recipe = ModelRecipe {
        layers: Some(1),
        ..ModelRecipe::new("tiny-dense", RandomWeightTypes::from(TensorType::Q4_0))
    };
    recipe.write_gguf(&path).unwrap();
    let model = Checkpoint::open(&path).unwrap();
    let load = |lie: &dyn Fn(&str, usize, usize) -> Option<TiledTensor>| {
        let tiles: Vec<Option<TiledTensor>> = model
            .tensors()
            .iter()
            .map(|t| if t.shape.len() == 2 { lie(&t.name, t.shape[0], t.bytes) } else { None })
            .collect();
        let out = folder.path().join("lie.latent");
        let writer = PackWriter::new(&model, &tiles).unwrap();
        let mut file = std::fs::File::create(&out).unwrap();
        let bytes = |i: usize| tiles[i].map_or(model.tensors()[i].bytes, |tiles| tiles.bytes);
        writer.write(&mut file, |i, out| out.write_all(&vec![0; bytes(i)])).unwrap();
        let opened = Arc::new(Checkpoint::open(&out).unwrap());
        Engine::load(
            &*latent_backends::cpu(),
            &opened,
            &options(MlaChoice::Auto, Precision::Default),
            &mut |_, _| {},
        )
        .map(|_| ())
    };
    let refused = |lie: &dyn Fn(&str, usize, usize) -> Option<TiledTensor>, word: &str| {
        let message = load(lie).unwrap_err().to_string();
        assert!(message.contains(word) && message.contains("pack"), "{message}");
    };
    refused(&|_, rows, bytes| Some(TiledTensor { rows: rows / 2, bytes }), "tiles of matrices of");
    refused(&|_, rows, bytes| Some(TiledTensor { rows, bytes: 2 * bytes }), "tiles of matrices of");
    // Without tiles in the file, the weights are packed while loading, as from any other file.
    assert!(load(&|_, _, _| None).is_ok());
}
