//! Files of an open model are not written.

use latent_formats::{Checkpoint, OutputFile, output_file};
use std::path::{Path, PathBuf};

/// Names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

fn refused(target: &Path, word: &str) {
    for found in [output_file::write(target, b"new"), OutputFile::check(target)] {
        let message = found.unwrap_err().to_string();
        assert!(message.contains(word) && message.contains(&*target.to_string_lossy()), "{message}");
    }
}

/// A GGUF file that opens.
fn model(path: &Path) -> PathBuf {
    let mut bytes = Vec::new();
    let mut writer = latent_formats::gguf::Writer::new();
    writer.key("general.architecture", latent_formats::gguf::WriterValue::String("deepseek2".into()));
    writer.tensor("w", latent_types::TensorType::F32, &[8]).unwrap();
    writer.write(&mut bytes, |_, out| out.write_all(&[0; 32])).unwrap();
    std::fs::write(path, bytes).unwrap();
    path.to_owned()
}

#[test]
fn the_files_of_an_open_model_are_refused_under_any_name_until_it_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(&folder.path().join("model.gguf"));
    let other = folder.path().join("hard-link");
    std::fs::hard_link(&path, &other).unwrap();
    let before = std::fs::read(&path).unwrap();
    let open = Checkpoint::open(&path).unwrap();
    refused(&path, "the model itself");
    refused(&other, "the model itself");
    refused(
        &folder.path().join("../").join(folder.path().file_name().unwrap()).join("model.gguf"),
        "the model itself",
    );
    drop(open);
    assert_eq!(std::fs::read(&path).unwrap(), before);
    output_file::write(&path, b"new").unwrap();
    // All files of a folder are protected, with and without weights.
    let hf = folder.path().join("hf");
    std::fs::create_dir(&hf).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        std::fs::write(hf.join(name), "{}").unwrap();
    }
    let mut bytes = Vec::new();
    let mut writer = latent_formats::safetensors::Writer::new();
    writer.tensor("w", latent_types::TensorType::F32, &[8]).unwrap();
    writer.write(&mut bytes, |_, out| out.write_all(&[0; 32])).unwrap();
    std::fs::write(hf.join("model.safetensors"), &bytes).unwrap();
    for cut in [bytes.len(), bytes.len() - 8] {
        std::fs::write(hf.join("model.safetensors"), &bytes[..cut]).unwrap();
        let _open = latent_formats::Outline::open(&hf).unwrap();
        names(&hf).iter().for_each(|name| refused(&hf.join(name), "the model itself"));
    }
    let _config = latent_formats::Outline::open(&hf.join("config.json")).unwrap();
    refused(&hf.join("config.json"), "the model itself");
}
