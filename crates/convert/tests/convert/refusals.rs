//! Refused conversions: what the user is told, and that no files remain.

use crate::support;
use crate::support::case_folder;
use latent_convert::{ConversionReport, ConvertError, FolderOptions, GgufOptions, to_folder, to_gguf};
use latent_formats::Checkpoint;
use latent_formats::safetensors::Writer;
use latent_types::TensorType;
use std::path::Path;

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

fn gguf(folder: &Path, file: &Path, force: bool) -> Result<ConversionReport, ConvertError> {
    let options = GgufOptions { force, ..GgufOptions::default() };
    to_gguf(&Checkpoint::open(folder).unwrap(), file, &options, &mut |_, _| true)
}

/// Writes a copy of a fixture with changed tensors.
fn changed(case: &str, at: &Path, change: impl Fn(&str, Vec<u8>) -> Option<(String, Vec<u8>)>) {
    std::fs::create_dir(at).unwrap();
    std::fs::copy(case_folder(case).join("config.json"), at.join("config.json")).unwrap();
    let own = Checkpoint::open(&case_folder(case)).unwrap();
    let mut writer = Writer::new();
    let mut data = Vec::new();
    for tensor in own.tensors() {
        let Some((name, bytes)) = change(&tensor.name, own.tensor(&tensor.name).unwrap().data.to_vec())
        else {
            continue;
        };
        writer.tensor(name, tensor.ty, &tensor.shape).unwrap();
        data.push(bytes);
    }
    let mut file = Vec::new();
    writer.write(&mut file, |i, out| out.write_all(&data[i])).unwrap();
    std::fs::write(at.join("model.safetensors"), file).unwrap();
}

#[test]
fn configs_without_gguf_keys_are_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("odd");
    changed("v3", &folder, |name, bytes| Some((name.to_owned(), bytes)));
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    std::fs::write(
        folder.join("config.json"),
        config.replace("\"rope_interleave\": true", "\"rope_interleave\": false"),
    )
    .unwrap();
    let said = gguf(&folder, &temporary.path().join("x.gguf"), false).unwrap_err().to_string();
    assert!(said.contains("deepseek2") && said.contains("rope.pairs"), "{said}");
    std::fs::write(
        folder.join("config.json"),
        config.replace("deepseek_v3", "llama").replace("DeepseekV3", "Llama"),
    )
    .unwrap();
    let error = gguf(&folder, &temporary.path().join("x.gguf"), false).unwrap_err();
    assert!(matches!(error, ConvertError::Config(_)) && error.to_string().contains("llama"), "{error}");
    assert_eq!(names(temporary.path()), ["odd"]);
}

#[test]
fn missing_and_unknown_tensors_are_named() {
    let temporary = tempfile::tempdir().unwrap();
    let gone = "model.layers.1.mlp.experts.5.up_proj.weight";
    changed("v3", &temporary.path().join("a"), |name, bytes| {
        (name != gone).then(|| (name.to_owned(), bytes))
    });
    let said =
        gguf(&temporary.path().join("a"), &temporary.path().join("x.gguf"), false).unwrap_err().to_string();
    assert!(said.contains(gone), "{said}");
    changed("v3", &temporary.path().join("b"), |name, bytes| Some((name.to_owned(), bytes)));
    let own = Checkpoint::open(&temporary.path().join("b")).unwrap();
    let mut writer = Writer::new();
    for tensor in own.tensors() {
        writer.tensor(tensor.name.clone(), tensor.ty, &tensor.shape).unwrap();
    }
    writer.tensor("model.layers.0.mlp.surprise.weight", TensorType::F32, &[1]).unwrap();
    let mut file = Vec::new();
    let data =
        |i: usize| own.tensors().get(i).map_or(&[0; 4][..], |tensor| own.tensor(&tensor.name).unwrap().data);
    writer.write(&mut file, |i, out| out.write_all(data(i))).unwrap();
    drop(own);
    std::fs::write(temporary.path().join("b/model.safetensors"), file).unwrap();
    let said =
        gguf(&temporary.path().join("b"), &temporary.path().join("x.gguf"), false).unwrap_err().to_string();
    assert!(
        said.contains("mlp.surprise.weight") && said.contains("the circuit does not use a tensor: "),
        "{said}"
    );
    assert_eq!(names(temporary.path()), ["a", "b"]);
}

#[test]
fn existing_files_are_replaced_only_on_request() {
    let temporary = tempfile::tempdir().unwrap();
    let file = temporary.path().join("model.gguf");
    std::fs::write(&file, b"old").unwrap();
    let error = gguf(&case_folder("plm"), &file, false).unwrap_err();
    assert!(matches!(error, ConvertError::Exists { .. }) && error.to_string().contains("`force`"), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"old");
    gguf(&case_folder("plm"), &file, true).unwrap();
    let model = Checkpoint::open(&file).unwrap();
    let folder = temporary.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    let back = |force| {
        to_folder(&model, &folder, &FolderOptions { force, ..FolderOptions::default() }, &mut |_, _| true)
    };
    back(false).unwrap();
    let error = back(false).unwrap_err();
    assert!(matches!(error, ConvertError::Exists { .. }), "{error}");
    std::fs::write(folder.join("README.md"), b"mine").unwrap();
    back(true).unwrap();
    std::fs::write(folder.join("model-00001-of-00002.safetensors"), b"old").unwrap();
    let error = back(true).unwrap_err();
    assert!(matches!(&error, ConvertError::Leftover { name, .. } if name.starts_with("model-0")), "{error}");
    assert_eq!(std::fs::read(folder.join("README.md")).unwrap(), b"mine");
}

#[test]
fn the_models_own_folder_is_no_target() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("model");
    changed("plm", &folder, |name, bytes| Some((name.to_owned(), bytes)));
    let before = names(&folder);
    for target in ["model.gguf", "new/model.gguf"] {
        let error = gguf(&folder, &folder.join(target), true).unwrap_err();
        assert!(matches!(error, ConvertError::Inside { .. }), "{error}");
    }
    assert_eq!(names(&folder), before);
}

#[test]
fn the_target_folder_must_exist() {
    let temporary = tempfile::tempdir().unwrap();
    let error = gguf(&case_folder("plm"), &temporary.path().join("a/b.gguf"), true).unwrap_err();
    assert!(
        matches!(error, ConvertError::NoFolder { .. }) && error.to_string().contains("create it first"),
        "{error}"
    );
    assert!(names(temporary.path()).is_empty());
}

#[test]
fn a_stopped_run_to_gguf_is_resumed() {
    let own = Checkpoint::open(&case_folder("v3")).unwrap();
    let types = support::types("Q5_0");
    for split in [None, Some(300_000)] {
        let temporary = tempfile::tempdir().unwrap();
        let (at, straight) = (temporary.path().join("x"), temporary.path().join("straight"));
        [&at, &straight].into_iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
        let options = GgufOptions { split, types: Some(&types), threads: Some(2), ..GgufOptions::default() };
        let run = |folder: &Path, tell: &mut dyn FnMut(u64, u64) -> bool| {
            to_gguf(&own, &folder.join("x.gguf"), &options, tell)
        };
        let whole = run(&straight, &mut |_, _| true).unwrap();
        for quarter in 1..4 {
            let stop = whole.bytes * quarter / 4;
            let error = run(&at, &mut |done, _| done < stop).unwrap_err();
            let said = error.to_string();
            assert!(matches!(error, ConvertError::Stopped { .. }), "{said}");
            assert!(said.contains("again to resume"), "{said}");
            assert!(names(&at).iter().all(|name| name.ends_with(".part")), "{:?}", names(&at));
        }
        run(&at, &mut |_, _| true).unwrap();
        assert!(names(&at).len() == whole.files.len() && names(&at) == names(&straight));
        for name in names(&at) {
            let [resumed, straight] =
                [&at, &straight].map(|folder| std::fs::read(folder.join(&name)).unwrap());
            assert!(resumed == straight, "{name}");
        }
    }
}

#[test]
fn a_stopped_run_to_a_folder_leaves_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let gguf = Checkpoint::open(&case_folder("v3").join("model.f32.gguf")).unwrap();
    let target = temporary.path().join("made/for/it");
    let error = to_folder(&gguf, &target, &FolderOptions::default(), &mut |_, _| false).unwrap_err();
    assert!(matches!(error, ConvertError::Interrupted), "{error}");
    assert!(names(temporary.path()).is_empty());
}

#[test]
fn numbers_that_a_type_cannot_hold_are_named() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("model");
    // 65536 and 2986344448 (shortest decimal form: 2986344400) as BF16: a number and a scale beyond
    // the range of F16.
    for (ty, number, value) in [
        ("F16", [0x80, 0x47], "65536"),
        ("Q8_0", [0x32, 0x4f], "29863444"),
        ("Q4_0", [0x32, 0x4f], "29863444"),
    ] {
        changed("plm", &folder, |name, mut bytes| {
            if name == "model.layers.1.mlp.up_proj.weight" {
                bytes[10..12].copy_from_slice(&number);
            }
            Some((name.to_owned(), bytes))
        });
        let own = Checkpoint::open(&folder).unwrap();
        let types = support::types(ty);
        let options = GgufOptions { types: Some(&types), ..GgufOptions::default() };
        let said = to_gguf(&own, &temporary.path().join("x.gguf"), &options, &mut |_, _| true)
            .unwrap_err()
            .to_string();
        assert!(
            said.contains("blk.1.ffn_up.weight") && said.contains(value) && said.contains("choose BF16"),
            "{said}"
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }
    let gguf = Checkpoint::open(&case_folder("v3").join("model.f32.gguf")).unwrap();
    let options = FolderOptions { ty: Some(TensorType::Q8_0), ..FolderOptions::default() };
    let said =
        to_folder(&gguf, &temporary.path().join("y"), &options, &mut |_, _| true).unwrap_err().to_string();
    assert!(said.contains("Q8_0") && said.contains("BF16"), "{said}");
    assert!(names(temporary.path()).is_empty());
}
