//! `--pack-cache`: packed copies of models.

use crate::support::latent;
use latent_testing::{ModelRecipe, RandomWeightTypes};
use latent_types::TensorType;
use std::fs;
use std::path::{Path, PathBuf};

fn copies(folder: &Path) -> Vec<PathBuf> {
    let mut copies: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    copies.sort();
    copies
}

#[test]
fn the_first_start_packs_and_later_ones_use_the_copy() {
    let folder = tempfile::tempdir().unwrap();
    let (model, cache) = (folder.path().join("model.gguf"), folder.path().join("cache"));
    let write = |seed| {
        let kind = RandomWeightTypes::from(TensorType::Q4_0);
        let recipe = ModelRecipe { layers: Some(2), seed, ..ModelRecipe::new("tiny-v3", kind) };
        recipe.write_gguf(&model).unwrap();
    };
    write(1);
    let flag = format!("--pack-cache={}", cache.display());
    // Its output, and the notes.
    let logits = |more: &[&str]| {
        let fixed = ["logits", model.to_str().unwrap(), "-t", "1", "--tokens", "1,2,3"];
        let out = latent(&[&fixed[..], more].concat()).output().unwrap();
        let notes = String::from_utf8(out.stderr).unwrap();
        assert!(out.status.success(), "{notes}");
        (out.stdout, notes)
    };
    let (own, notes) = logits(&[]);
    assert!(!notes.contains("packed") && !cache.exists());
    let (first, notes) = logits(&[&flag]);
    assert!(notes.contains("wrote a packed copy for later starts"), "{notes}");
    let (second, notes) = logits(&[&flag]);
    assert!(!notes.contains("wrote a packed copy"), "{notes}");
    assert!(first == own && second == own);
    let [copy] = &copies(&cache)[..] else { panic!("one copy") };
    let name = copy.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("model-") && name.ends_with(".latent"), "{name}");
    // The default folder.
    let out = latent(&["logits", model.to_str().unwrap(), "--tokens", "1", "--pack-cache"])
        .env("LATENT_CACHE", folder.path().join("home"))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(copies(&folder.path().join("home/packed")).len(), 1);
    // A damaged copy is written again.
    let whole = fs::read(copy).unwrap();
    fs::write(copy, &whole[..whole.len() / 2]).unwrap();
    let (again, notes) = logits(&[&flag]);
    assert!(again == own && notes.contains("wrote a packed copy"), "{notes}");
    assert!(fs::read(copy).unwrap() == whole);
    // A changed model has another copy.
    write(2);
    let (changed, notes) = logits(&[&flag]);
    assert!(changed != own && notes.contains("wrote a packed copy"), "{notes}");
    assert_eq!(copies(&cache).len(), 2);
    // If no copy can be written, the model runs without one.
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let (without, notes) = logits(&[&format!("--pack-cache={}", file.join("x").display())]);
    assert!(
        without == changed && notes.contains("warning: --pack-cache: no packed copy was written"),
        "{notes}"
    );
}
