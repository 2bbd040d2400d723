//! Outlines of models whose data are missing.

use latent_formats::gguf::{Writer, WriterValue};
use latent_formats::{Checkpoint, Outline, OutlineData, safetensors};
use latent_types::TensorType;

fn gguf() -> Vec<u8> {
    let mut writer = Writer::new();
    writer.key("general.architecture", WriterValue::String("deepseek2".into()));
    writer.tensor("a", TensorType::F32, &[4, 8]).unwrap();
    writer.tensor("b", TensorType::Q8_0, &[2, 32]).unwrap();
    let mut file = Vec::new();
    let sizes = [4 * 32, 2 * 34];
    writer.write(&mut file, |i, out| out.write_all(&vec![1; sizes[i]])).unwrap();
    file
}

#[test]
fn a_gguf_file_cut_after_its_header_has_its_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let file = gguf();
    std::fs::write(&path, &file).unwrap();
    let whole = Outline::open(&path).unwrap();
    assert_eq!((whole.data(), whole.tensors().len()), (OutlineData::Whole, 2));
    assert!(whole.whole().is_some());
    let mut cut_inside_data = 0;
    // Including the padding of the last tensor.
    let data = 4 * 32 + 96;
    for len in 1..file.len() {
        std::fs::write(&path, &file[..len]).unwrap();
        // Either the header is complete, or opening fails with a message.
        match Outline::open(&path) {
            // Only the padding after the last tensor is missing.
            Ok(outline) if outline.whole().is_some() => assert!(file.len() - len < 32),
            Ok(outline) => {
                assert_eq!(
                    (outline.data(), outline.tensors()),
                    (OutlineData::Header, whole.tensors()),
                    "{len}"
                );
                assert_eq!(outline.tensor("b").unwrap().shape, [2, 32]);
                let reason = Checkpoint::open(&path).err().unwrap().to_string();
                let refusal = outline.refusal().map(ToString::to_string);
                // A file that consists of a header only is not damaged.
                assert_eq!(refusal, (len > file.len() - data).then_some(reason), "{len}");
                assert!(outline.whole().is_none());
                cut_inside_data += 1;
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    assert!(cut_inside_data > 100);
}

#[test]
fn a_safetensors_folder_has_an_outline_at_every_stage_of_its_download() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Outline::open(folder.path());
    assert!(open().is_err());
    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "deepseek_v3"}"#).unwrap();
    assert_eq!(open().unwrap().data(), OutlineData::Config);
    let mut writer = safetensors::Writer::new();
    writer.tensor("x.weight", TensorType::BF16, &[3, 5]).unwrap();
    writer.tensor("y.weight", TensorType::F32, &[2]).unwrap();
    let mut file = Vec::new();
    let sizes = [30, 8];
    writer.write(&mut file, |i, out| out.write_all(&vec![0; sizes[i]])).unwrap();
    let path = folder.path().join("model.safetensors");
    for cut in [38, 20, 1] {
        std::fs::write(&path, &file[..file.len() - cut]).unwrap();
        let outline = open().unwrap();
        assert_eq!((outline.data(), outline.tensors().len()), (OutlineData::Header, 2));
        assert_eq!(outline.tensor("x.weight").unwrap().shape, [3, 5]);
        let reason = Checkpoint::open(folder.path()).err().unwrap().to_string();
        assert_eq!(outline.refusal().map(ToString::to_string), (cut < 38).then_some(reason), "{cut}");
    }
    std::fs::write(&path, &file).unwrap();
    assert_eq!(open().unwrap().data(), OutlineData::Whole);
}

#[test]
fn missing_shards_do_not_hide_the_existing_ones() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..2u16 {
        let mut writer = Writer::new();
        if number == 0 {
            writer.key("general.architecture", WriterValue::String("deepseek2".into()));
        }
        writer.key("split.no", WriterValue::U16(number));
        writer.key("split.count", WriterValue::U16(3));
        writer.tensor(format!("t{number}"), TensorType::F32, &[8]).unwrap();
        let mut file = Vec::new();
        writer.write(&mut file, |_, out| out.write_all(&[0; 32])).unwrap();
        std::fs::write(folder.path().join(format!("m-0000{}-of-00003.gguf", number + 1)), file).unwrap();
    }
    let outline = Outline::open(&folder.path().join("m-00002-of-00003.gguf")).unwrap();
    assert_eq!((outline.data(), outline.tensors().len()), (OutlineData::Header, 2));
    assert!(
        outline.refusal().unwrap().to_string().contains("shard 3 of 3 is missing"),
        "{:?}",
        outline.refusal()
    );
    assert!(!outline.names_all_tensors());
    let latent_formats::CheckpointSource::Gguf(source) = outline.source() else { panic!("a GGUF set") };
    assert_eq!((source.shards, source.metadata.str("general.architecture").unwrap()), (2, Some("deepseek2")));
}

/// Problems of a folder other than missing data are errors, whichever files are present.
#[test]
fn damaged_folders_have_no_outline() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let refused = || {
        let reason = Checkpoint::open(folder.path()).err().unwrap().to_string();
        assert_eq!(Outline::open(folder.path()).err().map(|error| error.to_string()), Some(reason.clone()));
        reason
    };
    write("config.json", b"{}");
    write("pytorch_model.bin", b"\x80\x02");
    assert!(refused().contains("pickle"));
    std::fs::remove_file(folder.path().join("pytorch_model.bin")).unwrap();
    write("a.safetensors", b"");
    write("b.safetensors", b"");
    assert!(refused().contains("no model.safetensors.index.json"));
    std::fs::remove_file(folder.path().join("b.safetensors")).unwrap();
    assert!(refused().contains("empty"));
    write("model.safetensors.index.json", b"{}");
    assert!(refused().contains("no `weight_map` object"));
    // If no file of the index exists, the outline has config.json only. Otherwise it has the
    // existing files.
    write("model.safetensors.index.json", br#"{"weight_map":{"x":"1.safetensors","y":"2.safetensors"}}"#);
    assert_eq!(Outline::open(folder.path()).unwrap().data(), OutlineData::Config);
    assert!(Outline::open(folder.path()).unwrap().refusal().is_none());
    let mut writer = safetensors::Writer::new();
    writer.tensor("x", TensorType::F32, &[2]).unwrap();
    let mut file = Vec::new();
    writer.write(&mut file, |_, out| out.write_all(&[0; 8])).unwrap();
    write("1.safetensors", &file);
    let outline = Outline::open(folder.path()).unwrap();
    let reason = Checkpoint::open(folder.path()).err().unwrap().to_string();
    assert!(reason.contains("2.safetensors, which is not in the folder"), "{reason}");
    assert_eq!((outline.tensors().len(), outline.refusal().unwrap().to_string()), (1, reason));
}
